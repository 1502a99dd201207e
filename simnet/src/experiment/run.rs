//! Builds the world of an experiment and lets time pass in it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use srd_core::{Config, Span, Time};

use super::ledger::{Entry, Ledger};
use super::legacy::{Legacy, LegacyStation};
use super::outcome::{Before, Outcome, drops_elsewhere};
use super::srd::SrdStation;
use super::station::Station;
use super::verbs::Verbs;
use super::{Descheduling, Experiment, FlowSpec, Messages, Transport, faults};
use crate::cabling::Cabling;
use crate::host::HostSpec;
use crate::packet::{Addr, HostId, MAIN_PORT};
use crate::plan::{Port, Ways};
use crate::rng::Rng;
use crate::world::{Action, World};

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Simulated time since the start.
    pub elapsed: Span,
    /// Events executed.
    pub events: u64,
    /// Flows that are still to end.
    pub open: usize,
    /// Flows in all that should end.
    pub total: usize,
}

/// Greetings that are not answered by then leave their connections to the experiment.
const GREETING_LIMIT: Span = Span::from_millis(100);
/// Silence between greetings and start.
const PAUSE: Span = Span::from_micros(100);
/// Simulated time between two reports of progress.
const SLICE: Span = Span::from_micros(200);
/// Events between them, at most: where thousands of servers send, they take as long as anybody waits for an interrupt.
const STRETCH: u32 = 20_000;

/// Hosts that are made or started between two of them: each takes tens of microseconds.
const HOSTS_AT_ONCE: u32 = 1_024;

/// Bytes of an acknowledgement of TCP on a cable.
const TCP_ACK: u32 = 90;

/// What a station is for: server, card, and whether the older transports run on it.
type Card = (usize, usize, bool);

impl Experiment {
    /// Runs it. `watch` is told how far it is now and then, and stops it by returning `false`. If it does so before the clock
    /// has started, the outcome has no flows.
    ///
    /// # Errors
    /// What is wrong with the experiment, in a sentence.
    pub fn run(&self, mut watch: impl FnMut(Status) -> bool) -> Result<Outcome, String> {
        self.check()?;
        let total = self.flows.iter().filter(|f| !f.background).count();
        let ready = |events| Status { elapsed: Span::ZERO, events, open: total, total };
        let ids: BTreeMap<Card, HostId> =
            self.cards().iter().enumerate().map(|(i, c)| (*c, HostId(i as u32))).collect();
        let mut world = World::new(self.seed, self.ledger(&ids));
        world.net_mut().log.silence();
        let mut servers = vec![Vec::new(); self.plan.servers.len()];
        let mut sent: BTreeMap<Card, Vec<usize>> = BTreeMap::new();
        for (i, f) in self.flows.iter().enumerate() {
            sent.entry(card(f, f.from)).or_default().push(i);
        }
        for (card, id) in &ids {
            if id.0.is_multiple_of(HOSTS_AT_ONCE) && !watch(ready(0)) {
                return Ok(Outcome::default());
            }
            servers[card.0].push(*id);
            let (spec, node) = self.station(*card, sent.get(card).map_or(&[], Vec::as_slice))?;
            world.add_host(spec, node);
        }
        let cabling = Rc::new(Cabling::lay(world.net_mut(), self.plan.clone(), self.buffers, servers.clone()));
        world.net_mut().set_wire_overhead(self.srd.wire_overhead.into());
        if self.polarised {
            cabling.polarise(world.net_mut(), self.seed);
        }
        self.pin(&mut world, &cabling)?;
        while world.start_some(HOSTS_AT_ONCE) {
            if !watch(ready(0)) {
                return Ok(Outcome::default());
            }
        }
        let mut pass = |world: &mut World<Station>, limit: Time, done: fn(&Ledger) -> bool| {
            while !stretch(world, limit, done) {
                if !watch(ready(world.counters().events)) {
                    return false;
                }
            }
            true
        };
        if self.warm {
            self.greet(&mut world);
            if !pass(&mut world, Time::ZERO + GREETING_LIMIT, |ledger| ledger.greeting == 0) {
                return Ok(Outcome::default());
            }
        }
        let start = world.now() + PAUSE;
        if !pass(&mut world, start, |_| false) {
            return Ok(Outcome::default());
        }
        let before = self.begin(&mut world, &cabling, start);
        if let Some(descheduling) = self.descheduling {
            for hosts in servers.into_iter().filter(|h| !h.is_empty()) {
                deschedule(&mut world, hosts, descheduling);
            }
        }
        let samples = self.pass(&mut world, start, &mut watch);
        Ok(Outcome::of(self, &world, &cabling, before, samples))
    }

