//! Work requests on their way out, and how they end.

use super::header::{Encoded, Header, Route};
use super::memory::{Regions, Segment, Use};
use super::profile::MAX_SGE;
use super::qp::{QpState, QpType, Recv};
use super::{
    Card, CardError, CardEvent, Completion, CqId, Gid, HostMemory, MAX_NOTES, NO_QP, Opcode, Sge, Status, Trouble,
    UNKNOWN_AH,
};
use crate::endpoint::{Endpoint, Outbound, PeerId, RnrRetry, SendError};
use crate::time::{Span, Time};
use crate::upper::{Failure, Token, Upper as _};

/// A work request of the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Number of the address handle of the peer's card, in the queue pair's protection domain.
    pub ah: u16,
    /// The peer's queue pair.
    pub qpn: u16,
    /// Its QKey.
    pub qkey: u32,
    /// What to send, or where to put what is read.
    pub data: SendData<'a>,
}

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Into a receive buffer of the peer.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// From the peer's memory.
    Read {
        /// Address there.
        addr: u64,
        /// Key of the peer's region.
        rkey: u32,
    },
    /// Into the peer's memory.
    Write {
        /// Address there.
        addr: u64,
        /// Key of the peer's region.
        rkey: u32,
        /// Immediate data, which makes a completion at the peer.
        imm: Option<u32>,
    },
}

/// Payload of a work request.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Buffers; they must not change before the completion.
    Sges(&'a [Sge]),
    /// Bytes that are copied now.
    Inline(&'a [u8]),
}

/// What an outgoing message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    /// Asks for the data of this read.
    Request(u32),
    /// Data that a peer's read asked for; its read id.
    Data(u32),
    /// Tells a peer that there will be no data.
    Fail,
}

/// An outgoing message.
#[derive(Debug)]
pub(super) struct Out {
    wr_id: u64,
    peer: Option<PeerId>,
    pub(super) len: u32,
    pub(super) rnr: RnrRetry,
    kind: Kind,
    /// The queue pair, for work requests.
    qpn: u16,
    remote_qpn: u16,
    ah: u16,
    /// It is a datagram, the one with this number.
    ud: Option<u32>,
    /// The payload, if it was copied: inline data, and datagrams.
    copy: Option<Vec<u8>>,
    /// Its work request has completed: it is a datagram.
    done: bool,
    /// It is being taken back.
    doomed: bool,
    segs: u8,
    pub(super) header: Encoded,
    seg: [Segment; 2],
}

/// A read whose data has not arrived.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) id: u32,
    pub(super) peer: Option<PeerId>,
    pub(super) seg: Segment,
    wr_id: u64,
    qpn: u16,
    remote_qpn: u16,
    ah: u16,
    /// The peer has taken the request.
    requested: bool,
    /// Where its data goes, once the first of it is here.
    pub(super) place: Option<usize>,
}

/// Low bits of a read id are its slot.
const READ_SLOT_BITS: u32 = 20;
/// Answers under way to one peer's reads; more of its requests have to wait.
const MAX_SERVING: u32 = 256;
/// Messages offered again to the transport in one go.
const PER_DRAIN: usize = 1024;
/// How long a datagram of a UD queue pair may take to be acknowledged; then it counts as lost on the way, which is its
/// sender's success. Long against a handshake and against a host that is too busy to answer at once, since whatever arrives
/// later is discarded; short for a program that waits for the completion.
pub(super) const UD_PATIENCE: Span = Span::from_secs(1);

/// How long a peer that closed counts as gone: requests to it fail at once. After that they try again whether it is back.
pub(super) const CLOSED_FOR: Span = Span::from_secs(5);

/// Datagrams under way that are done already, and buffers that are kept for the next copies. A datagram is done when it is
/// sent, which programs rely on; beyond this number they are done when they have arrived (or not), so that a program cannot
/// send faster than the network takes.
const MAX_COPIES: usize = 1024;

