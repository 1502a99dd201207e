//! Rates, queues, and kernel TCP over both. Needs root.

use std::thread;
use std::time::{Duration, Instant};

use testbed::probe::Probe;
use testbed::tcp::{Load, Stop};
use testbed::{Clos, Direction, Family, Pair, Rate};

/// Waits until something happens in the bed; looks often, gives up late.
fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rate_is_reached_and_not_exceeded() {
    let rate = Rate::mbit(20);
    let Some(bed) = Clos::builder().spines(1).hosts_per_leaf(1).spine_rate(rate).for_test() else { return };
    let load = Load { stop: Stop::After(Duration::from_secs(600)), ..Load::default() };
    let running = load.start(bed.host(0), bed.host(1)).unwrap();
    let carried = || {
        let links = bed.link_stats().unwrap();
        links.iter().find(|l| l.leaf == 0 && l.direction == Direction::Up).unwrap().bytes
    };
    until("the link is full", || running.received() > 500_000);
    let mut most = 0.0_f64;
    for stretch in 1..=10 {
        // The counters are read between two readings of the clock each: for so long at most, and at least, it has carried this.
        let (first, before, second) = (Instant::now(), carried(), Instant::now());
        let enough = running.received() + 2_500_000;
        until("2.5 MB more have passed", || running.received() > enough);
        let (third, after, fourth) = (Instant::now(), carried(), Instant::now());
        let share = |time: Duration| (after - before) as f64 * 8.0 / time.as_secs_f64() / rate.bits_per_second() as f64;
        assert!(share(fourth - first) < 1.1, "{} of {rate} in stretch {stretch}", share(fourth - first));
        most = most.max(share(third - second));
        // TCP, too, needs a core now and then.
        if most > 0.9 {
            break;
        }
    }
    running.stop();
    assert!(most > 0.9, "{most} of {rate}");
}

#[test]
fn queue_is_bounded_in_bytes() {
    const QUEUE: u64 = 30_000;
    const FRAME: u64 = 1_000 + 42;
    let rate = Rate::mbit(10);
    let settings = Clos::builder().spines(1).hosts_per_leaf(1).spine_rate(rate).queue_bytes(QUEUE as u32);
    let Some(bed) = settings.for_test() else { return };
    let probe = Probe { source_ports: 1, per_port: 1_000, payload: 1_000, burst: 1_000, ..Probe::default() };
    let seen = probe.deliver(bed.host(0), bed.host(1)).unwrap();
    let links = bed.link_drops().unwrap();
    assert_eq!(links.iter().map(|l| l.overflow).sum::<u64>(), seen.sent - seen.arrived(), "{seen:?}");
    let passed = seen.arrived() * FRAME;
    let drained = (rate.bytes_per_second() as f64 * seen.took.as_secs_f64()) as u64;
    let burst = 2 * 1_514;
    assert!(seen.arrived() < seen.sent && passed >= QUEUE, "{seen:?}");
    assert!(passed <= QUEUE + burst + drained + 2 * FRAME, "{passed} bytes passed, {drained} drained: {seen:?}");
    assert!(links.iter().all(|l| l.backlog_bytes == 0), "{links:?}");
    let to_host = bed.host_stats(1, Direction::Down).unwrap();
    assert!(to_host.packets >= seen.arrived() && to_host.overflow == 0, "{to_host:?}");
}

#[test]
fn tcp_counts_what_it_carries() {
    let Some(pair) = Pair::builder().rate(Rate::mbit(50)).mtu(1_500).offload(false).for_test() else { return };
    let each = 250_000;
    let stop = Stop::Bytes { each, limit: Duration::from_secs(600) };
    let report = Load { flows: 4, stop, ..Load::default() }.run(pair.host(0), pair.host(1)).unwrap();
    assert!(report.flows.iter().all(|f| f.bytes == each && f.finished.is_some()), "{report:?}");
    assert_eq!(report.bins.iter().sum::<u64>(), 4 * each);
    assert_eq!(report.goodput_by_bin().count(), report.bins.len());
    assert!(report.goodput() < Rate::mbit(51), "{}", report.goodput());

    let bin = Duration::from_millis(1);
    let stop = Stop::After(Duration::from_secs(1));
    let report = Load { flows: 2, stop, bin, ..Load::default() }.run(pair.host(1), pair.host(0)).unwrap();
    assert!(report.bytes() > 0 && report.flows.iter().all(|f| f.finished.is_none()), "{report:?}");
    assert!(report.bins.len() >= 10, "{report:?}");
}

#[test]
fn tcp_outlives_a_black_hole() {
    let Some(bed) = Clos::builder().spines(2).hosts_per_leaf(1).spine_rate(Rate::mbit(20)).for_test() else { return };
    // More than leaves in the time that it takes to dig a hole, on however slow a machine.
    let stop = Stop::Bytes { each: 600_000, limit: Duration::from_secs(600) };
    let running = Load { flows: 16, stop, ..Load::default() }.start(bed.host(0), bed.host(1)).unwrap();
    until("flows are under way", || running.received() > 200_000);
    bed.hole_spine(0).unwrap();
    let taken = || bed.link_drops().unwrap().iter().map(|l| l.impaired).sum::<u64>();
    until("the hole has taken something", || taken() > 0);
    // Long enough that whoever is in it has to wait for a timeout.
    thread::sleep(Duration::from_millis(300));
    bed.heal().unwrap();
    let report = running.join().unwrap();
    assert!(report.flows.iter().all(|f| f.finished.is_some()), "{report:?}");
    assert!(report.retransmitted > 0, "{report:?}");
    let stall = report.flows.iter().map(|f| f.longest_stall).max();
    assert!(stall > Some(Duration::from_millis(100)), "a timeout lasts 200 ms at least: {report:?}");
}

#[test]
fn tcp_does_not_flee_a_dead_spine() {
    assert_flows_stay(Family::V4);
}

#[test]
fn tcp_over_ipv6_does_not_flee_a_dead_spine() {
    assert_flows_stay(Family::V6);
}

fn assert_flows_stay(family: Family) {
    let Some(bed) = Clos::builder().spines(2).hosts_per_leaf(1).spine_rate(Rate::mbit(20)).for_test() else { return };
    let load = Load { flows: 32, stop: Stop::After(Duration::from_secs(600)), family, ..Load::default() };
    let running = load.start(bed.host(0), bed.host(1)).unwrap();
    until("flows are under way", || running.received() > 2_000_000);
    bed.hole(0, 0, Direction::Up).unwrap();
    let hole = Duration::from_secs(5);
    thread::sleep(hole);
    running.stop();
    let report = running.join().unwrap();
    // 16 are expected, fewer than 4 or more than 28 once in 400,000 beds; where a timeout moves a flow, about half as many stay
    // stuck (the seed test tells for sure)
    let stuck = report.flows.iter().filter(|f| f.longest_stall > hole.mul_f64(0.9)).count();
    assert!((4..=28).contains(&stuck), "{stuck} of 32 flows are stuck: {report:?}");
}
