//! Runs the simulations that a command asks for, side by side over the cores, and turns outcomes into results.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use simnet::experiment::{Descheduling, Experiment, Messages, Outcome, Status, Transport};
use srd::Span;

use super::scenario::Scenario;
use super::{config, ideal, network, traffic};
use crate::results::{Flow, Link, Run, Samples, Summary, convergence_time, worst};

/// Samples of a run, those of all flows together, for which there is memory.
const MAX_SAMPLES: u64 = 20_000_000;

/// One simulation.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) scenario: Scenario,
    /// What carries the flows whose transport the scenario leaves open.
    pub(super) transport: String,
    pub(super) seed: u64,
}

/// What all tasks have done so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Tasks that are over.
    pub(super) done: AtomicUsize,
    /// Events of those that are over.
    pub(super) events: AtomicU64,
    /// Events of those that run, and the simulated time of one of them in nanoseconds.
    pub(super) running: AtomicU64,
    pub(super) simulated: AtomicU64,
    /// Flows that have ended, of the tasks that run.
    pub(super) flows_done: AtomicUsize,
    /// Whether to come to an end.
    pub(super) stop: AtomicBool,
}

impl Task {
    /// The experiment.
    pub(super) fn experiment(&self, base: &Path) -> Result<Experiment, String> {
        let s = &self.scenario;
        let planned = network::plan(&s.network, base)?;
        planned.plan.check().map_err(|e| format!("network: {e}"))?;
        let foreground = config::transport(s, &self.transport)?;
        if matches!(foreground, Transport::Constant { .. }) {
            return Err("traffic of a constant rate is background; name a transport that answers".into());
        }
        let flows = traffic::flows(s, &planned, base, &foreground, self.seed)?;
        let srd = config::srd(s)?;
        let descheduling = match (s.hosts.descheduled_every, s.hosts.descheduled_for) {
            (None, None) => None,
            (Some(every), Some((from, to))) if from <= to && every.0 > Span::ZERO => {
                Some(Descheduling { every: every.0, length: (from.0, to.0) })
            }
            _ => {
                return Err("hosts: descheduled_every and descheduled_for = [shortest, longest] belong together".into());
            }
        };
        let message = u32::try_from(s.messages.size.0).ok().filter(|m| (1..=1 << 30).contains(m));
        let bytes = message.ok_or_else(|| format!("messages.size is {}, not within 1 and 1 GiB", s.messages.size.0))?;
        if s.messages.depth == 0 {
            return Err("messages.depth is 0, at least 1".into());
        }
        if s.messages.depth > srd.send_queue {
            return Err(format!("messages.depth is {}, at most {}", s.messages.depth, srd.send_queue));
        }
        if s.limit.0 == Span::ZERO {
            return Err("limit is 0: nothing can happen".into());
        }
        if s.sample.is_some_and(|every| every.0 == Span::ZERO) {
            return Err("sample is 0: leave it out for no samples".into());
        }
        if let Some(every) = s.sample {
            let values = (s.limit.0.as_nanos() / every.0.as_nanos()).saturating_mul(flows.len() as u64);
            if values > MAX_SAMPLES {
                return Err(format!(
                    "{values} samples until the limit, of all flows together, at most {MAX_SAMPLES}: give a longer 'sample' or a \
                     shorter 'limit'"
                ));
            }
        }
        let experiment = Experiment {
            seed: self.seed,
            buffers: network::buffers(&s.network)?,
            polarised: s.network.polarised,
            mtu: s.network.mtu,
            faults: network::faults(&planned.plan, &s.fault, s.limit.0)?,
            plan: planned.plan,
            flows,
            descheduling,
            drain: match (s.hosts.drain, s.hosts.receive_queue) {
                (None, Some(_)) => {
                    return Err("hosts.receive_queue is for hosts that take time: give hosts.drain".into());
                }
                (_, Some(0)) => return Err("hosts.receive_queue is 0, at least 1".into()),
                (rate, queue) => rate.map(|rate| (rate.0, queue.unwrap_or(1_024))),
            },
            srd,
            cable_rates: !s.srd.contains_key("link_rate"),
            messages: Messages { bytes, depth: s.messages.depth, verbs: s.messages.verbs },
            warm: s.warm,
            limit: s.limit.0,
            sample: s.sample.map(|s| s.0),
        };
        experiment.check()?;
        Ok(experiment)
    }

