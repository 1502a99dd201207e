//! Two endpoints in memory, in virtual time: the smallest world that the core can live in.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use srd_core::*;

/// What the wire does with a datagram: nothing, drop it, or deliver so many copies.
pub type Wire = Box<dyn FnMut(usize, Time, SourcePort, &mut Vec<u8>) -> Deliver>;

/// See [`Wire`].
pub enum Deliver {
    Once,
    Drop,
    Twice,
    Late(Span),
    /// At once, and again so much later.
    Again(Span),
}

/// A host of the pair.
pub struct Side {
    pub endpoint: Endpoint,
    pub mailbox: Mailbox,
    pub addr: SocketAddr,
    pub received: Vec<Received>,
    pub completed: Vec<(Token, Result<(), Failure>)>,
    /// When false, messages stay in the mailbox.
    pub reading: bool,
}

/// Two hosts and the wire between them.
pub struct Pair {
    pub now: Time,
    pub sides: [Side; 2],
    pub delay: Span,
    pub wire: Wire,
    /// Packets seem to arrive so much earlier than they do.
    pub early: Span,
    /// Each host runs only at multiples of this; zero: whenever there is something to do.
    pub every: [Span; 2],
    /// Datagrams of each burst that the first host has sent, and when.
    pub bursts: Vec<(Time, usize)>,
    in_transit: BTreeMap<(Time, u64), (usize, SourcePort, Vec<u8>)>,
    order: u64,
    batch: TxBatch,
}

pub fn addr(i: usize) -> SocketAddr {
    format!("10.0.0.{}:4000", i + 1).parse().unwrap()
}

impl Side {
    pub fn new(config: &Config, addr: SocketAddr, seed: u8, now: Time, budget: usize) -> Side {
        let config = config.clone().check().unwrap();
        Side {
            endpoint: Endpoint::new(config, addr, [seed; 32], now),
            mailbox: Mailbox::new(budget),
            addr,
            received: Vec::new(),
            completed: Vec::new(),
            reading: true,
        }
    }

    fn drain(&mut self) {
        while self.reading
            && let Some(msg) = self.mailbox.poll_received()
        {
            self.received.push(msg);
        }
        while let Some(done) = self.mailbox.poll_completed() {
            self.completed.push(done);
        }
    }
}

impl Pair {
    pub fn new(config: Config) -> Pair {
        Pair::between(config, [addr(0), addr(1)])
    }

    pub fn between(config: Config, addrs: [SocketAddr; 2]) -> Pair {
        let now = Time::from_nanos(1_000_000);
        Pair {
            now,
            sides: [0, 1].map(|i| Side::new(&config, addrs[i], i as u8 + 1, now, 64 << 20)),
            delay: Span::from_micros(10),
            wire: Box::new(|_, _, _, _| Deliver::Once),
            early: Span::ZERO,
            every: [Span::ZERO; 2],
            bursts: Vec::new(),
            in_transit: BTreeMap::new(),
            order: 0,
            batch: TxBatch::new(),
        }
    }

    pub fn send(&mut self, from: usize, data: impl Into<Bytes>) -> Token {
        self.send_with(from, &[7, 7], data.into(), RnrRetry::Forever)
    }

    pub fn send_with(&mut self, from: usize, header: &[u8], data: Bytes, rnr: RnrRetry) -> Token {
        let to = self.sides[1 - from].addr;
        let side = &mut self.sides[from];
        let peer = side.endpoint.peer(to, 8972).unwrap();
        let len = data.len() as u32;
        let token = side.mailbox.post(header, data);
        let out = Outbound { token, flow: 0, header_len: header.len() as u8, len, rnr };
        side.endpoint.send(self.now, peer, out).unwrap();
        token
    }

    /// What a host thinks of its connection to the other.
    pub fn peer_stats(&self, i: usize) -> PeerStats {
        let endpoint = &self.sides[i].endpoint;
        let peer = endpoint.peers().next();
        peer.map(|p| endpoint.peer_stats(p)).unwrap_or_default()
    }

    /// Replaces a host by a new incarnation at the same address.
    pub fn restart(&mut self, i: usize, config: Config, seed: u8) {
        self.sides[i] = Side::new(&config, self.sides[i].addr, seed, self.now, 64 << 20);
    }

