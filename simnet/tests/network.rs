//! The simulator itself, with a protocol of a few lines in the place of the transport.

use simnet::{
    Action, Addr, Clock, DropReason, HostId, HostSpec, Io, LogEvent, MAIN_PORT, Node, Part, Processing, Queue, World,
    dumbbell, leaf_spine, pair, star,
};
use srd_core::{Ecn, Span, Time};

/// Sends what it is told, remembers what arrives, and answers datagrams that begin with '?'.
#[derive(Debug, Default)]
struct Raw {
    /// World time, host clock, time stamp, source address, bytes, mark.
    got: Vec<(Time, Time, Time, Addr, Vec<u8>, Ecn)>,
    turns_with_input: u32,
    alarm: Option<Time>,
    rang: Vec<(Time, Time)>,
    starts: u32,
}

#[derive(Debug)]
enum Order {
    Send { to: HostId, port: u16, bytes: Vec<u8> },
    Alarm(Span),
}

impl Node for Raw {
    type Shared = u64;
    type Command = Order;

    fn start(&mut self, shared: &mut u64, _io: &mut Io<'_>) {
        *shared += 1;
        self.starts += 1;
    }

    fn turn(&mut self, _shared: &mut u64, io: &mut Io<'_>) {
        let (world, now) = (io.world_now(), io.now());
        let got = &mut self.got;
        let first = got.len();
        let n = io.receive(|meta, bytes| {
            let from = Addr::from_socket(meta.from).expect("IPv4");
            got.push((world, now, meta.at, from, bytes.to_vec(), meta.ecn));
        });
        self.turns_with_input += u32::from(n > 0);
        for (_, _, _, from, bytes, _) in &self.got[first..] {
            if bytes.first() == Some(&b'?') {
                io.send(0, *from, Ecn::Ect, |p| p.put(&bytes[1..]));
            }
        }
        if self.alarm.is_some_and(|at| at <= now) {
            self.alarm = None;
            self.rang.push((world, now));
        }
    }

