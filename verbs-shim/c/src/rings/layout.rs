//! What programs and devices of EFA write into rings: requests in 64 or 128 bytes, receive buffers in 16, completions in 16 or
//! 32. Field by field as `efa_io_defs.h` of rdma-core and of libfabric's efa provider has them.

use arrayvec::ArrayVec;
use verbs_shim::card::UNKNOWN_AH;
use verbs_shim::card::profile::{MAX_INLINE, MAX_SGE};
use verbs_shim::{Completion, Opcode, SendData, SendOp, SendWr, Sge, Status};

/// Bytes of a request, and of one with room for more inline bytes.
pub(crate) const TX: usize = 64;
pub(crate) const WIDE_TX: usize = 128;
/// Bytes of a receive buffer.
pub(crate) const RX: usize = 16;
/// Bytes of a completion, and of one with room for the sender's address and for lengths beyond 16 bits.
pub(crate) const CQE: usize = 16;
pub(crate) const WIDE_CQE: usize = 32;

/// Where what a request carries begins.
const TX_DATA: usize = 32;
/// Buffers that there is room for in a request.
const TX_SGES: usize = 2;
/// Keys of local memory have so many bits.
const LKEY: u32 = 0xff_ffff;

// The first control byte of a request.
const OP: u8 = 0x0f;
const HAS_IMM: u8 = 1 << 4;
const INLINE: u8 = 1 << 5;
const META_EXTENSION: u8 = 1 << 6;
const META: u8 = 1 << 7;
// The second one.
const PHASE: u8 = 1 << 0;
const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMP_REQ: u8 = 1 << 4;
// Of a receive buffer.
const RX_FIRST: u32 = 1 << 30;
const RX_LAST: u32 = 1 << 31;
// Of a completion.
const SEND_QUEUE: u8 = 1 << 1;
const RECV_QUEUE: u8 = 2 << 1;
const CQE_HAS_IMM: u8 = 1 << 3;
const CQE_OP: u32 = 4;
const UNSOLICITED: u8 = 1 << 7;

// Operations.
const SEND: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// A request that a program wrote into a ring.
#[derive(Debug, PartialEq)]
pub(crate) struct Request {
    id: u64,
    op: SendOp,
    ah: u16,
    qpn: u16,
    qkey: u32,
    data: Data,
}

/// What it carries.
#[derive(Debug, PartialEq)]
enum Data {
    Sges(ArrayVec<Sge, TX_SGES>),
    Inline(ArrayVec<u8, MAX_INLINE>),
}

/// What is wrong with a request or a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Of its completion.
    pub(crate) status: Status,
    pub(crate) why: &'static str,
}

const fn fault(status: Status, why: &'static str) -> Fault {
    Fault { status, why }
}

impl Request {
    /// Reads one of 64 or 128 bytes. `phase` is what its phase bit must be: otherwise it has not been written yet.
    ///
    /// # Errors
    /// The device does not understand it.
    pub(crate) fn read(wqe: &[u8], phase: bool) -> Result<Request, Fault> {
        let broken = |why| Err(fault(Status::QpInternal, why));
        let [ctrl1, ctrl2] = [wqe[2], wqe[3]];
        if (ctrl2 & PHASE != 0) != phase {
            return broken(
                "its phase bit is that of the round before: the doorbell was rung for more than was written",
            );
        }
        if ctrl1 & (META | META_EXTENSION) != META || ctrl2 & (FIRST | LAST) != FIRST | LAST {
            return broken("its control bits are not those of a whole request");
        }
        if ctrl2 & !(PHASE | FIRST | LAST | COMP_REQ) != 0 {
            return broken("it asks for what this device does not have (signals, actions)");
        }
        if ctrl2 & COMP_REQ == 0 {
            return broken("it asks for no completion");
        }
        let count = usize::from(half(wqe, 6));
        let imm = (ctrl1 & HAS_IMM != 0).then(|| word(wqe, 8));
        let data = &wqe[TX_DATA..];
        let inline = |room: &[u8]| match room.get(..count).map(ArrayVec::try_from) {
            Some(Ok(bytes)) => Ok(Data::Inline(bytes)),
            _ => Err(fault(Status::LocalBadLength, "it has more inline bytes than there is room for")),
        };
        let sges = |room: &[u8], most| match count {
            0.. if count <= most => Ok(Data::Sges(room.chunks_exact(16).take(count).map(tx_sge).collect())),
            _ => Err(fault(Status::LocalBadLength, "it has more buffers than a request may have")),
        };
        let is_inline = ctrl1 & INLINE != 0;
        let remote = (long(data, 8), word(data, 4));
        let local = &data[16..];
        let (op, data) = match (ctrl1 & OP, is_inline) {
            (SEND, true) => (SendOp::Send { imm }, inline(&data[..data.len().min(MAX_INLINE)])?),
            (SEND, false) => (SendOp::Send { imm }, sges(data, TX_SGES)?),
            (READ, false) if imm.is_none() => (SendOp::Read { addr: remote.0, rkey: remote.1 }, sges(local, 1)?),
            (WRITE, false) => (SendOp::Write { addr: remote.0, rkey: remote.1, imm }, sges(local, 1)?),
            (WRITE, true) if wqe.len() == WIDE_TX => {
                (SendOp::Write { addr: remote.0, rkey: remote.1, imm }, inline(local)?)
            }
            _ => return Err(fault(Status::UnsupportedOp, "there is no such operation")),
        };
        Ok(Request { id: id(wqe), op, ah: half(wqe, 12), qpn: half(wqe, 4), qkey: word(wqe, 16), data })
    }