    fn cards(&self) -> BTreeSet<Card> {
        self.flows.iter().flat_map(|f| [card(f, f.from), card(f, f.to)]).collect()
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        self.plan.check()?;
        let servers = self.plan.servers.len();
        if self.flows.is_empty() {
            return Err("there is no flow".into());
        }
        for (i, f) in self.flows.iter().enumerate() {
            if f.from.0 >= servers || f.to.0 >= servers {
                return Err(format!("flow {i} names server {}, there are {servers}", f.from.0.max(f.to.0)));
            }
            if f.from == f.to {
                return Err(format!("flow {i} goes from a card to itself"));
            }
            if f.bytes == Some(0) || f.rate == Some(0) {
                return Err(format!("flow {i} has no bytes or no rate"));
            }
            if matches!(f.transport, Transport::Constant { .. }) && f.rate.is_none() {
                return Err(format!("flow {i} has a constant rate and does not say which"));
            }
            if f.transport == Transport::Srd && f.via.is_some() {
                return Err(format!("flow {i} has many paths, it cannot be bound to one switch"));
            }
            let most = payload(f.transport, self.mtu).saturating_mul(u32::MAX.into());
            if let Some(bytes) = f.bytes.filter(|b| *b > most && f.transport != Transport::Srd) {
                return Err(format!("flow {i} has {bytes} bytes, at most {most}: its packets are counted in 32 bits"));
            }
            if let Transport::Tcp(config) = f.transport
                && config.min_rto == Span::ZERO
            {
                return Err(format!("flow {i} has a minimum RTO of 0"));
            }
            if let Some((bad, _)) = f.after.iter().find(|(other, _)| *other >= self.flows.len() || *other == i) {
                return Err(format!("flow {i} waits for flow {bad}"));
            }
        }
        let Messages { verbs, depth, .. } = self.messages;
        if verbs && depth > Verbs::max_depth() {
            return Err(format!("{depth} messages under way, a queue pair takes {} at most", Verbs::max_depth()));
        }
        let cards = self.cards().len();
        if cards > Addr::HOSTS {
            return Err(format!("the flows have {cards} cards at their ends, at most {}", Addr::HOSTS));
        }
        let cables = self.plan.cables.len();
        match self.faults.iter().flat_map(|f| &f.cables).find(|c| **c >= cables) {
            Some(bad) => Err(format!("a fault names cable {bad}, there are {cables}")),
            None => Ok(()),
        }
    }

    fn ledger(&self, ids: &BTreeMap<Card, HostId>) -> Ledger {
        let mut ways = Ways::of(&self.plan);
        let mut rtt = |f: &FlowSpec| match f.transport {
            Transport::Tcp(config) => ways.base_rtt(f.from.0, f.to.0, config.mtu, TCP_ACK),
            _ => Span::ZERO,
        };
        let mut entries: Vec<Entry> = self.flows.iter().map(|f| entry(f, self.mtu, rtt(f), ids)).collect();
        for (i, f) in self.flows.iter().enumerate() {
            for (other, moment) in &f.after {
                entries[*other].dependents.push((i, *moment));
            }
        }
        Ledger::new(entries, ids.len())
    }

