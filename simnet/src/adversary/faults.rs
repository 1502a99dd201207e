//! The faults of an adversarial world.

use srd_core::{Span, Time};

use super::traffic::Shot;
use super::{Scene, any_host};
use crate::host::Processing;
use crate::link::corrupt;
use crate::packet::{Addr, HostId, LinkId, MAIN_PORT};
use crate::part::{Burst, Part, PartKind, Queue};
use crate::rng::Rng;
use crate::srd::{Command, SrdNode};
use crate::srd_world::SrdWorld;
use crate::world::Action;

/// What happens when.
#[derive(Default)]
pub(super) struct Schedule {
    pub(super) actions: Vec<(Time, Action<SrdNode>)>,
    /// Time in which some hosts cannot reach each other, added up over all faults.
    cut: Span,
    /// Whether chance alone can make a host give its peer up.
    doubtful: bool,
}

/// Draws the faults, and says when all of them are over and what they make legitimate.
pub(super) fn draw(scene: &mut Scene, traffic: &[Shot]) -> Schedule {
    let mut rng = scene.rng("faults");
    let last = traffic.last().map_or(Time::ZERO, |s| s.at);
    let mut schedule = Schedule::default();
    let mut end = last;
    // One world in sixteen has no faults at all.
    let count = if rng.chance(62_500) { 0 } else { rng.range(1, 5) };
    for _ in 0..count {
        let start = Time::ZERO + rng.span(Span::ZERO, last.since(Time::ZERO) + Span::from_millis(5));
        // Mostly about as long as the traffic, now and then long.
        let longest = if rng.chance(100_000) { 3_000_000 } else { 200_000 };
        let stop = start + Span::from_micros(rng.log_range(100, longest));
        let until = fault(&mut rng, scene, &mut schedule, start, stop);
        end = end.max(until);
    }
    scene.heal = end + Span::from_micros(rng.log_range(1, 100_000));
    scene.world.shared_mut().expect.outages = schedule.doubtful || schedule.cut * 2 > scene.peer_timeout();
    schedule
}

/// Ends whatever may still be wrong.
pub(super) fn heal(scene: &mut Scene) {
    let (core, edge) = (scene.fabric.core(), [scene.fabric.up.clone(), scene.fabric.down.clone()].concat());
    for (links, parts) in [(core, &scene.core), (edge, &scene.edge)] {
        for kind in FAULTS {
            scene.world.act(Action::Clear(links.clone(), kind));
        }
        for part in parts {
            scene.world.act(Action::Set(links.clone(), *part));
        }
    }
    scene.world.act(Action::Heal);
    for host in scene.world.hosts() {
        let usual = scene.hosts[host.0 as usize].spec.processing;
        scene.world.act(Action::Processing(host, usual));
        scene.world.act(Action::Node(host, Command::Reading(true)));
    }
}

/// The kinds of parts that healthy links do not have.
const FAULTS: [PartKind; 8] = [
    PartKind::Blackhole,
    PartKind::Mtu,
    PartKind::Loss,
    PartKind::Burst,
    PartKind::Corrupt,
    PartKind::Jitter,
    PartKind::Reorder,
    PartKind::Duplicate,
];

/// Which links a fault strikes.
struct Victims {
    links: Vec<LinkId>,
    /// Whether no path in some direction is spared.
    all: bool,
    edge: bool,
}

fn victims(rng: &mut Rng, scene: &Scene) -> Victims {
    let fabric = &scene.fabric;
    let host = any_host(rng, scene);
    let direction = rng.below(3);
    if fabric.paths() == 0 || rng.chance(150_000) {
        let (up, down) = (fabric.up[host.0 as usize], fabric.down[host.0 as usize]);
        let links = match direction {
            0 => vec![up],
            1 => vec![down],
            _ => vec![up, down],
        };
        return Victims { links, all: true, edge: true };
    }
    let mut paths: Vec<usize> = match rng.below(3) {
        0 => vec![rng.below(fabric.paths() as u64) as usize],
        1 => (0..fabric.paths()).filter(|_| rng.chance(500_000)).collect(),
        _ => (0..fabric.paths()).collect(),
    };
    if paths.is_empty() {
        paths.push(0);
    }
    let links = paths
        .iter()
        .flat_map(|p| match direction {
            0 => vec![fabric.path_from(*p, host)],
            1 => vec![fabric.path_to(*p, host)],
            _ => fabric.path(*p),
        })
        .collect();
    Victims { links, all: paths.len() == fabric.paths(), edge: false }
}

