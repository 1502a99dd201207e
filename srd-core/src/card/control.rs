//! Commands: make, change and destroy the objects of a card.

use super::cq::CompletionQueue;
use super::ends::{End, Which};
use super::peers::{Ah, Handle};
use super::qp::{QueuePair, Recv};
use super::{
    Access, Card, CardError, CqId, Gid, HostMemory, MrKeys, NO_CQ, NO_PD, NO_QP, Pd, PdId, QPN_SLOT_BITS, QpAttr,
    QpInit, QpModify, QpState, QpType, Sge, Status, UNKNOWN_AH, below, profile::caps,
};
use crate::endpoint::{Endpoint, PeerId};
use crate::time::Time;

/// Slots of queue pairs that are made before any is used again, so that a number comes back late.
const QPN_SPREAD: usize = 256;
/// Slots that there can be, over all processing units.
const MAX_SLOTS: usize = 1 << QPN_SLOT_BITS;
/// Uses of a slot until a number comes back. The upper bits are never 0: the numbers 0 and 1 mean something else elsewhere.
const QPN_GENERATIONS: u8 = (1 << (16 - QPN_SLOT_BITS)) - 1;

impl<M: HostMemory> Card<M> {
    fn command<T>(
        &mut self,
        run: impl FnOnce(&mut Card<M>) -> Result<T, CardError>,
        failed: impl FnOnce(&mut Card<M>),
    ) -> Result<T, CardError> {
        self.device.submitted_cmds += 1;
        let outcome = run(self);
        self.device.completed_cmds += 1;
        if outcome.is_err() {
            self.device.cmds_err += 1;
            failed(self);
        }
        outcome
    }

    // ---- protection domains

    /// Makes a protection domain.
    ///
    /// # Errors
    /// The device has no more.
    pub fn alloc_pd(&mut self) -> Result<PdId, CardError> {
        self.command(
            |card| {
                if card.pds.len() >= card.options.profile.max_pd as usize {
                    return Err(CardError::NoMemory("the device has no more protection domains"));
                }
                Ok(PdId(card.pds.insert(Pd { ahs: Vec::new(), users: 0 }) as u32))
            },
            |card| card.device.alloc_pd_err += 1,
        )
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// There is no such domain, or it has queue pairs, regions or address handles.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), CardError> {
        self.command(
            |card| {
                let domain = card.pds.get(pd.0 as usize).ok_or(NO_PD)?;
                if domain.users > 0 || domain.ahs.iter().any(Option::is_some) || card.regions.has_any(pd) {
                    return Err(CardError::Busy("the protection domain has queue pairs, regions or address handles"));
                }
                card.pds.remove(pd.0 as usize);
                Ok(())
            },
            |_| (),
        )
    }

    // ---- memory regions

    /// Registers memory: `len` bytes that work requests and peers address from `base` on.
    ///
    /// # Errors
    /// There is no such domain, the access is remote write without local write, the device does not have it, or it has no
    /// more regions.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        memory: M::Region,
        base: u64,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, CardError> {
        self.command(
            |card| {
                let profile = &card.options.profile;
                card.pds.get(pd.0 as usize).ok_or(NO_PD)?;
                if access.remote_write && !access.local_write {
                    return Err(CardError::Invalid("remote write access needs local write access"));
                }
                if (access.remote_read && !profile.has(caps::RDMA_READ))
                    || (access.remote_write && !profile.has(caps::RDMA_WRITE))
                {
                    return Err(CardError::NotSupported("this device generation has no such RDMA operation"));
                }
                if len > profile.max_mr_size {
                    return Err(CardError::NoMemory("longer than a memory region of this device can be"));
                }
                card.regions.register(pd, memory, base, len, access)
            },
            |card| card.device.reg_mr_err += 1,
        )
    }