/// Which of the things under way are to be ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// Those of a queue pair.
    Qp(u16),
    /// Those that use an address handle.
    Ah(super::PdId, u16),
    /// Those that speak of a region, by its lkey.
    Region(u32),
}

/// How to end them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Silently,
    With(Status),
}

impl<M: HostMemory> Card<M> {
    /// Posts sends, in order, up to the first one that cannot be posted. Returns how many were. Errors of a request that
    /// was posted come as its completion.
    ///
    /// # Errors
    /// The next one was not posted: there is no such queue pair, its state forbids it, it is of the wrong shape, or the
    /// send queue is full ([`CardError::NoMemory`]).
    pub fn post_send(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        qpn: u16,
        wrs: &[SendWr<'_>],
    ) -> (usize, Result<(), CardError>) {
        self.now = now;
        for (done, wr) in wrs.iter().enumerate() {
            if let Err(error) = self.check_send(qpn, wr, 0) {
                return (done, Err(error));
            }
            self.go(endpoint, qpn, wr);
        }
        (wrs.len(), Ok(()))
    }

    /// Posts all of the sends or none of them.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send); none was posted.
    pub fn post_send_all(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        qpn: u16,
        wrs: &[SendWr<'_>],
    ) -> Result<(), CardError> {
        self.now = now;
        for (before, wr) in wrs.iter().enumerate() {
            self.check_send(qpn, wr, before as u32)?;
        }
        for wr in wrs {
            self.go(endpoint, qpn, wr);
        }
        Ok(())
    }

    /// Whether a send can be posted after `before` others.
    #[inline]
    fn check_send(&self, qpn: u16, wr: &SendWr<'_>, before: u32) -> Result<(), CardError> {
        let qp = self.qp(qpn).ok_or(NO_QP)?;
        if !matches!(qp.attr.state, QpState::Rts | QpState::Sqd) {
            return Err(CardError::Invalid("the queue pair is not in RTS or SQD"));
        }
        let cap = &qp.attr.cap;
        let fits = match wr.data {
            SendData::Sges(sges) => match wr.op {
                SendOp::Send { .. } => sges.len() <= cap.send_sge as usize,
                SendOp::Read { .. } | SendOp::Write { .. } => sges.len() <= 1,
            },
            SendData::Inline(bytes) => bytes.len() <= cap.inline as usize && !matches!(wr.op, SendOp::Read { .. }),
        };
        if !fits {
            return Err(CardError::Invalid("more buffers or inline bytes than the queue pair permits"));
        }
        if qp.sq_used + before >= cap.send_wr {
            return Err(CardError::NoMemory("the send queue is full; poll completions"));
        }
        Ok(())
    }

    #[inline]
    fn go(&mut self, endpoint: &mut Endpoint, qpn: u16, wr: &SendWr<'_>) {
        let qp = self.qp_mut(qpn).expect("it was checked");
        qp.sq_used += 1;
        let parks = qp.attr.state == QpState::Sqd;
        match self.start(qpn, wr) {
            Ok(slot) => {
                let out = &self.outs[slot];
                let gone = out.done.then_some((out.len, Remote { peer: out.peer, qpn: out.remote_qpn, ah: out.ah }));
                if parks {
                    self.qp_mut(qpn).expect("it posted").parked.push(slot as u32);
                } else {
                    self.dispatch(endpoint, slot);
                }
                if let Some((len, to)) = gone {
                    self.finish(qpn, wr.wr_id, Opcode::Send, Status::Ok, len, to);
                }
            }
            Err(status) => {
                let opcode = match wr.op {
                    SendOp::Send { .. } => Opcode::Send,
                    SendOp::Read { .. } => Opcode::RdmaRead,
                    SendOp::Write { .. } => Opcode::RdmaWrite,
                };
                let to = Remote { peer: None, qpn: wr.qpn, ah: wr.ah };
                self.finish(qpn, wr.wr_id, opcode, status, 0, to);
            }
        }
    }

    /// Makes the message of a work request.
    fn start(&mut self, qpn: u16, wr: &SendWr<'_>) -> Result<usize, Status> {
        if let Some(force) = self.options.faults.force {
            self.forced += 1;
            if self.forced >= force.every {
                self.forced = 0;
                return Err(Status::from_code(force.status).unwrap_or(Status::QpInternal));
            }
        }
        let qp = self.qp(qpn).ok_or(Status::QpInternal)?;
        let (init, rnr, src) = (qp.init, qp.rnr(), qp.qpn);
        let pd = init.pd;
        let ud = init.ty == QpType::Ud;
        let ah = self.pds[pd.0 as usize].ahs.get(wr.ah as usize).and_then(Option::as_ref).ok_or(Status::InvalidAh)?;
        let peer = ah.peer(wr.qpn);
        let (limit, use_) = match wr.op {
            SendOp::Send { .. } => (self.options.profile.max_msg, Use::LocalRead),
            SendOp::Read { .. } if init.ops.read && !ud => (self.options.profile.max_rdma, Use::LocalWrite),
            SendOp::Write { .. } if init.ops.write && !ud => (self.options.profile.max_rdma, Use::LocalRead),
            SendOp::Read { .. } | SendOp::Write { .. } => return Err(Status::UnsupportedOp),
        };
        let len = match wr.data {
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
        };
        let len = u32::try_from(len).ok().filter(|&len| len <= limit).ok_or(Status::LocalBadLength)?;
        let (mut seg, mut segs) = ([Segment::default(); 2], 0);
        let mut copy = None;
        match wr.data {
            SendData::Inline(bytes) => copy = Some(self.copied(|_, copy| copy.extend_from_slice(bytes))),
            SendData::Sges(sges) => {
                for sge in sges {
                    let Some(found) = self.regions.resolve(pd, sge.lkey, sge.addr, sge.len, use_) else {
                        seg[..segs].iter().for_each(|seg| self.regions.release(seg));
                        return Err(Status::InvalidLkey);
                    };
                    if found.len > 0 {
                        seg[segs] = found;
                        segs += 1;
                    }
                }
            }
        }
        let route = Route { dst: wr.qpn, src, qkey: wr.qkey };
        let mut out = Out {
            wr_id: wr.wr_id,
            peer,
            len,
            rnr: if ud { RnrRetry::Times(0) } else { rnr },
            kind: Kind::Send,
            qpn,
            remote_qpn: wr.qpn,
            ah: wr.ah,
            ud: None,
            copy,
            done: false,
            doomed: false,
            segs: segs as u8,
            header: Encoded::EMPTY,
            seg,
        };
        match wr.op {
            SendOp::Send { imm } => out.header = Header::Send { route, ud, imm }.encode(),
            SendOp::Write { addr, rkey, imm } => {
                out.kind = Kind::Write;
                let unsolicited = init.unsolicited_write_recv;
                out.header = Header::Write { route, imm, unsolicited, rkey, addr }.encode();
            }
            SendOp::Read { addr, rkey } => {
                let Some(id) = self.add_read(&mut out) else {
                    out.release(&mut self.regions);
                    return Err(Status::QpInternal);
                };
                out.header = Header::Read { route, rkey, addr, len, id }.encode();
            }
        }
        if ud {
            self.datagram_count = self.datagram_count.wrapping_add(1);
            out.ud = Some(self.datagram_count);
            self.datagrams.push_back((self.now + UD_PATIENCE, self.outs.vacant_key(), self.datagram_count));
            if self.done_datagrams < MAX_COPIES {
                self.done_datagrams += 1;
                out.done = true;
                if out.copy.is_none() {
                    out.copy = Some(self.copied(|regions, copy| {
                        for seg in out.segments() {
                            copy.extend_from_slice(regions.read(seg, 0, seg.len as usize));
                        }
                    }));
                    out.release(&mut self.regions);
                    out.segs = 0;
                }
            }
        }
        Ok(self.outs.insert(out))
    }

    /// A buffer that `fill` has filled.
    fn copied(&mut self, fill: impl FnOnce(&Regions<M>, &mut Vec<u8>)) -> Vec<u8> {
        let mut copy = self.free_copies.pop().unwrap_or_default();
        copy.clear();
        fill(&self.regions, &mut copy);
        copy
    }

    /// Turns the message into the request of a read: it has no payload of its own.
    fn add_read(&mut self, out: &mut Out) -> Option<u32> {
        let slot = self.reads.vacant_key();
        if slot >= 1 << READ_SLOT_BITS {
            return None;
        }
        self.read_count = self.read_count.wrapping_add(1);
        let id = slot as u32 | self.read_count << READ_SLOT_BITS;
        let seg = if out.segs > 0 { out.seg[0] } else { Segment::default() };
        let Out { peer, wr_id, qpn, remote_qpn, ah, .. } = *out;
        self.reads.insert(Read { id, peer, seg, wr_id, qpn, remote_qpn, ah, requested: false, place: None });
        (out.segs, out.len, out.kind, out.rnr) = (0, 0, Kind::Request(id), RnrRetry::Forever);
        Some(id)
    }

    /// The read with this id.
    pub(super) fn read_slot(&self, id: u32) -> Option<usize> {
        self.reads.get(slot_of(id)).filter(|r| r.id == id).map(|_| slot_of(id))
    }

    /// Gives a message to the transport, or to ourselves.
    fn dispatch(&mut self, endpoint: &mut Endpoint, out: usize) {
        let Out { peer, len, header, rnr, .. } = &self.outs[out];
        let Some(peer) = *peer else {
            self.local.push(out);
            return;
        };
        let token = Token(out as u64);
        if self.entry(Some(peer)).is_some_and(|e| e.closed_until > self.now) {
            self.completed(token, Err(Failure::PeerClosed));
            return;
        }
        let message = Outbound { token, header_len: header.len(), len: *len, rnr: *rnr };
        match endpoint.send(self.now, peer, message) {
            Ok(()) => {}
            Err(SendError::QueueFull { .. }) => self.queued.push_back(out),
            Err(SendError::TooLong { max, .. }) => self.completed(token, Err(Failure::TooLong { max })),
            Err(SendError::UnknownPeer) => self.completed(token, Err(Failure::Unreachable)),
            Err(SendError::Closed) => self.completed(token, Err(Failure::Closed)),
        }
    }

    /// Sends what was posted in SQD.
    pub(super) fn unpark(&mut self, endpoint: &mut Endpoint, qpn: u16) {
        let parked = self.qp_mut(qpn).map(|qp| std::mem::take(&mut qp.parked)).unwrap_or_default();
        for out in parked {
            self.dispatch(endpoint, out as usize);
        }
    }

    /// Gives messages to the transport that arose where it could not be reached, or that it had no room for.
    pub(super) fn drain_queued(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        self.now = now;
        let waiting = self.queued.len();
        for _ in 0..waiting.min(PER_DRAIN) {
            let Some(out) = self.queued.pop_front() else { break };
            self.dispatch(endpoint, out);
        }
        // Those that are left wait for room in the transport, which completions make.
        self.stuck = self.queued.len() == waiting;
        !self.stuck
    }

    /// A peer has read its data from us, or is told that it will not.
    pub(super) fn answer(&mut self, peer: Option<PeerId>, id: u32, data: Result<Segment, Status>) {
        let (kind, header, seg) = match data {
            Ok(seg) => (Kind::Data(id), Header::Data { id }, Some(seg)),
            Err(status) => (Kind::Fail, Header::Fail { id, status: status.code() }, None),
        };
        if let Some(entry) = self.entry_mut(peer) {
            entry.serving += 1;
        }
        let out = self.outs.insert(Out {
            wr_id: 0,
            peer,
            len: seg.map_or(0, |s| s.len),
            rnr: RnrRetry::Forever,
            kind,
            qpn: 0,
            remote_qpn: 0,
            ah: UNKNOWN_AH,
            ud: None,
            copy: None,
            done: false,
            doomed: false,
            segs: u8::from(seg.is_some_and(|s| s.len > 0)),
            header: header.encode(),
            seg: [seg.unwrap_or_default(), Segment::default()],
        });
        self.enqueue(out);
    }

    /// Keeps a message for the next turn.
    fn enqueue(&mut self, out: usize) {
        self.queued.push_back(out);
        self.stuck = false;
    }

    /// Whether another read of this peer can be answered now.
    pub(super) fn may_serve(&self, peer: Option<PeerId>) -> bool {
        self.entry(peer).is_none_or(|e| e.serving < MAX_SERVING)
    }

    /// The transport is done with a message.
    pub(super) fn settle(&mut self, token: Token, outcome: Result<(), Failure>) {
        let Some(out) = self.outs.try_remove(token.0 as usize) else { return };
        let status = match outcome {
            Ok(()) => Status::Ok,
            // What becomes of datagrams is nobody's business.
            Err(_) if out.ud.is_some() => Status::Ok,
            Err(failure) => status_of(failure),
        };
        self.settle_with(out, End::With(status));
    }

    fn settle_with(&mut self, mut out: Out, end: End) {
        out.release(&mut self.regions);
        if let Some(copy) = out.copy.take()
            && self.free_copies.len() < MAX_COPIES
        {
            self.free_copies.push(copy);
        }
        if out.done {
            self.done_datagrams -= 1;
            return;
        }
        let to = Remote { peer: out.peer, qpn: out.remote_qpn, ah: out.ah };
        let opcode = match out.kind {
            Kind::Send => Opcode::Send,
            Kind::Write => Opcode::RdmaWrite,
            Kind::Request(id) => {
                match (self.read_slot(id), end) {
                    (Some(slot), End::With(Status::Ok)) => self.reads[slot].requested = true,
                    (Some(slot), end) => self.end_read(slot, end),
                    // The data was faster than the acknowledgement of the request.
                    (None, _) => {}
                }
                return;
            }
            Kind::Data(_) | Kind::Fail => {
                // The entry has another id if the peer was forgotten meanwhile.
                if let Some(entry) = self.entry_mut(out.peer) {
                    entry.serving -= 1;
                }
                if end == End::With(Status::Ok) {
                    self.port.rdma_read_resp_bytes += u64::from(out.len);
                }
                return;
            }
        };
        if let End::With(status) = end {
            self.finish(out.qpn, out.wr_id, opcode, status, out.len, to);
        }
    }

    /// A read is over: its buffer is the program's again, and whatever of its data still comes is refused.
    // [CARD-8]
    pub(super) fn end_read(&mut self, slot: usize, end: End) {
        let read = self.reads.remove(slot);
        self.regions.release(&read.seg);
        if let Some(place) = read.place {
            self.places[place].revoke(Status::Flushed);
        }
        if let End::With(status) = end {
            let to = Remote { peer: read.peer, qpn: read.remote_qpn, ah: read.ah };
            self.finish(read.qpn, read.wr_id, Opcode::RdmaRead, status, read.seg.len, to);
        }
    }

    /// Completes a work request of the send queue.
    #[inline]
    fn finish(&mut self, qpn: u16, wr_id: u64, opcode: Opcode, status: Status, len: u32, to: Remote) {
        let len = u64::from(len);
        let ok = status == Status::Ok;
        match opcode {
            Opcode::RdmaRead if ok => {
                (self.port.rdma_read_wrs, self.port.rdma_read_bytes) =
                    (self.port.rdma_read_wrs + 1, self.port.rdma_read_bytes + len)
            }
            Opcode::RdmaRead => self.port.rdma_read_wr_err += 1,
            Opcode::RdmaWrite if ok => {
                (self.port.rdma_write_wrs, self.port.rdma_write_bytes) =
                    (self.port.rdma_write_wrs + 1, self.port.rdma_write_bytes + len)
            }
            Opcode::RdmaWrite => self.port.rdma_write_wr_err += 1,
            _ if ok => {
                (self.port.send_wrs, self.port.send_bytes) = (self.port.send_wrs + 1, self.port.send_bytes + len)
            }
            _ => {}
        }
        let Some(qp) = self.qp(qpn) else { return };
        let cq = qp.init.send_cq;
        if !ok && status != Status::Flushed {
            self.note(qp.init.pd, qpn, wr_id, opcode, status, to);
        }
        let entry = Completion { wr_id, status, opcode, qpn, ..Completion::EMPTY };
        self.complete(cq, entry);
    }

    #[cold]
    fn note(&mut self, pd: super::PdId, qpn: u16, wr_id: u64, opcode: Opcode, status: Status, to: Remote) {
        let ah = self.pds[pd.0 as usize].ahs.get(to.ah as usize).and_then(Option::as_ref);
        let (gid, peer) = ah.map_or((Gid::default(), to.peer), |ah| (ah.gid, ah.peer(to.qpn)));
        if self.troubles.len() == MAX_NOTES {
            self.troubles.pop_front();
        }
        self.troubles.push_back(Trouble { status, opcode, wr_id, qpn, remote_qpn: to.qpn, gid, peer });
    }

    /// Ends everything under way that `which` picks: sends, reads, and places of messages that are half here. Memory that
    /// they spoke of is not touched after this call.
    pub(super) fn end_all(&mut self, endpoint: &mut Endpoint, which: Which, end: End) {
        let mut doomed: Vec<usize> = Vec::new();
        for (slot, out) in self.outs.iter_mut() {
            // Those of a work request that has completed, or of none, do not end with its queue pair.
            let serves = matches!(out.kind, Kind::Data(_) | Kind::Fail) || out.done;
            let picked = match which {
                Which::Qp(qpn) => !serves && out.qpn == qpn,
                Which::Ah(pd, ah) => {
                    let slot = ((out.qpn & super::QPN_SLOT_MASK) >> self.unit.bits()) as usize;
                    let qp = self.qps.get(slot).and_then(Option::as_deref);
                    !serves && out.ah == ah && qp.is_some_and(|qp| qp.qpn == out.qpn && qp.init.pd == pd)
                }
                Which::Region(lkey) => out.segments().iter().any(|seg| Regions::<M>::is_of(seg, lkey)),
            };
            if picked {
                out.doomed = true;
                doomed.push(slot);
            }
        }
        for out in self.withdraw(endpoint, &doomed) {
            let (kind, peer) = (out.kind, out.peer);
            self.settle_with(out, end);
            if let Kind::Data(id) = kind {
                self.answer(peer, id, Err(Status::BadAddress));
            }
        }
        let reads: Vec<usize> = self
            .reads
            .iter()
            .filter(|(_, read)| match which {
                Which::Qp(qpn) => read.qpn == qpn,
                Which::Ah(pd, ah) => read.ah == ah && self.qp(read.qpn).is_some_and(|qp| qp.init.pd == pd),
                Which::Region(lkey) => read.seg.len > 0 && Regions::<M>::is_of(&read.seg, lkey),
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in reads {
            self.end_read(slot, end);
        }
        self.revoke(which, end);
    }

    /// Takes messages that are marked as doomed back from wherever they wait.
    fn withdraw(&mut self, endpoint: &mut Endpoint, doomed: &[usize]) -> Vec<Out> {
        if doomed.is_empty() {
            return Vec::new();
        }
        let outs = &self.outs;
        let mut peers: Vec<PeerId> = doomed.iter().filter_map(|&slot| outs[slot].peer).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            endpoint.withdraw(peer, |token| outs.get(token.0 as usize).is_some_and(|out| out.doomed));
        }
        let gone = |out: usize| outs[out].doomed;
        let half = self.local.remove(gone);
        self.queued.retain(|&out| !gone(out));
        for qp in self.qps.iter_mut().flatten().filter(|qp| !qp.parked.is_empty()) {
            qp.parked.retain(|&out| !gone(out as usize));
        }
        if let Some(place) = half {
            self.abandoned(place);
        }
        doomed.iter().map(|&slot| self.outs.remove(slot)).collect()
    }

    /// Gives up datagrams that nobody has acknowledged for long.
    pub(super) fn expire_datagrams(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut doomed = Vec::new();
        while let Some(&(at, slot, number)) = self.datagrams.front() {
            if let Some(out) = self.outs.get_mut(slot).filter(|out| out.ud == Some(number)) {
                if at > self.now {
                    break;
                }
                out.doomed = true;
                doomed.push(slot);
            }
            self.datagrams.pop_front();
        }
        for out in self.withdraw(endpoint, &doomed) {
            self.settle_with(out, End::With(Status::Ok));
        }
        !doomed.is_empty()
    }

    /// The connection with a peer is over: data that it owed will not come.
    pub(super) fn lost_peer(&mut self, peer: PeerId, why: Option<Failure>) {
        if why == Some(Failure::Unresponsive) {
            self.port.unresponsive_remote_events += 1;
            if let Some(gid) = self.entry(Some(peer)).map(|e| e.gid) {
                self.emit(CardEvent::Unresponsive(gid));
            }
        }
        let status = why.map_or(Status::Abort, status_of);
        let owed: Vec<usize> = self
            .reads
            .iter()
            .filter(|(_, read)| read.peer == Some(peer) && read.requested)
            .map(|(slot, _)| slot)
            .collect();
        for slot in owed {
            self.end_read(slot, End::With(status));
        }
    }

    /// Completes a receive with an error.
    pub(super) fn fail_recv(&mut self, cq: CqId, qpn: u16, recv: &Recv, status: Status) {
        let entry = Completion { wr_id: recv.wr_id, status, opcode: Opcode::Recv, qpn, ..Completion::EMPTY };
        self.complete(cq, entry);
    }

    pub(super) fn out_payload(&self, token: Token, mut offset: u32, len: usize) -> &[u8] {
        let out = &self.outs[token.0 as usize];
        if let Some(copy) = &out.copy {
            let rest = &copy[offset as usize..];
            return &rest[..len.min(rest.len())];
        }
        for seg in out.segments() {
            if offset < seg.len {
                return self.regions.read(seg, offset, len);
            }
            offset -= seg.len;
        }
        &[]
    }
}

#[derive(Clone, Copy, Debug)]
struct Remote {
    peer: Option<PeerId>,
    qpn: u16,
    ah: u16,
}

impl Out {
    fn segments(&self) -> &[Segment] {
        &self.seg[..self.segs as usize]
    }

    fn release<M: HostMemory>(&self, regions: &mut Regions<M>) {
        for seg in self.segments() {
            regions.release(seg);
        }
    }
}

const _: () = assert!(MAX_SGE >= 2);

fn slot_of(id: u32) -> usize {
    (id & ((1 << READ_SLOT_BITS) - 1)) as usize
}

fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::Unreachable => Status::UnreachRemote,
        Failure::Unresponsive => Status::UnrespRemote,
        Failure::PeerRestarted => Status::Abort,
        Failure::PeerClosed => Status::BadDestQpn,
        Failure::TooLong { .. } => Status::LocalBadLength,
        Failure::NotReady => Status::Rnr,
        Failure::Refused(code) => Status::from_peer(code),
        Failure::Closed => Status::Flushed,
    }
}
