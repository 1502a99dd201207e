//! An endpoint that has much to send to a peer with a valid connection that says whatever it wants: acknowledgements, refusals
//! and advice of all kinds, messages of its own, numbers from anywhere.
//!
//! What it says, it says of packets and messages that are really under way, so most of it is heeded. It may hurt its own
//! messages, and nothing else: none completes twice, all have an end when it falls silent, nothing is due for ever at one time,
//! and nothing overflows.

#[path = "support/seeds.rs"]
mod seeds;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rand::{Rng as _, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use seeds::each_seed;
use srd_core::*;

const ROUNDS: u32 = 1_500;
const BUDGET: usize = 4 << 20;

fn addr(i: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i], 4000))
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().unwrap())
}

/// See the module documentation. Its packets are written by hand: see `docs/protocol.md`.
struct Liar {
    rng: Xoshiro256PlusPlus,
    checksum: bool,
    /// Its last hello.
    hello: Vec<u8>,
    hellos: u64,
    /// The id that the victim gave, and the number of its first packet.
    cid: Option<[u8; 8]>,
    first: u32,
    /// Packets of the victim, with their paths, and messages in them, newest last.
    packets: Vec<(u32, u8)>,
    messages: Vec<u32>,
    /// Its own numbers.
    pn: u32,
    oldest: u32,
    id: u32,
    floor: u32,
}

