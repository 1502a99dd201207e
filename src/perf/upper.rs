//! The storey above the transport in a measurement: fixed slots to send from and to receive into.
//!
//! It does what a program does that posts buffers: every message in flight has a send slot of its own, every incoming
//! message is copied into a posted receive buffer, and without one the answer is 'not ready'. Beyond that it costs nothing:
//! no allocation, no look-up, no clock. Messages without a header are test data; control messages carry
//! [`control::HEADER`](super::control).
//!
//! Tokens carry the generation of the buffers that they belong to, so that stragglers of an earlier test touch nothing.

use std::collections::VecDeque;

use srd::{Endpoint, Failure, Gather, Outbound, PeerId, PlaceToken, Placement, RnrRetry, Time, Token, Upper};

use super::control::{self, Op};

/// Status of a refusal: the message is neither test data nor a control message.
pub(crate) const REFUSED_FOREIGN: u8 = 1;
/// Status of a refusal: test data of somebody whose test is not running (any more).
pub(crate) const REFUSED_NO_TEST: u8 = 2;
/// Status of a refusal: test data that are not of the agreed size.
pub(crate) const REFUSED_SIZE: u8 = 3;

/// Marks tokens of control messages.
const CONTROL: u64 = 1 << 63;
/// Control messages in progress at once, in each direction.
const CONTROL_SLOTS: usize = 32;
/// What a straggler of an earlier test reads.
static NOTHING: [u8; 65536] = [0; 65536];

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct PerfUpper {
    /// Generation of the data buffers, in the upper half of their tokens.
    tag: u64,
    size: usize,
    data_peer: Option<PeerId>,

    tx: Box<[u8]>,
    tx_free: Vec<u32>,
    tx_slots: usize,
    /// Completed data messages since the owner last looked; their slots are free again.
    pub(crate) tx_done: u64,
    /// When each slot was last posted.
    posted_at: Box<[Time]>,
    /// When the last completed messages were posted: one of [`SAMPLE`] completions.
    pub(crate) samples: Vec<Time>,
    sample_in: u32,
    /// Why the first data message that failed did so, or why no more will be delivered.
    pub(crate) failed: Option<Failure>,

    rx: Box<[u8]>,
    rx_free: Vec<u32>,
    /// Buffers that hold a message that the owner has not looked at yet.
    rx_done: Vec<u32>,

    control_out: Vec<ControlOut>,
    control_in: Vec<ControlIn>,
    /// Control messages that have arrived.
    pub(crate) control: VecDeque<(PeerId, Op, Vec<u8>)>,
    /// Control messages that failed.
    pub(crate) control_failed: VecDeque<(PeerId, Failure)>,
}

/// One of so many completions is measured.
const SAMPLE: u32 = 64;

#[derive(Debug)]
struct ControlOut {
    peer: Option<PeerId>,
    header: [u8; control::HEADER],
    body: Vec<u8>,
}

#[derive(Debug, Default)]
struct ControlIn {
    from: Option<(PeerId, Option<Op>)>,
    body: Vec<u8>,
}

impl PerfUpper {
    /// Without buffers for data: every test message is refused.
    pub(crate) fn new() -> PerfUpper {
        PerfUpper {
            tag: 0,
            size: 0,
            data_peer: None,
            tx: Box::default(),
            tx_free: Vec::new(),
            tx_slots: 0,
            tx_done: 0,
            posted_at: Box::default(),
            samples: Vec::new(),
            sample_in: SAMPLE,
            failed: None,
            rx: Box::default(),
            rx_free: Vec::new(),
            rx_done: Vec::new(),
            control_out: Vec::new(),
            control_in: Vec::new(),
            control: VecDeque::new(),
            control_failed: VecDeque::new(),
        }
    }

    /// New buffers for messages of `size` bytes from and to `peer`: `send` slots and `post` receive buffers. Whatever is
    /// still in progress with older ones is forgotten.
    pub(crate) fn open(&mut self, peer: PeerId, size: u32, send: usize, post: usize) {
        self.close();
        self.size = size as usize;
        self.data_peer = Some(peer);
        self.tx_slots = send;
        // Really written, for untouched memory would all be the same page of zeros and sit in the cache.
        self.tx = vec![0x5a; send * self.size].into();
        self.tx_free = (0..send as u32).rev().collect();
        self.posted_at = vec![Time::ZERO; send].into();
        self.samples = Vec::with_capacity(send / SAMPLE as usize + 1);
        self.rx = vec![0; post * self.size].into();
        self.rx_free = (0..post as u32).rev().collect();
        self.rx_done = Vec::with_capacity(post);
    }

    /// Gives the buffers back and forgets whatever is in progress with them.
    pub(crate) fn close(&mut self) {
        self.tag = (self.tag + (1 << 32)) & !CONTROL;
        self.size = 0;
        self.data_peer = None;
        self.tx = Box::default();
        self.tx_free = Vec::new();
        self.tx_slots = 0;
        self.tx_done = 0;
        self.failed = None;
        self.rx = Box::default();
        self.rx_free = Vec::new();
        self.rx_done = Vec::new();
        self.samples.clear();
    }

