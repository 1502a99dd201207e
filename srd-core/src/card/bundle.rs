//! Short sends that travel together, as one message of the transport (`docs/protocol.md`, SENDS).
//!
//! A send of 64 bytes costs the transport as much as one of 4 KB: a place in its queue, a fragment, an end. So short sends of
//! a queue pair that wait for company anyway, and go where the last one went, share a message. The receiver takes it as a
//! whole, or refuses it as a whole; then each of them travels by itself, and has an outcome of its own. So whatever can be
//! wrong with one of them is dealt with where it is for every other send.

use super::ends::End;
use super::header::{Header, Route};
use super::memory::{Segment, Segments, Use};
use super::out::{Kind, Request};
use super::profile::MAX_SGE;
use super::qp::{QpState, QpType, Recv};
use super::requester::{SendOp, SendWr, copied};
use super::responder::{Goal, No, scatter};
use super::slots::Slot;
use super::{Card, HostMemory, Opcode, SendData, Status};
use crate::endpoint::{Endpoint, PeerId, RnrRetry};
use crate::faulty::Share;

/// The longest send that travels with others, in bytes: copying more costs as much as it saves.
const LONGEST: u64 = 512;
/// Sends that travel together at most: few against the depth of queues, so that both ends have something to do.
const MOST: usize = 64;
/// Bytes of them at most, with their lengths. Whoever sends more is refused.
const MAX_BYTES: usize = 8 << 10;
/// Bytes of a datagram that are left for what stands before them.
const OVERHEAD: usize = 128;
/// The length of a send stands before its bytes.
const LENGTH: usize = 2;
/// For how long a bundle waits for a receiver that has too few receives just now, if its sends would wait for ever: most catch
/// up soon.
const PATIENCE: RnrRetry = RnrRetry::Times(2);
/// After a bundle was refused, so many sends of the queue pair travel alone.
const DISTRUST: u32 = 1024;

/// Where a send goes, as its work request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Destination {
    ah: u16,
    qpn: u16,
    qkey: u32,
}

impl Destination {
    #[inline]
    fn of(wr: &SendWr<'_>) -> Destination {
        Destination { ah: wr.ah, qpn: wr.qpn, qkey: wr.qkey }
    }
}

/// What a queue pair has to do with bundles.
#[derive(Debug, Default)]
pub(super) struct Bundling {
    /// Where the last send went.
    last: Destination,
    /// The message that takes more sends to there; one of those that wait.
    open: Option<Open>,
    /// Sends to come that travel alone.
    distrust: u32,
}

/// A message for sends that leave together: its slot, and that of its bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    out: usize,
    bundle: usize,
}

/// Sends that leave together. The message that has them is in its own slot.
#[derive(Debug)]
pub(super) struct Bundle {
    dst: Destination,
    sends: Vec<Part>,
    /// The payload of the message.
    pub(super) bytes: Vec<u8>,
    /// Bytes that there is room for.
    room: usize,
}

/// A work request of a bundle.
#[derive(Clone, Copy, Debug)]
struct Part {
    wr_id: u64,
    len: u32,
}

impl Slot for Bundle {
    const FREE: Bundle =
        Bundle { dst: Destination { ah: 0, qpn: 0, qkey: 0 }, sends: Vec::new(), bytes: Vec::new(), room: 0 };

    #[inline]
    fn is_free(&self) -> bool {
        self.sends.is_empty()
    }

    #[inline]
    fn set_free(&mut self) {
        self.sends.clear();
    }
}

/// Sends that arrive together: their receives, and what has come of the message.
#[derive(Debug)]
pub(super) struct Arrival {
    recvs: Vec<(Recv, Segments<MAX_SGE>)>,
    longest: u16,
    bytes: Vec<u8>,
}

impl Slot for Arrival {
    const FREE: Arrival = Arrival { recvs: Vec::new(), longest: 0, bytes: Vec::new() };

    #[inline]
    fn is_free(&self) -> bool {
        self.recvs.is_empty()
    }

    #[inline]
    fn set_free(&mut self) {
        self.recvs.clear();
    }
}

