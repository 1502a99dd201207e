//! Socket options.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Plain C structs and integers that options consist of, without padding that the kernel would object to.
pub(super) trait Plain: Copy {}
impl Plain for libc::c_int {}
impl Plain for libc::xdp_umem_reg {}
impl Plain for libc::xdp_mmap_offsets {}
impl Plain for libc::xdp_statistics {}
impl Plain for libc::xdp_options {}

pub(super) fn set<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer comes from a reference to a value of the stated length, which the kernel only reads.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option into `value`, which keeps its contents where the kernel knows fewer fields.
pub(super) fn get<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer refers to exclusive memory of the stated length, of which any bytes are valid (see `Plain`).
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