    /// Ends a registration. Whatever of it is under way ends with an error, and the memory is not touched any more.
    ///
    /// # Errors
    /// There is no such region.
    pub fn dereg_mr(&mut self, endpoint: &mut Endpoint, lkey: u32) -> Result<(), CardError> {
        self.command(
            |card| {
                if card.regions.deregister(lkey)? {
                    card.end_all(endpoint, Which::Region(lkey), End::With(Status::InvalidLkey));
                }
                Ok(())
            },
            |_| (),
        )
    }

    // ---- address handles

    /// Makes an address handle for the card with this GID, which may be ourselves, and returns its number. `max_datagram`
    /// is what the driver says of the first hop to it.
    ///
    /// # Errors
    /// There is no such domain, this is no card's GID, or the device has no more address handles.
    pub fn create_ah(
        &mut self,
        endpoint: &mut Endpoint,
        pd: PdId,
        gid: Gid,
        max_datagram: u16,
    ) -> Result<u16, CardError> {
        self.command(
            |card| {
                let domain = card.pds.get_mut(pd.0 as usize).ok_or(NO_PD)?;
                if let Some((number, ah)) = domain
                    .ahs
                    .iter_mut()
                    .enumerate()
                    .find_map(|(n, ah)| Some((n, ah.as_mut().filter(|a| a.gid == gid)?)))
                {
                    ah.refs += 1;
                    let peers: Vec<_> = ah.peers().collect();
                    for peer in peers {
                        if let Some(entry) = card.peers.get_mut(peer) {
                            entry.closed_until = Time::ZERO;
                        }
                    }
                    return Ok(number as u16);
                }
                if card.ahs >= card.options.profile.max_ah.min(UNKNOWN_AH.into()) {
                    return Err(CardError::NoMemory("the device has no more address handles"));
                }
                let first = card.find_unit(endpoint, gid, 0, max_datagram)?;
                let mut others = Vec::new();
                for index in 1..gid.units() {
                    match card.find_unit(endpoint, gid, index, max_datagram) {
                        Ok(peer) => others.push(peer),
                        Err(error) => {
                            others.push(first);
                            others.into_iter().for_each(|peer| card.release_if_unused(endpoint, peer));
                            return Err(error);
                        }
                    }
                }
                card.ahs += 1;
                let ahs = &mut card.pds[pd.0 as usize].ahs;
                let number = ahs.iter().position(Option::is_none).unwrap_or_else(|| {
                    ahs.push(None);
                    ahs.len() - 1
                });
                let handle = Handle { pd, number: number as u16, gid };
                let ah = Ah { gid, first, others: others.into(), refs: 1 };
                for peer in ah.peers() {
                    let entry = card.peers.meet(peer, gid);
                    entry.handles.push(handle);
                    // Whoever makes a handle has reason to believe that there is somebody (again).
                    entry.closed_until = Time::ZERO;
                }
                card.pds[pd.0 as usize].ahs[number] = Some(ah);
                Ok(number as u16)
            },
            |card| card.device.create_ah_err += 1,
        )
    }

    /// A processing unit of the card with this GID; `None` is ourselves.
    fn find_unit(
        &self,
        endpoint: &mut Endpoint,
        gid: Gid,
        index: u16,
        max_datagram: u16,
    ) -> Result<Option<PeerId>, CardError> {
        if gid == self.gid && index == self.unit.index() {
            return Ok(None);
        }
        let addr = gid.unit_addr(index).ok_or(CardError::Invalid("this is not the GID of a card"))?;
        endpoint.peer(addr, max_datagram).map(Some).ok_or(CardError::NoMemory("the table of peers is full"))
    }

    /// Gives up a peer that no address handle leads to.
    fn release_if_unused(&mut self, endpoint: &mut Endpoint, peer: Option<PeerId>) {
        if let Some(peer) = peer
            && self.peers.get(Some(peer)).is_none_or(|entry| entry.handles.is_empty())
        {
            endpoint.release(peer);
        }
    }

