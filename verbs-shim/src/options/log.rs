//! The log of the library.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use tracing::dispatcher::has_been_set;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;

use super::lines::{Lines, LogFile, expand};
use super::value::{self, Parsed};

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

impl Log {
    /// Begins to log, and returns whether it did: not in a process where somebody else, or an earlier call, has begun already.
    ///
    /// # Errors
    /// The file cannot be written: a sentence.
    pub fn start(&self) -> Result<bool, String> {
        // A child may not be able to open the file that it logs to.
        if has_been_set() {
            return Ok(false);
        }
        let file = self.file.as_deref().map(LogFile::open).transpose()?;
        Ok(set_global_default(Lines::new(self.level, file)).is_ok())
    }
}