/// Whether some host has so few source ports that all of them may lead to the same path.
fn few_ports(scene: &Scene) -> bool {
    scene.hosts.iter().any(|h| h.srd.config.paths < 16)
}

/// Adds one fault to the schedule. Returns when it is over.
fn fault(rng: &mut Rng, scene: &Scene, schedule: &mut Schedule, start: Time, stop: Time) -> Time {
    let span = stop.since(start);
    match rng.below(20) {
        0 => {
            let ppm = rng.log_range(100, 300_000) as u32;
            let hit = victims(rng, scene);
            schedule.doubtful |= hit.all && ppm > 30_000 && scene.peer_timeout() < Span::from_secs(5);
            schedule.part(scene, hit, Part::Loss(ppm), start, stop);
        }
        1 => {
            let burst =
                Burst { enter: rng.log_range(100, 20_000) as u32, leave: rng.log_range(30_000, 500_000) as u32 };
            let hit = victims(rng, scene);
            schedule.doubtful |= hit.all;
            schedule.part(scene, hit, Part::Burst(burst), start, stop);
        }
        2 => {
            let part = Part::Reorder(rng.log_range(1_000, 500_000) as u32, Span::from_micros(rng.log_range(1, 2_000)));
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        3 => {
            let part =
                Part::Duplicate(rng.log_range(1_000, 500_000) as u32, Span::from_micros(rng.log_range(1, 50_000)));
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        4 => {
            let part = Part::Corrupt(rng.log_range(1_000, 100_000) as u32);
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        5 => {
            let part = Part::Delay(Span::from_micros(rng.log_range(1, 10_000)));
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        6 => {
            let part = Part::Jitter(Span::from_micros(rng.log_range(1, 1_000)));
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        7 | 8 => {
            // Bufferbloat: slow, and long queues. Or merely slow.
            let limit = if rng.chance(500_000) { 4_000_000 } else { 50_000 };
            let rate = rng.log_range(100_000_000, 1_000_000_000);
            let part = Part::Queue(Queue { rate, limit, ecn: u64::MAX, ramp: 0 });
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        9 | 10 => {
            let hit = victims(rng, scene);
            if hit.all || few_ports(scene) {
                schedule.cut = schedule.cut + span;
            }
            // With a few probes only, and each lost with a good chance on the way there or back.
            schedule.doubtful |= scene.peer_timeout() < Span::from_secs(1) && span * 4 > scene.peer_timeout();
            schedule.part(scene, hit, Part::Blackhole, start, stop);
        }
        11 => schedule.actions.push((start, Action::Rehash(rng.next_u64()))),
        12 => {
            let part = Part::Mtu(rng.range(560, 5_000) as u32);
            schedule.part(scene, victims(rng, scene), part, start, stop);
        }
        13 => return flap(rng, scene, schedule, start, stop),
        14 => {
            let stall = Span::from_micros(rng.log_range(100, 5_000_000));
            schedule.cut = schedule.cut + stall;
            schedule.actions.push((start, Action::Stall(any_host(rng, scene), stall)));
            return start + stall;
        }
        15 => return restart(rng, scene, schedule, start, span),
        16 => {
            let (a, b) = (any_host(rng, scene), any_host(rng, scene));
            schedule.cut = schedule.cut + span;
            schedule.actions.push((start, Action::Partition(vec![a], vec![b])));
            if rng.chance(500_000) {
                schedule.actions.push((start, Action::Partition(vec![b], vec![a])));
            }
            schedule.actions.push((stop, Action::Heal));
        }
        17 => {
            let host = any_host(rng, scene);
            schedule.actions.push((start, Action::Node(host, Command::Reading(false))));
            schedule.actions.push((stop, Action::Node(host, Command::Reading(true))));
        }
        18 => {
            let host = any_host(rng, scene);
            let busy = Processing::Every(Span::from_micros(rng.log_range(10, 5_000)));
            let usual = scene.hosts[host.0 as usize].spec.processing;
            schedule.actions.push((start, Action::Processing(host, busy)));
            schedule.actions.push((stop, Action::Processing(host, usual)));
        }
        _ => flood(rng, scene, schedule, start, span),
    }
    stop
}

impl Schedule {
    /// A part on some links for some time; then what healthy links have.
    fn part(&mut self, scene: &Scene, hit: Victims, part: Part, start: Time, stop: Time) {
        let healthy = if hit.edge { &scene.edge } else { &scene.core };
        let end = match healthy.iter().find(|p| p.kind() == part.kind()) {
            Some(usual) => Action::Set(hit.links.clone(), *usual),
            None => Action::Clear(hit.links.clone(), part.kind()),
        };
        self.actions.push((start, Action::Set(hit.links, part)));
        self.actions.push((stop, end));
    }
}

/// Links that go and come.
fn flap(rng: &mut Rng, scene: &Scene, schedule: &mut Schedule, start: Time, stop: Time) -> Time {
    let hit = victims(rng, scene);
    let period = Span::from_micros(rng.log_range(50, 100_000));
    let mut at = start;
    for _ in 0..8 {
        if at >= stop {
            break;
        }
        schedule.actions.push((at, Action::Set(hit.links.clone(), Part::Blackhole)));
        schedule.actions.push((at + period, Action::Clear(hit.links.clone(), PartKind::Blackhole)));
        if hit.all || few_ports(scene) {
            // Transmissions that happen to fall into the dead halves only.
            schedule.cut = schedule.cut + period * 2;
        }
        at += period * 2;
    }
    at.max(stop)
}

/// A host that restarts once or twice, at once or after having been dead for a while.
fn restart(rng: &mut Rng, scene: &Scene, schedule: &mut Schedule, start: Time, span: Span) -> Time {
    let host = any_host(rng, scene);
    let mut at = start;
    for _ in 0..rng.range(1, 2) {
        if rng.chance(500_000) {
            schedule.actions.push((at, Action::Crash(host)));
            schedule.cut = schedule.cut + span;
            at += span;
        }
        schedule.actions.push((at, Action::Restart(host)));
        at += Span::from_nanos(rng.log_range(1, span.as_nanos().max(2)));
    }
    at
}

/// Packets that no host sent: noise, old packets again, damaged packets, from strangers and under false names.
fn flood(rng: &mut Rng, scene: &Scene, schedule: &mut Schedule, start: Time, span: Span) {
    for _ in 0..rng.log_range(1, 40) {
        let mut own = Rng::new(rng.next_u64());
        let at = start + rng.span(Span::ZERO, span);
        let host = any_host(rng, scene);
        let forge_damaged = scene.damage_passes;
        schedule.actions.push((
            at,
            Action::Call("inject forged packets", Box::new(move |world| forge(world, &mut own, host, forge_damaged))),
        ));
    }
}

fn forge(world: &mut SrdWorld, rng: &mut Rng, host: HostId, forge_damaged: bool) {
    let stranger = Addr { ip: 0xc0a8_0000 + rng.below(4) as u32, port: rng.next_u64() as u16 };
    for _ in 0..rng.range(1, 8) {
        let index = rng.below(world.net().captured().len() as u64) as usize;
        let copy = world.net().captured().nth(index).cloned();
        let (src, dst, bytes) = match (rng.below(3), copy) {
            // An old packet again, from where it came from or from elsewhere.
            (0, Some((src, dst, bytes))) => (if rng.chance(500_000) { src } else { stranger }, dst, bytes),
            // A damaged one. Only a checksum could tell if it came from the right address.
            (1, Some((src, dst, mut bytes))) => {
                corrupt(&mut bytes, rng);
                (if forge_damaged && rng.chance(500_000) { src } else { stranger }, dst, bytes)
            }
            // Noise, from a stranger or under the name of another host.
            _ => {
                let mut bytes = vec![0; rng.log_range(1, 1_500) as usize];
                rng.fill(&mut bytes);
                let source = if rng.chance(500_000) { stranger } else { Addr::of(HostId(host.0 ^ 1), MAIN_PORT) };
                (source, Addr::of(host, MAIN_PORT), bytes)
            }
        };
        world.net_mut().inject(src, dst, &bytes);
    }
}