impl Liar {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())]
    }

    /// A number that may be as good as another, or may not.
    fn near(&mut self, n: u32) -> u32 {
        let by = self.pick(&[0, 0, 0, 1, 2, 3, 63, 64, 65, 1_000, 1 << 20, 1 << 31]);
        if self.rng.random_bool(0.5) { n.wrapping_add(by) } else { n.wrapping_sub(by) }
    }

    fn any(&mut self) -> u32 {
        let (power, any) = (1 << self.rng.random_range(0..32), self.rng.next_u32());
        self.pick(&[0, u32::MAX, power, any])
    }

    fn new_hello(&mut self) {
        self.hellos += 1;
        (self.pn, self.id) = (self.rng.next_u32(), self.rng.next_u32());
        (self.oldest, self.floor) = (self.pn, self.id);
        let datagram: u16 = self.pick(&[512, 1400, 9216, 65535]);
        let windows = [0; 2].map(|_| 64 << self.rng.random_range(0..10));
        let (partials, delay, share) = (self.pick(&[1, 2, 1000, u32::MAX]), self.pick(&[0, 25, u32::MAX]), self.any());
        self.hello = [&self.hellos.to_be_bytes()[..], &[7; 8], &u32::from(self.checksum).to_be_bytes()].concat();
        self.hello.extend(datagram.to_be_bytes());
        for field in [windows[0], windows[1], u32::MAX, partials, self.pn, self.id, delay, share] {
            self.hello.extend(field.to_be_bytes());
        }
    }

    fn init(&self, cookie: &[u8]) -> Vec<u8> {
        sealed([&[0x12, 1, 0x0f, 0xa0], cookie, &self.hello].concat())
    }

    fn close(&mut self) -> Vec<u8> {
        let next = self.pn.wrapping_add(1).to_be_bytes();
        let shutdown = self.rng.random_bool(0.3);
        sealed([&[0x16, 1], &self.cid.unwrap()[..], &next, &[shutdown.into(), 0x0f, 0xa0]].concat())
    }

    fn some_packet(&mut self) -> (u32, u8) {
        let known = self.packets.len();
        let most = if self.rng.random_bool(0.5) { 40 } else { known };
        match known {
            0 => (self.first, 0),
            _ => self.packets[known - 1 - self.rng.random_range(0..most.min(known))],
        }
    }

    fn ack(&mut self, out: &mut Vec<u8>) {
        let newest = self.packets.last().map_or(self.first.wrapping_sub(1), |p| p.0);
        let (cumulative, newest) = if self.rng.random_bool(0.6) {
            (self.some_packet().0.wrapping_add(self.rng.random_range(0..2)), newest)
        } else {
            (self.near(newest), self.near(newest))
        };
        let (words, paths) = (self.rng.random_range(0..6), self.rng.random_range(0..6));
        let share = if self.rng.random_bool(0.5) { 0 } else { self.any() };
        out.extend([4, paths, 0, words]);
        for field in [cumulative, newest, share, self.any()] {
            out.extend(field.to_be_bytes());
        }
        for _ in 0..words {
            out.extend((self.rng.next_u64() & self.rng.next_u64()).to_be_bytes());
        }
        for _ in 0..paths {
            let ((pn, path), marks) = (self.some_packet(), self.rng.random());
            let path = if self.rng.random_bool(0.9) { path } else { self.rng.random() };
            let residence: u16 = self.pick(&[0, 1, 100, 1_000, 65_534, 65_535]);
            out.extend([path, marks]);
            out.extend((newest.wrapping_sub(pn) as u16).to_be_bytes());
            out.extend(residence.to_be_bytes());
        }
    }

    fn refuse(&mut self, out: &mut Vec<u8>) {
        let pn = self.some_packet().0;
        let pn = if self.rng.random_bool(0.9) { pn } else { self.near(pn) };
        let count = self.rng.random_range(0..8);
        out.extend([5, count]);
        out.extend(pn.to_be_bytes());
        for _ in 0..count {
            let recent = self.messages.len().clamp(1, 100);
            let id = self.messages.iter().rev().nth(self.rng.random_range(0..recent));
            out.extend(id.map_or([0; 4], |id| id.to_be_bytes()));
            out.extend(if self.rng.random_bool(0.7) { [0, 0] } else { [1, self.rng.random()] });
        }
    }

    fn fragment(&mut self, out: &mut Vec<u8>) {
        let id = match self.rng.random_range(0..4) {
            0 => {
                self.id = self.id.wrapping_add(1);
                self.id
            }
            1 => self.id.wrapping_sub(self.rng.random_range(0..8)),
            2 => self.near(self.floor),
            _ => self.floor.wrapping_add(self.rng.random_range(0..16_384)),
        };
        let header_len = self.pick(&[0, 32, 64]);
        let len;
        if self.rng.random_bool(0.5) {
            len = self.rng.random_range(0..100);
            out.extend([1, header_len, 0, len]);
            out.extend(id.to_be_bytes());
        } else {
            let total = self.pick(&[65, 128, 129, 200, 20_000, 1 << 20, 1 << 30, u32::MAX]);
            let offset = self.rng.random_range(0..total) / 64 * 64;
            len = (total - offset).min(64) as u8;
            out.extend([2, header_len, 0, len]);
            for field in [id, total, offset] {
                out.extend(field.to_be_bytes());
            }
        }
        out.resize(out.len() + usize::from(header_len + len), 7);
    }

    /// A data packet.
    fn packet(&mut self) -> Vec<u8> {
        let (cid, tracked) = (self.cid.unwrap(), self.rng.random_bool(0.6));
        let mut out = Vec::new();
        if tracked {
            self.pn = self.pn.wrapping_add(1);
            let pn = if self.rng.random_bool(0.9) { self.pn } else { self.near(self.pn) };
            if self.rng.random_bool(0.3) {
                self.oldest = self.pn.wrapping_sub(self.rng.random_range(0..64));
            }
            if self.rng.random_bool(0.2) {
                let near = self.near(self.floor);
                self.floor = self.pick(&[self.floor.wrapping_add(1), self.id, near]);
            }
            let span = if self.rng.random_bool(0.95) { pn.wrapping_sub(self.oldest) as u16 } else { self.rng.random() };
            out.extend([0x10, self.pick(&[0, 2])]);
            out.extend(span.to_be_bytes());
            out.extend(cid);
            out.extend(pn.to_be_bytes());
            out.extend(self.floor.to_be_bytes());
            out.extend([0x0f, 0xa0, self.rng.random()]);
        } else {
            out.extend([0x11, 0]);
            out.extend(cid);
        }
        for _ in 0..self.rng.random_range(0..4) {
            match self.rng.random_range(0..if tracked { 10 } else { 6 }) {
                0..=3 => self.ack(&mut out),
                4 | 5 => self.refuse(&mut out),
                6 => out.push(3),
                _ => self.fragment(&mut out),
            }
        }
        if self.checksum {
            out[1] |= 1;
            out = sealed(out);
        }
        out
    }

    /// What the victim says; the answer that a connection needs to begin.
    fn hear(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        match bytes[0] {
            0x10 => self.remember(bytes),
            // INIT: an ACCEPT with another hello.
            0x12 => {
                self.new_hello();
                self.meet(&bytes[12..]);
                return Some(sealed([&[0x14, 1], &bytes[12..20], &self.hello].concat()));
            }
            // RETRY.
            0x13 => return Some(self.init(&bytes[10..18])),
            // ACCEPT.
            0x14 => self.meet(&bytes[10..]),
            _ => {}
        }
        None
    }

    fn meet(&mut self, hello: &[u8]) {
        let cid = *hello.first_chunk().unwrap();
        if self.cid.replace(cid) != Some(cid) {
            self.first = u32_at(hello, 34);
            self.packets.clear();
            self.messages.clear();
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        self.packets.push((u32_at(bytes, 12), bytes[22]));
        let end = if bytes[1] & 1 != 0 { bytes.len() - 4 } else { bytes.len() };
        let mut frames = &bytes[23..end];
        while let [kind @ 1..=5, a, ..] = *frames {
            let long = || usize::from(u16::from_be_bytes([frames[2], frames[3]]));
            let len = match kind {
                1 => 8 + usize::from(a) + long(),
                2 => 16 + usize::from(a) + long(),
                3 => 1,
                4 => 20 + 8 * long() + 6 * usize::from(a),
                _ => 6 + 6 * usize::from(a),
            };
            if kind <= 2 {
                self.messages.push(u32_at(frames, 4));
            }
            frames = &frames[len..];
        }
    }
}