    fn command(&mut self, order: Order, _shared: &mut u64, io: &mut Io<'_>) {
        match order {
            Order::Send { to, port, bytes } => io.send(port, Addr::of(to, MAIN_PORT), Ecn::Ect, |p| p.put(&bytes)),
            Order::Alarm(span) => self.alarm = Some(io.now() + span),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.alarm
    }

    fn crash(&mut self, _shared: &mut u64, _io: &mut Io<'_>) {
        self.alarm = None;
    }
}

const EDGE: [Part; 2] = [
    Part::Queue(Queue { rate: 100_000_000_000, limit: 1 << 20, ecn: 1 << 19, ramp: 0 }),
    Part::Delay(Span::from_micros(1)),
];

fn hosts(n: usize) -> Vec<(HostSpec, Raw)> {
    (0..n).map(|_| (HostSpec::default(), Raw::default())).collect()
}

fn two(spec: HostSpec) -> (World<Raw>, HostId, HostId) {
    let mut world = World::new(1, 0);
    let fabric = pair(&mut world, (HostSpec::default(), Raw::default()), (spec, Raw::default()), 4, &EDGE, &EDGE);
    (world, fabric.hosts[0], fabric.hosts[1])
}

fn send(world: &mut World<Raw>, from: HostId, to: HostId, port: u16, bytes: &[u8]) {
    world.command(from, Order::Send { to, port, bytes: bytes.to_vec() });
}

fn us(us: u64) -> Time {
    Time::from_nanos(us * 1_000)
}

#[test]
fn datagram_arrives_after_delay_and_serialisation_and_can_be_answered() {
    let (mut world, a, b) = two(HostSpec::default());
    // 34 bytes and 66 of headers: 8 ns on each of three links, and 1 us each.
    let mut question = [b'x'; 34];
    question[0] = b'?';
    send(&mut world, a, b, 3, &question);
    assert!(world.run_until_idle(Time::NEVER));
    let (at, _, _, from, bytes, _) = &world.node(b).got[0];
    assert_eq!((at.as_nanos(), bytes.len(), from.host()), (3_024, 34, Some(a)));
    assert_eq!(world.node(a).got[0].4.len(), 33, "the answer came to the port that had asked");
    assert_eq!(world.packets_alive(), 0);
    let total = world.counters();
    assert_eq!((total.packets, total.bytes), (2, 67));
    assert_eq!(*world.shared(), 2, "both nodes started");
}

#[test]
fn source_ports_spread_over_all_paths_in_every_topology() {
    let part = |world: &mut World<Raw>, fabric: &simnet::Fabric, far: HostId| {
        for port in 0..64 {
            send(world, fabric.hosts[0], far, port, b"x");
        }
        world.run_until_idle(Time::NEVER);
        assert_eq!(world.node(far).got.len(), 64);
        for path in 0..fabric.paths() {
            let used = world.net().link(fabric.path_from(path, fabric.hosts[0])).stats().packets;
            let there = world.net().link(fabric.path_to(path, far)).stats().packets;
            assert!((4..=30).contains(&used), "path {path} carried {used} of 64 ports");
            assert_eq!(used, there);
        }
    };
    let mut world = World::new(2, 0);
    let fabric = dumbbell(&mut world, hosts(2), hosts(2), 4, &EDGE, &EDGE);
    part(&mut world, &fabric, fabric.hosts[3]);
    let mut world = World::new(2, 0);
    let fabric = leaf_spine(&mut world, hosts(6), 3, 4, &EDGE, &EDGE);
    part(&mut world, &fabric, fabric.hosts[5]);
    // On one's own leaf no path is used.
    send(&mut world, fabric.hosts[0], fabric.hosts[1], 0, b"x");
    world.run_until_idle(Time::NEVER);
    assert_eq!(world.node(fabric.hosts[1]).got.len(), 1);
}

#[test]
fn rehash_moves_flows() {
    let (mut world, a, b) = two(HostSpec::default());
    let counts = |world: &World<Raw>| -> Vec<u64> { world.net().links().map(|(_, l)| l.stats().packets).collect() };
    send(&mut world, a, b, 7, b"x");
    world.run_until_idle(Time::NEVER);
    let before = counts(&world);
    let mut moved = 0;
    for seed in 0..16 {
        let earlier = counts(&world);
        world.act(Action::Rehash(seed));
        send(&mut world, a, b, 7, b"x");
        world.run_until_idle(Time::NEVER);
        let same = before.iter().zip(counts(&world).iter().zip(&earlier)).all(|(b, (now, then))| now - then == *b);
        moved += u32::from(!same);
    }
    assert!((8..16).contains(&moved), "{moved} of 16 seeds moved the flow among 4 paths");
}

#[test]
fn star_incast_fills_one_queue_and_drops() {
    let mut world = World::new(3, 0);
    let fabric = star(&mut world, hosts(20), &EDGE);
    let sink = fabric.hosts[0];
    for from in &fabric.hosts[1..] {
        for _ in 0..10 {
            send(&mut world, *from, sink, 0, &[0; 8_934]);
        }
    }
    assert!(world.run_until_idle(Time::NEVER));
    let stats = *world.net().link(fabric.down[0]).stats();
    // 1 MiB holds 116 packets of 9,000 bytes; some leave while others arrive.
    assert_eq!(stats.packets + stats.queue_drops, 190);
    assert!(stats.queue_drops > 40 && stats.max_queue > 1_000_000 && stats.max_queue <= 1 << 20, "{stats:?}");
    assert!(world.node(sink).got.iter().any(|g| g.5 == Ecn::Ce) && stats.marked > 0);
    assert_eq!(world.packets_alive(), 0);
    let elapsed = world.now().since(Time::ZERO);
    assert!(stats.utilisation(elapsed) > 0.9, "{}", stats.utilisation(elapsed));
}

#[test]
fn stall_holds_arrivals_and_timers_and_overflows_the_queue() {
    let spec = HostSpec { receive_queue: 5, ..HostSpec::default() };
    let (mut world, a, b) = two(spec);
    world.at(us(10), Action::Stall(b, Span::from_micros(100)));
    world.command(b, Order::Alarm(Span::from_micros(50)));
    world.run_until(us(20));
    for i in 0..8 {
        send(&mut world, a, b, 0, &[i]);
    }
    // A command to a stalled host waits, too.
    send(&mut world, b, a, 0, b"late");
    assert!(world.run_until_idle(Time::NEVER));
    let node = world.node(b);
    assert_eq!(node.got.len(), 5);
    assert!(node.got.iter().all(|g| g.0 == us(110) && g.2 < us(30)), "read after the stall, stamped before");
    assert_eq!(node.rang, [(us(110), us(110))]);
    assert_eq!(node.turns_with_input, 1);
    assert_eq!(world.host(b).stats().overflows, 3);
    assert!(world.node(a).got[0].0 > us(110));
}

#[test]
fn batches_are_handled_at_their_times() {
    let spec = HostSpec {
        processing: Processing::Every(Span::from_micros(50)),
        timestamps: false,
        clock: Clock { offset: 1_000_000_000, drift_ppm: 0 },
        ..HostSpec::default()
    };
    let (mut world, a, b) = two(spec);
    for i in 0..10 {
        world.run_until(us(10 * i));
        send(&mut world, a, b, 0, b"x");
    }
    assert!(world.run_until_idle(Time::NEVER));
    let node = world.node(b);
    assert_eq!((node.got.len(), node.turns_with_input), (10, 2));
    for (world_time, local, stamp, ..) in &node.got {
        assert!(world_time.as_nanos().is_multiple_of(50_000));
        assert_eq!(local.as_nanos(), world_time.as_nanos() + 1_000_000_000);
        assert_eq!(stamp, local, "without time stamps, the time of reading");
    }
}

#[test]
fn clock_drift_moves_alarms() {
    let clock = Clock { offset: 5, drift_ppm: -10_000 };
    let (mut world, _, b) = two(HostSpec { clock, ..HostSpec::default() });
    world.command(b, Order::Alarm(Span::from_millis(99)));
    assert!(world.run_until_idle(Time::NEVER));
    let (at, local) = world.node(b).rang[0];
    assert_eq!((at.as_nanos(), local.as_nanos()), (100_000_000, 99_000_005));
}

#[test]
fn restart_loses_what_waits_and_changes_ports_but_not_the_address() {
    let (mut world, a, b) = two(HostSpec::default());
    send(&mut world, b, a, 0, b"x");
    world.run_until_idle(Time::NEVER);
    world.act(Action::Crash(b));
    send(&mut world, a, b, 0, b"lost");
    world.run_until_idle(Time::NEVER);
    // What is told to a host that is down happens when it is up again.
    send(&mut world, b, a, 0, b"x");
    // What is under way when it starts again arrives.
    send(&mut world, a, b, 0, b"kept");
    world.act(Action::Restart(b));
    world.run_until_idle(Time::NEVER);
    assert_eq!(world.node(b).got.iter().map(|g| g.4.as_slice()).collect::<Vec<_>>(), [b"kept"]);
    let sources: Vec<Addr> = world.node(a).got.iter().map(|g| g.3).collect();
    assert_eq!(sources[0].ip, sources[1].ip);
    assert_ne!(sources[0].port, sources[1].port);
    assert_eq!((world.host(b).incarnation(), world.node(b).starts), (1, 2));
}

#[test]
fn stalled_while_down_wakes_after_the_restart() {
    let spec = HostSpec { processing: Processing::Every(Span::from_micros(10)), ..HostSpec::default() };
    let (mut world, a, b) = two(spec);
    world.run_until(us(1));
    world.act(Action::Crash(b));
    world.act(Action::Stall(b, Span::from_micros(20)));
    world.run_until(us(100));
    world.act(Action::Restart(b));
    send(&mut world, a, b, 0, b"x");
    world.run_until_idle(Time::NEVER);
    assert_eq!(world.node(b).got.len(), 1);
}

#[test]
fn partition_is_one_way_and_heals() {
    let (mut world, a, b) = two(HostSpec::default());
    world.at(us(1), Action::Partition(vec![a], vec![b]));
    world.at(us(100), Action::Heal);
    for at in [us(50), us(150)] {
        world.run_until(at);
        send(&mut world, a, b, 0, b"x");
        send(&mut world, b, a, 0, b"x");
    }
    world.run_until_idle(Time::NEVER);
    assert_eq!((world.node(a).got.len(), world.node(b).got.len()), (2, 1));
}

#[test]
fn drops_are_logged_with_their_reason() {
    let spec = HostSpec { mtu: 1_500, ..HostSpec::default() };
    let mut world: World<Raw> = World::new(1, 0);
    let fabric = pair(&mut world, (spec, Raw::default()), (spec, Raw::default()), 1, &EDGE, &EDGE);
    let (a, b) = (fabric.hosts[0], fabric.hosts[1]);
    world.net_mut().log.keep(usize::MAX);
    let reason = |world: &World<Raw>| match world.net().log.tail().last() {
        Some((_, LogEvent::LostOnLink { reason, .. } | LogEvent::LostAtHost { reason, .. })) => Some(*reason),
        _ => None,
    };
    let expect = |world: &mut World<Raw>, len: usize, to: HostId, expected: Option<DropReason>| {
        send(world, a, to, 0, &vec![1; len]);
        world.run_until_idle(Time::NEVER);
        assert_eq!(reason(world), expected);
    };
    expect(&mut world, 1_472, b, None);
    expect(&mut world, 1_473, b, Some(DropReason::Mtu));
    expect(&mut world, 1, HostId(9), Some(DropReason::NoRoute));
    world.act(Action::Set(fabric.core(), Part::Corrupt(1_000_000)));
    expect(&mut world, 1, b, Some(DropReason::UdpChecksum));
    world.act(Action::Set(fabric.core(), Part::Loss(1_000_000)));
    expect(&mut world, 1, b, Some(DropReason::Loss));
    world.act(Action::Set(fabric.core(), Part::Mtu(600)));
    expect(&mut world, 600, b, Some(DropReason::Mtu));
    world.act(Action::Set(fabric.core(), Part::Blackhole));
    expect(&mut world, 1, b, Some(DropReason::Blackhole));
    world.act(Action::Crash(b));
    world.act(Action::Clear(fabric.core(), simnet::PartKind::Blackhole));
    world.act(Action::Clear(fabric.core(), simnet::PartKind::Loss));
    expect(&mut world, 1, b, Some(DropReason::HostDown));
}

#[test]
fn captured_packets_can_be_injected() {
    let (mut world, a, b) = two(HostSpec::default());
    world.net_mut().capture(true);
    send(&mut world, a, b, 0, b"hello");
    world.run_until_idle(Time::NEVER);
    let (_, dst, bytes) = world.net().captured().next().expect("one packet").clone();
    let stranger = Addr { ip: 0xc0a8_0101, port: 53 };
    world.net_mut().inject(stranger, dst, &bytes);
    world.run_until_idle(Time::NEVER);
    assert_eq!((world.node(b).got[1].3, world.node(b).got[1].4.as_slice()), (stranger, b"hello".as_slice()));
}

#[test]
fn same_seed_same_log_and_other_seed_another() {
    let run = |seed: u64| {
        let mut world = World::new(seed, 0);
        let fabric = leaf_spine(&mut world, hosts(8), 4, 4, &EDGE, &EDGE);
        let core = fabric.core();
        for part in [
            Part::Loss(50_000),
            Part::Jitter(Span::from_micros(5)),
            Part::Reorder(100_000, Span::from_micros(20)),
            Part::Duplicate(50_000, Span::from_micros(20)),
            Part::Corrupt(20_000),
        ] {
            world.act(Action::Set(core.clone(), part));
        }
        world.at(us(40), Action::Stall(fabric.hosts[2], Span::from_micros(30)));
        world.at(us(60), Action::Restart(fabric.hosts[3]));
        for i in 0..100 {
            world.run_until(us(i));
            for from in 0..8 {
                let to = (from + 1 + i as u32 % 7) % 8;
                send(&mut world, HostId(from), HostId(to), i as u16 % 64, b"?some question");
            }
        }
        assert!(world.run_until_idle(Time::NEVER));
        assert_eq!(world.packets_alive(), 0);
        (world.net().log.hash(), world.net().log.count())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
