//! Runs a tool of the system for its output, for a short time.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No tool gets longer.
const PATIENCE: Duration = Duration::from_millis(400);
/// No output is longer.
const MAX_OUTPUT: u64 = 1 << 20;

/// The standard output of a command that succeeds in time.
pub(super) fn output(command: &mut Command) -> Option<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.ok()?;
    let mut pipe = child.stdout.take()?.take(MAX_OUTPUT);
    // Read beside, because a full pipe would keep the tool from ending.
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let began = Instant::now();
    let status = loop {
        match child.try_wait().ok()? {
            Some(status) => break status,
            None if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
            None => {
                // It may end by itself at this moment.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    let bytes = reader.join().ok()?.ok()?;
    status.success().then(|| String::from_utf8_lossy(&bytes).into_owned())
}
