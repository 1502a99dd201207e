//! Queue pairs: making them, and posting work.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use srd_core::card::{
    CardError, GRH_LEN, QpCap, QpInit, QpModify, QpType, RNR_INFINITE, SendData, SendOp, SendOps, SendWr, profile::caps,
};

use super::buf::{Buf, RemoteMemory};
use super::cq::{CompletionQueue, CqInner, Pending, WorkId};
use super::device::{Pd, PdInner, QpAddress, Target};

/// The reliable transport: each message at most once, in any order; RDMA.
#[derive(Clone, Copy, Debug)]
pub struct Srd;

/// Unreliable datagrams: what is lost is lost, and success means that it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// A type of queue pairs: [`Srd`] or [`Ud`].
pub trait Transport: sealed::Sealed {
    /// The type.
    const TYPE: QpType;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Srd {}
    impl Sealed for super::Ud {}
}

impl Transport for Srd {
    const TYPE: QpType = QpType::Srd;
}

impl Transport for Ud {
    const TYPE: QpType = QpType::Ud;
}

/// What a new queue pair will be.
#[derive(Debug)]
#[must_use = "call build"]
pub struct QpBuilder<T> {
    pd: Pd,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    send_depth: u32,
    recv_depth: u32,
    rnr_retry: u8,
    qkey: Option<u32>,
    unsolicited: bool,
    transport: PhantomData<T>,
}

impl<T: Transport> QpBuilder<T> {
    pub(super) fn new(pd: &Pd, cq: &CompletionQueue) -> QpBuilder<T> {
        QpBuilder {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            send_depth: 16,
            recv_depth: 16,
            rnr_retry: RNR_INFINITE,
            qkey: None,
            unsolicited: false,
            transport: PhantomData,
        }
    }

    /// Receives complete into another queue than sends.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Sends and receives that can be under way, or complete but not polled; rounded up to powers of two. Default: 16 each.
    pub fn depth(mut self, send: u32, recv: u32) -> Self {
        (self.send_depth, self.recv_depth) = (send, recv);
        self
    }

    /// The key that messages to it must carry. Default: one at random.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = Some(qkey);
        self
    }

    /// Makes the queue pair, ready to send and receive.
    ///
    /// # Errors
    /// A depth is more than the device permits, a completion queue is another device's or has no entries left for it, or the
    /// device has no more queue pairs.
    pub fn build(self) -> Result<QueuePair<T>, CardError> {
        let device = &self.pd.inner.device;
        // Completion queues are known to the card by number, and another card has the same numbers.
        if [&self.send_cq, &self.recv_cq].into_iter().any(|cq| !cq.inner.is_of(device)) {
            return Err(CardError::Invalid("the completion queue is of another device than the protection domain"));
        }
        let nic = &device.nic;
        let (srd, profile) = (T::TYPE == QpType::Srd, nic.profile());
        let ops = SendOps { read: srd && profile.has(caps::RDMA_READ), write: srd && profile.has(caps::RDMA_WRITE) };
        let init = QpInit {
            ty: T::TYPE,
            pd: self.pd.inner.id,
            send_cq: self.send_cq.inner.id,
            recv_cq: self.recv_cq.inner.id,
            cap: QpCap {
                send_wr: self.send_depth,
                recv_wr: self.recv_depth,
                send_sge: 1,
                recv_sge: 1,
                inline: profile.max_inline,
            },
            ops,
            unsolicited_write_recv: self.unsolicited,
            inline_write: false,
        };
        let qkey = match self.qkey {
            Some(qkey) => qkey,
            None => getrandom::u32().map_err(|_| CardError::NoMemory("the system has no random numbers"))?,
        };
        let qpn = nic.create_qp(init)?;
        // From here on dropping it cleans up.
        let mut qp = QueuePair {
            inner: QpInner {
                pd: self.pd.inner.clone(),
                send_cq: self.send_cq.inner.clone(),
                recv_cq: self.recv_cq.inner.clone(),
                qpn,
                reserved: (0, 0),
            },
            qkey,
            transport: PhantomData,
        };
        let cap = nic.query_qp(qpn)?.cap;
        reserve(&qp.inner.send_cq, cap.send_wr)?;
        qp.inner.reserved.0 = cap.send_wr;
        reserve(&qp.inner.recv_cq, cap.recv_wr)?;
        qp.inner.reserved.1 = cap.recv_wr;
        for change in QpModify::up_to_rts(qkey, srd.then_some(self.rnr_retry)) {
            nic.modify_qp(qpn, &change)?;
        }
        Ok(qp)
    }
}