    /// Destroys an address handle. Requests under way that use it end as flushed.
    ///
    /// # Errors
    /// There is no such handle.
    pub fn destroy_ah(&mut self, endpoint: &mut Endpoint, pd: PdId, ah: u16) -> Result<(), CardError> {
        self.command(
            |card| {
                let domain = card.pds.get_mut(pd.0 as usize).ok_or(NO_PD)?;
                let slot = domain.ahs.get_mut(ah as usize);
                let handle = slot.and_then(Option::as_mut).ok_or(CardError::Invalid("no such address handle"))?;
                handle.refs -= 1;
                if handle.refs > 0 {
                    return Ok(());
                }
                card.end_all(endpoint, Which::Ah(pd, ah), End::With(Status::Flushed));
                let handle = card.pds[pd.0 as usize].ahs[ah as usize].take();
                card.ahs -= 1;
                for peer in handle.iter().flat_map(Ah::peers) {
                    if let Some(entry) = card.peers.get_mut(peer) {
                        entry.handles.retain(|h| (h.pd, h.number) != (pd, ah));
                    }
                    card.release_if_unused(endpoint, peer);
                }
                Ok(())
            },
            |_| (),
        )
    }

    // ---- completion queues

    /// Makes a completion queue of at least `depth` entries.
    ///
    /// # Errors
    /// The depth is 0 or more than the device permits, or it has no more queues.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, CardError> {
        self.command(
            |card| {
                let profile = &card.options.profile;
                if depth == 0 || depth > profile.max_cqe {
                    return Err(CardError::Invalid("completion queue depth is 0, or more than the device's max_cqe"));
                }
                if card.cqs.len() >= profile.max_cq as usize {
                    return Err(CardError::NoMemory("the device has no more completion queues"));
                }
                let queue = CompletionQueue::new(depth.next_power_of_two() as usize);
                Ok(CqId(card.cqs.insert(queue) as u32))
            },
            |card| card.device.create_cq_err += 1,
        )
    }

    /// Entries that a completion queue holds.
    pub fn cq_depth(&self, cq: CqId) -> Option<usize> {
        Some(self.cqs.get(cq.0 as usize)?.depth())
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// There is no such queue, or queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CardError> {
        self.command(
            |card| {
                let queue = card.cqs.get(cq.0 as usize).ok_or(NO_CQ)?;
                if queue.users > 0 {
                    return Err(CardError::Busy("queue pairs use the completion queue"));
                }
                card.cqs.remove(cq.0 as usize);
                Ok(())
            },
            |_| (),
        )
    }

    // ---- queue pairs

    /// Makes a queue pair, rounds its capacities up, and returns its number.
    ///
    /// # Errors
    /// Something that it is made of does not exist, a capacity is beyond the device's limits, an operation is not among
    /// its capabilities, or it has no more queue pairs.
    pub fn create_qp(&mut self, mut init: QpInit) -> Result<u16, CardError> {
        self.command(
            |card| {
                card.check_qp(&init)?;
                let max = card.options.profile.max_qp as usize;
                if card.live_qps as usize >= max
                    || card.qps.len() - card.free_qps.len() >= MAX_SLOTS >> card.unit.bits()
                {
                    return Err(CardError::NoMemory("the device has no more queue pairs"));
                }
                init.cap.send_wr = init.cap.send_wr.next_power_of_two();
                let sges = u32::from(init.cap.recv_sge.max(1));
                init.cap.recv_wr = (init.cap.recv_wr * sges).next_power_of_two() / sges;
                let (slots, bits) = (card.qps.len(), card.unit.bits());
                let slot = match card.free_qps.front() {
                    Some(&slot) if slots >= QPN_SPREAD.min(max) >> bits => {
                        card.free_qps.pop_front();
                        slot
                    }
                    _ => {
                        card.qps.push(None);
                        card.qp_numbers.push(below(&mut card.numbers, QPN_GENERATIONS.into()) as u8);
                        slots as u16
                    }
                };
                // [CARD-12]
                let generation = &mut card.qp_numbers[slot as usize];
                *generation = *generation % QPN_GENERATIONS + 1;
                let qpn = slot << bits | card.unit.index() | u16::from(*generation) << QPN_SLOT_BITS;
                card.qps[slot as usize] = Some(Box::new(QueuePair::new(qpn, init)));
                card.count_qp(&init);
                Ok(qpn)
            },
            |card| card.device.create_qp_err += 1,
        )
    }

    /// A queue pair was made, by this or by another processing unit of the card: it counts towards the limit, and what it is
    /// made of is in use.
    pub fn count_qp(&mut self, init: &QpInit) {
        self.live_qps += 1;
        self.pds[init.pd.0 as usize].users += 1;
        self.cqs[init.send_cq.0 as usize].users += 1;
        self.cqs[init.recv_cq.0 as usize].users += 1;
    }

    /// The opposite of [`count_qp`](Self::count_qp).
    pub fn discount_qp(&mut self, init: &QpInit) {
        self.live_qps -= 1;
        self.pds[init.pd.0 as usize].users -= 1;
        self.cqs[init.send_cq.0 as usize].users -= 1;
        self.cqs[init.recv_cq.0 as usize].users -= 1;
    }

    fn check_qp(&self, init: &QpInit) -> Result<(), CardError> {
        let profile = &self.options.profile;
        self.pds.get(init.pd.0 as usize).ok_or(NO_PD)?;
        self.cqs.get(init.send_cq.0 as usize).ok_or(NO_CQ)?;
        self.cqs.get(init.recv_cq.0 as usize).ok_or(NO_CQ)?;
        let ud = init.ty == QpType::Ud;
        if (init.ops.read && (ud || !profile.has(caps::RDMA_READ)))
            || ((init.ops.write || init.inline_write) && (ud || !profile.has(caps::RDMA_WRITE)))
            || (init.unsolicited_write_recv && (ud || !profile.has(caps::UNSOLICITED_WRITE_RECV)))
        {
            return Err(CardError::NotSupported("the queue pair type or the device generation has no such operation"));
        }
        let cap = &init.cap;
        let sges = u64::from(cap.recv_sge.max(1));
        if cap.send_wr > profile.max_sq_wr_with(cap.inline, init.inline_write)
            || u64::from(cap.recv_wr) * sges > u64::from(profile.max_rq_wr)
        {
            return Err(CardError::Invalid("more work requests than the device's queues hold"));
        }
        if cap.send_sge > profile.max_sq_sge || cap.recv_sge > profile.max_rq_sge {
            return Err(CardError::Invalid("more buffers per work request than the device permits"));
        }
        if cap.inline > profile.max_inline {
            return Err(CardError::Invalid("more inline data than the device permits"));
        }
        Ok(())
    }

    /// Changes attributes of a queue pair. In the error state everything of it is flushed; in RESET it is forgotten.
    ///
    /// # Errors
    /// There is no such queue pair, or its state does not permit the change. Nothing has changed.
    pub fn modify_qp(&mut self, endpoint: &mut Endpoint, qpn: u16, change: &QpModify) -> Result<(), CardError> {
        self.command(
            |card| {
                if card.failed && !matches!(change.state, Some(QpState::Err | QpState::Reset)) {
                    return Err(CardError::Failed);
                }
                // What was posted before is not affected.
                card.ring(endpoint);
                let qp = card.qp_mut(qpn).ok_or(NO_QP)?;
                let from = qp.modify(change)?;
                let to = qp.attr.state;
                match to {
                    QpState::Err if from != QpState::Err => card.flush(endpoint, qpn),
                    QpState::Reset => card.empty(endpoint, qpn),
                    QpState::Rts if from == QpState::Sqd => card.unpark(qpn),
                    _ => {}
                }
                Ok(())
            },
            |_| (),
        )
    }

    /// Attributes of a queue pair.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn query_qp(&self, qpn: u16) -> Result<QpAttr, CardError> {
        Ok(self.qp(qpn).ok_or(NO_QP)?.attr)
    }

    /// Destroys a queue pair: what it has under way is cancelled without a word, and its completions are forgotten.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn destroy_qp(&mut self, endpoint: &mut Endpoint, qpn: u16) -> Result<(), CardError> {
        self.command(
            |card| {
                let init = card.qp(qpn).ok_or(NO_QP)?.init;
                card.empty(endpoint, qpn);
                let slot = card.qp_slot(qpn);
                card.qps[slot] = None;
                card.free_qps.push_back(slot as u16);
                card.discount_qp(&init);
                Ok(())
            },
            |_| (),
        )
    }

    /// Forgets everything that a queue pair has under way, and its completions.
    fn empty(&mut self, endpoint: &mut Endpoint, qpn: u16) {
        self.end_all(endpoint, Which::Qp(qpn), End::Silently);
        let Some(qp) = self.qp_mut(qpn) else { return };
        qp.rq.clear();
        (qp.sq_used, qp.rq_used) = (0, 0);
        let (send_cq, recv_cq) = (qp.init.send_cq, qp.init.recv_cq);
        self.cqs[send_cq.0 as usize].forget(qpn);
        self.cqs[recv_cq.0 as usize].forget(qpn);
    }

    /// Completes everything that a queue pair has under way as flushed.
    fn flush(&mut self, endpoint: &mut Endpoint, qpn: u16) {
        self.end_all(endpoint, Which::Qp(qpn), End::With(Status::Flushed));
        let Some(qp) = self.qp_mut(qpn) else { return };
        let cq = qp.init.recv_cq;
        for recv in std::mem::take(&mut qp.rq) {
            self.fail_recv(cq, qpn, &recv, Status::Flushed);
        }
    }

    /// Nothing comes or goes any more. All queue pairs are in the error state from now on, and can leave it for RESET only, so
    /// that programs hear of it wherever they look.
    pub fn fail(&mut self, endpoint: &mut Endpoint) {
        self.failed = true;
        let working = self.qps.iter_mut().flatten().filter(|qp| qp.attr.state != QpState::Reset);
        let working: Vec<u16> = working
            .map(|qp| {
                qp.attr.state = QpState::Err;
                qp.qpn
            })
            .collect();
        working.into_iter().for_each(|qpn| self.flush(endpoint, qpn));
    }

    /// Gives up all sends, also those to come, without a word: the process ends, and threads of it that run on until it has shall
    /// not take that for errors.
    pub fn hush(&mut self, endpoint: &mut Endpoint) {
        let mut sending = Vec::new();
        for qp in self.qps.iter_mut().flatten().filter(|qp| matches!(qp.attr.state, QpState::Rts | QpState::Sqd)) {
            qp.attr.state = QpState::Sqd;
            sending.push(qp.qpn);
        }
        sending.into_iter().for_each(|qpn| self.end_all(endpoint, Which::Qp(qpn), End::Silently));
    }

    /// Posts a receive buffer of up to three parts, each of which may be empty. One without parts takes its room in the queue,
    /// and no message takes it, ever: EFA's library tells the device of parts, and here it has nothing to tell.
    ///
    /// # Errors
    /// There is no such queue pair, its state forbids it, there are too many parts, or the receive queue is full
    /// ([`CardError::NoMemory`]).
    pub fn post_recv(&mut self, qpn: u16, wr_id: u64, sges: &[Sge]) -> Result<(), CardError> {
        let qp = self.qp_mut(qpn).ok_or(NO_QP)?;
        if matches!(qp.attr.state, QpState::Reset | QpState::Err) {
            return Err(CardError::Invalid("the queue pair is in RESET or in the error state"));
        }
        if sges.len() > qp.attr.cap.recv_sge as usize {
            return Err(CardError::Invalid("more buffers than the queue pair permits"));
        }
        if qp.rq_used >= qp.attr.cap.recv_wr {
            return Err(CardError::NoMemory("the receive queue is full; poll completions"));
        }
        qp.rq_used += 1;
        if sges.is_empty() {
            return Ok(());
        }
        qp.rq.push_back(Recv::EMPTY);
        let recv = qp.rq.back_mut().expect("it was just added");
        (recv.wr_id, recv.n) = (wr_id, sges.len() as u8);
        recv.sges.iter_mut().zip(sges).for_each(|(slot, sge)| *slot = *sge);
        Ok(())
    }
}
