//! Writing on behalf of a program that knows nothing of it, to what may be broken: a pipe that nobody reads any more, a file that
//! may not grow. The kernel would end the program by a signal.

use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::cancel::NoCancel;

/// write(2) without signals.
///
/// # Errors
/// Those of write(2).
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let _whole = NoCancel::begin();
    let before = signals().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let was_pending = is_pending();
    let outcome = nix::unistd::write(fd, bytes);
    if matches!(outcome, Err(Errno::EPIPE | Errno::EFBIG)) && !was_pending {
        take_back();
    }
    before.thread_set_mask()?;
    Ok(outcome?)
}

/// What the kernel sends to the thread that writes.
fn signals() -> SigSet {
    [Signal::SIGPIPE, Signal::SIGXFSZ].into_iter().collect()
}

/// Whether such a signal waits already, which is the program's.
fn is_pending() -> bool {
    let mut set = SigSet::empty().as_ref().to_owned();
    // SAFETY: the pointer is valid for the call, which fills all of the set.
    unsafe { libc::sigpending(&raw mut set) };
    // SAFETY: the system filled it.
    let set = unsafe { SigSet::from_sigset_t_unchecked(set) };
    signals().iter().any(|signal| set.contains(signal))
}

/// Takes the signal of the last write, which is blocked, before anybody sees it.
fn take_back() {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: set and time are valid for the call; nothing is asked of the signal.
    unsafe { libc::sigtimedwait(signals().as_ref(), std::ptr::null_mut(), &raw const at_once) };
}
