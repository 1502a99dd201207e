//! Events that programs wait for on a file descriptor.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use verbs_shim::cancel::NoCancel;
use verbs_shim::lock::Mutex;

use crate::abi::Attempt;
use crate::errno::Errno;

/// A queue of events with a file descriptor that is readable exactly while the queue is not empty, and becomes so anew with
/// each event, for those who wait for edges (epoll(7)).
///
/// Who takes an event waits for as long as the flags of the descriptor say, which belong to the program: `O_NONBLOCK` or not.
/// It is a socket, because there one can wait without taking anything, and the system resumes that after a signal if the
/// program wants it to (`SA_RESTART`, signal(7)).
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    /// What is written here can be read there.
    far: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

const SILENT: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl<T> EventQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let (near, far) = UnixStream::pair().map_err(|error| error.raw_os_error().map_or(crate::errno::EIO, Errno))?;
        Ok(EventQueue { fd: near.into(), far: far.into(), events: Mutex::new(VecDeque::new()) })
    }

    /// The file descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: T) {
        let mut events = self.events.lock();
        events.push_back(event);
        let _whole = NoCancel::begin();
        // It fails when so many events wait that the socket is full, and then it is readable.
        // SAFETY: one byte, valid for the call.
        unsafe { libc::send(self.far.as_raw_fd(), [0u8].as_ptr().cast(), 1, SILENT) };
    }

    /// Takes the next event and gives it to `taken` before anyone else can look at the queue.
    pub(crate) fn take(&self, taken: impl Fn(T)) -> Attempt {
        let mut events = self.events.lock();
        let Some(event) = events.pop_front() else { return Attempt::WaitFor(self.fd()) };
        if events.is_empty() {
            self.lower();
        }
        taken(event);
        Attempt::Done
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

    /// Makes the descriptor unreadable. Called with the queue locked.
    fn lower(&self) {
        let mut bytes = [0u8; 512];
        // SAFETY: the buffer has that length and is valid for the call.
        let read = |to: &mut [u8]| unsafe { libc::recv(self.fd(), to.as_mut_ptr().cast(), to.len(), SILENT) };
        while read(&mut bytes) == bytes.len() as isize {}
    }
}

unsafe extern "C-unwind" {
    /// recv(2), in which the thread can be cancelled.
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
}

/// Waits until a descriptor is readable, unless it is non-blocking. Nothing here minds being unwound.
///
/// # Errors
/// `EAGAIN`: it is non-blocking. `EINTR`: a signal came, and the program does not want such calls to go on.
pub(crate) fn wait(fd: c_int) -> Result<(), Errno> {
    let mut byte = 0u8;
    // SAFETY: one byte, valid for the call.
    let got = unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if got < 0 { Err(Errno::last()) } else { Ok(()) }
}
