//! From a scenario's traffic to flows.

use std::path::Path;

use simnet::experiment::{FlowSpec, Moment, Transport};
use simnet::{Plan, Port, Rng};
use srd::Span;

use super::config;
use super::formats::{cdf, hpcc, htsim};
use super::network::{Planned, read};
use super::quantity::Cdf;
use super::scenario::{Scenario, Traffic, TrafficKind, as_written};

/// More flows than this are a mistake.
const MAX_FLOWS: usize = 4_000_000;

/// All flows of a scenario; `foreground` carries those whose transport the scenario leaves open.
pub(super) fn flows(
    s: &Scenario,
    planned: &Planned,
    base: &Path,
    foreground: &Transport,
    seed: u64,
) -> Result<Vec<FlowSpec>, String> {
    let mut out = Vec::new();
    for (i, t) in s.traffic.iter().enumerate() {
        let at = |e: String| format!("traffic {i}: {e}");
        allowed(t).map_err(at)?;
        let rng = Rng::derive(seed, "traffic", i as u64);
        let (first, via) = (out.len(), Vec::new());
        let mut maker = Maker { s, t, planned, base, rng, first, out: &mut out, transport: *foreground, via };
        maker.make().map_err(at)?;
    }
    Ok(out)
}

/// Says what traffic of this kind has no use for.
fn allowed(t: &Traffic) -> Result<(), String> {
    use TrafficKind::{AllToAll, Hpcc, Htsim, Incast, Pairs, Permutation, Poisson, RingAllreduce};
    let fields: [(&str, bool, &[TrafficKind]); 14] = [
        ("size", t.size.is_some(), &[Incast, Permutation, AllToAll, RingAllreduce, Pairs, Poisson]),
        ("senders", t.senders.is_some(), &[Incast]),
        ("per_sender", t.per_sender.is_some(), &[Incast]),
        ("receiver", t.receiver.is_some(), &[Incast]),
        ("hosts", t.hosts.is_some(), &[Permutation, AllToAll, RingAllreduce, Poisson]),
        ("from", t.from.is_some(), &[Pairs]),
        ("to", t.to.is_some(), &[Pairs]),
        ("per_pair", t.per_pair.is_some(), &[Pairs]),
        ("shared_card", t.shared_card, &[Incast, Pairs]),
        ("load", t.load.is_some(), &[Poisson]),
        ("duration", t.duration.is_some(), &[Poisson]),
        ("sizes", t.sizes.is_some(), &[Poisson]),
        ("file", t.file.is_some(), &[Htsim, Hpcc]),
        ("via", t.via.is_some(), &[Pairs]),
    ];
    let counts = [("senders", t.senders), ("per_sender", t.per_sender), ("per_pair", t.per_pair)];
    if let Some((name, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
        return Err(format!("'{name}' is 0, at least 1"));
    }
    if t.size.is_some_and(|size| size.0 == 0) {
        return Err("'size' is 0, at least 1 byte".into());
    }
    match fields.iter().find(|(_, there, kinds)| *there && !kinds.contains(&t.kind)) {
        Some((name, ..)) => Err(format!("'{name}' means nothing in traffic of kind {}", as_written(t.kind))),
        None => Ok(()),
    }
}

/// Makes the flows of one entry.
struct Maker<'a> {
    s: &'a Scenario,
    t: &'a Traffic,
    planned: &'a Planned,
    base: &'a Path,
    rng: Rng,
    /// The number of its first flow.
    first: usize,
    out: &'a mut Vec<FlowSpec>,
    transport: Transport,
    via: Vec<usize>,
}