struct Victim {
    now: Time,
    endpoint: Endpoint,
    peer: PeerId,
    mailbox: Mailbox,
    batch: TxBatch,
    /// Messages that have not completed.
    live: BTreeSet<Token>,
    /// Looks in a row that found something due at once.
    hasty: u32,
}

impl Victim {
    fn new(config: Config, seed: u8) -> Victim {
        let now = Time::from_nanos(1_000_000);
        let mut endpoint = Endpoint::new(config.check().unwrap(), addr(1), [seed; 32], now);
        let peer = endpoint.peer(addr(2), 8972).unwrap();
        let (mailbox, batch, live) = (Mailbox::new(BUDGET), TxBatch::new(), BTreeSet::new());
        Victim { now, endpoint, peer, mailbox, batch, live, hasty: 0 }
    }

    fn send(&mut self, len: u32, rnr: RnrRetry) {
        let token = self.mailbox.post(&[1, 2, 3], vec![1; len as usize].into());
        match self.endpoint.send(self.now, self.peer, Outbound { token, flow: token.0 as u8, header_len: 3, len, rnr })
        {
            Ok(()) => assert!(self.live.insert(token)),
            Err(_) => self.mailbox.unpost(token),
        }
    }

    fn withdraw(&mut self, which: impl Fn(Token) -> bool) {
        self.endpoint.withdraw(self.peer, &which);
        let withdrawn: Vec<Token> = self.live.iter().copied().filter(|&token| which(token)).collect();
        for token in withdrawn {
            self.live.remove(&token);
            self.mailbox.unpost(token);
        }
    }

    fn receive(&mut self, bytes: &[u8], ecn: Ecn) {
        let meta = RxMeta { from: addr(2), to: None, ecn, at: self.now };
        self.endpoint.handle_datagram(self.now, &meta, bytes, &mut self.mailbox);
    }

    /// Does what is to be done now, and returns what it sent and when there is more to do.
    fn turn(&mut self) -> (Vec<Vec<u8>>, Time) {
        let Victim { now, endpoint, mailbox, batch, live, .. } = self;
        endpoint.handle_timeout(*now, mailbox);
        let mut sent = Vec::new();
        // No more than all windows.
        for bursts in 0.. {
            assert!(bursts < 40_000, "no end of sending at one time: {:?}", endpoint.stats());
            if !endpoint.poll_transmit(*now, mailbox, batch) {
                break;
            }
            for burst in batch.bursts() {
                let mut bytes = Vec::new();
                burst.copy_to(mailbox, &mut bytes);
                sent.extend(bytes.chunks(burst.segment).map(<[u8]>::to_vec));
            }
            batch.clear();
        }
        sent.iter().for_each(|bytes| _ = dissect(bytes).expect("what can be read"));
        while let Some((token, _)) = mailbox.poll_completed() {
            assert!(live.remove(&token), "{token:?} completed twice");
        }
        while mailbox.poll_received().is_some() || endpoint.poll_event().is_some() {}
        assert!(mailbox.held() <= BUDGET);
        let due = endpoint.poll_timeout().unwrap_or(Time::NEVER);
        self.hasty = if due > *now { 0 } else { self.hasty + 1 };
        assert!(self.hasty < 50, "always due: {:?} {:?}", endpoint.stats(), endpoint.peer_stats(self.peer));
        (sent, due)
    }
}