fn reserve(cq: &CqInner, entries: u32) -> Result<(), CardError> {
    let mut inner = cq.lock();
    if entries > cq.depth - inner.reserved {
        return Err(CardError::NoMemory(
            "the completion queue is too small for the work requests of its queue pairs; make a deeper one",
        ));
    }
    inner.reserved += entries;
    Ok(())
}

impl QpBuilder<Srd> {
    /// How often a message is offered again to a receiver that has no buffer, 0..=7; 7, the default, is for ever.
    pub fn rnr_retry(mut self, n: u8) -> Self {
        self.rnr_retry = n;
        self
    }

    /// Writes with immediate data take no receive here, and must come from a queue pair that has this set as well. Leave
    /// room for them in the completion queue.
    pub fn unsolicited_writes(mut self) -> Self {
        self.unsolicited = true;
        self
    }
}

/// A queue pair, ready to send and receive. Posting takes buffers; completion queues give them back. Dropping it cancels
/// what it has under way, without a word.
pub struct QueuePair<T> {
    inner: QpInner,
    qkey: u32,
    transport: PhantomData<T>,
}

#[derive(Debug)]
struct QpInner {
    pd: Arc<PdInner>,
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    qpn: u16,
    reserved: (u32, u32),
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // It is ours, so it is there. The card touches none of its buffers after this.
        let _ = self.pd.device.nic.destroy_qp(self.qpn);
        self.send_cq.forget(self.qpn, self.reserved.0);
        self.recv_cq.forget(self.qpn, self.reserved.1);
    }
}

impl<T> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A work request that was not posted, and its buffer.
#[derive(Debug, thiserror::Error)]
#[error("not posted: {error}")]
pub struct Refused {
    /// Why.
    pub error: CardError,
    /// The buffer, unchanged; `None` if the request had none.
    pub buf: Option<Buf>,
}

const FOREIGN_BUFFER: CardError = CardError::Invalid("the buffer is of another protection domain");

impl<T: Transport> QueuePair<T> {
    /// What peers need to know.
    pub fn address(&self) -> QpAddress {
        QpAddress { gid: self.inner.pd.device.nic.gid(), qpn: self.inner.qpn, qkey: self.qkey }
    }

    /// Posts a buffer for one message, of at most its capacity. (Of a UD queue pair's, 40 bytes are for a header that the
    /// contents do not show.)
    ///
    /// # Errors
    /// The receive queue is full, or the buffer is of another protection domain.
    pub fn recv(&self, buf: Buf) -> Result<WorkId, Refused> {
        let nic = &self.inner.pd.device.nic;
        if !buf.is_of(&self.inner.pd) {
            return Err(Refused { error: FOREIGN_BUFFER, buf: Some(buf) });
        }
        if T::TYPE == QpType::Ud && buf.capacity() < GRH_LEN as usize {
            let error = CardError::Invalid("a UD receive needs 40 bytes for the routing header");
            return Err(Refused { error, buf: Some(buf) });
        }
        let mut cq = self.inner.recv_cq.lock();
        let (key, sge) = (cq.pending.vacant_key() as u64, buf.whole());
        match nic.post_recv(self.inner.qpn, key, &[sge]) {
            Ok(()) => {
                cq.pending.insert(Pending { qpn: self.inner.qpn, ty: T::TYPE, buf: Some(buf), _ah: None });
                Ok(WorkId(key))
            }
            Err(error) => Err(Refused { error, buf: Some(buf) }),
        }
    }