    /// Data messages that are posted and not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.tx_slots - self.tx_free.len()
    }

    /// Posts up to `limit` data messages, as many as there are free slots, and returns how many it was.
    pub(crate) fn post(&mut self, endpoint: &mut Endpoint, now: Time, limit: u64) -> u64 {
        let Some(peer) = self.data_peer else { return 0 };
        let mut posted = 0;
        while posted < limit {
            let Some(slot) = self.tx_free.pop() else { break };
            let token = Token(self.tag | u64::from(slot));
            let msg = Outbound { token, flow: 0, header_len: 0, len: self.size as u32, rnr: RnrRetry::Forever };
            if endpoint.send(now, peer, msg).is_err() {
                self.tx_free.push(slot);
                break;
            }
            self.posted_at[slot as usize] = now;
            posted += 1;
        }
        posted
    }

    /// Posts the buffers of all arrived messages again, and returns how many it was.
    pub(crate) fn recycle(&mut self) -> u64 {
        let n = self.rx_done.len();
        self.rx_free.append(&mut self.rx_done);
        n as u64
    }

    /// The number of data messages completed since the last call.
    pub(crate) fn take_done(&mut self) -> u64 {
        std::mem::take(&mut self.tx_done)
    }

    /// Sends a control message. Dropped when too many are in progress already; whoever misses it asks again or gives up.
    pub(crate) fn send_control(&mut self, endpoint: &mut Endpoint, now: Time, peer: PeerId, op: Op, body: Vec<u8>) {
        let free = self.control_out.iter().position(|c| c.peer.is_none());
        let slot = match free {
            Some(slot) => slot,
            None if self.control_out.len() < CONTROL_SLOTS => {
                self.control_out.push(ControlOut { peer: None, header: [0; control::HEADER], body: Vec::new() });
                self.control_out.len() - 1
            }
            None => return,
        };
        let token = Token(CONTROL | slot as u64);
        let len = body.len() as u32;
        let header = op.header();
        self.control_out[slot] = ControlOut { peer: Some(peer), header, body };
        let msg = Outbound { token, flow: 0, header_len: header.len() as u8, len, rnr: RnrRetry::Times(32) };
        if endpoint.send(now, peer, msg).is_err() {
            self.control_out[slot].peer = None;
        }
    }

    /// Whether control messages wait for their completion.
    pub(crate) fn control_pending(&self) -> bool {
        self.control_out.iter().any(|c| c.peer.is_some())
    }

    fn place_control(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        let Some(op) = Op::from_header(header) else { return Placement::Refuse(REFUSED_FOREIGN) };
        if len as usize > control::MAX_BODY {
            return Placement::Refuse(REFUSED_FOREIGN);
        }
        let free = self.control_in.iter().position(|c| c.from.is_none());
        let slot = match free {
            Some(slot) => slot,
            None if self.control_in.len() < CONTROL_SLOTS => {
                self.control_in.push(ControlIn::default());
                self.control_in.len() - 1
            }
            None => return Placement::NotReady,
        };
        self.control_in[slot] = ControlIn { from: Some((peer, Some(op))), body: vec![0; len as usize] };
        Placement::Accept(PlaceToken(CONTROL | slot as u64))
    }

    fn is_current(&self, token: u64) -> bool {
        token & !0xffff_ffff == self.tag
    }
}

/// The slot in the lower half of a token.
fn slot(token: u64) -> usize {
    token as u32 as usize
}

impl Gather for PerfUpper {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        let offset = offset as usize;
        if self.is_current(token.0) {
            let start = slot(token.0) * self.size + offset;
            &self.tx[start..start + len]
        } else if token.0 & CONTROL != 0 {
            &self.control_out[slot(token.0)].body[offset..offset + len]
        } else {
            &NOTHING[..len.min(NOTHING.len())]
        }
    }
}

