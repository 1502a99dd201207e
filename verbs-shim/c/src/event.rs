//! Events that programs wait for on a file descriptor.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use parking_lot::Mutex;

use crate::errno::{EAGAIN, Errno};

/// A queue of events with a file descriptor that is readable exactly while the queue is not empty.
///
/// Who takes an event waits for as long as the flags of the descriptor say, which belong to the program: `O_NONBLOCK` or not.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: it was just made, and belongs to nobody else.
        Ok(EventQueue { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events: Mutex::new(VecDeque::new()) })
    }

    /// The file descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: T) {
        let mut events = self.events.lock();
        events.push_back(event);
        if events.len() == 1 {
            self.raise();
        }
    }

    /// Takes the next event and gives it to `taken` before anyone else can look at the queue; waits for one unless the
    /// descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`: there is none and the descriptor is non-blocking. `EINTR`: a signal came.
    pub(crate) fn take<R>(&self, taken: impl Fn(T) -> R) -> Result<R, Errno> {
        loop {
            let mut events = self.events.lock();
            if let Some(event) = events.pop_front() {
                if events.is_empty() {
                    self.lower();
                }
                return Ok(taken(event));
            }
            drop(events);
            self.wait()?;
        }
    }

    /// Runs something that nobody who takes or adds events may see half done.
    pub(crate) fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
        let _events = self.events.lock();
        run()
    }

    /// Drops the events for which `gone` says so.
    pub(crate) fn purge(&self, gone: impl Fn(&T) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event| !gone(event));
        if before > 0 && events.is_empty() {
            self.lower();
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(Errno::last());
        }
        if flags & libc::O_NONBLOCK != 0 {
            return Err(EAGAIN);
        }
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, valid for the call.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// Makes the descriptor readable. Called with the queue locked; its counter is 0.
    fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight bytes, valid for the call.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable. Called with the queue locked; its counter is 1, so that this does not block.
    fn lower(&self) {
        let mut counter = 0u64;
        // SAFETY: eight bytes, valid for the call.
        unsafe { libc::read(self.fd(), (&raw mut counter).cast(), 8) };
    }
}
