//! Descriptors 0 to 2: standard input, output and error.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// Gives what was just opened another number if its number is that of standard input, output or error. A program that has closed
/// those may read and write them all the same: nothing of ours shall be there, least of all a socket to a peer.
///
/// # Errors
/// No other descriptor is free.
pub fn spare_standard<F: AsRawFd + IntoRawFd + FromRawFd>(opened: F) -> io::Result<F> {
    if opened.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(opened);
    }
    // SAFETY: whoever has it gives it away.
    let low = unsafe { OwnedFd::from_raw_fd(opened.into_raw_fd()) };
    // The standard library spares them when it duplicates.
    let spared = low.try_clone()?;
    // SAFETY: it is of the same thing, and nobody else has it.
    Ok(unsafe { F::from_raw_fd(spared.into_raw_fd()) })
}
