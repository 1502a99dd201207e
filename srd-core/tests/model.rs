//! Any sequence of sends, faults and restarts, against the simplest reference: a table of what was sent.
//!
//! Safety all the time: each message is delivered at most once, with its bytes, and completes at most once. Liveness after
//! healing: everything completes, and what completed well was delivered. Without restarts nothing may fail at all.

#[path = "support/repeatable.rs"]
mod repeatable;
mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;
use repeatable::repeatable;
use srd_core::*;
use support::*;

/// One step of a run. Ordered from harmless to harmful, since shrinking moves to the front.
#[derive(Clone, Debug)]
enum Op {
    Advance(Span),
    Send { from: usize, size: u32 },
    Fault { from: usize, count: u8, what: Fault },
    Read { side: usize, reading: bool },
    Restart { side: usize },
}

/// What happens to one of the next datagrams of a side.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Late(Span),
    Twice,
    Corrupt { at: u16, bits: u8 },
    Drop,
}

fn op() -> impl Strategy<Value = Op> {
    let side = 0..2usize;
    let size = prop_oneof![4 => 0..200u32, 2 => 1000..4000u32, 1 => 4000..11_000u32, 1 => 12_000..20_000u32];
    let fault = prop_oneof![
        (1..3000u64).prop_map(|us| Fault::Late(Span::from_micros(us))),
        Just(Fault::Twice),
        (any::<u16>(), 1..=255u8).prop_map(|(at, bits)| Fault::Corrupt { at, bits }),
        Just(Fault::Drop),
    ];
    prop_oneof![
        4 => prop_oneof![1..100u64, 100..5000u64, 5000..400_000u64].prop_map(|us| Op::Advance(Span::from_micros(us))),
        6 => (side.clone(), size).prop_map(|(from, size)| Op::Send { from, size }),
        4 => (side.clone(), 1..20u8, fault).prop_map(|(from, count, what)| Op::Fault { from, count, what }),
        2 => (side.clone(), prop::bool::weighted(0.3)).prop_map(|(side, reading)| Op::Read { side, reading }),
        1 => side.prop_map(|side| Op::Restart { side }),
    ]
}

fn config(idle_timeout: Span) -> Config {
    Config {
        paths: 4,
        path_pool: 16,
        max_datagram: 1400,
        packet_window: 1024,
        message_window: 64,
        max_partial_messages: 8,
        first_number: Some(u32::MAX - 30),
        checksum: Checksum::Crc32c,
        idle_timeout,
        keepalive: Span::from_millis(50),
        ..Config::default()
    }
}

/// Room for unread messages at each side, with 128 bytes for each. A side that does not read is soon 'not ready', and a
/// message that could never fit is refused.
const BUDGET: usize = 12_000;

#[derive(Debug)]
struct Expected {
    from: usize,
    size: u32,
    delivered: u32,
    /// `None`: not known yet. Messages of a side that restarted are nobody's business any more.
    outcome: Option<Result<(), Failure>>,
    orphan: bool,
}

struct Run {
    config: Config,
    pair: Pair,
    faults: Rc<RefCell<[VecDeque<Fault>; 2]>>,
    table: Vec<Expected>,
    /// Which message a side's token stands for.
    tokens: [BTreeMap<u64, usize>; 2],
    restarts: u8,
}

