//! From what senders and receiver saw to the results that all experiments have in common.

use std::collections::BTreeMap;

use serde::Serialize;

use super::control::{FlowOutcome, Outcome, Transport};
use super::plan::Plan;
use super::tally::Tally;
use crate::exit::{Fault, Result};
use crate::results::{Flow, Report, Run, Samples, Summary};

/// How well the start was agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skew {
    /// Error of the clocks against each other, at most.
    pub(super) clock_ns: i64,
    /// From the first flow's start to the last one's, in the worst run.
    pub(super) start_ns: i64,
}

/// What `srd incast` reports: the report of all experiments, and the start. The names are an interface.
#[derive(Debug, Serialize)]
pub(super) struct IncastReport {
    /// Nothing ended it early, and all flows of the run that counts finished.
    pub(super) ok: bool,
    #[serde(flatten)]
    pub(super) report: Report,
    /// Whether a signal ended it early.
    pub(super) interrupted: bool,
    /// From the first flow's start to the last one's, in the worst run.
    pub(super) start_skew_us: f64,
    /// How far the clocks of two hosts may be off, as far as one can tell over the network.
    pub(super) clock_error_us: f64,
}

/// A run's results; notes its skew.
pub(super) fn assemble(
    plan: &Plan,
    transport: &Transport,
    round: u32,
    start: i64,
    outcomes: &BTreeMap<u32, Outcome>,
    tallies: &[Tally],
    hosts: &BTreeMap<u32, String>,
    skew: &mut Skew,
) -> Result<Run> {
    let mut flows = Vec::new();
    let ideal_us = plan.ideal_us();
    for (rank, outcome) in outcomes {
        for f in &outcome.flows {
            let first = (rank - 1) * plan.flows;
            let tally = (first..first + plan.flows).contains(&f.flow).then(|| tallies.get(f.flow as usize)).flatten();
            let host = hosts.get(rank).map_or("", String::as_str);
            let tally =
                tally.ok_or_else(|| Fault::peer(format_args!("rank {rank} ({host}) reports on flows of others")))?;
            flows.push(flow(plan, transport, host, start, f, tally, ideal_us));
        }
    }
    flows.sort_by_key(|f| f.flow);
    if flows.len() != tallies.len() || flows.iter().enumerate().any(|(k, f)| k != f.flow) {
        return Err(Fault::peer("senders do not report on each of their flows once"));
    }
    let starts = flows.iter().map(|f| f.start_us).fold((f64::MAX, f64::MIN), |(a, b), s| (a.min(s), b.max(s)));
    skew.start_ns = skew.start_ns.max(((starts.1 - starts.0) * 1e3) as i64);
    let samples = plan.counting().samples.map(|(interval, count)| Samples {
        interval_us: interval as f64 / 1e3,
        gbps: tallies
            .iter()
            .map(|t| {
                let mut row: Vec<f64> = t.samples.iter().map(|bytes| *bytes as f64 * 8.0 / interval as f64).collect();
                row.resize(count, 0.0);
                row
            })
            .collect(),
    });
    let summary = Summary::of_flows(&flows, samples.as_ref());
    let end = flows.iter().filter_map(|f| Some(f.start_us + f.fct_us?)).fold(0.0, f64::max);
    let unfinished = flows.iter().any(|f| f.fct_us.is_none());
    let lasted = if unfinished { plan.limit.as_secs_f64() * 1e6 } else { end - starts.0 };
    let delivered: u64 = flows.iter().map(|f| f.delivered).sum();
    let summary = Summary {
        goodput_gbps: delivered as f64 * 8.0 / lasted.max(1.0) / 1e3,
        packets: outcomes.values().map(|o| o.packets).sum(),
        timeouts: outcomes.values().map(|o| o.timeouts).sum(),
        duration_us: lasted,
        ..summary
    };
    Ok(Run {
        transport: transport.name(),
        seed: u64::from(round) + 1,
        ideal_fct_us: ideal_us.unwrap_or(0.0),
        summary,
        flows,
        links: Vec::new(),
        samples,
    })
}

fn flow(
    plan: &Plan,
    transport: &Transport,
    host: &str,
    start: i64,
    f: &FlowOutcome,
    tally: &Tally,
    ideal_us: Option<f64>,
) -> Flow {
    let fct_us = f.fct_ns.map(|ns| ns as f64 / 1e3);
    let limit_us = plan.limit.as_secs_f64() * 1e6;
    // What the receiver has counts; where all has arrived both sides agree.
    let delivered = plan.bytes.map_or(tally.bytes, |size| tally.bytes.min(size));
    Flow {
        flow: f.flow as usize,
        transport: transport.name(),
        from: host.to_owned(),
        to: "receiver".into(),
        background: false,
        bytes: plan.bytes,
        delivered,
        start_us: f.start_ns.saturating_sub(start) as f64 / 1e3,
        fct_us,
        arrived_us: tally.arrived.map(|at| at.saturating_sub(f.start_ns) as f64 / 1e3),
        ideal_us,
        over_ideal: ideal_us.map(|ideal| Flow::over(ideal, fct_us, limit_us)),
        goodput_gbps: delivered as f64 * 8.0 / fct_us.unwrap_or(limit_us).max(1.0) / 1e3,
        retransmits: f.retransmits,
        paths: f.paths,
    }
}
