//! Very many small messages in both directions over a network that loses, repeats and delays, with numbers that wrap on the way.
//!
//! `SRD_SOAK_MESSAGES` (default 100,000; 20,000,000 in `./x soak`) says how many each card sends.

#[path = "support/cards.rs"]
mod cards;

use cards::*;
use srd_core::card::*;
use srd_core::*;

/// Bytes of a message: its number, again and again.
const LEN: usize = 32;
/// Requests and receives that are posted at a time.
const SENDS: u64 = 512;
const RECEIVES: u64 = 1024;

/// One card's view of the traffic.
struct Side {
    qpn: u16,
    ah: u16,
    keys: MrKeys,
    posted: u64,
    sent: u64,
    /// A bit per message of the peer.
    seen: Vec<u64>,
    received: u64,
}

impl Side {
    fn see(&mut self, message: u64) {
        let (word, bit) = (&mut self.seen[(message / 64) as usize], 1 << (message % 64));
        assert_eq!(*word & bit, 0, "message {message} came twice");
        *word |= bit;
        self.received += 1;
    }
}

#[test]
fn a_long_run_over_a_bad_network_delivers_each_message_once() {
    let messages: u64 =
        std::env::var("SRD_SOAK_MESSAGES").map_or(100_000, |n| n.parse().expect("a number of messages"));
    // Packets and messages are numbered over the wrap soon after all is under way.
    let config = Config { first_number: Some(u32::MAX - 500), ..Config::default() };
    let mut world = World::with(2, options(), config, |_| Ram(vec![0; RECEIVES as usize * LEN]));
    let mut rng = Rng(6);
    world.wire = Box::new(move |_, _| match rng.below(200) {
        0 | 1 => Fate::Lost,
        2 | 3 => Fate::Twice,
        4..10 => Fate::Late(Span::from_nanos(rng.below(100_000))),
        _ => Fate::Arrives,
    });
    let mut sides = [0, 1].map(|i| {
        let cap = QpCap { send_wr: SENDS as u32, recv_wr: RECEIVES as u32, ..cap() };
        let qpn = world.qp(i, |init| init.cap = cap);
        let (ah, keys) = (world.ah(i, 1 - i), world.mr(i));
        for n in 0..RECEIVES {
            world.recv(i, qpn, n, &[sge(keys, n as usize * LEN, LEN as u32)]);
        }
        Side { qpn, ah, keys, posted: 0, sent: 0, seen: vec![0; messages.div_ceil(64) as usize], received: 0 }
    });
    let to = [sides[1].qpn, sides[0].qpn];
    let mut last = (world.now, 0);
    while sides.iter().any(|s| s.sent < messages || s.received < messages) {
        for (i, side) in sides.iter_mut().enumerate() {
            while let Some(done) = world.poll(i) {
                assert_eq!(done.status, Status::Ok, "{done:?}");
                if done.wr_id >= RECEIVES {
                    side.sent += 1;
                    continue;
                }
                let at = done.wr_id as usize * LEN;
                let bytes = &world.bytes(i)[at..at + LEN];
                let message = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                assert!(
                    bytes.chunks(8).all(|c| c == &bytes[..8]) && done.byte_len as usize == LEN,
                    "message {message} is not whole"
                );
                side.see(message);
                world.recv(i, side.qpn, done.wr_id, &[sge(side.keys, at, LEN as u32)]);
            }
            while side.posted < messages && side.posted - side.sent < SENDS {
                let bytes: Vec<u8> = side.posted.to_be_bytes().repeat(LEN / 8);
                let data = SendData::Inline(&bytes);
                let wr = SendWr {
                    wr_id: RECEIVES + side.posted,
                    op: SendOp::Send { imm: None },
                    ah: side.ah,
                    qpn: to[i],
                    qkey: QKEY,
                    data,
                };
                world.post(i, side.qpn, wr).unwrap();
                side.posted += 1;
            }
        }
        let end = world.now + Span::from_secs(1);
        world.step(end);
        let done = sides[0].received + sides[1].received;
        if done > last.1 {
            last = (world.now, done);
        }
        assert!(world.now.since(last.0) < Span::from_secs(30), "nothing has arrived for 30 s: {done} messages");
    }
    // What is still on the way repeats nothing.
    world.run(Span::from_secs(1));
    assert!((0..2).all(|i| world.poll(i).is_none()));
}
