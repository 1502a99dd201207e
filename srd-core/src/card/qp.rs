//! Queue pairs: types, states, attributes, the receive queue.
//!
//! The state machine is that of the Linux EFA driver (`efa_verbs.c`), which for UD is the general one of the verbs.

use std::collections::VecDeque;

use super::bundle::Bundling;
use super::memory::Sge;
use super::profile::MAX_SGE;
use super::requester::{SendData, SendOp, SendWr};
use super::{CardError, CqId, PdId};
use crate::endpoint::RnrRetry;

/// Type of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpType {
    /// Reliable, unordered, at most once.
    Srd,
    /// Unreliable datagrams; 40 bytes of GRH precede what is received.
    Ud,
}

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum QpState {
    /// New.
    Reset = 0,
    /// May post receives.
    Init = 1,
    /// Receives, and serves RDMA.
    Rtr = 2,
    /// Sends too.
    Rts = 3,
    /// Takes sends but keeps them.
    Sqd = 4,
    /// A send failed (never entered by SRD's errors).
    Sqe = 5,
    /// Everything was flushed.
    Err = 6,
}

/// Operations that a queue pair may post (`IBV_QP_EX_WITH_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOps {
    /// RDMA read.
    pub read: bool,
    /// RDMA write, also with immediate.
    pub write: bool,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Its type.
    pub ty: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of sends.
    pub send_cq: CqId,
    /// Completion queue of receives; may be the same.
    pub recv_cq: CqId,
    /// Capacities; rounded up when it is made.
    pub cap: QpCap,
    /// Operations beside send and send with immediate.
    pub ops: SendOps,
    /// Writes with immediate from peers consume no receive.
    pub unsolicited_write_recv: bool,
    /// Writes may carry their data inline; all requests of the send queue take as much room as that takes.
    pub inline_write: bool,
}

impl QpInit {
    /// A queue pair with one completion queue, which sends and receives and has none of what has to be asked for.
    pub fn new(ty: QpType, pd: PdId, cq: CqId, cap: QpCap) -> QpInit {
        QpInit {
            ty,
            pd,
            send_cq: cq,
            recv_cq: cq,
            cap,
            ops: SendOps::default(),
            unsolicited_write_recv: false,
            inline_write: false,
        }
    }
}

/// Capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Send work requests whose completions have not been polled.
    pub send_wr: u32,
    /// Receive work requests whose completions have not been polled.
    pub recv_wr: u32,
    /// Buffers of a send.
    pub send_sge: u16,
    /// Buffers of a receive.
    pub recv_sge: u16,
    /// Bytes of an inline send.
    pub inline: u32,
}

/// Attributes of a queue pair that can be set; those that are `None` stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpModify {
    /// The new state.
    pub state: Option<QpState>,
    /// The state in which it should be now.
    pub cur_state: Option<QpState>,
    /// Index of the partition key; 0 is the only one.
    pub pkey_index: Option<u16>,
    /// Port; 1 is the only one.
    pub port: Option<u8>,
    /// QKey that messages to it must carry.
    pub qkey: Option<u32>,
    /// First sequence number; without effect, but readable.
    pub sq_psn: Option<u32>,
    /// Attempts for a receiver that is not ready, 0..=7; 7 is for ever. SRD only.
    pub rnr_retry: Option<u8>,
    /// Whether there is to be an event when the send queue has drained. It may be said on the way to SQD, and none comes:
    /// Linux passes the wish on to an EFA device, but no such event from it to programs.
    pub en_sqd_notify: Option<bool>,
}

impl QpModify {
    /// Another state and nothing else.
    pub fn to(state: QpState) -> QpModify {
        QpModify { state: Some(state), ..QpModify::default() }
    }

    /// The way of a new queue pair to RTS: to be made one after the other. Only SRD queue pairs have an `rnr_retry`, which is for
    /// ever if not set.
    pub fn up_to_rts(qkey: u32, rnr_retry: Option<u8>) -> [QpModify; 3] {
        [
            QpModify { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpModify::to(QpState::Init) },
            QpModify::to(QpState::Rtr),
            QpModify { sq_psn: Some(0), rnr_retry, ..QpModify::to(QpState::Rts) },
        ]
    }
}

