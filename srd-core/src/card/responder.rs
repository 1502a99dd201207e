//! Messages of peers: where they go, or why they do not.

use std::num::NonZeroU16;

use super::ends::{CLOSED_FOR, End, Which};
use super::header::{Header, Route};
use super::memory::{Regions, Segment, Segments, Use};
use super::out::Kind;
use super::peers::PeerEntry;
use super::profile::MAX_SGE;
use super::qp::{QpType, QueuePair, Recv};
use super::slots::Slot;
use super::{Card, CqId, GRH_LEN, Gid, HostMemory, Opcode, Status, UNKNOWN_AH};
use crate::endpoint::PeerId;
use crate::time::Time;
use crate::upper::{Failure, Gather, PlaceToken, Placement, Recall, Token, Upper};

/// Where a message goes that is on its way in.
#[derive(Debug)]
pub(super) struct Place {
    peer: Option<PeerId>,
    qpn: u16,
    src_qpn: u16,
    goal: Goal,
    /// The receive that it consumes.
    recv: Option<Recv>,
    imm: Option<u32>,
    len: u32,
    /// Bytes of the buffers before the payload.
    skip: u32,
    segments: Segments<MAX_SGE>,
    /// It was taken back, and the rest is refused with this.
    revoked: Option<Status>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// None: the slot is free.
    Free,
    /// A receive buffer.
    Recv,
    /// Receive buffers of several sends; their arrival.
    Sends(usize),
    /// The memory of a region.
    Write,
    /// The local buffer of a read of ours.
    Data { read: u32 },
    /// A read that we answer.
    Serve { read: u32, seg: Segment },
    /// A read that failed at the peer.
    Failed { read: u32, status: u8 },
}

/// Where messages come from, and whom their completions are for.
pub(super) struct Origin {
    cq: CqId,
    qpn: u16,
    src_qpn: u16,
    ah: u16,
    sgid: Gid,
}

/// Why there is no place.
pub(super) enum No {
    NotReady,
    Status(Status),
}

impl From<Status> for No {
    fn from(status: Status) -> No {
        No::Status(status)
    }
}

impl<M: HostMemory> Card<M> {
    /// Finds the place of a message of `len` bytes; `None` stands for ourselves.
    pub(super) fn place_from(&mut self, peer: Option<PeerId>, header: &[u8], len: u32) -> Placement {
        let header = Header::decode(header);
        let (slot, place) = self.places.take();
        let placed = match header {
            Some(Header::Send { route, ud, imm }) => self.place_send(slot, peer, &route, ud, imm, len),
            Some(Header::Write { route, imm, unsolicited, rkey, addr }) => {
                self.place_write(slot, peer, &route, imm, unsolicited, rkey, addr, len)
            }
            Some(Header::Read { route, rkey, addr, len: wanted, id }) if len == 0 => {
                self.place_request(slot, peer, &route, rkey, addr, wanted, id)
            }
            Some(Header::Sends { route, count, longest }) => self.place_sends(slot, peer, &route, count, longest, len),
            Some(Header::Data { id }) => self.place_data(slot, peer, id, len),
            Some(Header::Fail { id, status }) if len == 0 => {
                place.begin(peer, &NOWHERE, Goal::Failed { read: id, status }, 0);
                Ok(())
            }
            _ => Err(No::Status(Status::BadStatus)),
        };
        if placed.is_err() {
            self.places.give_back(slot);
        }
        match placed {
            Ok(()) => Placement::Accept(PlaceToken(slot as u64)),
            Err(No::NotReady) => {
                // A datagram has one attempt.
                self.port.rx_drops += u64::from(matches!(header, Some(Header::Send { ud: true, .. })));
                Placement::NotReady
            }
            // [CARD-9]
            Err(No::Status(status)) => {
                self.port.rx_drops += 1;
                Placement::Refuse(status.code())
            }
        }
    }

    /// The queue pair that a message is for.
    // [CARD-3]
    pub(super) fn target(&self, route: &Route, ty: QpType) -> Result<&QueuePair, No> {
        self.qp(route.dst)
            .filter(|qp| qp.receives() && qp.init.ty == ty && qp.attr.qkey == route.qkey)
            .ok_or(No::Status(Status::BadDestQpn))
    }