impl Maker<'_> {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn make(&mut self) -> Result<(), String> {
        if let Some(name) = &self.t.transport {
            self.transport = config::transport(self.s, name)?;
        } else if self.t.background {
            return Err("background traffic needs a transport".into());
        }
        if matches!(self.transport, Transport::Constant { .. }) && self.t.rate.is_none() {
            return Err("traffic of a constant rate needs a rate".into());
        }
        match self.t.kind {
            TrafficKind::Incast => self.incast(),
            TrafficKind::Permutation => self.permutation(),
            TrafficKind::AllToAll => self.all_to_all(),
            TrafficKind::RingAllreduce => self.ring_allreduce(),
            TrafficKind::Pairs => self.pairs(),
            TrafficKind::Poisson => self.poisson(),
            TrafficKind::Htsim => self.htsim(),
            TrafficKind::Hpcc => self.hpcc(),
        }
    }

    /// A flow from card to card that starts when the entry says.
    fn add(&mut self, from: (usize, usize), to: (usize, usize), bytes: Option<u64>) -> Result<(), String> {
        let start = self.start();
        self.push(from, to, bytes, start, Vec::new())
    }

    /// The start that the entry gives its next flow.
    fn start(&mut self) -> Span {
        let spread = self.t.spread.map_or(Span::ZERO, |s| self.rng.span(Span::ZERO, s.0));
        self.t.start.map_or(Span::ZERO, |s| s.0) + spread
    }

    fn push(
        &mut self,
        from: (usize, usize),
        to: (usize, usize),
        bytes: Option<u64>,
        start: Span,
        after: Vec<(usize, Moment)>,
    ) -> Result<(), String> {
        // Before they fill the memory.
        if self.out.len() == MAX_FLOWS {
            return Err(format!("more than {MAX_FLOWS} flows in all"));
        }
        let number = self.out.len() - self.first;
        let via = if self.via.is_empty() { None } else { Some(self.via[number % self.via.len()]) };
        self.out.push(FlowSpec {
            from,
            to,
            bytes,
            start,
            after,
            rate: self.t.rate.map(|r| r.0),
            transport: self.transport,
            background: self.t.background,
            via,
        });
        Ok(())
    }

    fn hosts(&self) -> Result<usize, String> {
        let there = self.plan().servers.len();
        let hosts = self.t.hosts.unwrap_or(there);
        if (2..=there).contains(&hosts) {
            Ok(hosts)
        } else {
            Err(format!("{hosts} hosts, not within 2 and the {there} there are"))
        }
    }

    fn size(&self) -> Result<u64, String> {
        self.t.size.map(|s| s.0).ok_or_else(|| "'size' is missing".into())
    }

    /// Card number `k` of a process, or the one card of its server.
    fn card(&self, k: usize) -> usize {
        if self.t.shared_card { 0 } else { k }
    }

    fn incast(&mut self) -> Result<(), String> {
        let servers = self.plan().servers.len();
        let senders = self.t.senders.unwrap_or(servers - 1);
        let receiver = self.t.receiver.unwrap_or(senders);
        if receiver >= servers || senders >= servers {
            return Err(format!(
                "{senders} senders and number {receiver} as receiver need more than the {servers} hosts, numbered from 0: \
                 change 'senders', 'receiver' or network.hosts"
            ));
        }
        // Without a size, flows have no end.
        let size = self.t.size.map(|s| s.0);
        let sending = (0..).filter(|s| *s != receiver).take(senders);
        for sender in sending {
            for k in 0..self.t.per_sender.unwrap_or(1) {
                self.add((sender, self.card(k)), (receiver, 0), size)?;
            }
        }
        Ok(())
    }

    fn permutation(&mut self) -> Result<(), String> {
        let (hosts, size) = (self.hosts()?, self.size()?);
        let mut order: Vec<usize> = (0..hosts).collect();
        // Sattolo's shuffle makes one cycle: nobody sends to itself.
        for i in (1..hosts).rev() {
            order.swap(i, self.rng.below(i as u64) as usize);
        }
        for (from, to) in order.into_iter().enumerate() {
            self.add((from, 0), (to, 0), Some(size))?;
        }
        Ok(())
    }

    fn all_to_all(&mut self) -> Result<(), String> {
        let (hosts, size) = (self.hosts()?, self.size()?);
        for step in 1..hosts {
            for from in 0..hosts {
                self.add((from, 0), ((from + step) % hosts, 0), Some(size))?;
            }
        }
        Ok(())
    }

    /// Every host passes a part on as soon as it has got one from its neighbour: n-1 steps of reduce-scatter, n-1 of
    /// all-gather.
    fn ring_allreduce(&mut self) -> Result<(), String> {
        let (hosts, size) = (self.hosts()?, self.size()?);
        let part = size.div_ceil(hosts as u64);
        for step in 0..2 * (hosts - 1) {
            for from in 0..hosts {
                let to = ((from + 1) % hosts, 0);
                if step == 0 {
                    self.add((from, 0), to, Some(part))?;
                } else {
                    let before = self.first + (step - 1) * hosts + (from + hosts - 1) % hosts;
                    self.push((from, 0), to, Some(part), Span::ZERO, vec![(before, Moment::Arrived)])?;
                }
            }
        }
        Ok(())
    }

    fn pairs(&mut self) -> Result<(), String> {
        let need = |list: &Option<Vec<usize>>, name: &str| list.clone().ok_or_else(|| format!("'{name}' is missing"));
        let (from, to) = (need(&self.t.from, "from")?, need(&self.t.to, "to")?);
        if from.len() != to.len() {
            return Err(format!("{} hosts in 'from', {} in 'to'", from.len(), to.len()));
        }
        for name in self.t.via.iter().flatten() {
            match self.plan().find(name) {
                Some(Port::Switch(switch)) => self.via.push(switch),
                _ => return Err(format!("via: there is no switch '{name}'")),
            }
        }
        let size = self.t.size.map(|s| s.0);
        for k in 0..self.t.per_pair.unwrap_or(1) {
            for (a, b) in from.iter().zip(&to) {
                self.add((*a, self.card(k)), (*b, self.card(k)), size)?;
            }
        }
        Ok(())
    }

    /// Flows that come at random times between random hosts, so that the hosts' cables carry the load.
    fn poisson(&mut self) -> Result<(), String> {
        let hosts = self.hosts()?;
        let load = self.t.load.filter(|l| (0.001..=1.0).contains(l)).ok_or("'load' must be within 0.001 and 1")?;
        let duration = self.t.duration.ok_or("'duration' is missing: for how long do flows come?")?.0;
        let sizes = match (&self.t.sizes, self.t.size) {
            (Some(name), None) if name == "websearch" => cdf::parse(cdf::WEBSEARCH)?,
            (Some(file), None) => cdf::parse(&read(self.base, file)?).map_err(|e| format!("{file}: {e}"))?,
            (None, Some(size)) => Cdf::new(vec![(size.0 as f64, 0.0), (size.0 as f64, 100.0)])?,
            _ => return Err("either 'sizes' (\"websearch\" or a file) or 'size'".into()),
        };
        let rate = self.plan().server_cable(0).rate as f64;
        let per_second = load * rate * hosts as f64 / (8.0 * sizes.mean());
        if per_second * duration.as_secs_f64() > MAX_FLOWS as f64 {
            return Err(format!(
                "{:.0} flows, more than {MAX_FLOWS}: give a shorter 'duration', less 'load' or longer flows",
                per_second * duration.as_secs_f64()
            ));
        }
        let mut at = Span::ZERO;
        loop {
            let uniform = ((self.rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            at = at + Span::from_secs_f64(-uniform.ln() / per_second);
            if at > duration {
                return Ok(());
            }
            let from = self.rng.below(hosts as u64) as usize;
            let to = (from + 1 + self.rng.below(hosts as u64 - 1) as usize) % hosts;
            let size = sizes.draw(&mut self.rng);
            let start = self.start() + at;
            self.push((from, 0), (to, 0), Some(size), start, Vec::new())?;
        }
    }

    fn file(&self) -> Result<(String, String), String> {
        let file = self.t.file.clone().ok_or("'file' is missing")?;
        let text = read(self.base, &file)?;
        Ok((file, text))
    }

    fn htsim(&mut self) -> Result<(), String> {
        let (file, text) = self.file()?;
        let (nodes, connections) = htsim::matrix(&text).map_err(|e| format!("{file}: {e}"))?;
        let there = self.plan().servers.len();
        if nodes > there {
            return Err(format!("{file} has {nodes} nodes, the network has {there}"));
        }
        for c in connections {
            let after: Vec<_> = c.after.into_iter().map(|(i, m)| (self.first + i, m)).collect();
            let start = if after.is_empty() { self.start() } else { Span::ZERO };
            self.push((c.from, 0), (c.to, 0), c.bytes, start + c.start, after)?;
        }
        Ok(())
    }

    fn hpcc(&mut self) -> Result<(), String> {
        let (file, text) = self.file()?;
        let flows = hpcc::flows(&text).map_err(|e| format!("{file}: {e}"))?;
        let first = flows.iter().map(|f| f.start).min().unwrap_or(Span::ZERO);
        for f in flows {
            let server = |id: usize| match &self.planned.numbers {
                Some(numbers) => numbers.iter().position(|n| *n == id),
                None => Some(id).filter(|id| *id < self.planned.plan.servers.len()),
            };
            let (Some(from), Some(to)) = (server(f.from), server(f.to)) else {
                return Err(format!("{file}: the flow from {} to {} leaves the network's servers", f.from, f.to));
            };
            // These files begin at an arbitrary second.
            let start = self.start() + Span::from_nanos(f.start.as_nanos() - first.as_nanos());
            self.push((from, 0), (to, 0), Some(f.bytes), start, Vec::new())?;
        }
        Ok(())
    }
}
