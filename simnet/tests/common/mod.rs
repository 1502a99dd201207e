//! What the scenarios share.
#![allow(dead_code, reason = "not every test uses everything")]

use simnet::{Fabric, HostId, HostSpec, Part, Queue, SrdNode, SrdSpec, SrdWorld, pair, payload};
use srd_core::{Config, Span, Stats, Time};

pub(crate) const SENDER: HostId = HostId(0);
pub(crate) const RECEIVER: HostId = HostId(1);

pub(crate) const fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A link of 25 Gbit/s with a megabyte of queue and 2 us of delay.
pub(crate) const LINK: [Part; 2] = [
    Part::Queue(Queue { rate: 25_000_000_000, limit: 1 << 20, ecn: u64::MAX, ramp: 0 }),
    Part::Delay(Span::from_micros(2)),
];

pub(crate) fn node(config: &Config) -> (HostSpec, SrdNode) {
    let config = config.clone().check().expect("a valid configuration");
    let spec = HostSpec { source_ports: config.path_pool, ..HostSpec::default() };
    (spec, SrdNode::new(SrdSpec::new(config), None))
}

/// Two hosts with this configuration and `paths` parallel paths between them.
pub(crate) fn two(seed: u64, config: &Config, paths: usize) -> (SrdWorld, Fabric) {
    let mut world = SrdWorld::checked(seed);
    let fabric = pair(&mut world, node(config), node(config), paths, &LINK, &LINK);
    world.net_mut().log.keep(60);
    (world, fabric)
}

/// Posts messages of `len` bytes, one every `gap`, from the sender to the receiver, and lets that time pass.
pub(crate) fn stream(world: &mut SrdWorld, count: usize, len: usize, gap: Span) {
    for _ in 0..count {
        post(world, SENDER, RECEIVER, len);
        world.run_for(gap);
    }
}

pub(crate) fn post(world: &mut SrdWorld, from: HostId, to: HostId, len: usize) -> u64 {
    let number = world.shared().messages().len() as u64;
    world.post(from, to, b"", payload(number, len))
}

pub(crate) fn stats(world: &SrdWorld, host: HostId) -> Stats {
    world.node(host).endpoint_stats()
}

/// Fails with what the world knows if a rule was broken.
#[track_caller]
pub(crate) fn no_violation(world: &SrdWorld) {
    if let Some(violation) = world.violation() {
        let tail: String = world.net().log.tail().map(|(at, e)| format!("  {at} {e}\n")).collect();
        panic!("{} at {}\n{tail}", violation.what, violation.at);
    }
}

/// Waits for all messages, which must be delivered by `limit`.
#[track_caller]
pub(crate) fn all_delivered(world: &mut SrdWorld, limit: Time) {
    let settled = world.settle(limit);
    no_violation(world);
    let totals = world.shared().totals();
    assert!(settled, "{} messages open at {}: {totals:?}", world.shared().open(), world.now());
    assert_eq!((totals.ok, totals.failed), (totals.posted, 0), "at {}", world.now());
}

/// The longest time that any message took from posting to completion.
pub(crate) fn slowest(world: &SrdWorld) -> Span {
    let times = world.shared().messages().iter().filter_map(|m| Some(m.done?.1.since(m.posted)));
    times.max().unwrap_or(Span::ZERO)
}
