//! The rings of a queue pair.

use std::borrow::Cow;

use arrayvec::ArrayVec;
use verbs_shim::card::profile::has_wide_requests;
use verbs_shim::{CardError, Completion, CqId, Nic, Opcode, QpModify, QpState, SendWr, Status};

use super::layout::{self, Fault, Receive, Request};
use super::queue::Queue;
use super::ring::{Place, Ring};
use crate::qp::Qp;

/// Requests that are given to the card at a time.
const BATCH: usize = 16;

/// The rings of a queue pair.
pub(super) struct Pair {
    pub(super) qpn: u16,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    sends: Ring,
    receives: Ring,
    /// It may complete what was never posted.
    takes_unsolicited: bool,
    /// It can not be told any more what the program wants.
    is_broken: bool,
}

/// The program has written what makes no sense.
#[derive(Debug)]
struct Broken(Cow<'static, str>);

/// Of a ring of which the program writes entries, and then their number.
impl Ring {
    /// Entries that were written and not read. Programs count them modulo 2^16 or more.
    fn waiting(&self) -> Result<u32, Broken> {
        match u32::from((self.doorbell.get() as u16).wrapping_sub(self.done as u16)) {
            waiting if waiting <= self.depth() => Ok(waiting),
            waiting => Err(Broken(format!("a doorbell was rung for {waiting} entries of {}", self.depth()).into())),
        }
    }

    /// Reads an entry, so many after the next one.
    fn read(&self, ahead: u32, to: &mut [u8]) {
        self.area.read(self.at(ahead), to);
    }

    fn reset(&mut self) {
        self.doorbell.clear();
        self.done = 0;
    }
}

impl Pair {
    pub(super) fn new(qp: &Qp) -> Pair {
        let (init, cap) = (&qp.init, &qp.cap);
        let entry = if has_wide_requests(cap.inline, init.inline_write) { layout::WIDE_TX } else { layout::TX };
        let receives = cap.recv_wr.max(1) * u32::from(cap.recv_sge.max(1));
        Pair {
            qpn: qp.qpn,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sends: Ring::new(entry, cap.send_wr.max(1)),
            receives: Ring::new(layout::RX, receives),
            takes_unsolicited: init.unsolicited_write_recv,
            is_broken: false,
        }
    }

    /// Where its rings are: of sends and of receives.
    pub(super) fn places(&self) -> (Place, Place) {
        (self.sends.place(), self.receives.place())
    }

    /// A peer may write before the program has rung for anything; who asked for the rings looks for it there.
    pub(super) fn expect_unsolicited(&self, queues: &mut [Queue]) {
        if self.takes_unsolicited {
            self.uses(queues);
        }
    }

    /// It begins anew.
    pub(super) fn reset(&mut self) {
        self.sends.reset();
        self.receives.reset();
        self.is_broken = false;
    }

    /// Posts what the program has written, and says whether there was any of it.
    pub(super) fn serve(&mut self, nic: &Nic, queues: &mut [Queue]) -> bool {
        if self.is_broken {
            return false;
        }
        // Who sends often waits for the answer: its receive first.
        let served = self.receive(nic, queues).and_then(|received| Ok(self.send(nic, queues)? || received));
        served.unwrap_or_else(|why| {
            self.give_up(nic, &why.0);
            true
        })
    }

    /// Its completions go to the rings of its queues from now on, if they have some.
    fn uses(&self, queues: &mut [Queue]) {
        for queue in queues.iter_mut().filter(|queue| queue.cq == self.send_cq || queue.cq == self.recv_cq) {
            queue.is_used = true;
        }
    }

    fn send(&mut self, nic: &Nic, queues: &mut [Queue]) -> Result<bool, Broken> {
        let mut left = self.sends.waiting()?;
        if left == 0 {
            return Ok(false);
        }
        self.uses(queues);
        let mut entry = [0; layout::WIDE_TX];
        let entry = &mut entry[..self.sends.entry];
        while left > 0 {
            let mut requests = ArrayVec::<Request, BATCH>::new();
            let mut fault = None;
            while (requests.len() as u32) < left && !requests.is_full() {
                let ahead = requests.len() as u32;
                self.sends.read(ahead, entry);
                match Request::read(entry, self.sends.is_even_round(ahead)) {
                    Ok(request) => requests.push(request),
                    Err(found) => {
                        fault = Some(found);
                        break;
                    }
                }
            }
            let wrs: ArrayVec<SendWr<'_>, BATCH> = requests.iter().map(Request::wr).collect();
            let (posted, outcome) = nic.post_send(self.qpn, &wrs);
            self.sends.advance(posted as u32);
            left -= posted as u32;
            let fault = match outcome {
                Ok(()) => fault,
                Err(error) => match self.refused(nic, error) {
                    Some(fault) => Some(fault),
                    None => return Ok(posted > 0),
                },
            };
            if let Some(fault) = fault {
                self.sends.read(0, entry);
                self.fail(layout::id(entry), layout::opcode(entry), fault, queues);
                self.sends.advance(1);
                left -= 1;
            }
        }
        Ok(true)
    }

    /// What a device says of a request that the card refuses; `None` for nothing yet.
    fn refused(&self, nic: &Nic, error: CardError) -> Option<Fault> {
        match (nic.query_qp(self.qpn).map(|qp| qp.state), error) {
            (Ok(QpState::Err), _) => {
                Some(Fault { status: Status::Flushed, why: "the queue pair is in the error state" })
            }
            // There is room when the completions of others have been polled.
            (Ok(QpState::Reset | QpState::Init | QpState::Rtr), _) | (_, CardError::NoMemory(_)) => None,
            (_, CardError::Invalid(why) | CardError::NotSupported(why)) => {
                Some(Fault { status: Status::QpInternal, why })
            }
            _ => Some(Fault { status: Status::QpInternal, why: "the device has failed" }),
        }
    }

    /// Completes a request with an error that the card knows nothing of.
    fn fail(&self, wr_id: u64, opcode: Opcode, fault: Fault, queues: &mut [Queue]) {
        let Fault { status, why } = fault;
        if status != Status::Flushed {
            tracing::warn!("a request (id {wr_id}) in the ring of QP {} ended with {status}: {why}", self.qpn);
        }
        let completion = Completion { wr_id, status, opcode, qpn: self.qpn, ..Completion::EMPTY };
        let cq = if opcode.is_recv() { self.recv_cq } else { self.send_cq };
        if let Some(queue) = queues.iter_mut().find(|queue| queue.cq == cq) {
            queue.push(&completion);
            queue.tell();
        }
    }

    fn receive(&mut self, nic: &Nic, queues: &mut [Queue]) -> Result<bool, Broken> {
        let mut left = self.receives.waiting()?;
        if left == 0 {
            return Ok(false);
        }
        self.uses(queues);
        let mut moved = false;
        while left > 0 {
            let mut receive = Receive::default();
            let mut entry = [0; layout::RX];
            let mut read = 0;
            loop {
                if read == left {
                    // The rest of it is not written yet.
                    return Ok(moved);
                }
                self.receives.read(read, &mut entry);
                read += 1;
                if receive.read(&entry).map_err(|fault| Broken(fault.why.into()))? {
                    break;
                }
            }
            let id = receive.id.into();
            match nic.post_recv(self.qpn, id, &receive.sges).map_err(|error| self.refused(nic, error)) {
                Ok(()) => {}
                Err(None) => return Ok(moved),
                Err(Some(fault)) if fault.status == Status::Flushed => self.fail(id, Opcode::Recv, fault, queues),
                Err(Some(fault)) => return Err(Broken(fault.why.into())),
            }
            self.receives.advance(read);
            left -= read;
            moved = true;
        }
        Ok(true)
    }

    /// The rings make no sense any more: the queue pair goes to the error state, as a device's does.
    #[cold]
    fn give_up(&mut self, nic: &Nic, why: &str) {
        tracing::error!("QP {} goes to the error state, because its rings are broken: {why}", self.qpn);
        self.is_broken = true;
        // It may be there already.
        let _ = nic.modify_qp(self.qpn, &QpModify::to(QpState::Err));
    }
}
