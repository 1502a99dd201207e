//! How many events per second the simulator executes: with a protocol that costs nothing, and with the real one.
//!
//! `cargo run --release -p simnet --example speed`

use std::time::Instant;

use simnet::{
    Addr, HostId, HostSpec, Io, MAIN_PORT, Model, Node, Part, Queue, SrdNode, SrdSpec, SrdWorld, World, leaf_spine,
    payload,
};
use srd_core::{Config, Ecn, Span, Time};

/// Sends a datagram of `len` bytes every `gap` to its partner.
struct Blaster {
    to: HostId,
    len: usize,
    left: u32,
    gap: Span,
    next: Time,
    port: u16,
}

impl Node for Blaster {
    type Shared = u64;
    type Command = ();

    fn start(&mut self, _received: &mut u64, io: &mut Io<'_>) {
        self.next = io.now();
    }

    fn turn(&mut self, received: &mut u64, io: &mut Io<'_>) {
        *received += io.receive(|_, bytes| assert!(!bytes.is_empty())) as u64;
        while self.left > 0 && self.next <= io.now() {
            let len = self.len;
            io.send(self.port, Addr::of(self.to, MAIN_PORT), Ecn::Ect, |packet| packet.put_zeros(len as u32));
            self.port = (self.port + 1) % 64;
            self.left -= 1;
            self.next += self.gap;
        }
    }

    fn command(&mut self, (): (), _received: &mut u64, _io: &mut Io<'_>) {}

    fn deadline(&self) -> Option<Time> {
        (self.left > 0).then_some(self.next)
    }

    fn crash(&mut self, _received: &mut u64, _io: &mut Io<'_>) {}
}

fn main() {
    blast();
    permutation();
}

/// Every host sends one message to another, over SRD.
fn permutation() {
    for (hosts, leaves, spines) in [(64, 8, 8), (1_024, 32, 32)] {
        let parts = [Part::Queue(Queue::new(100_000_000_000, 1 << 20)), Part::Delay(Span::from_micros(1))];
        let config = Config::fabric().check().expect("valid");
        let spec = HostSpec { source_ports: config.path_pool, ..HostSpec::default() };
        let mut world = SrdWorld::new(1, Model::new(false));
        let srd = SrdSpec { check_every: 0, discard: true, ..SrdSpec::new(config) };
        let nodes = (0..hosts).map(|_| (spec, SrdNode::new(srd.clone(), None))).collect();
        leaf_spine(&mut world, nodes, leaves, spines, &parts, &parts);
        let start = Instant::now();
        for i in 0..hosts {
            world.post(HostId(i), HostId((i + hosts / 2 + 1) % hosts), b"", payload(i.into(), 2_000_000));
        }
        let settled = world.settle(Time::from_nanos(1_000_000_000));
        let wall = start.elapsed().as_secs_f64();
        let total = world.counters();
        println!(
            "{hosts} SRD hosts, 2 MB each: {} packets, settled {settled} at {}, {} events in {wall:.2} s: {:.2} M events/s",
            total.packets,
            world.now(),
            total.events,
            total.events as f64 / wall / 1e6
        );
    }
}

fn blast() {
    for (hosts, leaves, spines, len) in [(16, 2, 8, 64), (1_024, 32, 32, 64), (1_024, 32, 32, 4_096)] {
        let rate = 100_000_000_000;
        let parts = [Part::Queue(Queue::new(rate, 1 << 20)), Part::Delay(Span::from_micros(1))];
        let mut world = World::new(1, 0);
        let node = |i: u32| Blaster {
            to: HostId((i + hosts / 2 + 1) % hosts),
            len,
            left: 4_000_000 / hosts / (len as u32 / 512 + 1),
            gap: Span::from_nanos(2 * (len as u64 + 66) * 8_000_000_000 / rate),
            next: Time::ZERO,
            port: 0,
        };
        let nodes = (0..hosts).map(|i| (HostSpec::default(), node(i))).collect();
        leaf_spine(&mut world, nodes, leaves, spines, &parts, &parts);
        let start = Instant::now();
        world.run_until_idle(Time::NEVER);
        let wall = start.elapsed().as_secs_f64();
        let total = world.counters();
        println!(
            "{hosts} hosts, {len} B: {} packets, {} delivered, {} events in {wall:.2} s: {:.2} M events/s",
            total.packets,
            world.shared(),
            total.events,
            total.events as f64 / wall / 1e6
        );
    }
}
