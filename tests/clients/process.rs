//! Programs with a time limit: what they say goes to a file, and nothing that they started outlives them.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// A running program, the head of a process group of its own. Dropped, it is killed with its group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    said: PathBuf,
    ended: Receiver<()>,
}

/// How a program ended, and what it said on both outputs.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// It did not end by itself.
    pub(crate) timed_out: bool,
    pub(crate) said: String,
}

impl Process {
    /// Starts a program; `said` is where its output goes.
    pub(crate) fn start(mut command: Command, said: &Path) -> io::Result<Process> {
        let out = File::create(said)?;
        command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out).process_group(0);
        let child = command.spawn()?;
        let (tell, ended) = mpsc::channel();
        let pid = Pid::from_raw(child.id() as i32);
        // Not reaped, so that the process id stays ours until the group has been killed.
        std::thread::spawn(move || {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
                .is_err_and(|e| e == nix::Error::EINTR)
            {}
            let _ = tell.send(());
        });
        Ok(Process { child, said: said.to_owned(), ended })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it has ended, after waiting for `limit` at most.
    pub(crate) fn has_ended(&self, limit: Duration) -> bool {
        !matches!(self.ended.recv_timeout(limit), Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Waits for its end, until `limit`, then kills what is left.
    pub(crate) fn end(mut self, limit: Instant) -> Ended {
        let timed_out = !self.has_ended(limit.saturating_duration_since(Instant::now()));
        let status = self.kill();
        let said = fs::read(&self.said).unwrap_or_default();
        Ended { status, timed_out, said: String::from_utf8_lossy(&said).into_owned() }
    }

    fn kill(&mut self) -> ExitStatus {
        let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        self.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(0))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ended {
    /// What went wrong, if something did.
    pub(crate) fn check(&self, who: &str) -> Result<(), String> {
        match (self.timed_out, self.status.success()) {
            (true, _) => Err(format!("the {who} did not end in time")),
            (false, false) => Err(format!("the {who} failed ({})", self.status)),
            (false, true) => Ok(()),
        }
    }

    /// Its last lines.
    pub(crate) fn tail(&self) -> String {
        let lines: Vec<&str> = self.said.lines().collect();
        let skip = lines.len().saturating_sub(25);
        lines[skip..].iter().map(|line| format!("    | {line}\n")).collect()
    }
}
