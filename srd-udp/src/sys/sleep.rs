//! Sleeping until a descriptor is ready, and being woken from another thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;

/// A counter of the kernel that wakes a poll.
#[derive(Debug)]
pub(crate) struct EventFd(File);

impl EventFd {
    /// A counter at zero, non-blocking.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn new() -> io::Result<EventFd> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this open descriptor, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd(File::from(super::spare_standard(fd)?)))
    }

    /// Makes it readable.
    pub(crate) fn signal(&self) {
        // Fails only if the counter is at its maximum, and then it is readable already.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // Fails only if it is at zero, which is what is wanted.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Most descriptors that [`poll`] takes.
pub(crate) const MAX_POLLED: usize = 32;

/// Sleeps until one of `fds` is readable or `timeout` has passed (`None`: for ever), and says by a bit each which are. A
/// signal ends the sleep early.
///
/// # Errors
/// The kernel's answer: out of memory, or a limit of descriptors below their number.
///
/// # Panics
/// If there are more than [`MAX_POLLED`].
pub(crate) fn poll(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<u32> {
    let mut set: ArrayVec<libc::pollfd, MAX_POLLED> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos() as _,
    });
    let timeout_ptr = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `set` is exclusive memory of its stated length; the timeout is null or points to a timespec on this stack
    // frame; a null signal mask is permitted. The descriptors are borrowed, so they are open.
    let rc = unsafe { libc::ppoll(set.as_mut_ptr(), set.len() as _, timeout_ptr, std::ptr::null()) };
    if rc >= 0 {
        return Ok(set.iter().enumerate().map(|(i, p)| u32::from(p.revents != 0) << i).sum());
    }
    let err = io::Error::last_os_error();
    if err.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(err) }
}

/// Lets the calling thread's sleeps end on time: the kernel otherwise adds up to 50 us to save wake-ups.
pub(crate) fn fine_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes an integer and no pointers. It cannot fail for the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}
