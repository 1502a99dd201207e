//! A card, and what every program makes on it first.

#![allow(dead_code, reason = "each test program uses a part of it")]

use verbs_shim::{
    Access, CqId, MrKeys, Nic, PdId, QpCap, QpInit, QpModify, QpType, RawRegion, SendData, SendOp, SendOps, SendWr, Sge,
};

const QKEY: u32 = 0x1111_1111;
/// The program and its peers may do everything.
pub(crate) const ALL: Access = Access { local_write: true, remote_read: true, remote_write: true };

/// A card with a domain, a completion queue, memory, and queue pairs.
pub(crate) struct Side {
    pub(crate) nic: Nic,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) qpns: Vec<u16>,
    pub(crate) memory: Vec<u8>,
    pub(crate) keys: MrKeys,
}

impl Side {
    /// With so many queue pairs that can send.
    pub(crate) fn new(nic: Nic, qps: usize, mut memory: Vec<u8>) -> Side {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(1024).unwrap();
        // SAFETY: the vector outlives the card, and is not touched while requests are under way.
        let region = unsafe { RawRegion::new(memory.as_mut_ptr(), memory.len()) };
        let keys = nic.reg_mr(pd, region, memory.as_ptr() as u64, ALL).unwrap();
        let qpns = (0..qps).map(|_| qp(&nic, pd, cq)).collect();
        Side { nic, pd, cq, qpns, memory, keys }
    }

    /// Its first queue pair.
    pub(crate) fn qpn(&self) -> u16 {
        self.qpns[0]
    }

    pub(crate) fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.memory.as_ptr() as u64 + offset as u64, len, lkey: self.keys.lkey }
    }

    /// A handle for the card of another side.
    pub(crate) fn ah(&self, to: &Side) -> u16 {
        self.nic.create_ah(self.pd, to.nic.gid()).unwrap()
    }

    pub(crate) fn post(&self, qpn: u16, ah: u16, to: u16, wr_id: u64, op: SendOp, data: SendData<'_>) {
        self.nic.post_send_all(qpn, &[SendWr { wr_id, op, ah, qpn: to, qkey: QKEY, data }]).unwrap();
    }
}

/// A queue pair that holds 64 requests in either direction.
pub(crate) fn init(pd: PdId, cq: CqId) -> QpInit {
    let cap = QpCap { send_wr: 64, recv_wr: 64, send_sge: 2, recv_sge: 1, inline: 32 };
    let ops = SendOps { read: true, write: true };
    QpInit { ops, ..QpInit::new(QpType::Srd, pd, cq, cap) }
}

/// A queue pair that can send.
pub(crate) fn qp(nic: &Nic, pd: PdId, cq: CqId) -> u16 {
    let qpn = nic.create_qp(init(pd, cq)).unwrap();
    QpModify::up_to_rts(QKEY, None).iter().for_each(|change| nic.modify_qp(qpn, change).unwrap());
    qpn
}
