//! Waking a sleeping driver from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::sys;

/// The loop runs, and nobody has called.
const AWAKE: u8 = 0;
/// Somebody called since the loop last went to sleep.
const CALLED: u8 = 1;
/// The loop sleeps or is about to.
const ASLEEP: u8 = 2;

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    event: sys::EventFd,
}

/// Wakes the loop of a [`UdpDriver`](crate::UdpDriver) from any thread. Cheap to clone, and cheap to use while the loop is
/// awake: a system call is made only when it sleeps.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// Makes the present or the next [`Driver::wait`](srd_core::Driver::wait) return. Whatever the caller wrote before is
    /// visible to the loop afterwards.
    pub fn wake(&self) {
        if self.0.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            self.0.event.signal();
        }
    }

    /// A waker that nobody waits for yet.
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(Shared { state: AtomicU8::new(AWAKE), event: sys::EventFd::new()? })))
    }

    /// Sleeps until somebody calls, `socket` or one of `also` is readable or `timeout` has passed. Returns at once if somebody called
    /// since the last sleep.
    ///
    /// # Panics
    /// If there are more than 30 of the others.
    pub(crate) fn sleep(
        &self,
        socket: BorrowedFd<'_>,
        also: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let shared = &*self.0;
        if shared.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            shared.state.swap(AWAKE, Ordering::AcqRel);
            return Ok(());
        }
        let mut fds: ArrayVec<BorrowedFd<'_>, { sys::MAX_POLLED }> =
            [shared.event.as_fd(), socket].into_iter().collect();
        fds.extend(also.iter().copied());
        let ready = sys::poll(&fds, timeout);
        shared.state.swap(AWAKE, Ordering::AcqRel);
        // A caller who saw ASLEEP may signal only now; then the next sleep ends at once, which is harmless.
        if ready? & 1 != 0 {
            shared.event.clear();
        }
        Ok(())
    }
}