    /// Runs it; nothing if somebody wanted an end before it began.
    fn run(&self, base: &Path, progress: &Progress) -> Result<Option<Ran>, String> {
        let experiment = self.experiment(base)?;
        let (mut last, mut whole) = (0, true);
        let outcome = experiment.run(|status: Status| {
            progress.running.fetch_add(status.events - last, Ordering::Relaxed);
            last = status.events;
            progress.simulated.store(status.elapsed.as_nanos(), Ordering::Relaxed);
            progress.flows_done.store(status.total - status.open, Ordering::Relaxed);
            whole = !progress.stop.load(Ordering::Relaxed);
            whole
        })?;
        if let Some(what) = &outcome.broken {
            return Err(format!("the simulation broke off: {what}"));
        }
        progress.running.fetch_sub(last, Ordering::Relaxed);
        if outcome.flows.is_empty() {
            return Ok(None);
        }
        progress.events.fetch_add(outcome.events, Ordering::Relaxed);
        let run = results(&experiment, &outcome, &self.scenario, &self.transport);
        Ok(Some(Ran { run, events: outcome.events, whole }))
    }
}

/// A task that was run.
#[derive(Debug)]
struct Ran {
    run: Run,
    /// Events that it executed.
    events: u64,
    /// Whether it was not broken off.
    whole: bool,
}

/// Runs all tasks and returns their results in the same order, with the seconds that they took together on their cores and
/// the events that they executed. Those that were not begun when somebody wanted an end have none, and one that was broken
/// off has results only if no other was finished. Of each `seeds` tasks in a row only the worst has the details.
pub(super) fn all(
    tasks: &[Task],
    seeds: usize,
    base: &Path,
    threads: usize,
    progress: &Progress,
) -> Result<(Vec<Option<Run>>, f64, u64), String> {
    let next = AtomicUsize::new(0);
    let groups: Vec<Mutex<Vec<Slot>>> =
        tasks.chunks(seeds).map(|group| Mutex::new(group.iter().map(|_| None).collect())).collect();
    let busy = Mutex::new((0.0, 0));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                while !progress.stop.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(i) else { return };
                    let began = Instant::now();
                    let Some(result) = task.run(base, progress).transpose() else { return };
                    let mut sum = busy.lock().expect("nobody panics with it");
                    sum.0 += began.elapsed().as_secs_f64();
                    sum.1 += result.as_ref().map_or(0, |ran| ran.events);
                    drop(sum);
                    progress.done.fetch_add(1, Ordering::Relaxed);
                    // One that cannot be run is the end of all.
                    progress.stop.fetch_or(result.is_err(), Ordering::Relaxed);
                    let mut group = groups[i / seeds].lock().expect("nobody panics with it");
                    group[i % seeds] = Some(result);
                    keep_worst(&mut group);
                }
            });
        }
    });
    let taken = groups.into_iter().flat_map(|g| g.into_inner().expect("nobody panics with it")).map(Option::transpose);
    let ran = taken.collect::<Result<Vec<Option<Ran>>, String>>()?;
    let any_whole = ran.iter().flatten().any(|r| r.whole);
    let runs = ran.into_iter().map(|r| r.filter(|r| r.whole || !any_whole).map(|r| r.run)).collect();
    let (seconds, events) = busy.into_inner().expect("nobody panics with it");
    Ok((runs, seconds, events))
}

/// What became of a task, once it was run.
type Slot = Option<Result<Ran, String>>;

/// Runs that differ in their seeds are reported by their summaries, but for the worst: thousands of them would fill the memory.
fn keep_worst(group: &mut [Slot]) {
    let whole = group.iter_mut().flatten().flatten().filter(|ran| ran.whole).map(|ran| &mut ran.run);
    let mut detailed: Vec<&mut Run> = whole.filter(|run| !run.flows.is_empty()).collect();
    let worst = worst(detailed.iter().map(|run| &**run));
    for (_, run) in detailed.iter_mut().enumerate().filter(|(i, _)| *i != worst) {
        run.forget_details();
    }
}