/// Attributes of a queue pair that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// QKey.
    pub qkey: u32,
    /// First sequence number, as it was set.
    pub sq_psn: u32,
    /// Attempts for a receiver that is not ready.
    pub rnr_retry: u8,
    /// Capacities as granted.
    pub cap: QpCap,
}

/// For ever, as `rnr_retry`.
pub const RNR_INFINITE: u8 = 7;

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recv {
    pub(super) wr_id: u64,
    pub(super) sges: [Sge; MAX_SGE],
    pub(super) n: u8,
}

impl Recv {
    /// A buffer of no bytes.
    pub(super) const EMPTY: Recv = Recv { wr_id: 0, sges: [Sge { addr: 0, len: 0, lkey: 0 }; MAX_SGE], n: 0 };

    pub(super) fn sges(&self) -> &[Sge] {
        &self.sges[..self.n as usize]
    }

    pub(super) fn len(&self) -> u64 {
        self.sges().iter().map(|s| u64::from(s.len)).sum()
    }

    /// The buffers of a message of `left` bytes; those that it does not reach are not there.
    pub(super) fn sges_of(&self, mut left: u32) -> impl Iterator<Item = Sge> {
        self.sges().iter().filter_map(move |sge| {
            let len = sge.len.min(left);
            left -= len;
            (len > 0).then_some(Sge { len, ..*sge })
        })
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qpn: u16,
    pub(super) init: QpInit,
    pub(super) attr: QpAttr,
    pub(super) rq: VecDeque<Recv>,
    /// Work requests whose completions have not been polled.
    pub(super) sq_used: u32,
    pub(super) rq_used: u32,
    /// Sends that were posted in SQD.
    pub(super) parked: Vec<u32>,
    pub(super) bundling: Bundling,
}

impl QueuePair {
    pub(super) fn new(qpn: u16, init: QpInit) -> QueuePair {
        let attr = QpAttr { state: QpState::Reset, qkey: 0, sq_psn: 0, rnr_retry: RNR_INFINITE, cap: init.cap };
        QueuePair {
            qpn,
            init,
            attr,
            rq: VecDeque::with_capacity(init.cap.recv_wr.min(1024) as usize),
            sq_used: 0,
            rq_used: 0,
            parked: Vec::new(),
            bundling: Bundling::default(),
        }
    }

    /// Whether messages for it are taken.
    #[inline]
    pub(super) fn receives(&self) -> bool {
        matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether any send can be posted after `before` others.
    #[inline]
    pub(super) fn check_room(&self, before: u32) -> Result<(), CardError> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return Err(CardError::Invalid("the queue pair is not in RTS or SQD"));
        }
        if self.sq_used + before >= self.attr.cap.send_wr {
            return Err(CardError::NoMemory("the send queue is full; poll completions"));
        }
        Ok(())
    }