impl Arrival {
    /// Whether buffers of it are such as `is_such` says.
    pub(super) fn any(&self, is_such: impl Fn(&Segment) -> bool) -> bool {
        self.recvs.iter().any(|(_, segments)| segments.iter().any(&is_such))
    }

    /// Bytes of the message.
    pub(super) fn write(&mut self, offset: u32, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Whether the message is what its header said.
    fn is_sound(&self) -> bool {
        let mut sends = Sends(&self.bytes);
        let are_short = sends.by_ref().take(self.recvs.len()).all(|send| send.len() <= self.longest.into());
        are_short && sends.0.is_empty() && Sends(&self.bytes).count() == self.recvs.len()
    }
}

/// The sends in the payload of a message.
struct Sends<'a>(&'a [u8]);

impl<'a> Iterator for Sends<'a> {
    type Item = &'a [u8];

    /// `None` also where the rest is none.
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (send, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        self.0 = rest;
        Some(send)
    }
}

impl<M: HostMemory> Card<M> {
    /// Adds a send to those that its queue pair has waiting, if it may join them; says whether it did. All that is left to check
    /// is its data: as long as others wait that take that way, it is there.
    #[inline]
    pub(super) fn join(&mut self, qp_slot: usize, wr: &SendWr<'_>) -> bool {
        let Some(qp) = self.qps[qp_slot].as_deref() else { return false };
        let Some(open) = qp.bundling.open else { return false };
        if qp.bundling.last != Destination::of(wr) || wr.op != (SendOp::Send { imm: None }) {
            return false;
        }
        let len = wr.data.bytes();
        let bundle = &mut self.bundles[open.bundle];
        let before = bundle.bytes.len();
        if len > LONGEST || bundle.sends.len() == MOST || before + LENGTH + len as usize > bundle.room {
            return false;
        }
        bundle.bytes.extend_from_slice(&(len as u16).to_be_bytes());
        match wr.data {
            SendData::Inline(bytes) => bundle.bytes.extend_from_slice(bytes),
            SendData::Sges(sges) => {
                for sge in sges {
                    let Some(bytes) = self.regions.look(qp.init.pd, sge) else {
                        bundle.bytes.truncate(before);
                        return false;
                    };
                    bundle.bytes.extend_from_slice(bytes);
                }
            }
        }
        bundle.sends.push(Part { wr_id: wr.wr_id, len: len as u32 });
        self.bundled += 1;
        true
    }

    /// A send that did not [join](Self::join) others leaves, alone or as the first of more. Says whether more may join it: it is
    /// short, goes where the last one went, and others are under way.
    #[inline]
    pub(super) fn awaits_company(&mut self, qp_slot: usize, wr: &SendWr<'_>) -> bool {
        let faults = self.options.faults.force.is_some();
        let Some(qp) = self.qps[qp_slot].as_deref_mut() else { return false };
        let bundling = &mut qp.bundling;
        bundling.open = None;
        let dst = Destination::of(wr);
        let again = std::mem::replace(&mut bundling.last, dst) == dst;
        if bundling.distrust > 0 {
            bundling.distrust -= 1;
            return false;
        }
        again && qp.attr.state == QpState::Rts && wr.data.bytes() <= LONGEST && self.outs.len() > 0 && !faults
    }

    /// Begins a message for sends that leave together with the first of them, if its buffers may be used; says whether it did.
    pub(super) fn open_bundle(&mut self, endpoint: &Endpoint, qp_slot: usize, peer: PeerId, wr: &SendWr<'_>) -> bool {
        let qp = self.qps[qp_slot].as_deref_mut().expect("it posts");
        let dst = qp.bundling.last;
        let (key, bundle) = self.bundles.take();
        bundle.dst = dst;
        bundle.room = usize::from(endpoint.datagram(peer)).saturating_sub(OVERHEAD).min(MAX_BYTES);
        bundle.bytes.clear();
        let (slot, out) = self.outs.take();
        let (cq, qpn) = (qp.init.send_cq, qp.qpn);
        let request = Request { wr_id: 0, peer: Some(peer), cq, qpn, remote_qpn: dst.qpn, ah: dst.ah };
        out.begin(request, Kind::Sends(key as u32), qp.rnr());
        let open = Open { out: slot, bundle: key };
        qp.bundling.open = Some(open);
        let joined = self.join(qp_slot, wr);
        if joined {
            self.waiting.push(open);
        } else {
            self.qps[qp_slot].as_deref_mut().expect("it posts").bundling.open = None;
            self.outs.give_back(slot);
            self.bundles.give_back(key);
        }
        joined
    }

