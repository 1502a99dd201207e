//! What an experiment came to.

use std::rc::Rc;

use srd_core::{Span, Stats, Time};

use super::legacy::LegacyCounters;
use super::station::Station;
use super::{Experiment, Progress, Transport};
use crate::cabling::Cabling;
use crate::link::LinkStats;
use crate::packet::HostId;
use crate::world::World;

/// What became of a flow. Times are counted from the start of the experiment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FlowOutcome {
    /// When it started; `None` if what it waited for did not come.
    pub start: Option<Span>,
    /// From its start to its sender knowing that all has arrived.
    pub fct: Option<Span>,
    /// From its start to the arrival of the last byte.
    pub arrived: Option<Span>,
    /// Payload that arrived.
    pub delivered: u64,
    /// Packets with payload that were sent; those of a card that sends several flows are shared out evenly, like the next
    /// two.
    pub packets: u64,
    /// Packets sent again.
    pub retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Paths that its connection used.
    pub paths: u32,
}

/// What became of a link.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkOutcome {
    /// Its ends.
    pub name: String,
    /// Bits per second.
    pub rate: u64,
    /// Bytes that may wait.
    pub buffer: u64,
    /// Share of the experiment in which it sent.
    pub utilisation: f64,
    /// Packets that it carried.
    pub packets: u64,
    /// Packets dropped at a full buffer.
    pub queue_drops: u64,
    /// Packets lost otherwise.
    pub other_drops: u64,
    /// Packets that got a congestion mark.
    pub marked: u64,
    /// Queue length as packets found it: median, 99th percentile, maximum.
    pub queue: (u64, u64, u64),
}

/// See the module documentation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// In the order of the experiment's flows.
    pub flows: Vec<FlowOutcome>,
    /// Two per cable, in the order of the plan's.
    pub links: Vec<LinkOutcome>,
    /// Per sample and flow, the payload that had arrived.
    pub samples: Vec<Vec<u64>>,
    /// Simulated time.
    pub elapsed: Span,
    /// Packets that hosts sent.
    pub packets: u64,
    /// Packets that the network, for want of a route too, or a host's receive queue dropped.
    pub drops: u64,
    /// Events that were executed, those before the start included.
    pub events: u64,
    /// Messages of the transport that failed.
    pub failed_messages: u64,
    /// What stopped the run before its end, if anything did.
    pub broken: Option<String>,
}

/// What is known of the world before the experiment starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) start: Time,
    pub(super) packets: u64,
    /// Packets dropped on no link.
    pub(super) drops: u64,
}

impl Outcome {
    pub(super) fn of(
        experiment: &Experiment,
        world: &World<Station>,
        cabling: &Rc<Cabling>,
        before: Before,
        samples: Vec<Vec<u64>>,
    ) -> Outcome {
        let elapsed = world.now().since(before.start);
        let links = links(world, cabling, elapsed);
        let elsewhere = drops_elsewhere(world) - before.drops;
        let drops = links.iter().map(|l| l.queue_drops + l.other_drops).sum::<u64>() + elsewhere;
        let failed = world.hosts().map(|h| match world.node(h) {
            Station::Srd(s) => s.failed,
            Station::Legacy(_) => 0,
        });
        Outcome {
            flows: flows(experiment, world, before.start),
            links,
            samples,
            elapsed,
            packets: world.counters().packets - before.packets,
            drops,
            events: world.counters().events,
            failed_messages: failed.sum(),
            broken: world.violation().map(|v| v.what.clone()),
        }
    }
}

/// Packets that were dropped on no link: where a host's receive queue was full, or where no route led on.
pub(super) fn drops_elsewhere(world: &World<Station>) -> u64 {
    world.net().unrouted() + world.hosts().map(|h| world.host(h).stats().overflows).sum::<u64>()
}

fn links(world: &World<Station>, cabling: &Rc<Cabling>, elapsed: Span) -> Vec<LinkOutcome> {
    let plan = &cabling.plan;
    let each = |(cable, back): (usize, bool)| {
        let id = if back { cabling.links[cable].1 } else { cabling.links[cable].0 };
        let link = world.net().link(id);
        let stats = link.stats();
        LinkOutcome {
            name: cabling.link_name(cable, back),
            rate: plan.cables[cable].rate,
            buffer: link.limit(),
            // What is still to be sent at the end does not count.
            utilisation: LinkStats { busy: stats.busy - link.busy_until().since(world.now()), ..*stats }
                .utilisation(elapsed),
            packets: stats.packets,
            queue_drops: stats.queue_drops,
            other_drops: stats.other_drops,
            marked: stats.marked,
            queue: (world.net().queue_percentile(id, 0.5), world.net().queue_percentile(id, 0.99), stats.max_queue),
        }
    };
    (0..plan.cables.len()).flat_map(|c| [(c, false), (c, true)]).map(each).collect()
}

fn flows(experiment: &Experiment, world: &World<Station>, start: Time) -> Vec<FlowOutcome> {
    let entries = &world.shared().flows;
    // Per card, the SRD flows that it sends, to share its counters out.
    let mut senders = vec![0u64; world.hosts().len()];
    for (spec, entry) in experiment.flows.iter().zip(entries) {
        senders[entry.from.0 as usize] += u64::from(spec.transport == Transport::Srd);
    }
    let mut taken = vec![0u64; senders.len()];
    let each = |(i, entry): (usize, &super::ledger::Entry)| {
        let Progress { started, delivered, arrived, completed } = entry.progress;
        let since = |at: Option<Time>| Some(at?.since(started?));
        let from = entry.from.0 as usize;
        let share = |all: u64| (all + senders[from] - 1 - taken[from]) / senders[from].max(1);
        let (counters, paths) = match world.node(entry.from) {
            Station::Legacy(station) => (station.counters(i), 1),
            Station::Srd(station) => {
                let c = difference(station.stats(), &station.before);
                let c = LegacyCounters {
                    packets: share(c.packets),
                    retransmits: share(c.retransmits),
                    timeouts: share(c.timeouts),
                };
                taken[from] += 1;
                (c, paths(world, entry.from, entry.to))
            }
        };
        FlowOutcome {
            start: started.map(|t| t.since(start)),
            fct: since(completed),
            arrived: since(arrived),
            delivered,
            packets: counters.packets,
            retransmits: counters.retransmits,
            timeouts: counters.timeouts,
            paths,
        }
    };
    entries.iter().enumerate().map(each).collect()
}

fn difference(now: &Stats, before: &Stats) -> LegacyCounters {
    LegacyCounters {
        packets: now.tx_data_packets - before.tx_data_packets,
        retransmits: now.retransmits - before.retransmits,
        timeouts: now.timeouts - before.timeouts,
    }
}

fn paths(world: &World<Station>, from: HostId, to: HostId) -> u32 {
    match world.node(from) {
        Station::Srd(station) => station.peer_stats(to).paths.iter().filter(|p| p.packets > 0).count() as u32,
        Station::Legacy(_) => 1,
    }
}
