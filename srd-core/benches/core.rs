//! What the protocol itself costs: two endpoints joined in memory, no sockets, no network.
//!
//! One iteration moves a fixed number of messages from one endpoint to the other, acknowledgements included; the datagrams
//! are copied once, as a driver would. The figures are messages and bytes per second of *both* sides on one core.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use srd_core::*;

#[path = "../tests/support/lean.rs"]
mod lean;
use lean::{World, addr};

fn world(size: usize) -> World {
    let cc = CcChoice::Fixed { rate: 1 << 40, window: 2 << 20 };
    World::new(&Config { cc, ..Config::default() }, size, 0)
}

fn transfer(world: &mut World, messages: u64, size: u32) {
    let peer = world.sides[0].0.peer(addr(1), 8972).expect("room for a peer");
    let (mut posted, first) = (0, world.sides[0].1.completed);
    while world.sides[0].1.completed - first < messages {
        while posted < messages && posted + first < world.sides[0].1.completed + 1024 {
            let out = Outbound { token: Token(0), flow: 0, header_len: 8, len: size, rnr: RnrRetry::Forever };
            world.sides[0].0.send(world.now, peer, out).expect("room in the queue");
            posted += 1;
        }
        world.exchange();
    }
    black_box(world.sides[1].1.placed);
}

fn connected_cores(c: &mut Criterion) {
    for (size, messages) in [(64, 100_000), (1024, 20_000), (8192, 10_000), (1 << 20, 100)] {
        let mut group = c.benchmark_group("connected_cores/messages");
        group.throughput(Throughput::Elements(messages)).sample_size(10);
        let mut world = world(size as usize);
        transfer(&mut world, 1000, size);
        group.bench_function(BenchmarkId::from_parameter(size), |b| b.iter(|| transfer(&mut world, messages, size)));
        group.finish();
    }
}

/// One small message at a time, there and back: what the protocol adds to the latency, and what it does afterwards.
fn ping_pong(c: &mut Criterion) {
    const ROUNDS: u64 = 1000;
    let mut group = c.benchmark_group("connected_cores/ping_pong");
    group.throughput(Throughput::Elements(ROUNDS));
    let mut world = world(64);
    transfer(&mut world, 1000, 64);
    let peers = [1, 0].map(|to: usize| {
        let side = &mut world.sides[1 - to].0;
        side.peer(addr(to), 8972).expect("room for a peer")
    });
    group.bench_function("64", |b| {
        b.iter(|| {
            let before: Vec<_> = world.sides.iter().map(|(endpoint, _)| *endpoint.stats()).collect();
            for _ in 0..ROUNDS {
                for (from, &peer) in peers.iter().enumerate() {
                    let out = Outbound { token: Token(0), flow: 0, header_len: 8, len: 64, rnr: RnrRetry::Forever };
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