impl Upper for PerfUpper {
    fn header(&self, token: Token) -> &[u8] {
        if token.0 & CONTROL != 0 { &self.control_out[slot(token.0)].header } else { &[] }
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        if self.is_current(token.0) {
            let slot = slot(token.0) as u32;
            self.tx_free.push(slot);
            match outcome {
                Ok(()) => self.tx_done += 1,
                Err(failure) => {
                    self.failed.get_or_insert(failure);
                }
            }
            self.sample_in -= 1;
            if self.sample_in == 0 {
                self.sample_in = SAMPLE;
                self.samples.push(self.posted_at[slot as usize]);
            }
        } else if token.0 & CONTROL != 0 {
            let done = &mut self.control_out[slot(token.0)];
            done.body = Vec::new();
            if let (Some(peer), Err(failure)) = (done.peer.take(), outcome)
                && self.control_failed.len() < CONTROL_SLOTS
            {
                self.control_failed.push_back((peer, failure));
            }
        }
    }

    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        if !header.is_empty() {
            return self.place_control(peer, header, len);
        }
        if self.data_peer != Some(peer) {
            return Placement::Refuse(REFUSED_NO_TEST);
        }
        if len as usize != self.size {
            return Placement::Refuse(REFUSED_SIZE);
        }
        match self.rx_free.pop() {
            Some(slot) => Placement::Accept(PlaceToken(self.tag | u64::from(slot))),
            None => Placement::NotReady,
        }
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let offset = offset as usize;
        if self.is_current(place.0) {
            let start = slot(place.0) * self.size + offset;
            self.rx[start..start + bytes.len()].copy_from_slice(bytes);
        } else if place.0 & CONTROL != 0 {
            self.control_in[slot(place.0)].body[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn placed(&mut self, place: PlaceToken) {
        if self.is_current(place.0) {
            self.rx_done.push(slot(place.0) as u32);
        } else if place.0 & CONTROL != 0 {
            let message = std::mem::take(&mut self.control_in[slot(place.0)]);
            // Whoever does not fetch its control messages does not get more of them.
            if let Some((peer, Some(op))) = message.from
                && self.control.len() < CONTROL_SLOTS
            {
                self.control.push_back((peer, op, message.body));
            }
        }
    }

    fn abandoned(&mut self, place: PlaceToken) {
        if self.is_current(place.0) {
            self.rx_free.push(slot(place.0) as u32);
        } else if place.0 & CONTROL != 0 {
            self.control_in[slot(place.0)] = ControlIn::default();
        }
    }

    /// With nothing outstanding no message fails, and whoever waits for an answer would do so for ever.
    fn closed(&mut self, peer: PeerId) {
        if self.data_peer == Some(peer) {
            self.failed.get_or_insert(Failure::PeerClosed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(3);

    fn accept(upper: &mut PerfUpper, header: &[u8], len: u32) -> PlaceToken {
        match upper.place(PEER, header, len) {
            Placement::Accept(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn data_needs_a_test_its_size_and_a_posted_buffer() {
        let mut upper = PerfUpper::new();
        assert_eq!(upper.place(PEER, &[], 8), Placement::Refuse(REFUSED_NO_TEST));
        upper.open(PEER, 8, 1, 2);
        assert_eq!(upper.place(PeerId(4), &[], 8), Placement::Refuse(REFUSED_NO_TEST));
        assert_eq!(upper.place(PEER, &[], 9), Placement::Refuse(REFUSED_SIZE));
        let places = [accept(&mut upper, &[], 8), accept(&mut upper, &[], 8)];
        assert_eq!(upper.place(PEER, &[], 8), Placement::NotReady);
        upper.write(places[0], 4, b"data");
        upper.placed(places[0]);
        assert_eq!(upper.place(PEER, &[], 8), Placement::NotReady, "not before the owner has looked");
        assert_eq!((upper.recycle(), upper.recycle()), (1, 0));
        accept(&mut upper, &[], 8);
        upper.abandoned(places[1]);
        accept(&mut upper, &[], 8);
    }

    #[test]
    fn stragglers_of_an_earlier_test_touch_nothing() {
        let mut upper = PerfUpper::new();
        upper.open(PEER, 4096, 4, 4);
        let (place, token) = (accept(&mut upper, &[], 4096), Token(upper.tag));
        upper.open(PEER, 1, 1, 1);
        assert_eq!(upper.payload(token, 4000, 96).len(), 96);
        upper.write(place, 4000, &[1; 96]);
        upper.placed(place);
        upper.abandoned(place);
        upper.completed(token, Err(Failure::Unresponsive));
        assert_eq!((upper.recycle(), upper.take_done(), upper.outstanding(), upper.failed), (0, 0, 0, None));
    }

    #[test]
    fn a_peer_that_closes_ends_its_test() {
        let mut upper = PerfUpper::new();
        upper.open(PEER, 8, 1, 1);
        upper.closed(PeerId(4));
        assert_eq!(upper.failed, None, "a stranger");
        upper.closed(PEER);
        assert_eq!(upper.failed, Some(Failure::PeerClosed));
    }

    #[test]
    fn control_messages_are_taken_and_garbage_is_not() {
        let mut upper = PerfUpper::new();
        assert_eq!(upper.place(PEER, b"garbage", 1), Placement::Refuse(REFUSED_FOREIGN));
        assert_eq!(upper.place(PEER, &Op::Start.header(), 1 << 20), Placement::Refuse(REFUSED_FOREIGN));
        let place = accept(&mut upper, &Op::Start.header(), 2);
        upper.write(place, 0, b"{}");
        upper.placed(place);
        assert_eq!(upper.control.pop_front(), Some((PEER, Op::Start, b"{}".to_vec())));
        for _ in 0..10 * CONTROL_SLOTS {
            if let Placement::Accept(place) = upper.place(PEER, &Op::Stop.header(), 0) {
                upper.placed(place);
            }
        }
        assert!(upper.control.len() <= CONTROL_SLOTS);
    }
}
