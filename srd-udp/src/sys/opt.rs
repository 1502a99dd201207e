//! Socket options that std and socket2 do not know.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option whose value is an `int`.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value pointer refers to an int on this stack frame, `len` is its size, and the kernel only reads it.
    // The descriptor is borrowed, so it is open.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option whose value is an `int`.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn get_int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0i32];
    get(fd, level, name, &mut value)?;
    Ok(value[0])
}

/// Datagrams that the kernel dropped because they did not fit into the socket's receive buffer, since the socket was
/// made; wraps at 2^32.
///
/// Read on demand, unlike `SO_RXQ_OVFL`, which would cost a control message per datagram and says nothing of drops until
/// the next datagram gets through.
///
/// # Errors
/// The kernel's answer (before Linux 4.12 there is no such option).
pub(crate) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// `SK_MEMINFO_DROPS` of `linux/sock_diag.h`, and the number of fields up to it.
    const DROPS: usize = 8;
    let mut info = [0; DROPS + 1];
    get(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info)?;
    Ok(info[DROPS] as u32)
}

fn get(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut [i32]) -> io::Result<()> {
    let mut len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the value pointer is an exclusive reference to `len` bytes of which any are valid ints; the kernel writes
    // at most that many and the number to `len`. The descriptor is borrowed, so it is open.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