    /// Whether RDMA is permitted to a peer at all.
    // [CARD-4]
    fn knows(&self, peer: Option<PeerId>) -> Result<(), No> {
        if self.options.strict_peers && !self.peers.get(peer).is_some_and(PeerEntry::is_known) {
            return Err(No::Status(Status::UnknownPeer));
        }
        Ok(())
    }

    /// Takes a receive from the queue.
    fn take_recv(&mut self, qpn: u16) -> Result<Recv, No> {
        let rnr = self.options.faults.rnr;
        if rnr.hits(&mut self.rng) {
            return Err(No::NotReady);
        }
        self.qp_mut(qpn).and_then(|qp| qp.rq.pop_front()).ok_or(No::NotReady)
    }

    fn place_send(
        &mut self,
        slot: usize,
        peer: Option<PeerId>,
        route: &Route,
        ud: bool,
        imm: Option<u32>,
        len: u32,
    ) -> Result<(), No> {
        let qp = self.target(route, if ud { QpType::Ud } else { QpType::Srd })?;
        let (pd, cq) = (qp.init.pd, qp.init.recv_cq);
        let skip = if ud { GRH_LEN } else { 0 };
        let needed = u64::from(len) + u64::from(skip);
        if let Some(first) = qp.rq.front()
            && first.len() < needed
        {
            // [CARD-10]
            // The buffer stays for a message that fits.
            return Err(Status::RemoteBadLength.into());
        }
        let recv = self.take_recv(route.dst)?;
        let place = &mut self.places[slot];
        place.begin(peer, route, Goal::Recv, len);
        (place.imm, place.skip) = (imm, skip);
        let sges = recv.sges_of(u32::try_from(needed).unwrap_or(u32::MAX));
        if !self.regions.resolve_all(pd, sges, Use::LocalWrite, &mut place.segments) {
            self.fail_recv(cq, route.dst, &recv, Status::InvalidLkey);
            return Err(Status::BadStatus.into());
        }
        place.recv = Some(recv);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn place_write(
        &mut self,
        slot: usize,
        peer: Option<PeerId>,
        route: &Route,
        imm: Option<u32>,
        unsolicited: bool,
        rkey: u32,
        addr: u64,
        len: u32,
    ) -> Result<(), No> {
        let qp = self.target(route, QpType::Srd)?;
        let (pd, takes_unsolicited) = (qp.init.pd, qp.init.unsolicited_write_recv);
        self.knows(peer)?;
        // [CARD-11]
        if imm.is_some() && unsolicited != takes_unsolicited {
            return Err(Status::FeatureMismatch.into());
        }
        let seg = self.regions.resolve(pd, rkey, addr, len, Use::RemoteWrite).ok_or(Status::BadAddress)?;
        let mut recv = None;
        if imm.is_some() && !takes_unsolicited {
            match self.take_recv(route.dst) {
                Ok(taken) => recv = Some(taken),
                Err(no) => {
                    self.regions.release(&seg);
                    return Err(no);
                }
            }
        }
        let place = &mut self.places[slot];
        place.begin(peer, route, Goal::Write, len);
        (place.imm, place.recv) = (imm, recv);
        place.segments.push(seg);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn place_request(
        &mut self,
        slot: usize,
        peer: Option<PeerId>,
        route: &Route,
        rkey: u32,
        addr: u64,
        len: u32,
        id: u32,
    ) -> Result<(), No> {
        let pd = self.target(route, QpType::Srd)?.init.pd;
        self.knows(peer)?;
        // [CARD-6]
        if !self.may_serve(peer) {
            return Err(No::NotReady);
        }
        if len > self.options.profile.max_rdma {
            return Err(Status::BadAddress.into());
        }
        let seg = self.regions.resolve(pd, rkey, addr, len, Use::RemoteRead).ok_or(Status::BadAddress)?;
        self.places[slot].begin(peer, route, Goal::Serve { read: id, seg }, 0);
        Ok(())
    }

    fn place_data(&mut self, slot: usize, peer: Option<PeerId>, id: u32, len: u32) -> Result<(), No> {
        let read = self.reads.get_mut(id).ok_or(Status::Flushed)?;
        // [CARD-7]
        if read.request.peer != peer || read.seg.len != len || read.place.is_some() {
            return Err(Status::BadStatus.into());
        }
        read.place = Some(slot);
        let place = &mut self.places[slot];
        place.begin(peer, &NOWHERE, Goal::Data { read: id }, len);
        // The read keeps the region, and revokes the place when it ends.
        place.segments.push(read.seg);
        Ok(())
    }

    /// Completes the receive of the message in a place.
    fn deliver(&mut self, slot: usize, opcode: Opcode) {
        let Place { peer, qpn, src_qpn, imm, len, skip, .. } = self.places[slot];
        let recv = self.places[slot].recv.as_ref().map(|recv| recv.wr_id);
        let Some(origin) = self.origin(peer, qpn, src_qpn) else { return };
        if skip > 0 {
            let grh = grh(len, &origin.sgid, &self.gid);
            scatter(&mut self.regions, &self.places[slot].segments, 0, &grh);
        }
        self.received(&origin, recv, opcode, len + skip, imm);
    }

    /// What completions tell of messages between these queue pairs.
    #[inline]
    pub(super) fn origin(&self, peer: Option<PeerId>, qpn: u16, src_qpn: u16) -> Option<Origin> {
        let qp = self.qp(qpn)?;
        let pd = qp.init.pd;
        let (ah, sgid) = self.peers.get(peer).map_or((UNKNOWN_AH, Gid::default()), |e| (e.handle(pd), e.gid));
        Some(Origin { cq: qp.init.recv_cq, qpn, src_qpn, ah, sgid })
    }

    /// Completes a receive, or tells of a message that took none.
    #[inline]
    pub(super) fn received(
        &mut self,
        origin: &Origin,
        wr_id: Option<u64>,
        opcode: Opcode,
        byte_len: u32,
        imm: Option<u32>,
    ) {
        if opcode == Opcode::Recv {
            self.ahead.received(origin.qpn, byte_len);
        }
        self.complete(origin.cq, |entry| {
            (entry.wr_id, entry.unsolicited) = (wr_id.unwrap_or(0), wr_id.is_none());
            (entry.opcode, entry.byte_len, entry.imm) = (opcode, byte_len, imm);
            (entry.qpn, entry.src_qpn) = (origin.qpn, origin.src_qpn);
            (entry.ah, entry.sgid) = (origin.ah, origin.sgid);
        });
    }

    /// Lets the host fetch buffers of the next messages into its cache, if the next ones are as the last ones were. A few at a
    /// time, each once; best while there is nothing else to do.
    pub fn anticipate(&mut self) {
        let Some(qpn) = self.ahead.wanted() else { return };
        let queue = self.qp(qpn).map_or(0, |qp| qp.rq.len());
        let (places, len) = self.ahead.fetch(queue);
        let Some(qp) = self.qp(qpn) else { return };
        for recv in qp.rq.range(places) {
            recv.sges_of(len).for_each(|sge| self.regions.prefetch(qp.init.pd, &sge));
        }
    }

    /// A place is not needed any more, and nothing of it is.
    fn release_place(&mut self, slot: usize) {
        self.places[slot].release(&mut self.regions);
        self.places.give_back(slot);
    }

    /// Takes back the places that `which` picks; those of reads go with their reads.
    pub(super) fn revoke(&mut self, which: Which, end: End) {
        let picked: Vec<usize> = self
            .places
            .iter()
            .filter(|(_, place)| {
                place.revoked.is_none()
                    && match which {
                        Which::Qp(qpn) => place.qpn == qpn && !matches!(place.goal, Goal::Data { .. }),
                        Which::Ah(..) => false,
                        Which::Region(lkey) => match place.goal {
                            Goal::Data { .. } => false,
                            Goal::Sends(key) => self.arrivals[key].any(|seg| Regions::<M>::is_of(seg, lkey)),
                            _ => place.segments.iter().any(|seg| Regions::<M>::is_of(seg, lkey)),
                        },
                    }
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in picked {
            let place = &mut self.places[slot];
            let status = match (place.goal, which) {
                (_, Which::Qp(_)) => Status::BadDestQpn,
                (Goal::Recv | Goal::Sends(_), _) => Status::BadStatus,
                _ => Status::BadAddress,
            };
            place.release(&mut self.regions);
            place.revoke(status);
            let (recv, qpn) = (place.recv.take(), place.qpn);
            if let Goal::Sends(key) = place.goal {
                let lost = self.put_back(key, qpn, |segments| match which {
                    Which::Region(lkey) => segments.iter().any(|seg| Regions::<M>::is_of(seg, lkey)),
                    Which::Qp(_) | Which::Ah(..) => true,
                });
                if let (End::With(status), Some(cq)) = (end, self.qp(qpn).map(|qp| qp.init.recv_cq)) {
                    lost.iter().for_each(|recv| self.fail_recv(cq, qpn, recv, status));
                }
                continue;
            }
            let (Some(recv), End::With(status)) = (recv, end) else { continue };
            if matches!((place.goal, which), (Goal::Write, Which::Region(_))) {
                // The receive was only for the notice.
                if let Some(qp) = self.qp_mut(qpn) {
                    qp.rq.push_front(recv);
                }
            } else if let Some(cq) = self.qp(qpn).map(|qp| qp.init.recv_cq) {
                self.fail_recv(cq, qpn, &recv, status);
            }
        }
    }
}

const NOWHERE: Route = Route { dst: 0, src: 0, qkey: 0 };

impl Slot for Place {
    const FREE: Place = Place {
        peer: None,
        qpn: 0,
        src_qpn: 0,
        goal: Goal::Free,
        recv: None,
        imm: None,
        len: 0,
        skip: 0,
        segments: Segments::NONE,
        revoked: None,
    };

    #[inline]
    fn is_free(&self) -> bool {
        matches!(self.goal, Goal::Free)
    }

    #[inline]
    fn set_free(&mut self) {
        self.goal = Goal::Free;
    }
}

impl Place {
    /// Becomes the place of a message, of which more may be set.
    #[inline]
    pub(super) fn begin(&mut self, peer: Option<PeerId>, route: &Route, goal: Goal, len: u32) {
        (self.peer, self.qpn, self.src_qpn) = (peer, route.dst, route.src);
        (self.goal, self.len, self.skip) = (goal, len, 0);
        (self.recv, self.imm, self.revoked) = (None, None, None);
        self.segments.clear();
    }

    /// Nothing is written there any more; the rest of the message is refused.
    pub(super) fn revoke(&mut self, status: Status) {
        (self.revoked, self.segments) = (Some(status), Segments::NONE);
    }

    /// Gives up the regions, but for those that a read holds.
    fn release<M: HostMemory>(&self, regions: &mut Regions<M>) {
        if !matches!(self.goal, Goal::Data { .. }) {
            regions.release_all(&self.segments);
        }
        if let Goal::Serve { seg, .. } = self.goal {
            regions.release(&seg);
        }
    }
}

/// Writes `bytes` into the segments as if they were one, from `offset` on.
pub(super) fn scatter<M: HostMemory>(
    regions: &mut Regions<M>,
    segments: &[Segment],
    mut offset: u32,
    mut bytes: &[u8],
) {
    for seg in segments {
        if offset >= seg.len {
            offset -= seg.len;
            continue;
        }
        let (now, later) = bytes.split_at(bytes.len().min((seg.len - offset) as usize));
        regions.write(seg, offset, now);
        (bytes, offset) = (later, 0);
        if bytes.is_empty() {
            return;
        }
    }
}

/// The Global Routing Header that precedes a datagram (an IPv6 header, RFC 8200 section 3).
fn grh(len: u32, sgid: &Gid, dgid: &Gid) -> [u8; GRH_LEN as usize] {
    let mut b = [0; GRH_LEN as usize];
    b[0] = 0x60;
    b[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    b[6] = 0x1b;
    b[7] = 0xff;
    b[8..24].copy_from_slice(&sgid.0);
    b[24..].copy_from_slice(&dgid.0);
    b
}

impl<M: HostMemory> Gather for Card<M> {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        self.out_payload(token, offset, len)
    }
}

impl<M: HostMemory> Upper for Card<M> {
    fn header(&self, token: Token) -> &[u8] {
        self.outs[token.0 as usize].header.as_bytes()
    }

    // Whoever reads from us has all of it before we know. Its program may tell ours, which ends the registration or, where
    // registrations are cached, only gives the memory back. A card of hardware would have pinned the pages.
    fn recall(&self, token: Token, offset: u32, len: u32, into: &mut Vec<u8>) -> Recall {
        let out = &self.outs[token.0 as usize];
        match out.kind {
            Kind::Data(_) if self.regions.recall(&out.segments, offset, len, into) => Recall::Copied,
            Kind::Data(_) => Recall::Gone,
            _ => Recall::Kept,
        }
    }

    // For a receive of the queue pair that it is for. Reads wait for others to end, of whatever queue pair.
    fn waits_for(&self, token: Token) -> Option<NonZeroU16> {
        let out = &self.outs[token.0 as usize];
        matches!(out.kind, Kind::Send | Kind::Write).then_some(())?;
        NonZeroU16::new(out.request.remote_qpn)
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        self.settle(token, outcome);
    }

    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        self.place_from(Some(peer), header, len)
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let place = &self.places[place.0 as usize];
        if let Goal::Sends(key) = place.goal {
            return self.arrivals[key].write(offset, bytes);
        }
        scatter(&mut self.regions, &place.segments, offset + place.skip, bytes);
    }

    fn placed(&mut self, place: PlaceToken) {
        let slot = place.0 as usize;
        let Place { peer, qpn, src_qpn, goal, len, imm, revoked, .. } = self.places[slot];
        if revoked.is_some() {
            return self.places.give_back(slot);
        }
        match goal {
            Goal::Free => return,
            Goal::Recv => {
                self.deliver(slot, Opcode::Recv);
                self.port.recv_wrs += 1;
                self.port.recv_bytes += u64::from(len);
            }
            Goal::Sends(key) => {
                self.places.give_back(slot);
                return self.deliver_sends(peer, qpn, src_qpn, key);
            }
            Goal::Write => {
                self.port.rdma_write_recv_bytes += u64::from(len);
                if imm.is_some() {
                    self.deliver(slot, Opcode::RecvRdmaWithImm);
                }
            }
            Goal::Data { read } => {
                self.places.give_back(slot);
                if let Some(ended) = self.reads.get_mut(read) {
                    ended.place = None;
                    self.end_read(read, End::With(Status::Ok));
                }
                return;
            }
            // [CARD-13]
            // The answer takes over the region.
            Goal::Serve { read, seg } => {
                self.places.give_back(slot);
                return self.answer(peer, qpn, read, Ok(seg));
            }
            Goal::Failed { read, status } => {
                self.places.give_back(slot);
                if self.reads.get_mut(read).is_some_and(|read| read.request.peer == peer) {
                    self.end_read(read, End::With(Status::from_peer(status)));
                }
                return;
            }
        }
        self.release_place(slot);
    }

    fn abandoned(&mut self, place: PlaceToken) {
        let slot = place.0 as usize;
        let Place { qpn, goal, recv, revoked, .. } = self.places[slot];
        if revoked.is_some() {
            return self.places.give_back(slot);
        }
        self.release_place(slot);
        if let Goal::Sends(key) = goal {
            self.put_back(key, qpn, |_| false);
        }
        if let Goal::Data { read } = goal
            && let Some(read) = self.reads.get_mut(read)
        {
            read.place = None;
        }
        if let Some(recv) = recv
            && let Some(qp) = self.qp_mut(qpn)
        {
            qp.rq.push_front(recv);
        }
    }

    fn revoked(&self, place: PlaceToken) -> Option<u8> {
        self.places[place.0 as usize].revoked.map(Status::code)
    }

    fn connected(&mut self, peer: PeerId, addr: std::net::SocketAddr, tag: u8) {
        let gid = Gid::of_peer(addr, tag).unwrap_or_default();
        let entry = self.peers.meet(Some(peer), gid);
        entry.gid = gid;
        entry.closed_until = Time::ZERO;
    }

    fn closed(&mut self, peer: PeerId) {
        let until = self.now + CLOSED_FOR;
        if let Some(entry) = self.peers.get_mut(Some(peer)) {
            entry.closed_until = until;
        }
    }

    fn ended(&mut self, peer: PeerId, why: Option<Failure>) {
        self.lost_peer(peer, why);
    }
}
