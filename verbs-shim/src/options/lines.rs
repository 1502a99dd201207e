//! The lines of the log: how they look, and where they go.
//!
//! A library may have to tell something at any time: in an exit handler, or in the destructor of a thread's data, when the
//! thread-local data of others is gone; in a child of a process with threads, where a lock may be held for ever. So nothing is kept
//! for a thread here, and nothing locked: each line is made anew, and written by one call.

use std::fmt::{self, Debug, Write as _};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use srd_udp::spare_standard;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber, span};

use crate::cancel::NoCancel;
use crate::quiet;

/// Writes each event as a line: when, how grave, what.
#[derive(Debug)]
pub(super) struct Lines {
    level: LevelFilter,
    /// Standard error if there is none.
    file: Option<LogFile>,
}

impl Lines {
    pub(super) fn new(level: LevelFilter, file: Option<LogFile>) -> Lines {
        Lines { level, file }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let _whole = NoCancel::begin();
        let now = humantime::format_rfc3339_micros(SystemTime::now().max(UNIX_EPOCH));
        let mut line = Line(format!("{now} {:>5}", event.metadata().level().as_str()));
        event.record(&mut line);
        line.0.push('\n');
        // A line that cannot be written is lost.
        let _ = match &self.file {
            None => quiet::write(io::stderr().as_fd(), line.0.as_bytes()),
            Some(file) => file.write(line.0.as_bytes()),
        };
    }

    // There are no spans.

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A line that is being made. What would end it, or move the cursor of a terminal, is escaped: values may come from others.
struct Line(String);

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if c.is_control() { self.0.extend(c.escape_default()) } else { self.0.push(c) }
        }
        Ok(())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // It cannot fail: a string takes everything.
        let _ = match field.name() {
            "message" => write!(self, " {value:?}"),
            name => write!(self, " {name}={value:?}"),
        };
    }
}

/// A pattern of this process.
pub(super) fn expand(pattern: &str) -> String {
    pattern.replace("%p", &std::process::id().to_string())
}

/// A file that lines are added to.
#[derive(Debug)]
pub(super) struct LogFile {
    /// Its name, or what becomes that; absolute, since a daemon goes to another directory.
    pattern: String,
    file: File,
    /// Device and number of the file.
    identity: (u64, u64),
    /// The process that opened it.
    owner: u32,
}

impl LogFile {
    /// Opens it, and makes it if need be.
    ///
    /// # Errors
    /// It cannot be written: a sentence.
    pub(super) fn open(pattern: &str) -> Result<LogFile, String> {
        let open = || {
            let whole = std::path::absolute(pattern)?.into_os_string().into_string();
            let pattern = whole.unwrap_or_else(|_| pattern.to_owned());
            let file = spare_standard(append(&pattern)?)?;
            Ok(LogFile { identity: identity(&file)?, file, pattern, owner: std::process::id() })
        };
        open().map_err(|e: io::Error| format!("cannot write the log file '{}': {e}", expand(pattern)))
    }

    fn write(&self, line: &[u8]) -> io::Result<usize> {
        // A program that closes all that it finds open has closed this, and may have a file of its own under the same number; and
        // a child has a file of its own, if processes have.
        if self.owner == std::process::id() && identity(&self.file).is_ok_and(|found| found == self.identity) {
            quiet::write(self.file.as_fd(), line)
        } else {
            quiet::write(append(&self.pattern)?.as_fd(), line)
        }
    }
}

fn append(pattern: &str) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(expand(pattern))
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one() {
        let mut line = Line(String::new());
        write!(line, "a\nb\x1b[2Jc\u{9b}d \u{e4}").unwrap();
        assert_eq!(line.0, "a\\nb\\u{1b}[2Jc\\u{9b}d \u{e4}");
    }
}
