//! Topology and configurations of an adversarial world.

use srd_core::{CcChoice, Checksum, Config, Span};

use super::Scene;
use super::traffic::Echo;
use crate::clock::Clock;
use crate::host::{HostSpec, Processing};
use crate::packet::IP_UDP_OVERHEAD;
use crate::part::{Part, Queue};
use crate::rng::Rng;
use crate::srd::{SrdNode, SrdSpec};
use crate::srd_world::SrdWorld;
use crate::topology::{leaf_spine, pair, star};

/// What was drawn for a host.
#[derive(Clone, Debug)]
pub(super) struct HostPlan {
    pub(super) spec: HostSpec,
    pub(super) srd: SrdSpec,
}

/// What was drawn for all hosts of a world.
#[derive(Clone, Copy)]
struct Common {
    count: usize,
    /// Damage gets past the checksums of UDP.
    damage_passes: bool,
    /// The timing of a fabric instead of that of hosts.
    fabric_timing: bool,
    /// Numbers wrap soon, as a rule.
    wrap: bool,
}

pub(super) fn draw(seed: u64) -> Scene {
    let mut rng = Rng::derive(seed, "setup", 0);
    let rng = &mut rng;
    let (edge, core) = links(rng);
    let count = if rng.chance(700_000) { 2 } else { rng.range(3, 4) as usize };
    let (damage_passes, fabric_timing, wrap) = (rng.chance(300_000), rng.chance(300_000), rng.chance(500_000));
    let common = Common { count, damage_passes, fabric_timing, wrap };
    let hosts: Vec<HostPlan> = (0..count).map(|_| host(rng, common)).collect();
    let mut world = SrdWorld::checked(seed);
    let nodes = hosts.iter().map(|h| (h.spec, SrdNode::new(h.srd.clone(), Some(Box::new(Echo)))));
    let paths = rng.range(1, 8) as usize;
    let mut nodes: Vec<_> = nodes.collect();
    let (shape, fabric) = if count == 2 && rng.chance(900_000) {
        let b = nodes.pop().expect("two hosts");
        let a = nodes.pop().expect("two hosts");
        ("pair", pair(&mut world, a, b, paths, &edge, &core))
    } else if rng.chance(800_000) {
        ("leaf-spine", leaf_spine(&mut world, nodes, count, paths, &edge, &core))
    } else {
        ("star", star(&mut world, nodes, &edge))
    };
    world.net_mut().capture(true);
    let mut plan =
        vec![format!("{shape} of {count} hosts, {paths} paths"), format!("edge {edge:?}"), format!("core {core:?}")];
    plan.extend(hosts.iter().enumerate().map(|(i, h)| format!("h{i} {h:?}")));
    let heal = srd_core::Time::ZERO;
    Scene { seed, world, fabric, edge, core, hosts, damage_passes, heal, plan }
}

/// The rate of the slowest queue among the parts.
pub(super) fn slowest(parts: &[Part]) -> u64 {
    let rates = parts.iter().map(|p| if let Part::Queue(q) = p { q.rate } else { u64::MAX });
    rates.min().unwrap_or(u64::MAX)
}

fn links(rng: &mut Rng) -> (Vec<Part>, Vec<Part>) {
    let rate = *rng.pick(&[1, 10, 25, 100]) * 1_000_000_000;
    let limit = rng.log_range(30_000, 2_000_000);
    let queue =
        |limit: u64, ecn: bool, rate: u64| Queue { rate, limit, ecn: if ecn { limit / 3 } else { u64::MAX }, ramp: 0 };
    let delay = Span::from_nanos(rng.log_range(500, 2_000_000));
    let ecn = rng.chance(500_000);
    let edge = vec![Part::Queue(queue(limit, ecn, rate)), Part::Delay(Span::from_micros(1))];
    let core = vec![Part::Queue(queue(limit, ecn, rate)), Part::Delay(delay)];
    (edge, core)
}

fn host(rng: &mut Rng, common: Common) -> HostPlan {
    let config = config(rng, common);
    let clock = Clock { offset: rng.below(1 << 50), drift_ppm: rng.range(0, 400) as i32 - 200 };
    let processing = match rng.below(10) {
        0..7 => Processing::Immediate,
        7 | 8 => Processing::Every(Span::from_micros(rng.log_range(2, 50))),
        _ => Processing::Every(Span::from_micros(rng.log_range(50, 1_000))),
    };
    let mtu = *rng.pick(&[9_000, 9_000, 1_500, 1_500, 1_280]);
    let spec = HostSpec {
        clock,
        processing,
        receive_queue: *rng.pick(&[64, 1_024, 8_192]),
        drain: None,
        timestamps: rng.chance(500_000),
        udp_checksum: !common.damage_passes,
        source_ports: config.path_pool,
        mtu,
    };
    let config = Config { max_datagram: config.max_datagram.min((mtu - IP_UDP_OVERHEAD) as u16), ..config };
    let config = config.check().expect("a valid configuration");
    // The longest message has a megabyte.
    let mailbox = if rng.chance(700_000) { 64 << 20 } else { rng.log_range(1_100_000, 4_000_000) as usize };
    let mut srd = SrdSpec::new(config);
    srd.mailbox = mailbox;
    HostPlan { spec, srd }
}

fn config(rng: &mut Rng, common: Common) -> Config {
    let Common { count, damage_passes, fabric_timing, wrap } = common;
    let base = if fabric_timing { Config::fabric() } else { Config::default() };
    let paths = *rng.pick(&[1, 2, 4, 8, 16, 64]);
    let peer_timeout = *rng.pick(&[Span::from_secs(5), Span::from_secs(5), Span::from_secs(2), Span::from_millis(500)]);
    Config {
        paths,
        path_pool: (paths * *rng.pick(&[1, 2, 4])).max(*rng.pick(&[1, 8])),
        max_datagram: rng.range(512, 8_972) as u16,
        packet_window: *rng.pick(&[64, 256, 4_096]),
        message_window: *rng.pick(&[64, 1_024, 16_384]),
        max_partial_messages: *rng.pick(&[1, 4, 1_024]),
        send_queue: *rng.pick(&[1, 8, 65_536, 65_536]),
        max_peers: if rng.chance(100_000) { count as u32 - 1 } else { 4_096 },
        ack_every: *rng.pick(&[1, 8, 8, 64]),
        max_ack_delay: if rng.chance(800_000) {
            base.max_ack_delay
        } else {
            Span::from_micros(rng.log_range(1, 2_000))
        },
        reorder_packets: *rng.pick(&[1, 3, 3, 16]),
        keepalive: peer_timeout / *rng.pick(&[3, 5, 10]),
        peer_timeout,
        idle_timeout: *rng.pick(&[Span::from_secs(60), Span::from_secs(60), Span::from_millis(300)]),
        cc: if rng.chance(750_000) {
            CcChoice::Delay
        } else {
            CcChoice::Fixed { rate: rng.log_range(10_000_000, 2_000_000_000), window: rng.log_range(2_000, 500_000) }
        },
        max_burst: *rng.pick(&[1, 9_000, 65_000, 65_000]),
        checksum: if damage_passes || rng.chance(200_000) { Checksum::Crc32c } else { Checksum::Udp },
        first_number: match rng.below(4) {
            0 => None,
            1 => Some(0),
            _ if wrap => Some(u32::MAX - rng.below(300) as u32),
            _ => Some(rng.next_u64() as u32),
        },
        ..base
    }
}