/// The results of an outcome.
fn results(e: &Experiment, o: &Outcome, s: &Scenario, transport: &str) -> Run {
    let us = |s: Span| s.as_micros_f64();
    let ideals = ideal::flows(&e.plan, &e.flows, s.ideal, e.mtu);
    let elapsed = us(o.elapsed);
    let mut flows = Vec::with_capacity(e.flows.len());
    for (i, ((spec, out), ideal)) in e.flows.iter().zip(&o.flows).zip(&ideals).enumerate() {
        let start = out.start.map_or(us(spec.start), us);
        let had = (elapsed - start).max(0.0);
        let fct = out.fct.map(us);
        let active = fct.unwrap_or(had);
        flows.push(Flow {
            flow: i,
            transport: config::name(&spec.transport).into(),
            from: e.plan.servers[spec.from.0].clone(),
            to: e.plan.servers[spec.to.0].clone(),
            background: spec.background,
            bytes: spec.bytes,
            delivered: out.delivered,
            start_us: start,
            fct_us: fct,
            arrived_us: out.arrived.map(us),
            ideal_us: *ideal,
            over_ideal: ideal.map(|ideal| Flow::over(ideal, fct, had)),
            goodput_gbps: if active > 0.0 { out.delivered as f64 * 8e-3 / active } else { 0.0 },
            retransmits: out.retransmits,
            paths: out.paths,
        });
    }
    let links = o.links.iter().map(|l| Link {
        link: l.name.clone(),
        rate_gbps: l.rate as f64 / 1e9,
        utilisation: l.utilisation,
        packets: l.packets,
        drops: l.queue_drops,
        losses: l.other_drops,
        marked: l.marked,
        queue_p50: Some(l.queue.0),
        queue_p99: Some(l.queue.1),
        queue_max: Some(l.queue.2),
        buffer: l.buffer,
    });
    let samples = e.sample.filter(|_| !o.samples.is_empty()).map(|every| samples(e, o, every));
    let mut summary = Summary::of_flows(&flows, samples.as_ref());
    let foreground = || e.flows.iter().zip(&o.flows).filter(|(spec, _)| !spec.background).map(|(_, out)| out);
    summary.packets = foreground().map(|f| f.packets).sum();
    summary.timeouts = foreground().map(|f| f.timeouts).sum();
    let one = e.flows.iter().find(|f| !f.background).map(|f| e.plan.base_rtt(f.from.0, f.to.0, e.mtu, ideal::ACK));
    // Long samples say nothing of round trips.
    let fine = |rtt: &Span| e.sample.is_some_and(|every| every <= *rtt * 10);
    summary.convergence_rtts = one.filter(fine).zip(samples.as_ref()).and_then(|(rtt, samples)| {
        let time = convergence_time(samples, &flows, e.mtu)?;
        Some(time / us(rtt))
    });
    summary.drops = o.drops;
    summary.drop_share = o.drops as f64 / o.packets.max(1) as f64;
    // Flows without an end last as long as the run.
    if summary.unfinished > 0 || e.flows.iter().any(|f| !f.background && f.bytes.is_none()) {
        let first = flows.iter().filter(|f| !f.background).map(|f| f.start_us).fold(f64::MAX, f64::min);
        summary.duration_us = (elapsed - first).max(0.0);
    }
    let delivered: u64 = foreground().map(|f| f.delivered).sum();
    summary.goodput_gbps = if summary.duration_us > 0.0 { delivered as f64 * 8e-3 / summary.duration_us } else { 0.0 };
    let counted = flows.iter().filter(|f| !f.background).filter_map(|f| f.ideal_us);
    Run {
        transport: config::transport(s, transport).map_or(transport.into(), |t| config::name(&t).into()),
        seed: e.seed,
        ideal_fct_us: counted.fold(0.0, f64::max),
        summary,
        flows,
        links: links.collect(),
        samples,
    }
}

/// Throughput per flow from what had arrived at each sample.
fn samples(e: &Experiment, o: &Outcome, every: Span) -> Samples {
    let gbps = (0..e.flows.len()).map(|flow| {
        let before = std::iter::once(0).chain(o.samples.iter().map(|s| s[flow]));
        let rate = |(was, is): (u64, &Vec<u64>)| (is[flow] - was) as f64 * 8.0 / every.as_nanos() as f64;
        before.zip(&o.samples).map(rate).collect()
    });
    Samples { interval_us: every.as_micros_f64(), gbps: gbps.collect() }
}