    /// Sends the contents of a buffer as one message.
    ///
    /// # Errors
    /// The send queue is full, or buffer or target are of another protection domain.
    pub fn send(&self, to: &Target, buf: Buf) -> Result<WorkId, Refused> {
        self.post(to, SendOp::Send { imm: None }, Some(buf), &[])
    }

    /// The same with immediate data.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_imm(&self, to: &Target, buf: Buf, imm: u32) -> Result<WorkId, Refused> {
        self.post(to, SendOp::Send { imm: Some(imm) }, Some(buf), &[])
    }

    /// Sends a short message, copied now.
    ///
    /// # Errors
    /// As for [`send`](Self::send), or the message is longer than the device's limit for that: 80 bytes in the newest
    /// generation, 32 in those before.
    pub fn send_inline(&self, to: &Target, bytes: &[u8], imm: Option<u32>) -> Result<WorkId, Refused> {
        self.post(to, SendOp::Send { imm }, None, bytes)
    }

    fn post(&self, to: &Target, op: SendOp, buf: Option<Buf>, inline: &[u8]) -> Result<WorkId, Refused> {
        let nic = &self.inner.pd.device.nic;
        if !Arc::ptr_eq(&to.ah.inner.pd, &self.inner.pd) {
            let error = CardError::Invalid("the target's address handle is of another protection domain");
            return Err(Refused { error, buf });
        }
        if buf.as_ref().is_some_and(|buf| !buf.is_of(&self.inner.pd)) {
            return Err(Refused { error: FOREIGN_BUFFER, buf });
        }
        let mut cq = self.inner.send_cq.lock();
        let key = cq.pending.vacant_key();
        let sges = buf.as_ref().map(|buf| [buf.sge()]);
        let data = sges.as_ref().map_or(SendData::Inline(inline), |sges| SendData::Sges(sges));
        let wr = SendWr { wr_id: key as u64, op, ah: to.ah.inner.number, qpn: to.qpn, qkey: to.qkey, data };
        match nic.post_send_all(self.inner.qpn, &[wr]) {
            Ok(()) => {
                cq.pending.insert(Pending { qpn: self.inner.qpn, ty: T::TYPE, buf, _ah: Some(to.ah.clone()) });
                Ok(WorkId(key as u64))
            }
            Err(error) => Err(Refused { error, buf }),
        }
    }
}

impl QueuePair<Srd> {
    /// Reads from the peer's memory into the contents of a buffer, as many bytes as those are.
    ///
    /// # Errors
    /// As for [`send`](Self::send), or the buffer is longer than the remote range.
    pub fn read(&self, to: &Target, buf: Buf, from: RemoteMemory) -> Result<WorkId, Refused> {
        self.rdma(to, SendOp::Read { addr: from.addr, rkey: from.rkey }, buf, from)
    }

    /// Writes the contents of a buffer into the peer's memory. With immediate data the peer is told, and a receive of it
    /// is taken (unless it has [`unsolicited_writes`](QpBuilder::unsolicited_writes)).
    ///
    /// # Errors
    /// As for [`send`](Self::send), or the buffer is longer than the remote range.
    pub fn write(&self, to: &Target, buf: Buf, at: RemoteMemory, imm: Option<u32>) -> Result<WorkId, Refused> {
        self.rdma(to, SendOp::Write { addr: at.addr, rkey: at.rkey, imm }, buf, at)
    }

    fn rdma(&self, to: &Target, op: SendOp, buf: Buf, range: RemoteMemory) -> Result<WorkId, Refused> {
        if buf.len() as u64 > range.len {
            let error = CardError::Invalid("the buffer is longer than the remote range");
            return Err(Refused { error, buf: Some(buf) });
        }
        self.post(to, op, Some(buf), &[])
    }
}