    /// Gives the transport what waits for others to travel with. To be called before it sends.
    #[inline]
    pub fn ring(&mut self, endpoint: &mut Endpoint) {
        if !self.waiting.is_empty() {
            let mut waiting = std::mem::take(&mut self.waiting);
            for open in waiting.drain(..) {
                self.close_bundle(open);
                self.dispatch(endpoint, open.out);
            }
            self.waiting = waiting;
        }
    }

    /// The same for the next turn, where the transport cannot be reached.
    pub(super) fn ring_later(&mut self) {
        for open in std::mem::take(&mut self.waiting) {
            self.close_bundle(open);
            self.enqueue(open.out);
        }
    }

    /// Nothing joins a message any more.
    fn close_bundle(&mut self, open: Open) {
        let message = &mut self.outs[open.out];
        let src = message.request.qpn;
        let bundle = &mut self.bundles[open.bundle];
        let route = Route { dst: bundle.dst.qpn, src, qkey: bundle.dst.qkey };
        match bundle.sends[..] {
            // Company did not come.
            [only] => {
                bundle.bytes.drain(..LENGTH);
                message.copy = std::mem::take(&mut bundle.bytes);
                bundle.bytes = self.free_copies.pop().unwrap_or_default();
                (message.request.wr_id, message.len, message.kind) = (only.wr_id, only.len, Kind::Send);
                message.header.set(&Header::Send { route, ud: false, imm: None });
                self.bundles.give_back(open.bundle);
            }
            ref sends => {
                let longest = sends.iter().map(|send| send.len).max().unwrap_or(0) as u16;
                message.len = bundle.bytes.len() as u32;
                message.rnr = if message.rnr == RnrRetry::Forever { PATIENCE } else { RnrRetry::Times(0) };
                message.header.set(&Header::Sends { route, count: sends.len() as u16, longest });
            }
        }
        self.bundled -= 1;
        if let Some(qp) = self.qp_mut(src) {
            qp.bundling.open.take_if(|its| *its == open);
        }
    }

    /// Sends that left together are over.
    pub(super) fn end_bundle(&mut self, key: u32, request: &Request, end: End) {
        let key = key as usize;
        let sends = std::mem::take(&mut self.bundles[key].sends);
        self.bundled -= sends.len() - 1;
        if let End::With(status) = end {
            for send in &sends {
                self.finish(&Request { wr_id: send.wr_id, ..*request }, Opcode::Send, status, send.len);
            }
        }
        self.bundles[key].sends = sends;
        self.bundles.give_back(key);
    }

    /// The receiver does not take them together: each travels by itself.
    // [CARD-18]
    #[cold]
    pub(super) fn split(&mut self, out: usize, key: u32) {
        let request = self.outs[out].request;
        self.outs.give_back(out);
        let qp = self.qp_mut(request.qpn).expect("what it has under way ends with it");
        qp.bundling.distrust = DISTRUST;
        let rnr = qp.rnr();
        let Bundle { dst, sends, bytes, .. } = std::mem::replace(&mut self.bundles[key as usize], Bundle::FREE);
        self.bundles.give_back(key as usize);
        self.bundled -= sends.len() - 1;
        let route = Route { dst: dst.qpn, src: request.qpn, qkey: dst.qkey };
        for (send, bytes) in sends.iter().zip(Sends(&bytes)) {
            let (slot, out) = self.outs.take();
            out.begin(Request { wr_id: send.wr_id, ..request }, Kind::Send, rnr);
            out.len = send.len;
            out.copy = copied(&mut self.free_copies, [bytes]);
            out.header.set(&Header::Send { route, ud: false, imm: None });
            self.enqueue(slot);
        }
    }

