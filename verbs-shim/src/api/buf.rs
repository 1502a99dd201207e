//! Registered memory: buffers that belong to the program or to a work request, and windows for peers.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use srd_core::card::{Access, CardError, MrKeys, Sge};

use super::device::PdInner;
use crate::memory::{Owner, Piece, Slab};

/// A registration and the memory it covers. Ends before the memory is freed.
#[derive(Debug)]
pub(super) struct Registration {
    pd: Arc<PdInner>,
    slab: Slab,
    keys: MrKeys,
}

impl Registration {
    pub(super) fn new(pd: &Arc<PdInner>, len: usize, access: Access) -> Result<Registration, CardError> {
        let slab = Slab::new(len).ok_or(CardError::NoMemory("the system has not as much memory"))?;
        let keys = pd.device.nic.reg_mr(pd.id, slab.region(), slab.addr(), access)?;
        Ok(Registration { pd: pd.clone(), slab, keys })
    }
}

impl Owner for Registration {
    fn slab(&self) -> &Slab {
        &self.slab
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // After this the card does not touch the memory any more. It cannot fail: the key is ours.
        let _ = self.pd.device.nic.dereg_mr(self.keys.lkey);
    }
}

/// Registered memory of the program, for its own work requests: bytes to send, and places to receive into.
///
/// It dereferences to its contents, of which there may be fewer than its capacity. Posting it gives it away until the
/// request completes. The memory is registered once for all buffers that were [split off](Buf::split_off) one another, and
/// freed with the last of them.
#[derive(Debug)]
pub struct Buf {
    piece: Piece<Registration>,
    /// Bytes before the contents: the routing header of a datagram.
    head: usize,
    len: usize,
}

impl Buf {
    pub(super) fn new(pd: &Arc<PdInner>, len: usize) -> Result<Buf, CardError> {
        let access = Access { local_write: true, ..Access::default() };
        Ok(Buf::of(Piece::whole(Registration::new(pd, len, access)?)))
    }

    fn of(piece: Piece<Registration>) -> Buf {
        let len = piece.len();
        Buf { piece, head: 0, len }
    }

    /// Bytes that it has room for.
    pub fn capacity(&self) -> usize {
        self.piece.len()
    }

    /// Makes its contents the first `len` bytes of it; whatever was written there before.
    ///
    /// # Panics
    /// If it has no room for them.
    pub fn set_len(&mut self, len: usize) {
        self.set_contents(0, len);
    }

    pub(super) fn set_contents(&mut self, head: usize, len: usize) {
        let capacity = self.capacity();
        assert!(head + len <= capacity, "a buffer of {capacity} bytes cannot hold {len}");
        (self.head, self.len) = (head, len);
    }

    /// Cuts off what follows the first `at` bytes, as a buffer of its own. Contents of both are all of them, then.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_off(&mut self, at: usize) -> Buf {
        let rest = self.piece.split_off(at);
        self.set_len(at);
        Buf::of(rest)
    }

    /// Whether it was registered in this domain.
    pub(super) fn is_of(&self, pd: &Arc<PdInner>) -> bool {
        Arc::ptr_eq(&self.piece.owner().pd, pd)
    }

    /// What the card is told of its contents.
    pub(super) fn sge(&self) -> Sge {
        self.sge_of(self.head, self.len)
    }

    /// The same of all of it.
    pub(super) fn whole(&self) -> Sge {
        self.sge_of(0, self.capacity())
    }

    fn sge_of(&self, head: usize, len: usize) -> Sge {
        // What is too long for a length is too long for any operation, and the card says so.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Sge { addr: self.piece.addr() + head as u64, len, lkey: self.piece.owner().keys.lkey }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.piece.bytes()[self.head..][..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.piece.bytes_mut()[self.head..][..self.len]
    }
}

/// Memory that peers may read or write by RDMA whenever they like. There are no references into it, since it may change at
/// any time: bytes are copied in and out.
#[derive(Debug)]
pub struct Window {
    registration: Registration,
}

/// Bytes copied while the card waits.
const CHUNK: usize = 64 * 1024;

impl Window {
    pub(super) fn new(pd: &Arc<PdInner>, len: usize, read: bool, write: bool) -> Result<Window, CardError> {
        let access = Access { local_write: write, remote_read: read, remote_write: write };
        Ok(Window { registration: Registration::new(pd, len, access)? })
    }

    /// What a peer needs to know to reach all of it.
    pub fn remote(&self) -> RemoteMemory {
        let Registration { slab, keys, .. } = &self.registration;
        RemoteMemory { addr: slab.addr(), len: slab.len() as u64, rkey: keys.rkey }
    }

    /// Copies bytes out. Those of different 64 KiB may be of different moments.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        for (n, chunk) in into.chunks_mut(CHUNK).enumerate() {
            self.nic().with_lock(|| self.registration.slab.peek(offset + n * CHUNK, chunk));
        }
    }

    /// Copies bytes in, likewise.
    ///
    /// # Panics
    /// If they do not all fit.
    pub fn write(&self, offset: usize, from: &[u8]) {
        for (n, chunk) in from.chunks(CHUNK).enumerate() {
            self.nic().with_lock(|| self.registration.slab.poke(offset + n * CHUNK, chunk));
        }
    }

    fn nic(&self) -> &crate::Nic {
        &self.registration.pd.device.nic
    }
}

/// A range of a peer's [`Window`]. How it comes from there is the program's business.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key of the region.
    pub rkey: u32,
}

impl RemoteMemory {
    /// A part of it.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn slice(&self, range: Range<u64>) -> RemoteMemory {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        RemoteMemory { addr: self.addr + range.start, len: range.end - range.start, rkey: self.rkey }
    }
}