fn config(rng: &mut Xoshiro256PlusPlus) -> Config {
    let link_rates = [None, Some(125_000), Some(1_000_000), Some(12_500_000_000), Some(u64::MAX)];
    Config {
        link_rate: link_rates[rng.random_range(0..5)],
        packet_window: 64 << rng.random_range(0..7),
        message_window: 64 << rng.random_range(0..9),
        max_partial_messages: 1 << rng.random_range(0..6),
        first_number: rng.random_bool(0.5).then_some(u32::MAX - 20),
        checksum: if rng.random_bool(0.2) { Checksum::Crc32c } else { Checksum::Udp },
        max_message: if rng.random_bool(0.5) { 1 << 20 } else { u32::MAX },
        ..if rng.random_bool(0.5) { Config::fabric() } else { Config::default() }
    }
}

fn run(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let config = config(&mut rng);
    let checksum = config.checksum == Checksum::Crc32c;
    let mut victim = Victim::new(config, seed as u8);
    let (hello, packets, messages) = (Vec::new(), Vec::new(), Vec::new());
    let (hellos, cid, first, pn, oldest, id, floor) = (0, None, 0, 0, 0, 0, 0);
    let mut liar = Liar { rng, checksum, hello, hellos, cid, first, packets, messages, pn, oldest, id, floor };
    let longest_pause = liar.pick(&[12, 20, 26, 32]);
    liar.new_hello();
    let mut to_victim = vec![liar.init(&[0; 8])];
    for _ in 0..ROUNDS {
        if liar.cid.is_some() {
            if liar.rng.random_bool(0.3) {
                for _ in 0..liar.rng.random_range(0..8) {
                    let len = liar.pick(&[0, 1, 64, 500, 1_400, 9_000, 60_000, 70_000, 500_000]);
                    let rnr = liar.pick(&[RnrRetry::Forever, RnrRetry::Times(2)]);
                    victim.send(len, rnr);
                }
            }
            if liar.rng.random_bool(0.01) {
                let some = liar.rng.random_range(0..4);
                victim.withdraw(|token| token.0 % 4 == some);
            }
            for _ in 0..liar.rng.random_range(0..6) {
                to_victim.push(liar.packet());
            }
            if liar.rng.random_bool(0.003) {
                liar.new_hello();
                to_victim.push(liar.init(&[0; 8]));
            }
            if liar.rng.random_bool(0.002) {
                to_victim.push(liar.close());
            }
        }
        for bytes in to_victim.drain(..) {
            victim.receive(&bytes, liar.pick(&[Ecn::Ect, Ecn::Ect, Ecn::Ce]));
        }
        let (sent, due) = victim.turn();
        to_victim.extend(sent.iter().filter_map(|bytes| liar.hear(bytes)));
        if due > victim.now {
            let later = victim.now + Span::from_nanos(1 << liar.rng.random_range(0..longest_pause));
            victim.now = if liar.rng.random_bool(0.7) { later.min(due) } else { later };
        }
    }
    let silent = victim.now;
    loop {
        let (_, due) = victim.turn();
        if due == Time::NEVER {
            break;
        }
        victim.now = victim.now.max(due);
    }
    let took = victim.now.since(silent);
    assert!(victim.live.is_empty() && took < Span::from_secs(70), "{} left after {took}", victim.live.len());
}

/// `SRD_LIAR_SEED` replays one peer, `SRD_LIAR_SEEDS` asks for more of them.
#[test]
fn lies_hurt_nobody_else() {
    each_seed("SRD_LIAR", "liar", 0..60, run);
}
