//! Results of experiments, wherever they come from: flows, links, samples and a summary, as values that renderers read.
//!
//! A [`Run`] is one experiment, with one transport and one seed. A [`Report`] puts runs together: the one that counts, its
//! siblings with other seeds, the same traffic over other transports, a sweep over a parameter. The JSON names are an
//! interface (docs/command.md).

mod convergence;
mod csv;
mod html;
mod plot;
mod stats;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use convergence::time as convergence_time;
pub(crate) use csv::{flows as flows_csv, links as links_csv, samples as samples_csv};
pub(crate) use html::html;
pub(crate) use plot::{NAMES as PLOT_NAMES, Plot, plots, png};
pub(crate) use stats::{Spread, percentile, worst};
pub(crate) use table::table;

use serde::Serialize;

/// What an experiment has to say: one JSON object.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// What it is, in a line.
    pub(crate) title: String,
    /// What was assumed where the scenario's source is silent; shown beside every figure.
    pub(crate) assumptions: Vec<String>,
    /// Values that were changed, as `name=value`; title and assumptions are those of the scenario without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) changed: Vec<String>,
    /// Of a sweep, the value that the run that counts had, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sweep_value: Option<String>,
    /// The run that counts: with several seeds, the worst of them.
    #[serde(flatten)]
    pub(crate) run: Run,
    /// One line per seed, if there were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seeds: Vec<Seed>,
    /// Mean over the seeds, with its 95 % confidence interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) confidence: Option<Confidence>,
    /// The same traffic over other transports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) baselines: Vec<Run>,
    /// The same experiment with other values of a parameter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sweep: Vec<Point>,
    /// The runs with the sweep's other values, each after its `name=value`: of these, JSON has the summaries only.
    #[serde(skip)]
    pub(crate) others: Vec<(String, Vec<Run>)>,
    /// Seconds that it took.
    pub(crate) wall_s: f64,
    /// Simulated events per second and core; zero for real hosts.
    pub(crate) events_per_s: f64,
}

/// One experiment with one transport and one seed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Run {
    /// `srd`, `tcp-cubic`, ...
    pub(crate) transport: String,
    /// The seed.
    pub(crate) seed: u64,
    /// Completion time of the slowest flow if the bottleneck carried payload all the time, shared equally.
    pub(crate) ideal_fct_us: f64,
    /// What it comes to.
    pub(crate) summary: Summary,
    /// Every flow.
    pub(crate) flows: Vec<Flow>,
    /// Every link.
    pub(crate) links: Vec<Link>,
    /// Throughput of every flow over time, if it was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) samples: Option<Samples>,
}

/// The figures of merit of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Flows with a size, those that should end.
    pub(crate) flows: usize,
    /// Those that did not. They count with the time that they had, and never as better than ideal.
    pub(crate) unfinished: usize,
    /// Smallest ratio of one that did not: quantiles from there on are only known to be no smaller.
    #[serde(skip)]
    pub(crate) open_over_ideal: Option<f64>,
    /// Largest completion time over its ideal.
    pub(crate) max_over_ideal: Option<f64>,
    /// Median of completion time over ideal.
    pub(crate) median_over_ideal: Option<f64>,
    /// 99th percentile.
    pub(crate) p99_over_ideal: Option<f64>,
    /// Smallest.
    pub(crate) min_over_ideal: Option<f64>,
    /// Largest completion time.
    pub(crate) max_fct_us: Option<f64>,
    /// Jain's index of the flows' throughputs, 1 is fair; null if nothing was delivered.
    pub(crate) jain: Option<f64>,
    /// Throughput of the flow and sample that is furthest from the mean of its sample, over that mean; null if nothing was
    /// sampled, or delivered in that time.
    pub(crate) worst_sample_over_fair: Option<f64>,
    /// Base round trips from when flows came or went until those of their receiver had equal shares, at most; null if
    /// nothing of this kind was sampled.
    pub(crate) convergence_rtts: Option<f64>,
    /// Payload delivered per second.
    pub(crate) goodput_gbps: f64,
    /// Data packets sent.
    pub(crate) packets: u64,
    /// Those sent again.
    pub(crate) retransmits: u64,
    /// Retransmission timeouts.
    pub(crate) timeouts: u64,
    /// Packets that the network dropped.
    pub(crate) drops: u64,
    /// Share of all packets that hosts sent.
    pub(crate) drop_share: f64,
    /// Time from the first start to the last end.
    pub(crate) duration_us: f64,
}

