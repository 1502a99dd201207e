//! What the protocol itself costs: two endpoints joined in memory, no sockets, no network.
//!
//! One iteration moves a fixed number of messages from one endpoint to the other, acknowledgements included; the datagrams
//! are copied once, as a driver would. The figures are messages and bytes per second of *both* sides on one core.

use std::hint::black_box;
use std::net::SocketAddr;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use srd_core::*;

#[path = "../tests/support/lean.rs"]
mod lean;
use lean::Lean;

struct World {
    now: Time,
    sides: [(Endpoint, Lean); 2],
    batch: TxBatch,
    wire: Vec<u8>,
}

fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

impl World {
    fn new(size: usize) -> World {
        let cc = CcChoice::Fixed { rate: 1 << 40, window: 2 << 20 };
        let side = |i: usize| {
            let config = Config { cc, ..Config::default() }.check().expect("a valid configuration");
            let upper = Lean::new(size);
            (Endpoint::new(config, addr(i), [i as u8 + 1; 32], Time::ZERO), upper)
        };
        World { now: Time::ZERO, sides: [side(0), side(1)], batch: TxBatch::new(), wire: Vec::new() }
    }

    /// Moves what either side has to say.
    fn exchange(&mut self) {
        for i in 0..2 {
            self.hop(i);
        }
    }

    /// Moves what side `i` has to say.
    fn hop(&mut self, i: usize) {
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
                    to.0.handle_datagram(self.now, &meta, datagram, &mut to.1);
                }
            }
            self.batch.clear();
        }
        if from.0.poll_timeout().is_some_and(|t| t <= self.now) {
            from.0.handle_timeout(self.now, &mut from.1);
        }
    }

    fn transfer(&mut self, messages: u64, size: u32) {
        let peer = self.sides[0].0.peer(addr(1), 8972).expect("room for a peer");
        let (mut posted, first) = (0, self.sides[0].1.completed);
        while self.sides[0].1.completed - first < messages {
            while posted < messages && posted + first < self.sides[0].1.completed + 1024 {
                let out = Outbound { token: Token(0), header_len: 8, len: size, rnr: RnrRetry::Forever };
                self.sides[0].0.send(self.now, peer, out).expect("room in the queue");
                posted += 1;
            }
            self.exchange();
        }
        black_box(self.sides[1].1.placed);
    }
}

fn connected_cores(c: &mut Criterion) {
    for (size, messages) in [(64, 100_000), (1024, 20_000), (8192, 10_000), (1 << 20, 100)] {
        let mut group = c.benchmark_group("connected_cores/messages");
        group.throughput(Throughput::Elements(messages)).sample_size(10);
        let mut world = World::new(size as usize);
        world.transfer(1000, size);
        group.bench_function(BenchmarkId::from_parameter(size), |b| b.iter(|| world.transfer(messages, size)));
        group.finish();
    }
}

/// One small message at a time, there and back: what the protocol adds to the latency, and what it does afterwards.
fn ping_pong(c: &mut Criterion) {
    const ROUNDS: u64 = 1000;
    let mut group = c.benchmark_group("connected_cores/ping_pong");
    group.throughput(Throughput::Elements(ROUNDS));
    let mut world = World::new(64);
    world.transfer(1000, 64);
    let peers = [1, 0].map(|to: usize| {
        let side = &mut world.sides[1 - to].0;
        side.peer(addr(to), 8972).expect("room for a peer")
    });
    group.bench_function("64", |b| {
        b.iter(|| {
            let before: Vec<_> = world.sides.iter().map(|(endpoint, _)| *endpoint.stats()).collect();
            for _ in 0..ROUNDS {
                for (from, &peer) in peers.iter().enumerate() {
                    let out = Outbound { token: Token(0), header_len: 8, len: 64, rnr: RnrRetry::Forever };
                    world.sides[from].0.send(world.now, peer, out).expect("room in the queue");
                    world.hop(from);
                }
            }
            // Each message takes the acknowledgement of the last one along; only keeping alive may add something.
            let sent = |i: usize| world.sides[i].0.stats().tx_packets - before[i].tx_packets;
            assert!(sent(0) <= ROUNDS + 1 && sent(1) <= ROUNDS + 1, "{} and {}", sent(0), sent(1));
        })
    });
    group.finish();
}

criterion_group!(benches, connected_cores, ping_pong);
criterion_main!(benches);
