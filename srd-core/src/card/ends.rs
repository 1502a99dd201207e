//! How things end that are under way: sent, failed, taken back, or because the peer has gone.

use super::memory::Regions;
use super::out::{Kind, Out, Request};
use super::qp::Recv;
use super::requester::MAX_COPIES;
use super::{Card, CardEvent, CqId, Gid, HostMemory, MAX_NOTES, Opcode, PdId, Status, Trouble};
use crate::endpoint::{Endpoint, PeerId};
use crate::time::Span;
use crate::upper::{Failure, Token, Upper as _};

/// How long a peer that closed counts as gone: requests to it fail at once. After that they try again whether it is back.
pub(super) const CLOSED_FOR: Span = Span::from_secs(5);

/// Which of the things under way are to be ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// Those of a queue pair.
    Qp(u16),
    /// Those that use an address handle.
    Ah(PdId, u16),
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
    /// The transport is done with a message.
    pub(super) fn settle(&mut self, token: Token, outcome: Result<(), Failure>) {
        let slot = token.0 as usize;
        let Some(out) = self.outs.get(slot) else { return };
        let status = match outcome {
            Ok(()) => Status::Ok,
            // What becomes of datagrams is nobody's business.
            Err(_) if out.kind == Kind::Datagram => Status::Ok,
            Err(failure) => status_of(failure),
        };
        let (kind, Request { peer, qpn, .. }) = (out.kind, out.request);
        if let (Kind::Sends(key), Err(Failure::NotReady | Failure::Refused(_) | Failure::TooLong { .. })) =
            (kind, outcome)
        {
            return self.split(slot, key);
        }
        self.end_out(slot, End::With(status));
        // The connection goes on, and its other side waits.
        if let (Kind::Data(id), Err(Failure::MemoryGone | Failure::TooLong { .. })) = (kind, outcome) {
            self.answer(peer, qpn, id, Err(Status::BadAddress));
        }
    }

    /// A message is over.
    #[inline]
    fn end_out(&mut self, slot: usize, end: End) {
        let out = &mut self.outs[slot];
        let (request, len, kind, done) = (out.request, out.len, out.kind, out.done);
        self.regions.release_all(&out.segments);
        if out.copy.capacity() > 0 {
            let copy = std::mem::take(&mut out.copy);
            if self.free_copies.len() < MAX_COPIES {
                self.free_copies.push(copy);
            }
        }
        self.outs.give_back(slot);
        if done {
            self.done_datagrams -= 1;
            return;
        }
        let opcode = match kind {
            Kind::Free => return,
            Kind::Send | Kind::Datagram => Opcode::Send,
            Kind::Sends(key) => return self.end_bundle(key, &request, end),
            Kind::Write => Opcode::RdmaWrite,
            Kind::Request(id) => {
                match (self.reads.get_mut(id), end) {
                    (Some(read), End::With(Status::Ok)) => read.requested = true,
                    (Some(_), end) => self.end_read(id, end),
                    // The data was faster than the acknowledgement of the request.
                    (None, _) => {}
                }
                return;
            }
            Kind::Data(_) | Kind::Fail => {
                // The entry has another id if the peer was forgotten meanwhile.
                if let Some(entry) = self.peers.get_mut(request.peer) {
                    entry.serving -= 1;
                }
                if end == End::With(Status::Ok) {
                    self.port.rdma_read_resp_bytes += u64::from(len);
                }
                return;
            }
        };
        if let End::With(status) = end {
            self.finish(&request, opcode, status, len);
        }
    }

    /// A read is over: its buffer is the program's again, and whatever of its data still comes is refused.
    // [CARD-8]
    pub(super) fn end_read(&mut self, id: u32, end: End) {
        let Some(read) = self.reads.remove(id) else { return };
        self.regions.release(&read.seg);
        if let Some(place) = read.place {
            self.places[place].revoke(Status::Flushed);
        }
        if let End::With(status) = end {
            self.finish(&read.request, Opcode::RdmaRead, status, read.seg.len);
        }
    }

    /// Completes a work request of the send queue. Its queue pair is there, for what it has under way ends with it.
    #[inline(always)]
    pub(super) fn finish(&mut self, request: &Request, opcode: Opcode, status: Status, len: u32) {
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
        if !ok && status != Status::Flushed {
            self.note(request, opcode, status);
        }
        let Request { wr_id, cq, qpn, .. } = *request;
        self.complete(cq, |entry| (entry.wr_id, entry.status, entry.opcode, entry.qpn) = (wr_id, status, opcode, qpn));
    }

    #[cold]
    fn note(&mut self, request: &Request, opcode: Opcode, status: Status) {
        let Request { wr_id, peer, qpn, remote_qpn, ah, .. } = *request;
        let Some(pd) = self.qp(qpn).map(|qp| qp.init.pd) else { return };
        let ah = self.pds[pd.0 as usize].ahs.get(ah as usize).and_then(Option::as_ref);
        let (gid, peer) = ah.map_or((Gid::default(), peer), |ah| (ah.gid, ah.peer(remote_qpn)));
        if self.troubles.len() == MAX_NOTES {
            self.troubles.pop_front();
        }
        self.troubles.push_back(Trouble { status, opcode, wr_id, qpn, remote_qpn, gid, peer });
    }

    /// Ends everything under way that `which` picks: sends, reads, and places of messages that are half here. Memory that
    /// they spoke of is not touched after this call.
    pub(super) fn end_all(&mut self, endpoint: &mut Endpoint, which: Which, end: End) {
        self.ring_later();
        let is_picked = |out: &Out| match which {
            // What is only told to a peer, and datagrams that are done, survive it.
            Which::Qp(qpn) => out.request.qpn == qpn && out.kind != Kind::Fail && !out.done,
            Which::Ah(pd, ah) => !out.done && self.uses(&out.request, pd, ah),
            Which::Region(lkey) => out.segments.iter().any(|seg| Regions::<M>::is_of(seg, lkey)),
        };
        let doomed: Vec<usize> = self.outs.iter().filter(|(_, out)| is_picked(out)).map(|(slot, _)| slot).collect();
        self.withdraw(endpoint, &doomed);
        let refusal = if let Which::Qp(_) = which { Status::BadDestQpn } else { Status::BadAddress };
        for slot in doomed {
            let Out { kind, request: Request { peer, qpn, .. }, .. } = self.outs[slot];
            self.end_out(slot, end);
            // [CARD-13]
            if let Kind::Data(id) = kind {
                self.answer(peer, qpn, id, Err(refusal));
            }
        }
        let reads: Vec<u32> = self
            .reads
            .iter()
            .filter(|read| match which {
                Which::Qp(qpn) => read.request.qpn == qpn,
                Which::Ah(pd, ah) => self.uses(&read.request, pd, ah),
                Which::Region(lkey) => read.seg.len > 0 && Regions::<M>::is_of(&read.seg, lkey),
            })
            .map(|read| read.id)
            .collect();
        for id in reads {
            self.end_read(id, end);
        }
        self.revoke(which, end);
    }

    /// Whether a work request was posted with this address handle of this domain.
    fn uses(&self, request: &Request, pd: PdId, ah: u16) -> bool {
        request.ah == ah && self.qp(request.qpn).is_some_and(|qp| qp.init.pd == pd)
    }

    /// Takes these messages back from wherever they wait.
    fn withdraw(&mut self, endpoint: &mut Endpoint, doomed: &[usize]) {
        if doomed.is_empty() {
            return;
        }
        doomed.iter().for_each(|&slot| self.outs[slot].doomed = true);
        let outs = &self.outs;
        let mut peers: Vec<PeerId> = doomed.iter().filter_map(|&slot| outs[slot].request.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            endpoint.withdraw(peer, |token| outs[token.0 as usize].doomed);
        }
        let gone = |out: usize| outs[out].doomed;
        let half = self.local.remove(gone);
        self.queued.retain(|&out| !gone(out));
        self.vain_offers = 0;
        for qp in self.qps.iter_mut().flatten().filter(|qp| !qp.parked.is_empty()) {
            qp.parked.retain(|&out| !gone(out as usize));
        }
        if let Some(place) = half {
            self.abandoned(place);
        }
    }

    /// Gives up datagrams that nobody has acknowledged for long.
    pub(super) fn expire_datagrams(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut doomed = Vec::new();
        while let Some(&(at, slot, number)) = self.datagrams.front() {
            if self.outs.get(slot).is_some_and(|out| out.number == Some(number)) {
                if at > self.now {
                    break;
                }
                doomed.push(slot);
            }
            self.datagrams.pop_front();
        }
        self.withdraw(endpoint, &doomed);
        for &slot in &doomed {
            self.end_out(slot, End::With(Status::Ok));
        }
        !doomed.is_empty()
    }

    /// The connection with a peer is over: data that it owed will not come, and it expects none. What waits here for the peer
    /// ends like what waited in the transport, for the next to be heard from its address may be someone else.
    // [CARD-12]
    pub(super) fn lost_peer(&mut self, peer: PeerId, why: Option<Failure>) {
        if why == Some(Failure::Unresponsive) {
            self.port.unresponsive_remote_events += 1;
            if let Some(gid) = self.peers.get(Some(peer)).map(|e| e.gid) {
                self.emit(CardEvent::Unresponsive(gid));
            }
        }
        let failure = why.unwrap_or(Failure::PeerRestarted);
        self.ring_later();
        let mut waiting = Vec::new();
        let outs = &self.outs;
        let mut stays = |out: usize| {
            let Out { kind, request, .. } = &outs[out];
            let ends = request.peer == Some(peer) && (why.is_some() || kind.is_answer());
            if ends {
                waiting.push(out);
            }
            !ends
        };
        self.queued.retain(|&out| stays(out));
        self.vain_offers = 0;
        // Strangers come and go as they like: where there is no handle, nothing else of ours is looked through.
        let handled = self.peers.get(Some(peer)).is_some_and(|entry| !entry.handles.is_empty());
        if handled {
            for qp in self.qps.iter_mut().flatten() {
                qp.parked.retain(|&out| stays(out as usize));
            }
        }
        for out in waiting {
            self.settle(Token(out as u64), Err(failure));
        }
        if !handled {
            return;
        }
        let owed: Vec<u32> = self
            .reads
            .iter()
            .filter(|read| read.request.peer == Some(peer) && read.requested)
            .map(|read| read.id)
            .collect();
        for id in owed {
            self.end_read(id, End::With(status_of(failure)));
        }
    }

    /// Completes a receive with an error.
    pub(super) fn fail_recv(&mut self, cq: CqId, qpn: u16, recv: &Recv, status: Status) {
        self.complete(cq, |entry| {
            (entry.wr_id, entry.status, entry.opcode, entry.qpn) = (recv.wr_id, status, Opcode::Recv, qpn);
        });
    }
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
        Failure::MemoryGone => Status::InvalidLkey,
    }
}
