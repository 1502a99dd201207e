//! Completion queues: where work requests end, and how a program learns of it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use slab::Slab;
use srd_core::card::{self, CardError, CqId, GRH_LEN, Gid, Opcode, QpType, Status};

use super::buf::Buf;
use super::device::{AddressHandle, DeviceInner};
use crate::lock::{self, Mutex};

/// Names a work request that was posted, among those of its completion queue that have not completed: names are used again.
/// There is no order between them: requests complete in any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkId(pub(super) u64);

/// Where a message came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// The sender's card.
    pub gid: Gid,
    /// Its queue pair.
    pub qpn: u16,
    /// The number of our address handle for that card; `None` if we have none.
    pub ah: Option<u16>,
}

/// How a work request ended, and its buffer.
#[derive(Debug)]
pub struct Completion {
    /// The request; `None` for a write of a peer that took none.
    pub id: Option<WorkId>,
    /// What it was.
    pub kind: Opcode,
    /// How it ended. [`ok`](Self::ok) makes an error of it.
    pub status: Status,
    /// Its buffer; after a receive or read its contents are what came. `None` if it was inline, or took none.
    pub buf: Option<Buf>,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// Bytes that a peer wrote into a window, for [`Opcode::RecvRdmaWithImm`].
    pub written: u32,
    /// Our queue pair.
    pub qpn: u16,
    /// Who sent it, for what was received.
    pub source: Option<Source>,
}

/// A work request that failed. The queue pair, and all other requests, are as they were.
#[derive(Debug, thiserror::Error)]
#[error("{:?} failed: {}: {}", .0.kind, .0.status, .0.status.info().meaning)]
pub struct WorkError(pub Box<Completion>);

impl Completion {
    /// The completion, if it is a success.
    ///
    /// # Errors
    /// It is not; buffer and all are in the error.
    pub fn ok(self) -> Result<Completion, WorkError> {
        if self.status == Status::Ok { Ok(self) } else { Err(WorkError(Box::new(self))) }
    }
}

/// A request under way. What it uses lives as long as it does.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) qpn: u16,
    pub(super) ty: QpType,
    pub(super) buf: Option<Buf>,
    pub(super) _ah: Option<AddressHandle>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) pending: Slab<Pending>,
    /// Fetched from the card, not yet asked for.
    fetched: VecDeque<card::Completion>,
    /// Entries that requests of the queue pairs may need.
    pub(super) reserved: u32,
}

/// Tells of completions; called with the lock of the card.
#[derive(Debug)]
pub(super) struct Notify {
    event: EventFd,
    tasks: Mutex<Tasks>,
    overrun: AtomicBool,
}

