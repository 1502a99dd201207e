//! Two endpoints with the cheapest upper storey and the cheapest wire, for benches and for counting allocations.
#![allow(dead_code, unreachable_pub, reason = "shared by tests and benches")]

use std::net::SocketAddr;

use srd_core::*;

/// An upper storey without memory of its own: one buffer for all that is sent, one for all that arrives.
#[derive(Debug)]
pub struct Lean {
    out: Vec<u8>,
    into: Vec<u8>,
    /// Messages of ours that were delivered.
    pub completed: u64,
    /// Messages that arrived.
    pub placed: u64,
}

impl Lean {
    /// With messages of `size` bytes at most.
    pub fn new(size: usize) -> Lean {
        Lean { out: vec![7; size], into: vec![0; size], completed: 0, placed: 0 }
    }
}

impl Gather for Lean {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.out[offset as usize..offset as usize + len]
    }
}

impl Upper for Lean {
    fn header(&self, _: Token) -> &[u8] {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    }
    fn completed(&mut self, _: Token, outcome: Result<(), Failure>) {
        outcome.expect("delivered");
        self.completed += 1;
    }
    fn place(&mut self, _: PeerId, _: &[u8], _: u32) -> Placement {
        Placement::Accept(PlaceToken(0))
    }
    fn write(&mut self, _: PlaceToken, offset: u32, bytes: &[u8]) {
        self.into[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn placed(&mut self, _: PlaceToken) {
        self.placed += 1;
    }
    fn abandoned(&mut self, _: PlaceToken) {}
}

/// Two endpoints joined in memory. Nothing allocates but they.
pub struct World {
    pub now: Time,
    pub sides: [(Endpoint, Lean); 2],
    /// Datagrams that were sent.
    pub packets: u64,
    /// Every so many datagrams one is lost; 0 for none.
    loss: u64,
    batch: TxBatch,
    wire: Vec<u8>,
}

pub fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

impl World {
    /// Endpoints of this configuration, for messages of `size` bytes at most.
    pub fn new(config: &Config, size: usize, loss: u64) -> World {
        let side = |i: usize| {
            let config = config.clone().check().expect("a valid configuration");
            (Endpoint::new(config, addr(i), [i as u8 + 1; 32], Time::ZERO), Lean::new(size))
        };
        let wire = Vec::with_capacity(1 << 16);
        World { now: Time::ZERO, sides: [side(0), side(1)], packets: 0, loss, batch: TxBatch::new(), wire }
    }

    /// Moves what either side has to say.
    pub fn exchange(&mut self) {
        for i in 0..2 {
            self.hop(i);
        }
    }

    /// Moves what side `i` has to say.
    pub fn hop(&mut self, i: usize) {
        let (a, b) = self.sides.split_at_mut(1);
        let (from, to) = if i == 0 { (&mut a[0], &mut b[0]) } else { (&mut b[0], &mut a[0]) };
        for _ in 0..8 {
            self.now += Span::from_nanos(500);
            if !from.0.poll_transmit(self.now, &mut from.1, &mut self.batch) {
                break;
            }
            for burst in self.batch.bursts() {
                self.wire.clear();
                burst.copy_to(&from.1, &mut self.wire);
                let meta = RxMeta { from: addr(i), to: None, ecn: Ecn::Ect, at: self.now };
                for datagram in self.wire.chunks(burst.segment) {
                    self.packets += 1;
                    if self.loss == 0 || !self.packets.is_multiple_of(self.loss) {
                        to.0.handle_datagram(self.now, &meta, datagram, &mut to.1);
                    }
                }
            }
            self.batch.clear();
        }
        if from.0.poll_timeout().is_some_and(|t| t <= self.now) {
            from.0.handle_timeout(self.now, &mut from.1);
        }
    }
}
