//! Output: one place that writes to the terminal.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::exit::{Exit, Fault, Result};

/// One JSON object on standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    text(&serde_json::to_string_pretty(value).map_err(|e| Fault::new(Exit::Failed, e))?)
}

/// One JSON object in one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Fault::new(Exit::Failed, e))
}

/// Text and a line end on standard output. Whoever closed our output has read enough: that is no error.
pub(crate) fn text(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// The same of what may be no text.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    write(bytes).map(drop)
}

/// As [`text`], for output without an end: whether there is still somebody who reads it.
pub(crate) fn is_read(text: &str) -> Result<bool> {
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => {
            Err(Fault::new(Exit::Setup, anyhow::Error::new(e).context("cannot write the report to standard output")))
        }
    }
}

/// A line on standard error.
pub(crate) fn note(text: &str) {
    // At once, for other processes may write there, too; and where nobody reads it there is nobody left to tell.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// One sentence about what went wrong on standard error.
pub(crate) fn complain(text: &str) {
    note(&format!("srd: {text}"));
}