/// Tasks that wait, by the number of the future in which they do.
#[derive(Debug, Default)]
struct Tasks {
    last: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Notify {
    pub(super) fn tell(&self) {
        self.raise();
        let wakers = std::mem::take(&mut self.tasks.lock().wakers);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Makes the descriptor readable.
    fn raise(&self) {
        // It can only fail when it is full, and then it is readable.
        let _ = self.event.write(1);
    }

    /// From now on the task is woken for the future of this number, or for a new one. Returns the number.
    fn register(&self, future: Option<u64>, waker: &Waker) -> u64 {
        let mut tasks = self.tasks.lock();
        let future = future.unwrap_or_else(|| {
            tasks.last += 1;
            tasks.last
        });
        let waker = (future, waker.clone());
        let before = match tasks.wakers.iter_mut().find(|(number, _)| *number == future) {
            Some(before) => Some(std::mem::replace(before, waker)),
            None => {
                tasks.wakers.push(waker);
                None
            }
        };
        // A task may go with its last waker, and futures of it with the task.
        drop(tasks);
        drop(before);
        future
    }

    /// The future is gone.
    fn forget(&self, future: u64) {
        let mut tasks = self.tasks.lock();
        let at = tasks.wakers.iter().position(|(number, _)| *number == future);
        let gone = at.map(|at| tasks.wakers.swap_remove(at));
        drop(tasks);
        drop(gone);
    }

    pub(super) fn overrun(&self) {
        self.overrun.store(true, Ordering::Relaxed);
        self.tell();
    }
}

/// A completion queue. Clones are the same queue. All methods may be called from any thread.
///
/// It can be polled, which drives the card (a program that polls in a loop needs nothing else); waited for, by
/// [`wait`](Self::wait) or by [`arm`](Self::arm) and its file descriptor; or awaited, by [`next`](Self::next), on any
/// executor.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(super) inner: Arc<CqInner>,
}

#[derive(Debug)]
pub(super) struct CqInner {
    device: Arc<DeviceInner>,
    pub(super) id: CqId,
    pub(super) depth: u32,
    inner: Mutex<Inner>,
    notify: Arc<Notify>,
}

impl CqInner {
    pub(super) fn lock(&self) -> lock::MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Whether it was made by this device.
    pub(super) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// A queue pair is gone, and with it all of its requests.
    pub(super) fn forget(&self, qpn: u16, entries: u32) {
        let mut inner = self.lock();
        inner.reserved -= entries;
        inner.fetched.retain(|e| e.qpn != qpn);
        let gone: Vec<usize> = inner.pending.iter().filter(|(_, p)| p.qpn == qpn).map(|(key, _)| key).collect();
        let gone: Vec<Pending> = gone.into_iter().map(|key| inner.pending.remove(key)).collect();
        // Buffers and address handles end with commands to the card, outside of the lock.
        drop(inner);
        drop(gone);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.device.notifies.remove(self.id);
        // No queue pair uses it, since those that do hold it.
        let _ = self.device.nic.destroy_cq(self.id);
    }
}

/// Completions fetched from the card at a time.
const FETCH: usize = 16;
/// Polls in vain before a wait sleeps.
const SPIN: u32 = 50;

impl CompletionQueue {
    pub(super) fn new(device: &Arc<DeviceInner>, depth: u32) -> Result<CompletionQueue, CardError> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|_| CardError::NoMemory("the system has no more file descriptors"))?;
        let id = device.nic.create_cq(depth)?;
        let notify = Arc::new(Notify { event, tasks: Mutex::default(), overrun: AtomicBool::new(false) });
        device.notifies.add(id, notify.clone());
        let depth = device.nic.cq_depth(id) as u32;
        let inner = CqInner { device: device.clone(), id, depth, inner: Mutex::default(), notify };
        Ok(CompletionQueue { inner: Arc::new(inner) })
    }

    /// The next completion, if there is one. If not, drives the card for a turn first.
    pub fn poll(&self) -> Option<Completion> {
        let mut inner = self.inner.lock();
        loop {
            if inner.fetched.is_empty() {
                let mut entries = [card::Completion::default(); FETCH];
                let n = self.inner.device.nic.poll_cq(self.inner.id, &mut entries);
                inner.fetched.extend(&entries[..n]);
            }
            let entry = inner.fetched.pop_front()?;
            let id = (!entry.unsolicited).then_some(WorkId(entry.wr_id));
            let pending = match id {
                Some(id) => match inner.pending.try_remove(id.0 as usize) {
                    Some(pending) => Some(pending),
                    None => continue,
                },
                None => None,
            };
            drop(inner);
            return Some(finish(entry, id, pending));
        }
    }

    /// Waits for a completion, at most for `timeout`.
    ///
    /// # Errors
    /// The system does not let us wait.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Completion>> {
        // What time cannot tell is for ever.
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            for _ in 0..SPIN {
                if let Some(done) = self.poll() {
                    return Ok(Some(done));
                }
            }
            if self.arm() {
                continue;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut fds, left.map(TimeSpec::from_duration), None) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the file descriptor readable as soon as the next completion is there. Returns whether there are some already:
    /// poll first, then. Meanwhile the card is driven by a thread of its own.
    #[must_use = "if it is true, poll instead of waiting"]
    pub fn arm(&self) -> bool {
        // Empty already, or emptied now.
        let _ = self.inner.notify.event.read();
        // The queue exists as long as we do.
        let _ = self.inner.device.nic.arm_cq(self.inner.id);
        let mut inner = self.inner.lock();
        if inner.fetched.is_empty() {
            let mut entries = [card::Completion::default(); FETCH];
            let n = self.inner.device.nic.peek_cq(self.inner.id, &mut entries);
            inner.fetched.extend(&entries[..n]);
        }
        let is_there = !inner.fetched.is_empty();
        if is_there {
            // Others may be waiting, and have not seen yet what was emptied above.
            self.inner.notify.raise();
        }
        is_there
    }

    /// The next completion, for any executor. Dropping the future loses nothing. Wakers are called with the card locked: they
    /// must not use it themselves, only have the task polled later, as executors do.
    pub fn next(&self) -> Next<'_> {
        Next { cq: self, number: None }
    }

    /// Whether completions were lost since the queue was full. Only writes of peers that take no receive can do that: for
    /// all else queue pairs reserve entries.
    pub fn overrun(&self) -> bool {
        self.inner.notify.overrun.load(Ordering::Relaxed)
    }
}

fn finish(entry: card::Completion, id: Option<WorkId>, pending: Option<Pending>) -> Completion {
    let ud = pending.as_ref().is_some_and(|p| p.ty == QpType::Ud);
    let mut buf = pending.and_then(|p| p.buf);
    let recv = entry.opcode.is_recv();
    if let (Opcode::Recv, Status::Ok, Some(buf)) = (entry.opcode, entry.status, &mut buf) {
        let head = if ud { GRH_LEN } else { 0 };
        buf.set_contents(head as usize, (entry.byte_len - head) as usize);
    }
    let source = (recv && entry.status == Status::Ok).then(|| Source {
        gid: entry.sgid,
        qpn: entry.src_qpn,
        ah: (entry.ah != card::UNKNOWN_AH).then_some(entry.ah),
    });
    Completion {
        id,
        kind: entry.opcode,
        status: entry.status,
        buf,
        imm: entry.imm,
        written: if entry.opcode == Opcode::RecvRdmaWithImm { entry.byte_len } else { 0 },
        qpn: entry.qpn,
        source,
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.notify.event.as_fd()
    }
}

/// See [`CompletionQueue::next`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Next<'a> {
    cq: &'a CompletionQueue,
    /// Its number among those that wait, once it does.
    number: Option<u64>,
}

impl Future for Next<'_> {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        loop {
            if let Some(done) = self.cq.poll() {
                return Poll::Ready(done);
            }
            self.number = Some(self.cq.inner.notify.register(self.number, context.waker()));
            if !self.cq.arm() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.cq.inner.notify.forget(number);
        }
    }
}
