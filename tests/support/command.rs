//! The built command as a child process.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Whatever takes longer than this hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn command(args: &[&str]) -> Command {
    let Some(srd) = option_env!("CARGO_BIN_EXE_srd") else {
        unreachable!("examples share this module, and start no command");
    };
    let mut command = Command::new(srd);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value @ Value::Object(_)) => value,
            other => panic!("no JSON object but {other:?} in {self:?}"),
        }
    }

    /// It failed with this code and a message that contains all of `words`.
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no '{word}' in {self:?}");
        }
    }
}

/// Waits for the end of a process, and kills it if that does not come.
pub(crate) fn finish(child: Child) -> Output {
    let pid = child.id();
    let (done, outcome) = mpsc::channel();
    let waiting = std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = outcome.recv_timeout(LIMIT) else {
        signal(pid, Signal::SIGKILL);
        panic!("still running after {LIMIT:?}");
    };
    drop(waiting);
    let output = output.expect("wait for the command");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn run(args: &[&str]) -> Output {
    finish(command(args).spawn().expect("start the command"))
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).expect("send a signal");
}

/// A failed command: its exit code, nothing or one object on standard output, one sentence on standard error.
pub(crate) fn fails(args: &[&str], code: i32, says: &[&str]) {
    let output = run(args);
    output.fails(code, says);
    let sentence = output.stderr.trim_end();
    assert!(!sentence.contains('\n') && sentence.starts_with("srd: "), "{args:?}: not one sentence: {sentence}");
    if args.contains(&"--json") {
        let report = output.json();
        assert_eq!(report["ok"], Value::Bool(false));
        assert_eq!(report["exit_code"], Value::from(code));
        assert_eq!(format!("srd: {}", report["error"].as_str().unwrap_or_default()), sentence);
    } else {
        assert_eq!(output.stdout, "", "{args:?}");
    }
}

pub(crate) fn names(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value.get(name).is_some_and(|v| !v.is_null()), "'{name}' is missing in {value:#}");
    }
}

/// Every name in a report, at any depth, stands in the documentation.
pub(crate) fn is_documented(value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let documented = include_str!("../../docs/command.md").contains(&format!("`{name}`"));
                assert!(documented, "docs/command.md does not mention {name}");
                is_documented(value);
            }
        }
        Value::Array(items) => items.iter().for_each(is_documented),
        _ => {}
    }
}