/// A flow. Times in microseconds from the start of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Flow {
    /// Its number.
    pub(crate) flow: usize,
    /// `srd`, or the transport of traffic in the background.
    pub(crate) transport: String,
    /// Sending host.
    pub(crate) from: String,
    /// Receiving host.
    pub(crate) to: String,
    /// Whether it belongs to the traffic in the background, which the summary leaves out.
    pub(crate) background: bool,
    /// Its size; null if it sends for ever.
    pub(crate) bytes: Option<u64>,
    /// Payload that arrived.
    pub(crate) delivered: u64,
    /// When it started.
    pub(crate) start_us: f64,
    /// From start to the sender knowing that all has arrived; null if that did not happen.
    pub(crate) fct_us: Option<f64>,
    /// From start to the last byte at the receiver.
    pub(crate) arrived_us: Option<f64>,
    /// Its ideal completion time.
    pub(crate) ideal_us: Option<f64>,
    /// Completion time over ideal; for one that did not finish, the time that it had, and 1 at least.
    pub(crate) over_ideal: Option<f64>,
    /// Mean throughput.
    pub(crate) goodput_gbps: f64,
    /// Packets sent again; those of a connection that several flows share are shared out.
    pub(crate) retransmits: u64,
    /// Paths that carried it: of its connection.
    pub(crate) paths: u32,
}

impl Flow {
    /// Completion time over ideal; one that did not finish in the time that it had has not been better than that.
    pub(crate) fn over(ideal_us: f64, fct_us: Option<f64>, had_us: f64) -> f64 {
        fct_us.map_or((had_us / ideal_us).max(1.0), |fct| fct / ideal_us)
    }

    /// Whether it was under way at this time.
    pub(crate) fn is_active(&self, time_us: f64) -> bool {
        let end = self.arrived_us.map(|a| self.start_us + a);
        self.start_us <= time_us && end.is_none_or(|end| time_us < end)
    }
}

/// One direction of a cable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Link {
    /// Its ends.
    pub(crate) link: String,
    /// Its rate.
    pub(crate) rate_gbps: f64,
    /// Share of the time in which it sent.
    pub(crate) utilisation: f64,
    /// Packets that it carried.
    pub(crate) packets: u64,
    /// Packets dropped at a full buffer.
    pub(crate) drops: u64,
    /// Packets lost on it for other reasons.
    pub(crate) losses: u64,
    /// Packets that got a congestion mark.
    pub(crate) marked: u64,
    /// Bytes before it as packets found them, where that was measured: median.
    pub(crate) queue_p50: Option<u64>,
    /// 99th percentile.
    pub(crate) queue_p99: Option<u64>,
    /// Longest queue.
    pub(crate) queue_max: Option<u64>,
    /// Bytes that may wait.
    pub(crate) buffer: u64,
}

/// Throughput over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Samples {
    /// Length of a sample.
    pub(crate) interval_us: f64,
    /// Per flow, one number per sample, in Gbit/s of payload.
    pub(crate) gbps: Vec<Vec<f64>>,
}

/// The result of one seed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seed {
    /// The seed.
    pub(crate) seed: u64,
    /// What it came to.
    pub(crate) summary: Summary,
}

/// What the seeds have in common.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Confidence {
    /// Of the largest completion time over ideal.
    pub(crate) max_over_ideal: Option<Spread>,
    /// Of the median.
    pub(crate) median_over_ideal: Option<Spread>,
    /// Of the share of packets sent again.
    pub(crate) retransmit_share: Option<Spread>,
}

/// One value of a sweep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    /// The parameter.
    pub(crate) parameter: String,
    /// Its value.
    pub(crate) value: String,
    /// Over which transport.
    pub(crate) transport: String,
    /// The worst seed.
    pub(crate) seed: u64,
    /// Ideal completion time of the slowest flow.
    pub(crate) ideal_fct_us: f64,
    /// What that came to.
    pub(crate) summary: Summary,
}

impl Run {
    /// Keeps what a report has of a run that is not the one that counts.
    pub(crate) fn forget_details(&mut self) {
        (self.flows, self.links, self.samples) = (Vec::new(), Vec::new(), None);
    }
}

impl Report {
    /// A report of the worst of `runs`, which differ in their seeds. There must be one at least.
    pub(crate) fn of(scenario: &str, title: &str, assumptions: Vec<String>, mut runs: Vec<Run>) -> Report {
        let seeds: Vec<Seed> = runs.iter().map(|r| Seed { seed: r.seed, summary: r.summary }).collect();
        let worst = stats::worst(&runs);
        let confidence = (seeds.len() > 1).then(|| Confidence::of(&seeds));
        Report {
            scenario: scenario.into(),
            title: title.into(),
            assumptions,
            run: runs.swap_remove(worst),
            seeds: if seeds.len() > 1 { seeds } else { Vec::new() },
            confidence,
            ..Report::default()
        }
    }

    /// The runs of all values of a sweep, each with its `name=value`, or nothing.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = (&str, &Run)> {
        let others = self.others.iter().flat_map(|(value, runs)| runs.iter().map(move |run| (value.as_str(), run)));
        let value = self.sweep_value.as_deref().unwrap_or_default();
        others.chain(self.runs().map(move |run| (value, run)))
    }

    /// The run that counts and those over other transports.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        std::iter::once(&self.run).chain(&self.baselines)
    }
}
