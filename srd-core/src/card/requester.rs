//! Work requests on their way out.

use std::num::NonZeroU32;

use super::header::{Header, Route};
use super::memory::{Segment, Use};
use super::out::{Kind, Out, Request};
use super::qp::{QpState, QpType};
use super::{Card, CardError, CardFaults, CqId, HostMemory, NO_QP, Opcode, Sge, Status, UNKNOWN_AH};
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

impl SendData<'_> {
    /// How many bytes there are.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        match self {
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
        }
    }
}

/// What becomes of a work request.
enum Start {
    /// Its message is in this slot, and leaves.
    Leaves(usize),
    /// Its message is in this slot, and its queue pair does not send.
    Parked(usize),
    /// It waits for others to travel with.
    Waits,
}

/// Answers under way to one peer's reads; more of its requests have to wait.
const MAX_SERVING: u32 = 256;
/// Messages offered again to the transport in one go.
const PER_DRAIN: usize = 1024;
/// How long a datagram of a UD queue pair may take to be acknowledged; then it counts as lost on the way, which is its
/// sender's success. Long against a handshake and against a host that is too busy to answer at once, since whatever arrives
/// later is discarded; short for a program that waits for the completion.
pub(super) const UD_PATIENCE: Span = Span::from_secs(1);

/// Datagrams under way that are done already, and buffers that are kept for the next copies. A datagram is done when it is
/// sent, which programs rely on; beyond this number they are done when they have arrived (or not), so that a program cannot
/// send faster than the network takes.
pub(super) const MAX_COPIES: usize = 1024;

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
            if let Err(error) = self.qp(qpn).ok_or(NO_QP).and_then(|qp| qp.check_send(wr, 0)) {
                return (done, Err(error));
            }
            self.take(endpoint, qpn, wr);
        }
        (wrs.len(), Ok(()))
    }

    /// Posts all of the sends or none of them.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send); none was posted.
    #[inline]
    pub fn post_send_all(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        qpn: u16,
        wrs: &[SendWr<'_>],
    ) -> Result<(), CardError> {
        self.now = now;
        let qp = self.qp(qpn).ok_or(NO_QP)?;
        for (before, wr) in wrs.iter().enumerate() {
            qp.check_send(wr, before as u32)?;
        }
        for wr in wrs {
            self.take(endpoint, qpn, wr);
        }
        Ok(())
    }

    /// Whether any send could be posted after `before` others; what is wrong with one itself is looked at after that.
    ///
    /// # Errors
    /// There is no such queue pair, its state forbids it, or the send queue is full ([`CardError::NoMemory`]).
    pub fn check_room(&self, qpn: u16, before: u32) -> Result<(), CardError> {
        self.qp(qpn).ok_or(NO_QP)?.check_room(before)
    }

    /// Takes a work request that was checked.
    #[inline]
    fn take(&mut self, endpoint: &mut Endpoint, qpn: u16, wr: &SendWr<'_>) {
        let qp_slot = self.qp_slot(qpn);
        self.qps[qp_slot].as_deref_mut().expect("it was checked").sq_used += 1;
        if !self.join(qp_slot, wr) {
            self.go(endpoint, qpn, wr);
        }
    }

    /// The same for one that does not join others.
    fn go(&mut self, endpoint: &mut Endpoint, qpn: u16, wr: &SendWr<'_>) {
        match self.start(endpoint, qpn, wr) {
            Ok(Start::Waits) => {}
            Ok(Start::Parked(out)) => self.qp_mut(qpn).expect("it posted").parked.push(out as u32),
            Ok(Start::Leaves(out)) => {
                // It need not overtake those that wait.
                self.ring(endpoint);
                self.dispatch(endpoint, out);
            }
            Err(status) => {
                let Some(qp) = self.qp(qpn) else { return };
                let (cq, op) = (qp.init.send_cq, wr.op.opcode());
                let request = Request { wr_id: wr.wr_id, peer: None, cq, qpn, remote_qpn: wr.qpn, ah: wr.ah };
                self.finish(&request, op, status, 0);
            }
        }
    }

    /// Makes the message of a work request.
    fn start(&mut self, endpoint: &Endpoint, qpn: u16, wr: &SendWr<'_>) -> Result<Start, Status> {
        let qp_slot = self.qp_slot(qpn);
        let qp = self.qps[qp_slot].as_deref().expect("it was checked");
        if self.options.faults.force.is_some() {
            force(&self.options.faults, &mut self.forced)?;
        }
        let (init, ud) = (&qp.init, qp.init.ty == QpType::Ud);
        let pd = init.pd;
        let ah = self.pds[pd.0 as usize].ahs.get(wr.ah as usize).and_then(Option::as_ref).ok_or(Status::InvalidAh)?;
        let (limit, use_) = match wr.op {
            SendOp::Send { .. } => (self.options.profile.max_msg, Use::LocalRead),
            SendOp::Read { .. } if init.ops.read && !ud => (self.options.profile.max_rdma, Use::LocalWrite),
            SendOp::Write { .. } if init.ops.write && !ud => (self.options.profile.max_rdma, Use::LocalRead),
            SendOp::Read { .. } | SendOp::Write { .. } => return Err(Status::UnsupportedOp),
        };
        let len = u32::try_from(wr.data.bytes()).ok().filter(|&len| len <= limit).ok_or(Status::LocalBadLength)?;
        let (state, peer) = (qp.attr.state, ah.peer(wr.qpn));
        if wr.op == (SendOp::Send { imm: None })
            && !ud
            && let Some(peer) = peer
            && self.awaits_company(qp_slot, wr)
            && self.open_bundle(endpoint, qp_slot, peer, wr)
        {
            return Ok(Start::Waits);
        }

        let qp = self.qps[qp_slot].as_deref().expect("it was checked");
        let init = &qp.init;
        let (slot, out) = self.outs.take();
        let request = Request { wr_id: wr.wr_id, peer, cq: init.send_cq, qpn, remote_qpn: wr.qpn, ah: wr.ah };
        let kind = if ud { Kind::Datagram } else { Kind::Send };
        out.begin(request, kind, if ud { RnrRetry::Times(0) } else { qp.rnr() });
        out.len = len;
        match wr.data {
            SendData::Inline(bytes) => out.copy = copied(&mut self.free_copies, [bytes]),
            SendData::Sges(sges) => {
                if !self.regions.resolve_all(pd, sges.iter().copied(), use_, &mut out.segments) {
                    self.outs.give_back(slot);
                    return Err(Status::InvalidLkey);
                }
            }
        }
        let route = Route { dst: wr.qpn, src: qpn, qkey: wr.qkey };
        match wr.op {
            SendOp::Send { imm } => out.header.set(&Header::Send { route, ud, imm }),
            SendOp::Write { addr, rkey, imm } => {
                let unsolicited = init.unsolicited_write_recv;
                out.kind = Kind::Write;
                out.header.set(&Header::Write { route, imm, unsolicited, rkey, addr });
            }
            SendOp::Read { addr, rkey } => {
                let seg = out.segments.first().copied().unwrap_or_default();
                let Some(id) = self.reads.add(out.request, seg) else {
                    self.regions.release_all(&out.segments);
                    self.outs.give_back(slot);
                    return Err(Status::QpInternal);
                };
                // The request has no payload of its own.
                out.segments.clear();
                (out.len, out.rnr, out.kind) = (0, RnrRetry::Forever, Kind::Request(id));
                out.header.set(&Header::Read { route, rkey, addr, len, id });
            }
        }
        Ok(if state == QpState::Sqd { Start::Parked(slot) } else { Start::Leaves(slot) })
    }

    /// A datagram is given to the transport: its work request is done, unless there are many.
    fn start_datagram(&mut self, slot: usize) {
        self.datagram_count = self.datagram_count.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.datagrams.push_back((self.now + UD_PATIENCE, slot, self.datagram_count));
        let out = &mut self.outs[slot];
        out.number = Some(self.datagram_count);
        if self.done_datagrams >= MAX_COPIES {
            return;
        }
        self.done_datagrams += 1;
        out.done = true;
        if !out.segments.is_empty() {
            let slices = out.segments.iter().map(|seg| self.regions.read(seg, 0, seg.len as usize));
            out.copy = copied(&mut self.free_copies, slices);
            self.regions.release_all(&out.segments);
            out.segments.clear();
        }
        let (request, len) = (out.request, out.len);
        self.finish(&request, Opcode::Send, Status::Ok, len);
    }

    /// Gives a message to the transport, or to ourselves.
    #[inline]
    pub(super) fn dispatch(&mut self, endpoint: &mut Endpoint, out: usize) {
        if let Out { kind: Kind::Datagram, number: None, .. } = self.outs[out] {
            self.start_datagram(out);
        }
        let Out { request, len, header, rnr, .. } = &self.outs[out];
        let Some(peer) = request.peer else {
            self.local.push(out);
            return;
        };
        let token = Token(out as u64);
        if self.peers.get(Some(peer)).is_some_and(|e| e.closed_until > self.now) {
            self.completed(token, Err(Failure::PeerClosed));
            return;
        }
        let message =
            Outbound { token, flow: self.unit.flow_of(request.qpn), header_len: header.len(), len: *len, rnr: *rnr };
        match endpoint.send(self.now, peer, message) {
            Ok(()) => {}
            Err(SendError::QueueFull { .. }) => {
                self.queued.push_back(out);
                self.vain_offers += 1;
            }
            Err(SendError::TooLong { max, .. }) => self.completed(token, Err(Failure::TooLong { max })),
            Err(SendError::UnknownPeer) => self.completed(token, Err(Failure::Unreachable)),
            Err(SendError::Closed) => self.completed(token, Err(Failure::Closed)),
        }
    }

    /// Sends what was posted in SQD, in the next turn: this one does not know the time.
    pub(super) fn unpark(&mut self, qpn: u16) {
        let parked = self.qp_mut(qpn).map(|qp| std::mem::take(&mut qp.parked)).unwrap_or_default();
        for out in parked {
            self.enqueue(out as usize);
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
        let moved = self.queued.len() < waiting;
        if moved {
            self.vain_offers = 0;
        }
        moved
    }

    /// Whether all messages that are queued wait for room in the transport, which completions make. Those for one peer may be
    /// many, so that it takes several goes to find the few for others.
    pub(super) fn is_stuck(&self) -> bool {
        self.vain_offers >= self.queued.len()
    }

    /// A peer reads its data through a queue pair of ours, or is told that it will not.
    pub(super) fn answer(&mut self, peer: Option<PeerId>, qpn: u16, id: u32, data: Result<Segment, Status>) {
        let (kind, header, seg) = match data {
            Ok(seg) => (Kind::Data(id), Header::Data { id }, Some(seg)),
            Err(status) => (Kind::Fail, Header::Fail { id, status: status.code() }, None),
        };
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.serving += 1;
        }
        let (slot, out) = self.outs.take();
        // There is no work request.
        let request = Request { wr_id: 0, peer, cq: CqId(0), qpn, remote_qpn: 0, ah: UNKNOWN_AH };
        out.begin(request, kind, RnrRetry::Forever);
        out.len = seg.map_or(0, |seg| seg.len);
        out.header.set(&header);
        if let Some(seg) = seg {
            out.segments.push(seg);
        }
        self.enqueue(slot);
    }

    /// Keeps a message for the next turn.
    pub(super) fn enqueue(&mut self, out: usize) {
        self.queued.push_back(out);
        self.vain_offers = 0;
    }

    /// Whether another read of this peer can be answered now.
    pub(super) fn may_serve(&self, peer: Option<PeerId>) -> bool {
        self.peers.get(peer).is_none_or(|e| e.serving < MAX_SERVING)
    }

    #[inline]
    pub(super) fn out_payload(&self, token: Token, mut offset: u32, len: usize) -> &[u8] {
        let out = &self.outs[token.0 as usize];
        for seg in out.segments.iter() {
            if offset < seg.len {
                return self.regions.read(seg, offset, len);
            }
            offset -= seg.len;
        }
        let copy = if let Kind::Sends(key) = out.kind { &self.bundles[key as usize].bytes } else { &out.copy };
        let rest = &copy[offset as usize..];
        &rest[..len.min(rest.len())]
    }
}

impl SendOp {
    fn opcode(self) -> Opcode {
        match self {
            SendOp::Send { .. } => Opcode::Send,
            SendOp::Read { .. } => Opcode::RdmaRead,
            SendOp::Write { .. } => Opcode::RdmaWrite,
        }
    }
}

/// Lets a work request fail if it is the turn of one.
#[cold]
fn force(faults: &CardFaults, count: &mut u32) -> Result<(), Status> {
    let Some(force) = faults.force else { return Ok(()) };
    *count += 1;
    if *count < force.every {
        return Ok(());
    }
    *count = 0;
    Err(Status::from_code(force.status).unwrap_or(Status::QpInternal))
}

/// A buffer that holds these bytes.
pub(super) fn copied<'a>(free: &mut Vec<Vec<u8>>, slices: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut copy = free.pop().unwrap_or_default();
    copy.clear();
    slices.into_iter().for_each(|slice| copy.extend_from_slice(slice));
    copy
}