    /// When a host runs that has something to do at `at`.
    fn runs(&self, i: usize, at: Time) -> Time {
        match (self.every[i].as_nanos(), at) {
            (0, _) | (_, Time::NEVER) => at,
            (every, _) => Time::from_nanos(at.as_nanos().next_multiple_of(every)),
        }
    }

    fn transmit(&mut self) {
        for i in 0..2 {
            if self.runs(i, self.now) != self.now {
                continue;
            }
            let to = self.sides[1 - i].addr;
            for _ in 0..1000 {
                let side = &mut self.sides[i];
                if !side.endpoint.poll_transmit(self.now, &mut side.mailbox, &mut self.batch) {
                    break;
                }
                let mut all = Vec::new();
                for burst in self.batch.bursts() {
                    assert_eq!(burst.to, to);
                    let mut bytes = Vec::new();
                    burst.copy_to(&side.mailbox, &mut bytes);
                    assert_eq!(bytes.len(), burst.len);
                    if i == 0 {
                        self.bursts.push((self.now, burst.len.div_ceil(burst.segment)));
                    }
                    all.extend(bytes.chunks(burst.segment).map(|c| (burst.port, c.to_vec())));
                }
                self.batch.clear();
                for (port, mut datagram) in all {
                    let copies = match (self.wire)(i, self.now, port, &mut datagram) {
                        Deliver::Drop => vec![],
                        Deliver::Once => vec![Span::ZERO],
                        Deliver::Twice => vec![Span::ZERO; 2],
                        Deliver::Late(by) => vec![by],
                        Deliver::Again(by) => vec![Span::ZERO, by],
                    };
                    for extra in copies {
                        self.order += 1;
                        let key = (self.now + self.delay + extra, self.order);
                        self.in_transit.insert(key, (1 - i, port, datagram.clone()));
                    }
                }
            }
        }
    }

    /// Runs to the next event, but not beyond `end`. Says whether there was one.
    pub fn step(&mut self, end: Time) -> bool {
        self.transmit();
        let mut next = Time::NEVER;
        for (&(at, _), &(to, ..)) in &self.in_transit {
            next = next.min(self.runs(to, at));
            if self.every == [Span::ZERO; 2] || next <= at {
                break;
            }
        }
        for (i, side) in self.sides.iter().enumerate() {
            let due = side.endpoint.poll_timeout().unwrap_or(Time::NEVER);
            next = next.min(self.runs(i, due.max(self.now)));
        }
        if next > end {
            self.now = end;
            return false;
        }
        self.now = self.now.max(next);
        let awake = [0, 1].map(|i| self.runs(i, self.now) == self.now);
        let arrived = self.in_transit.range(..=(self.now, u64::MAX));
        let arrived: Vec<_> = arrived.filter(|(_, (to, ..))| awake[*to]).map(|(&key, _)| key).collect();
        for key in arrived {
            let (to, port, bytes) = self.in_transit.remove(&key).unwrap();
            let mut from = self.sides[1 - to].addr;
            from.set_port(50_000 + port.0);
            let meta = RxMeta { from, to: None, ecn: Ecn::Ect, at: key.0 - self.early };
            let side = &mut self.sides[to];
            side.endpoint.handle_datagram(self.now, &meta, &bytes, &mut side.mailbox);
        }
        for (side, _) in self.sides.iter_mut().zip(awake).filter(|(_, awake)| *awake) {
            side.endpoint.handle_timeout(self.now, &mut side.mailbox);
            side.drain();
        }
        true
    }

    /// Runs for a while.
    pub fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.step(end) {}
    }

    /// Runs until `done`, at most `span`; panics if it does not come to that.
    pub fn run_until(&mut self, span: Span, mut done: impl FnMut(&Pair) -> bool) {
        let end = self.now + span;
        while !done(self) {
            if !self.step(end) {
                panic!(
                    "not done after {span:?}: {:#?}\n{:#?}",
                    self.sides[0].endpoint.stats(),
                    self.sides[1].endpoint.stats()
                );
            }
        }
    }
}

/// A payload that tells which message it is, and where in it each byte belongs.
pub fn pattern(id: u32, len: usize) -> Bytes {
    (0..len).map(|i| (id as usize * 31 + i * 7 + i / 251) as u8).collect::<Vec<u8>>().into()
}