    /// Whether this send can be posted after `before` others.
    #[inline]
    pub(super) fn check_send(&self, wr: &SendWr<'_>, before: u32) -> Result<(), CardError> {
        self.check_room(before)?;
        let cap = &self.attr.cap;
        let fits = match wr.data {
            SendData::Sges(sges) => match wr.op {
                SendOp::Send { .. } => sges.len() <= cap.send_sge as usize,
                SendOp::Read { .. } | SendOp::Write { .. } => sges.len() <= 1,
            },
            SendData::Inline(bytes) => {
                bytes.len() <= cap.inline as usize
                    && match wr.op {
                        SendOp::Send { .. } => true,
                        SendOp::Write { .. } => self.init.inline_write,
                        SendOp::Read { .. } => false,
                    }
            }
        };
        if !fits {
            return Err(CardError::Invalid("more buffers or inline bytes than the queue pair permits"));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn rnr(&self) -> RnrRetry {
        match self.attr.rnr_retry {
            RNR_INFINITE => RnrRetry::Forever,
            n => RnrRetry::Times(n),
        }
    }

    /// Checks a modification and applies it, all or nothing; the card does what follows from the state. Returns the
    /// state before.
    pub(super) fn modify(&mut self, m: &QpModify) -> Result<QpState, CardError> {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let from = self.attr.state;
        if m.cur_state.is_some_and(|s| s != from) {
            return Result::Err(CardError::Invalid("the queue pair is not in the state that was named as current"));
        }
        if m.rnr_retry.is_some_and(|n| n > RNR_INFINITE) {
            return Result::Err(CardError::Invalid("rnr_retry is at most 7"));
        }
        if m.rnr_retry.is_some() && self.init.ty == QpType::Ud {
            return Result::Err(CardError::Invalid("datagrams have one attempt: UD has no rnr_retry"));
        }
        let to = m.state.unwrap_or(from);
        // What a transition must carry, and what it may: partition key and port, QKey, PSN, rnr_retry, SQD event.
        let (must, may): (&[Attr], &[Attr]) = match (from, to) {
            (_, Reset) => (&[], &[]),
            (Reset, Err) => return Result::Err(CardError::Invalid("a new queue pair cannot go to the error state")),
            (_, Err) => (&[], &[]),
            (Reset, Init) => (&[Attr::Pkey, Attr::Port, Attr::Qkey], &[]),
            (Init, Init) => (&[], &[Attr::Pkey, Attr::Port, Attr::Qkey]),
            (Init, Rtr) => (&[], &[Attr::Pkey, Attr::Qkey]),
            (Rtr, Rts) => (&[Attr::Psn], &[Attr::Cur, Attr::Qkey, Attr::Rnr]),
            (Rts | Sqd | Sqe, Rts) => (&[], &[Attr::Cur, Attr::Qkey]),
            (Rts, Sqd) => (&[], &[Attr::Sqd]),
            (Sqd, Sqd) => (&[], &[Attr::Pkey, Attr::Qkey]),
            _ => return Result::Err(CardError::Invalid("there is no such transition between queue pair states")),
        };
        for attr in Attr::ALL {
            let given = attr.given(m);
            if !given && must.contains(&attr) {
                return Result::Err(CardError::Invalid("an attribute that this transition requires is missing"));
            }
            if given && !must.contains(&attr) && !may.contains(&attr) {
                return Result::Err(CardError::Invalid("this transition does not take that attribute"));
            }
        }
        if m.port.is_some_and(|p| p != 1) || m.pkey_index.is_some_and(|i| i != 0) {
            return Result::Err(CardError::NotSupported("there is port 1 and partition key 0 only"));
        }
        self.attr.state = to;
        self.attr.qkey = m.qkey.unwrap_or(self.attr.qkey);
        self.attr.sq_psn = m.sq_psn.unwrap_or(self.attr.sq_psn);
        self.attr.rnr_retry = m.rnr_retry.unwrap_or(self.attr.rnr_retry);
        if to == Reset {
            self.attr = QueuePair::new(self.qpn, self.init).attr;
        }
        Ok(from)
    }
}

/// Attributes beside the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attr {
    Pkey,
    Port,
    Qkey,
    Psn,
    Rnr,
    Cur,
    Sqd,
}

impl Attr {
    const ALL: [Attr; 7] = [Attr::Pkey, Attr::Port, Attr::Qkey, Attr::Psn, Attr::Rnr, Attr::Cur, Attr::Sqd];

