//! Which way packets take, and where they vanish. Needs root.

use testbed::probe::{Probe, Spread};
use testbed::{Clos, Direction, Family, LinkDrops, Pair, Traffic, runs_here};

/// Packets that are not ours (a multicast report or two) on one link.
const NOISE: u64 = 3;

fn two_spines() -> Option<Clos> {
    Clos::builder().spines(2).hosts_per_leaf(1).for_test()
}

fn spread(bed: &Clos, from: usize, to: usize) -> Spread {
    Probe::default().spread(bed, from, to).unwrap()
}

fn impaired(bed: &Clos) -> u64 {
    bed.link_drops().unwrap().iter().map(|link| link.impaired).sum()
}

/// What `from` sends to `to` over `spine` is lost, all of it and nothing else.
fn assert_lost_over(bed: &Clos, spine: usize, from: usize, to: usize) {
    let before = impaired(bed);
    let seen = spread(bed, from, to);
    let lost = seen.delivery.sent - seen.delivery.arrived();
    assert!(lost > 0 && seen.delivery.arrived() > 0, "64 ports must use both spines: {seen:?}");
    assert_eq!(impaired(bed) - before, lost, "{seen:?}");
    assert!(seen.up[spine].abs_diff(lost) <= NOISE, "{seen:?}");
    assert_eq!(lost, 10 * seen.delivery.silent_ports() as u64, "ports are lost as a whole: {seen:?}");
}

fn assert_all_arrive(bed: &Clos, from: usize, to: usize) {
    let seen = spread(bed, from, to);
    assert_eq!(seen.delivery.arrived(), seen.delivery.sent, "{seen:?}");
}

#[test]
fn ecmp_spreads_ports_and_keeps_one_on_its_spine() {
    let Some(bed) = Clos::builder().spines(4).for_test() else { return };
    for family in [Family::V4, Family::V6] {
        let many = Probe { family, ..Probe::default() }.spread(&bed, 0, 2).unwrap();
        assert_eq!(many.delivery.arrived(), 640, "{many:?}");
        // 16 ports are expected on each; fewer than 3 happens once in 100,000 beds
        assert!(many.up.iter().all(|count| *count >= 30), "{many:?}");
        assert!(many.up.iter().zip(&many.down).all(|(up, down)| up.abs_diff(*down) <= NOISE), "{many:?}");

        let one = Probe { source_ports: 1, per_port: 640, family, ..Probe::default() }.spread(&bed, 0, 2).unwrap();
        assert_eq!(one.delivery.arrived(), 640, "{one:?}");
        assert_eq!(one.up.iter().filter(|count| **count >= 640).count(), 1, "{one:?}");
        assert_eq!(one.up.iter().filter(|count| **count <= NOISE).count(), 3, "{one:?}");
    }
    assert_eq!(spread(&bed, 0, 1).up.iter().filter(|count| **count > NOISE).count(), 0, "a leaf keeps its own");
}

#[test]
fn ecmp_seed_makes_choices_repeatable() {
    if !runs_here() {
        return;
    }
    let choices = |seed| {
        let bed = Clos::builder().ecmp_seed(seed).hosts_per_leaf(1).build().unwrap();
        bed.hole_spine(1).unwrap();
        bed.hole_spine(2).unwrap();
        let probe = Probe { first_port: 20_000, target_port: 7_000, per_port: 1, ..Probe::default() };
        probe.deliver(bed.host(0), bed.host(1)).unwrap().received
    };
    let first = choices(7);
    assert_eq!(choices(7), first);
    assert_ne!(choices(8), first, "another seed is another choice");
}

#[test]
fn hole_up_takes_only_what_goes_up() {
    let Some(bed) = two_spines() else { return };
    bed.hole(0, 0, Direction::Up).unwrap();
    assert_lost_over(&bed, 0, 0, 1);
    assert_all_arrive(&bed, 1, 0);
    bed.heal().unwrap();
    assert_all_arrive(&bed, 0, 1);
}

#[test]
fn hole_down_takes_only_what_comes_down() {
    let Some(bed) = two_spines() else { return };
    bed.hole(1, 0, Direction::Down).unwrap();
    assert_lost_over(&bed, 1, 1, 0);
    assert_all_arrive(&bed, 0, 1);
    let holes: Vec<LinkDrops> = bed.link_drops().unwrap().into_iter().filter(|link| link.impaired > 0).collect();
    assert!(matches!(holes[..], [LinkDrops { spine: 1, leaf: 0, direction: Direction::Down, .. }]), "{holes:?}");
}

#[test]
fn hole_spine_takes_both_ways_until_healed() {
    let Some(bed) = two_spines() else { return };
    bed.hole_spine(0).unwrap();
    assert_lost_over(&bed, 0, 0, 1);
    assert_lost_over(&bed, 0, 1, 0);
    bed.heal().unwrap();
    assert_all_arrive(&bed, 0, 1);
    assert_all_arrive(&bed, 1, 0);
}

#[test]
fn traffic_decides_who_is_lost() {
    let Some(pair) = Pair::builder().for_test() else { return };
    let arrived = |payload| {
        let probe = Probe { payload, ..Probe::default() };
        probe.deliver(pair.host(0), pair.host(1)).unwrap().arrived()
    };
    pair.impair(1, Traffic::LongerThan(200), 100.0).unwrap();
    assert_eq!((arrived(100), arrived(300)), (640, 0));
    pair.impair(1, Traffic::Tcp, 100.0).unwrap();
    assert_eq!(arrived(300), 640);
    pair.impair(1, Traffic::Udp, 100.0).unwrap();
    assert_eq!(arrived(100), 0);
    pair.heal().unwrap();
    pair.hole(0).unwrap();
    assert_eq!(arrived(100), 640);
    let bed = Clos::builder().hosts_per_leaf(1).build().unwrap();
    bed.impair_host(1, Direction::Down, Traffic::All, 100.0).unwrap();
    assert_eq!(spread(&bed, 0, 1).delivery.arrived(), 0);
    assert_all_arrive(&bed, 1, 0);
    bed.heal().unwrap();
    bed.impair_host(1, Direction::Up, Traffic::All, 100.0).unwrap();
    assert_eq!(spread(&bed, 1, 0).delivery.arrived(), 0);
    assert_all_arrive(&bed, 0, 1);
}

#[test]
fn loss_takes_the_share_asked_for() {
    const SENT: f64 = 20_000.0;
    let probe = Probe { source_ports: 20, per_port: 1_000, burst: 250, ..Probe::default() };
    let assert_share = |lost: u64, percent: f64| {
        let share = percent / 100.0;
        let deviation = (SENT * share * (1.0 - share)).sqrt();
        let off = (lost as f64 - SENT * share).abs();
        assert!(off < 5.0 * deviation, "{lost} of {SENT} lost at {percent} %, deviation {deviation:.0}");
    };

    let Some(bed) = Clos::builder().spines(1).hosts_per_leaf(1).for_test() else { return };
    bed.loss(0, 1, Direction::Down, 10.0).unwrap();
    let seen = probe.deliver(bed.host(0), bed.host(1)).unwrap();
    let taken = impaired(&bed);
    assert_eq!(seen.sent - seen.arrived(), taken);
    assert_share(taken, 10.0);

    let pair = Pair::builder().build().unwrap();
    pair.loss(0.5).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        probe.deliver(pair.host(from), pair.host(to)).unwrap();
        assert_share(pair.stats(to).unwrap().impaired, 0.5);
    }
}
