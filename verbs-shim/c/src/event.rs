//! Events that programs wait for on a file descriptor.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

use verbs_shim::cancel::NoCancel;
use verbs_shim::lock::Mutex;
use verbs_shim::spare_standard;

use crate::abi::Attempt;
use crate::errno::Errno;

/// A queue of events with a file descriptor that is readable exactly while the queue is not empty, and becomes so anew with
/// each event, for those who wait for edges (epoll(7)).
///
/// Each event can be read from the descriptor as 8 bytes, its word, as from the kernel's (`ib_uverbs_comp_event_desc`):
/// libfabric does so where it uses rings. What a program has read itself counts as taken.
///
/// Who takes an event waits for as long as the flags of the descriptor say, which belong to the program: `O_NONBLOCK` or not.
/// It is a socket, because there one can wait without taking anything, and the system resumes that after a signal if the
/// program wants it to (`SA_RESTART`, signal(7)).
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    /// What is written here can be read there.
    far: OwnedFd,
    events: Mutex<Events<T>>,
}

#[derive(Debug)]
struct Events<T> {
    /// With their words.
    queue: VecDeque<(T, u64)>,
    /// The first ones, whose words can be read from the descriptor, unless the program has done so. There is room for some
    /// hundreds.
    told: usize,
}

const WORD: usize = size_of::<u64>();
const SILENT: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl<T> EventQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let pair = || {
            let (near, far) = UnixStream::pair()?;
            Ok((spare_standard(near)?, spare_standard(far)?))
        };
        let (near, far) = pair().map_err(|error: io::Error| error.raw_os_error().map_or(crate::errno::EIO, Errno))?;
        let events = Mutex::new(Events { queue: VecDeque::new(), told: 0 });
        Ok(EventQueue { fd: near.into(), far: far.into(), events })
    }

    /// The file descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds an event, and the word that can be read of it.
    pub(crate) fn push(&self, event: T, word: u64) {
        let mut events = self.events.lock();
        self.settle(&mut events);
        events.queue.push_back((event, word));
        self.tell(&mut events);
    }

    /// Takes the next event and gives it to `taken` before anyone else can look at the queue.
    pub(crate) fn take(&self, taken: impl Fn(T)) -> Attempt {
        let mut events = self.events.lock();
        self.settle(&mut events);
        let Some((event, _)) = events.queue.pop_front() else { return Attempt::WaitFor(self.fd()) };
        if events.told > 0 {
            self.swallow(1);
            events.told -= 1;
        }
        self.tell(&mut events);
        taken(event);
        Attempt::Done
    }

    /// Whether there is an event for which `is_it` says so.
    pub(crate) fn has(&self, is_it: impl Fn(&T) -> bool) -> bool {
        let mut events = self.events.lock();
        self.settle(&mut events);
        events.queue.iter().any(|(event, _)| is_it(event))
    }

    /// Runs something that nobody who takes or adds events may see half done.
    pub(crate) fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
        let _events = self.events.lock();
        run()
    }

    /// Drops the events for which `gone` says so, and says how many.
    pub(crate) fn purge(&self, gone: impl Fn(&T) -> bool) -> u32 {
        let mut events = self.events.lock();
        self.settle(&mut events);
        let before = events.queue.len();
        events.queue.retain(|(event, _)| !gone(event));
        let dropped = before - events.queue.len();
        if dropped > 0 {
            self.swallow(std::mem::take(&mut events.told));
            self.tell(&mut events);
        }
        dropped as u32
    }

    /// Forgets what the program has read itself.
    fn settle(&self, events: &mut Events<T>) {
        let mut bytes: c_int = 0;
        // SAFETY: the number is valid for the call, which writes it.
        if events.told > 0 && unsafe { libc::ioctl(self.fd(), libc::FIONREAD, &raw mut bytes) } == 0 {
            let left = (bytes as usize / WORD).min(events.told);
            events.queue.drain(..events.told - left);
            events.told = left;
        }
    }

    /// Lets the words of all events be read, as far as there is room.
    fn tell(&self, events: &mut Events<T>) {
        let _whole = NoCancel::begin();
        while let Some((_, word)) = events.queue.get(events.told) {
            // SAFETY: a word, valid for the call.
            let sent = unsafe { libc::send(self.far.as_raw_fd(), (&raw const *word).cast(), WORD, SILENT) };
            if sent != WORD as isize {
                break;
            }
            events.told += 1;
        }
    }

    /// Reads so many words.
    fn swallow(&self, words: usize) {
        let mut word = [0u8; WORD];
        for _ in 0..words {
            // Not `recv`: that must be known to unwind, see below, and may be declared in one way only.
            // SAFETY: the buffer has that length and is valid for the call; nobody asks for an address.
            unsafe { libc::recvfrom(self.fd(), word.as_mut_ptr().cast(), WORD, SILENT, null_mut(), null_mut()) };
        }
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
