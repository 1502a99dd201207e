//! The log of the library.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;

use super::value::{self, Parsed};
use crate::quiet;

/// What is logged, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// Up to which level.
    pub level: LevelFilter,
    /// The file that lines are added to, where `%p` stands for the process id; `None` for standard error.
    pub file: Option<String>,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: LevelFilter::WARN, file: None }
    }
}

pub(super) fn level(text: &str) -> Parsed<LevelFilter> {
    let words = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ];
    value::word(text, &words)
}

/// The name of a file that lines can be added to. Nothing is made.
pub(super) fn file(text: &str) -> Parsed<String> {
    let name = expand(text);
    let path = Path::new(&name);
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match access(path, AccessFlags::W_OK) {
        Ok(()) if path.is_dir() => return Err("cannot be written: it is a directory".to_owned()),
        Err(Errno::ENOENT) => access(parent, AccessFlags::W_OK | AccessFlags::X_OK),
        other => other,
    }
    .map_err(|errno| format!("cannot be written: {}", io::Error::from(errno)))?;
    Ok(text.to_owned())
}

/// A pattern of this process.
fn expand(pattern: &str) -> String {
    pattern.replace("%p", &std::process::id().to_string())
}

impl Log {
    /// Begins to log, and returns whether it did: not in a process where somebody else, or an earlier call, has begun already.
    ///
    /// # Errors
    /// The file cannot be written: a sentence.
    pub fn start(&self) -> Result<bool, String> {
        let builder = tracing_subscriber::fmt().with_max_level(self.level).with_target(false).with_ansi(false);
        // It would complain to standard error, which may be what is broken.
        let builder = builder.log_internal_errors(false);
        let begun = match &self.file {
            None => set_global_default(builder.with_writer(|| Lines(io::stderr())).finish()),
            Some(pattern) => {
                let name = expand(pattern);
                let file = open(&name).map_err(|e| format!("cannot write the log file '{name}': {e}"))?;
                let file = Arc::new(file);
                set_global_default(builder.with_writer(move || Lines(file.clone())).finish())
            }
        };
        Ok(begun.is_ok())
    }
}

fn open(name: &str) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(name)
}

/// Where lines go, in one call each, so that no lock is needed: a lock that is held while the program forks would never be released
/// in the child.
struct Lines<F>(F);

impl<F: AsFd> io::Write for Lines<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        quiet::write(self.0.as_fd(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