    fn given(self, m: &QpModify) -> bool {
        match self {
            Attr::Pkey => m.pkey_index.is_some(),
            Attr::Port => m.port.is_some(),
            Attr::Qkey => m.qkey.is_some(),
            Attr::Psn => m.sq_psn.is_some(),
            Attr::Rnr => m.rnr_retry.is_some(),
            Attr::Cur => m.cur_state.is_some(),
            Attr::Sqd => m.en_sqd_notify.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp() -> QueuePair {
        let cap = QpCap { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 0 };
        QueuePair::new(1, QpInit::new(QpType::Srd, PdId(0), CqId(0), cap))
    }

    #[test]
    fn the_usual_way_up() {
        let mut qp = qp();
        let [init, rtr, rts] = QpModify::up_to_rts(0x123, Some(3));
        assert!(qp.modify(&QpModify::to(QpState::Init)).is_err(), "without its attributes");
        qp.modify(&init).unwrap();
        assert!(!qp.receives());
        qp.modify(&rtr).unwrap();
        assert!(qp.receives());
        assert!(qp.modify(&QpModify::to(QpState::Rts)).is_err(), "without a PSN");
        assert_eq!(qp.attr.state, QpState::Rtr, "nothing changed");
        qp.modify(&QpModify { sq_psn: Some(0x45), ..rts }).unwrap();
        assert_eq!((qp.attr.qkey, qp.attr.sq_psn, qp.attr.rnr_retry), (0x123, 0x45, 3));
        assert_eq!(qp.rnr(), RnrRetry::Times(3));
        qp.modify(&QpModify::to(QpState::Err)).unwrap();
        assert!(qp.modify(&QpModify::to(QpState::Rts)).is_err());
        qp.modify(&QpModify::to(QpState::Reset)).unwrap();
        assert_eq!(qp.attr.qkey, 0);
        assert_eq!(qp.rnr(), RnrRetry::Forever);
    }

    #[test]
    fn a_change_tells_the_state_before_and_one_that_is_refused_changes_nothing() {
        let mut qp = qp();
        let ups = QpModify::up_to_rts(0x123, Some(3));
        // None of these transitions takes all of this.
        let refused = QpModify { qkey: Some(0x456), sq_psn: Some(7), rnr_retry: Some(5), ..QpModify::default() };
        let refused = QpModify { en_sqd_notify: Some(true), ..refused };
        for (before, up) in [QpState::Reset, QpState::Init, QpState::Rtr].into_iter().zip(&ups) {
            let attr = qp.attr;
            for state in [None, up.state, Some(QpState::Sqd), Some(QpState::Err)] {
                assert!(qp.modify(&QpModify { state, ..refused }).is_err());
                assert!(qp.modify(&QpModify { state, pkey_index: Some(1), ..refused }).is_err());
                assert!(qp.modify(&QpModify { state, cur_state: Some(QpState::Sqe), ..refused }).is_err());
                assert_eq!(qp.attr, attr, "{before:?} {state:?}");
            }
            assert_eq!(qp.modify(up), Ok(before));
        }
        assert_eq!(qp.modify(&QpModify::to(QpState::Rts)), Ok(QpState::Rts));
        assert_eq!(qp.modify(&QpModify::to(QpState::Reset)), Ok(QpState::Rts));
    }

    #[test]
    fn datagrams_are_not_retried() {
        let mut qp = qp();
        qp.init.ty = QpType::Ud;
        let [init, rtr, rts] = QpModify::up_to_rts(0x123, Some(3));
        qp.modify(&init).unwrap();
        qp.modify(&rtr).unwrap();
        assert!(matches!(qp.modify(&rts), Err(CardError::Invalid(_))));
        assert_eq!(qp.attr.state, QpState::Rtr, "nothing changed");
        qp.modify(&QpModify { rnr_retry: None, ..rts }).unwrap();
    }

    #[test]
    fn what_the_device_does_not_have() {
        let mut qp = qp();
        let bad_port = QpModify { pkey_index: Some(0), port: Some(2), qkey: Some(1), ..QpModify::to(QpState::Init) };
        assert!(matches!(qp.modify(&bad_port), Err(CardError::NotSupported(_))));
        let bad_pkey = QpModify { pkey_index: Some(1), ..QpModify::to(QpState::Rtr) };
        assert!(matches!(qp.modify(&bad_pkey), Err(CardError::Invalid(_))), "there is no such transition");
        let notify = QpModify { en_sqd_notify: Some(false), ..QpModify::up_to_rts(1, None)[0] };
        assert!(matches!(qp.modify(&notify), Err(CardError::Invalid(_))), "not even to say no");
        for state in [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
            assert!(matches!(qp.modify(&QpModify::to(state)), Err(CardError::Invalid(_))), "{state:?}");
        }
    }
}
