//! The verbs card as the upper storey of a station: flows are queue pairs, their messages RDMA writes into the peer's memory.
//!
//! A card has one region, which nobody allocates: the upper half of an address names a flow, so that what is written there
//! is counted for it; what is read is zeros.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use srd_core::card::{
    Access, Card, CardError, CardOptions, CqId, Gid, HostMemory, MrKeys, PdId, Profile, QpCap, QpInit, QpModify,
    QpType, SendData, SendOp, SendOps, SendWr, Sge, Status,
};
use srd_core::{Endpoint, Time};

use super::tally::ZEROS;

/// Bits of an address within a flow: no RDMA operation is longer.
const FLOW_SHIFT: u32 = 30;
/// Length of the region: a gibibyte for each of the flows that there can be, and for greetings.
const REGION: u64 = 1 << (32 + FLOW_SHIFT);
const QKEY: u32 = 1;
/// The generation of all cards, by its PCI device id.
const GENERATION: u32 = 0xefa3;

/// How a peer's memory is reached: its queue pair and the key of its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Door {
    qpn: u16,
    rkey: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Verbs {
    pub(super) card: Card<Memory>,
    pd: PdId,
    cq: CqId,
    keys: MrKeys,
    /// The queue pair that peers name as the target of their writes.
    own: u16,
    /// Work requests that a queue pair holds.
    depth: u32,
    /// Address handles by address, queue pairs by flow.
    handles: BTreeMap<SocketAddr, u16>,
    pairs: BTreeMap<u32, u16>,
}

/// What stands for the memory of a host.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// (flow, bytes) that were written since this was last emptied.
    pub(super) arrived: Vec<(u32, u64)>,
}

impl HostMemory for Memory {
    type Region = ();

    fn read<'m>(&'m self, (): &(), _offset: u64, len: usize) -> &'m [u8] {
        &ZEROS[..len]
    }

    fn write(&mut self, (): &(), offset: u64, bytes: &[u8]) {
        self.arrived.push(((offset >> FLOW_SHIFT) as u32, bytes.len() as u64));
    }
}

impl Verbs {
    /// Work requests that a queue pair may have.
    pub(super) fn max_depth() -> u32 {
        Profile::generation(GENERATION).map_or(0, |profile| profile.max_sq_wr)
    }

    /// A card at this address; queue pairs take `depth` work requests.
    pub(super) fn new(addr: SocketAddr, depth: u32, endpoint: &mut Endpoint) -> Result<Verbs, String> {
        let newest = Profile::generation(GENERATION).ok_or("there is no such generation of cards")?;
        let profile = Profile { max_mr_size: u64::MAX, max_qp: 4096, ..newest };
        // Peers write without having been introduced.
        let options = CardOptions { profile, strict_peers: false, ..CardOptions::default() };
        let gid = Gid::new(addr).map_err(|e| e.to_string())?;
        let mut card = Card::new(options, gid, Memory::default(), 0);
        let make = |card: &mut Card<Memory>| -> Result<(PdId, CqId, MrKeys), CardError> {
            let pd = card.alloc_pd()?;
            let access = Access { local_write: true, remote_read: true, remote_write: true };
            Ok((pd, card.create_cq(profile.max_cqe)?, card.reg_mr(pd, (), 0, REGION, access)?))
        };
        let (pd, cq, keys) = make(&mut card).map_err(|e| e.to_string())?;
        let (handles, pairs) = (BTreeMap::new(), BTreeMap::new());
        let mut verbs = Verbs { card, pd, cq, keys, own: 0, depth, handles, pairs };
        verbs.own = verbs.queue_pair(endpoint).map_err(|e| e.to_string())?;
        Ok(verbs)
    }

    /// How peers reach this card's memory.
    pub(super) fn door(&self) -> Door {
        Door { qpn: self.own, rkey: self.keys.rkey }
    }

    /// A queue pair that is ready to send.
    fn queue_pair(&mut self, endpoint: &mut Endpoint) -> Result<u16, CardError> {
        let cap = QpCap { send_wr: self.depth, recv_wr: 1, send_sge: 1, recv_sge: 1, inline: 0 };
        let ops = SendOps { read: false, write: true };
        let qpn = self.card.create_qp(QpInit { ops, ..QpInit::new(QpType::Srd, self.pd, self.cq, cap) })?;
        for change in QpModify::up_to_rts(QKEY, None) {
            self.card.modify_qp(endpoint, qpn, &change)?;
        }
        Ok(qpn)
    }

    /// Posts a write of `len` bytes of a flow into the memory of the card at `to`; `max_datagram` is what the interface
    /// carries.
    pub(super) fn post(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        (to, door, max_datagram): (SocketAddr, Door, u16),
        flow: u32,
        len: u32,
    ) -> Result<(), CardError> {
        let ah = match self.handles.get(&to) {
            Some(ah) => *ah,
            None => {
                let gid = Gid::new(to).map_err(|_| CardError::Invalid("no card has this address"))?;
                let ah = self.card.create_ah(endpoint, self.pd, gid, max_datagram)?;
                self.handles.insert(to, ah);
                ah
            }
        };
        let qpn = match self.pairs.get(&flow) {
            Some(qpn) => *qpn,
            None => {
                let qpn = self.queue_pair(endpoint)?;
                self.pairs.insert(flow, qpn);
                qpn
            }
        };
        let addr = u64::from(flow) << FLOW_SHIFT;
        let wr = SendWr {
            wr_id: flow.into(),
            op: SendOp::Write { addr, rkey: door.rkey, imm: None },
            ah,
            qpn: door.qpn,
            qkey: QKEY,
            data: SendData::Sges(&[Sge { addr, len, lkey: self.keys.lkey }]),
        };
        self.card.post_send_all(endpoint, now, qpn, &[wr])
    }

    /// The flow of a write that completed, and whether it succeeded.
    pub(super) fn poll(&mut self) -> Option<(u32, bool)> {
        self.card.poll(self.cq).map(|c| (c.wr_id as u32, c.status == Status::Ok))
    }

    /// The flow has ended: its queue pair goes.
    pub(super) fn end(&mut self, endpoint: &mut Endpoint, flow: u32) -> Result<(), CardError> {
        self.pairs.remove(&flow).map_or(Ok(()), |qpn| self.card.destroy_qp(endpoint, qpn))
    }
}