impl Run {
    fn new(config: Config) -> Run {
        let faults: Rc<RefCell<[VecDeque<Fault>; 2]>> = Rc::default();
        let mut pair = Pair::new(config.clone());
        let state = Rc::clone(&faults);
        pair.wire = Box::new(move |from, _, _, datagram| match state.borrow_mut()[from].pop_front() {
            None => Deliver::Once,
            Some(Fault::Drop) => Deliver::Drop,
            Some(Fault::Twice) => Deliver::Twice,
            Some(Fault::Late(by)) => Deliver::Late(by),
            Some(Fault::Corrupt { at, bits }) => {
                let at = usize::from(at) % datagram.len();
                datagram[at] ^= bits;
                Deliver::Once
            }
        });
        for i in 0..2 {
            pair.sides[i] = Side::new(&config, addr(i), 1 + i as u8, pair.now, BUDGET);
        }
        Run { config, pair, faults, table: Vec::new(), tokens: Default::default(), restarts: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Advance(span) => self.pair.run(span),
            Op::Send { from, size } => {
                let id = self.table.len();
                let data = pattern(id as u32, size as usize);
                let token = self.pair.send_with(from, &(id as u32).to_be_bytes(), data, RnrRetry::Forever);
                self.table.push(Expected { from, size, delivered: 0, outcome: None, orphan: false });
                assert!(self.tokens[from].insert(token.0, id).is_none());
            }
            Op::Fault { from, count, what } => {
                let mut faults = self.faults.borrow_mut();
                // Bounded, so that healing is not waiting for faults to be used up.
                let room = 60usize.saturating_sub(faults[from].len());
                faults[from].extend(std::iter::repeat_n(what, usize::from(count).min(room)));
            }
            Op::Read { side, reading } => self.pair.sides[side].reading = reading,
            Op::Restart { side } => {
                // What was placed before counts as delivered, read or not.
                self.read(side);
                self.audit();
                self.restarts += 1;
                self.pair.sides[side] = Side::new(&self.config, addr(side), 100 + self.restarts, self.pair.now, BUDGET);
                for id in std::mem::take(&mut self.tokens[side]).into_values() {
                    self.table[id].orphan = true;
                }
            }
        }
        self.audit();
    }

    /// Reads all that waits in a mailbox.
    fn read(&mut self, side: usize) {
        let side = &mut self.pair.sides[side];
        while let Some(msg) = side.mailbox.poll_received() {
            side.received.push(msg);
        }
    }

    fn audit(&mut self) {
        for (i, side) in self.pair.sides.iter_mut().enumerate() {
            for msg in side.received.drain(..) {
                let id = u32::from_be_bytes(msg.header[..].try_into().expect("our header")) as usize;
                let expected = &mut self.table[id];
                assert_eq!(expected.from, 1 - i, "message {id} came back");
                assert!(msg.data == pattern(id as u32, expected.size as usize), "message {id} damaged");
                expected.delivered += 1;
                assert_eq!(expected.delivered, 1, "message {id} delivered again");
            }
            for (token, outcome) in side.completed.drain(..) {
                let id = self.tokens[i].remove(&token.0).expect("completed once");
                self.table[id].outcome = Some(outcome);
            }
        }
    }

    fn heal(&mut self) {
        self.faults.borrow_mut().iter_mut().for_each(VecDeque::clear);
        self.pair.sides.iter_mut().for_each(|s| s.reading = true);
        let end = self.pair.now + Span::from_secs(12);
        while self.tokens.iter().any(|t| !t.is_empty()) && self.pair.step(end) {
            self.audit();
        }
        (0..2).for_each(|side| self.read(side));
        self.audit();
        for (id, m) in self.table.iter().enumerate().filter(|(_, m)| !m.orphan) {
            let Some(outcome) = m.outcome else {
                panic!("message {id} never completed: {m:?} {:#?}", self.pair.sides[m.from].endpoint.stats())
            };
            let fits = m.size as usize + 128 <= BUDGET;
            match outcome {
                Ok(()) => assert_eq!(m.delivered, 1, "message {id} completed: {m:?}"),
                Err(Failure::Refused(status)) => assert!(!fits && status == 0 && m.delivered == 0, "{id}: {m:?}"),
                Err(_) => assert!(self.restarts > 0, "message {id} failed without reason: {m:?}"),
            }
        }
    }
}

fn run(ops: &[Op], idle_timeout: Option<Span>) {
    let mut run = Run::new(config(idle_timeout.unwrap_or(Span::from_secs(60))));
    for op in ops {
        run.apply(op);
    }
    run.heal();
}

/// A few seconds' worth; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..repeatable() })]

    #[test]
    fn every_message_arrives_once_or_its_sender_knows(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops, None);
    }

    #[test]
    fn connections_that_close_and_open_again_deliver_once(
        ops in prop::collection::vec(op(), 1..60),
        idle_ms in 1..300u64,
    ) {
        run(&ops, Some(Span::from_millis(idle_ms)));
    }
}