    /// The station of a card that sends these flows.
    fn station(&self, card: Card, flows: &[usize]) -> Result<(HostSpec, Station), String> {
        let mut spec = HostSpec { mtu: self.mtu, source_ports: self.srd.path_pool, ..HostSpec::default() };
        if let Some((rate, queue)) = self.drain {
            (spec.drain, spec.receive_queue) = (Some(rate), queue);
        }
        if !card.2 {
            let mut config = self.srd.clone();
            if self.cable_rates {
                let link_rate = Some((self.plan.server_cable(card.0).rate / 8).max(1));
                config = Config { link_rate, ..(*config).clone() }.check().map_err(|e| e.to_string())?;
            }
            return Ok((spec, Station::Srd(Box::new(SrdStation::new(config, self.messages)))));
        }
        let mut station = LegacyStation::default();
        for &i in flows {
            station.add(
                i,
                match self.flows[i].transport {
                    Transport::Tcp(config) => Legacy::Tcp(config),
                    Transport::Constant { mtu } => Legacy::Constant { mtu },
                    Transport::Srd => unreachable!("not a card of the older transports"),
                },
            );
        }
        // One that is bound to a way needs a choice of ports to find it.
        let bound = flows.iter().any(|i| self.flows[*i].via.is_some());
        spec.source_ports = station.source_ports().max(if bound { 256 } else { 1 });
        Ok((spec, Station::Legacy(Box::new(station))))
    }

    /// Chooses source ports for flows that are to pass a certain switch.
    fn pin(&self, world: &mut World<Station>, cabling: &Cabling) -> Result<(), String> {
        for (i, f) in self.flows.iter().enumerate() {
            let Some(via) = f.via else { continue };
            let (from, to) = (world.shared().flows[i].from, world.shared().flows[i].to);
            let ports = world.host(from).ports().to_vec();
            let passes = |port: &u16| {
                let way = world.net().trace(Addr::of(from, *port), Addr::of(to, MAIN_PORT));
                way.contains(&cabling.switch(via))
            };
            let port = ports.iter().position(passes);
            match (port, world.node_mut(from)) {
                (Some(port), Station::Legacy(station)) => station.pin(i, port as u16),
                (None, _) => return Err(format!("flow {i} has no way over {}", self.plan.switches[via])),
                (_, Station::Srd(_)) => unreachable!("flow {i} was checked"),
            }
        }
        Ok(())
    }

    /// Schedules greetings that open all connections that flows will use.
    fn greet(&self, world: &mut World<Station>) {
        let pairs: BTreeSet<(HostId, HostId)> = world
            .shared()
            .flows
            .iter()
            .zip(&self.flows)
            .filter(|(_, spec)| spec.transport == Transport::Srd)
            .map(|(entry, _)| (entry.from, entry.to))
            .collect();
        // One greeting per microsecond and host on average leaves the network at rest.
        let mut most: BTreeMap<HostId, u64> = BTreeMap::new();
        pairs.iter().for_each(|(from, to)| {
            *most.entry(*from).or_default() += 1;
            *most.entry(*to).or_default() += 1;
        });
        let window = Span::from_micros(20.max(*most.values().max().unwrap_or(&0)));
        let mut rng = Rng::derive(self.seed, "greetings", 0);
        let mut times: Vec<(Time, HostId, HostId)> =
            pairs.iter().map(|(from, to)| (world.now() + rng.span(Span::ZERO, window), *from, *to)).collect();
        times.sort();
        world.shared_mut().greeting = times.len();
        for (at, from, to) in times {
            world.shared_mut().greetings[from.0 as usize].push_back((at, to));
            world.net_mut().nudge(at, from);
        }
    }

    /// Sets the counters to zero and schedules everything.
    fn begin(&self, world: &mut World<Station>, cabling: &Rc<Cabling>, start: Time) -> Before {
        for (cable, (there, back)) in self.plan.cables.iter().zip(&cabling.links) {
            for (end, link) in [(cable.a, *there), (cable.b, *back)] {
                // A server's port has room for far more than waits there.
                let nic = self.buffers.nic.min(self.buffers.port);
                let scale = if matches!(end, Port::Server(_)) { nic } else { self.buffers.port };
                world.net_mut().measure(link, scale);
            }
        }
        let hosts: Vec<HostId> = world.hosts().collect();
        for host in hosts {
            if let Station::Srd(station) = world.node_mut(host) {
                station.before = *station.stats();
            }
        }
        for fault in &self.faults {
            faults::schedule(world, cabling, fault, start);
        }
        world.with_shared_and_net(|ledger, net| ledger.begin(start, net));
        Before { start, packets: world.counters().packets, drops: drops_elsewhere(world) }
    }

