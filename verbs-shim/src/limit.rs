//! The limit of the length of files (`ulimit -f`): the kernel ends a program that writes beyond it.

use std::io;

use nix::sys::resource::{Resource, getrlimit};

/// No file that we write for ourselves is longer.
pub(crate) const MAX_FILE: u64 = 16 << 10;

/// Whether files of our own may be written: no program shall be ended (`SIGXFSZ`) for our sake.
///
/// # Errors
/// Not even short files are permitted.
pub fn may_write() -> io::Result<()> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if limit < MAX_FILE => {
            Err(io::Error::other(format!("files may have no more than {limit} bytes here (ulimit -f)")))
        }
        _ => Ok(()),
    }
}