    /// Finds receives for sends that arrive together, for all of them or for none.
    // [CARD-17]
    pub(super) fn place_sends(
        &mut self,
        slot: usize,
        peer: Option<PeerId>,
        route: &Route,
        count: u16,
        longest: u16,
        len: u32,
    ) -> Result<(), No> {
        let count = usize::from(count);
        let pd = self.target(route, QpType::Srd)?.init.pd;
        if count == 0 || count * LENGTH > len as usize || len as usize > MAX_BYTES {
            return Err(Status::BadStatus.into());
        }
        // Each of them has its own chance to find none.
        if self.options.faults.rnr != Share::NEVER {
            return Err(Status::BadStatus.into());
        }
        let qp_slot = self.qp_slot(route.dst);
        let queue = &mut self.qps[qp_slot].as_deref_mut().expect("it is the target").rq;
        if queue.len() < count {
            return Err(No::NotReady);
        }
        let (key, arrival) = self.arrivals.take();
        arrival.longest = longest;
        arrival.bytes.clear();
        arrival.bytes.resize(len as usize, 0);
        while arrival.recvs.len() < count {
            let mut segments = Segments::NONE;
            let fits = queue.front().is_some_and(|recv| {
                let sges = recv.sges_of(longest.into());
                recv.len() >= longest.into() && self.regions.resolve_all(pd, sges, Use::LocalWrite, &mut segments)
            });
            if !fits {
                self.put_back(key, route.dst, |_| false);
                return Err(Status::BadStatus.into());
            }
            arrival.recvs.extend(queue.pop_front().map(|recv| (recv, segments)));
        }
        self.places[slot].begin(peer, route, Goal::Sends(key), len);
        Ok(())
    }

    /// Completes the receives of sends that arrived together.
    pub(super) fn deliver_sends(&mut self, peer: Option<PeerId>, qpn: u16, src_qpn: u16, key: usize) {
        let arrival = &mut self.arrivals[key];
        if !arrival.is_sound() {
            self.port.rx_drops += 1;
            self.put_back(key, qpn, |_| false);
            return;
        }
        let (mut recvs, bytes) = (std::mem::take(&mut arrival.recvs), std::mem::take(&mut arrival.bytes));
        let origin = self.origin(peer, qpn, src_qpn).expect("a place ends with its queue pair");
        self.port.recv_wrs += recvs.len() as u64;
        self.port.recv_bytes += (bytes.len() - LENGTH * recvs.len()) as u64;
        for ((recv, segments), send) in recvs.drain(..).zip(Sends(&bytes)) {
            scatter(&mut self.regions, &segments, 0, send);
            self.regions.release_all(&segments);
            self.received(&origin, Some(recv.wr_id), Opcode::Recv, send.len() as u32, None);
        }
        let arrival = &mut self.arrivals[key];
        (arrival.recvs, arrival.bytes) = (recvs, bytes);
        self.arrivals.give_back(key);
    }

    /// Sends that were to arrive together do not. Their receives go back to where they were, but for those whose buffers are
    /// `lost`, which are returned.
    pub(super) fn put_back(&mut self, key: usize, qpn: u16, lost: impl Fn(&[Segment]) -> bool) -> Vec<Recv> {
        let recvs = std::mem::take(&mut self.arrivals[key].recvs);
        self.arrivals.give_back(key);
        recvs.iter().for_each(|(_, segments)| self.regions.release_all(segments));
        let (lost, kept): (Vec<_>, Vec<_>) = recvs.into_iter().partition(|(_, segments)| lost(segments));
        if let Some(qp) = self.qp_mut(qpn) {
            kept.into_iter().rev().for_each(|(recv, _)| qp.rq.push_front(recv));
        }
        lost.into_iter().map(|(recv, _)| recv).collect()
    }
}