    /// Lets time pass to the end, and samples what has arrived.
    fn pass(&self, world: &mut World<Station>, start: Time, watch: &mut impl FnMut(Status) -> bool) -> Vec<Vec<u64>> {
        let end = start + self.limit;
        let total = world.shared().open;
        let mut samples = Vec::new();
        let (mut sample_at, mut slice_at) = (self.sample.map(|s| start + s), start + SLICE);
        loop {
            let until = sample_at.unwrap_or(Time::NEVER).min(slice_at).min(end);
            let is_whole = stretch(world, until, |ledger| ledger.open == 0);
            if let (Some(at), Some(every)) = (sample_at, self.sample)
                && is_whole
                && world.now() >= at
            {
                samples.push(world.shared().flows.iter().map(|f| f.progress.delivered).collect());
                sample_at = Some(at + every);
            }
            if world.now() >= slice_at || !is_whole {
                slice_at = world.now() + SLICE;
                let (elapsed, events) = (world.now().since(start), world.counters().events);
                if !watch(Status { elapsed, events, open: world.shared().open, total }) {
                    return samples;
                }
            }
            if world.shared().open == 0 || world.violation().is_some() || (is_whole && world.now() >= end) {
                return samples;
            }
        }
    }
}

/// Lets time pass until `limit` or until it is `done`, but not for more than [`STRETCH`] events: returns whether that was enough.
fn stretch(world: &mut World<Station>, limit: Time, done: impl Fn(&Ledger) -> bool) -> bool {
    let mut events = 0;
    world.run_while(limit, |world| {
        events += 1;
        done(world.shared()) || events > STRETCH
    });
    events <= STRETCH
}

/// The station of an end of a flow. All cards of a server share one station for the older transports.
fn card(flow: &FlowSpec, (server, card): (usize, usize)) -> Card {
    match flow.transport {
        Transport::Srd => (server, card, false),
        Transport::Tcp(_) | Transport::Constant { .. } => (server, 0, true),
    }
}

/// Payload of a full packet.
fn payload(transport: Transport, mtu: u32) -> u64 {
    match transport {
        Transport::Srd => mtu.into(),
        Transport::Tcp(config) => config.segment().into(),
        Transport::Constant { mtu } => u64::from(mtu) - 28,
    }
}

fn entry(f: &FlowSpec, mtu: u32, rtt: Span, ids: &BTreeMap<Card, HostId>) -> Entry {
    let segment = payload(f.transport, mtu) as u32;
    Entry {
        from: ids[&card(f, f.from)],
        to: ids[&card(f, f.to)],
        bytes: f.bytes,
        segment,
        rtt,
        rate: f.rate,
        background: f.background,
        silent: matches!(f.transport, Transport::Constant { .. }),
        start: f.start,
        waits: f.after.len() as u32,
        dependents: Vec::new(),
        progress: Default::default(),
    }
}

/// Stops everything on a server for a while, again and again.
fn deschedule(world: &mut World<Station>, hosts: Vec<HostId>, how: Descheduling) {
    let index = u64::from(hosts[0].0);
    let rng = Rng::derive(world.seed(), "descheduling", index);
    next_stop(world, hosts, how, rng);
}

fn next_stop(world: &mut World<Station>, hosts: Vec<HostId>, how: Descheduling, mut rng: Rng) {
    // Inverse transform sampling of the exponential distribution, from 53 bits.
    let uniform = ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let wait = Span::from_secs_f64(-uniform.ln() * how.every.as_secs_f64());
    let length = rng.span(how.length.0, how.length.1);
    let stop = move |world: &mut World<Station>| {
        hosts.iter().for_each(|h| world.act(Action::Stall(*h, length)));
        next_stop(world, hosts, how, rng);
    };
    world.at(world.now() + wait, Action::Call("a server is descheduled", Box::new(stop)));
}