    /// As the card takes it.
    pub(crate) fn wr(&self) -> SendWr<'_> {
        let data = match &self.data {
            Data::Sges(sges) => SendData::Sges(sges),
            Data::Inline(bytes) => SendData::Inline(bytes),
        };
        SendWr { wr_id: self.id, op: self.op, ah: self.ah, qpn: self.qpn, qkey: self.qkey, data }
    }
}

/// The id that a request gets back: the 16 bits that there were at first, and the 48 that came later, 0 in programs from before.
pub(crate) fn id(wqe: &[u8]) -> u64 {
    let [high, middle, low] = [half(wqe, 30), half(wqe, 28), half(wqe, 26)].map(u64::from);
    high << 48 | middle << 32 | low << 16 | u64::from(half(wqe, 0))
}

/// What the completion of a request says of its operation, also if it is not understood.
pub(crate) fn opcode(wqe: &[u8]) -> Opcode {
    match wqe[2] & OP {
        READ => Opcode::RdmaRead,
        WRITE => Opcode::RdmaWrite,
        _ => Opcode::Send,
    }
}

fn tx_sge(bytes: &[u8]) -> Sge {
    Sge { addr: long(bytes, 8), len: word(bytes, 0), lkey: word(bytes, 4) & LKEY }
}

/// A receive that a program wrote into a ring, in as many entries as it has buffers.
#[derive(Default, Debug, PartialEq)]
pub(crate) struct Receive {
    pub(crate) id: u16,
    pub(crate) sges: ArrayVec<Sge, MAX_SGE>,
}

impl Receive {
    /// Reads another entry. Says whether it was the last one.
    ///
    /// The id is that of the first. EFA's library leaves it out of the others, and libfabric marks all of them as the first, so
    /// a device looks at neither there.
    ///
    /// # Errors
    /// The device does not understand it.
    pub(crate) fn read(&mut self, entry: &[u8]) -> Result<bool, Fault> {
        let broken = |why| fault(Status::QpInternal, why);
        let ctrl = word(entry, 12);
        if self.sges.is_empty() {
            if ctrl & RX_FIRST == 0 {
                return Err(broken("its first entry is not marked as such"));
            }
            self.id = half(entry, 8);
        }
        let sge = Sge { addr: long(entry, 0), len: half(entry, 10).into(), lkey: ctrl & LKEY };
        self.sges.try_push(sge).map_err(|_| broken("it has more buffers than a receive may have"))?;
        Ok(ctrl & RX_LAST != 0)
    }
}

/// Writes a completion. The phase bit is not set.
pub(crate) fn completion(entry: &Completion) -> [u8; WIDE_CQE] {
    let mut cqe = [0; WIDE_CQE];
    let mut put = |at: usize, bytes: &[u8]| cqe[at..at + bytes.len()].copy_from_slice(bytes);
    let queue = if entry.opcode.is_recv() { RECV_QUEUE } else { SEND_QUEUE };
    let op = match entry.opcode {
        Opcode::Send | Opcode::Recv => SEND,
        Opcode::RdmaRead => READ,
        Opcode::RdmaWrite | Opcode::RecvRdmaWithImm => WRITE,
    };
    let imm = if entry.imm.is_some() { CQE_HAS_IMM } else { 0 };
    let unsolicited = if entry.unsolicited { UNSOLICITED } else { 0 };
    put(0, &(entry.wr_id as u16).to_ne_bytes());
    put(2, &[entry.status.code(), queue | op << CQE_OP | imm | unsolicited]);
    put(4, &entry.qpn.to_ne_bytes());
    if !entry.opcode.is_recv() {
        for (k, at) in [(1, 6), (2, 8), (3, 10)] {
            put(at, &((entry.wr_id >> (16 * k)) as u16).to_ne_bytes());
        }
        return cqe;
    }
    put(6, &(entry.byte_len as u16).to_ne_bytes());
    put(8, &entry.ah.to_ne_bytes());
    put(10, &entry.src_qpn.to_ne_bytes());
    put(12, &entry.imm.unwrap_or(0).to_ne_bytes());
    if op == WRITE {
        put(16, &((entry.byte_len >> 16) as u16).to_ne_bytes());
    } else if entry.ah == UNKNOWN_AH {
        put(16, &entry.sgid.0);
    }
    cqe
}

/// The first word of a completion with its phase bit.
pub(crate) fn with_phase(first_word: u64, phase: bool) -> u64 {
    let mut bytes = first_word.to_ne_bytes();
    bytes[3] |= u8::from(phase);
    u64::from_ne_bytes(bytes)
}

/// What a program said by the doorbell of a completion queue: how many entries it has consumed, modulo 2^16, and whether it wants
/// to hear of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CqDoorbell {
    pub(crate) consumed: u16,
    pub(crate) arm: bool,
}

impl CqDoorbell {
    pub(crate) fn read(word: u32) -> CqDoorbell {
        CqDoorbell { consumed: word as u16, arm: word >> 31 != 0 }
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

/// An address: its low half comes first.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
