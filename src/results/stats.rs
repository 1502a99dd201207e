//! Sums over flows and seeds.

use serde::Serialize;

use super::{Confidence, Flow, Run, Samples, Seed, Summary};

/// A mean and how sure one can be of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Mean.
    pub(crate) mean: f64,
    /// Half the width of the 95 % confidence interval (Student's t).
    pub(crate) plus_minus: f64,
    /// Smallest value.
    pub(crate) best: f64,
    /// Largest value.
    pub(crate) worst: f64,
}

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The same for more of them: the normal distribution's quantile and two terms of its Cornish-Fisher expansion (Abramowitz and
/// Stegun, 26.7.5).
fn student_t(freedom: f64) -> f64 {
    const Z: f64 = 1.959964;
    let (first, second) = ((Z.powi(3) + Z) / 4.0, (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0);
    Z + first / freedom + second / (freedom * freedom)
}

impl Spread {
    /// Of two or more values.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let n = values.len();
        if n < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let t = STUDENT_T.get(n - 2).copied().unwrap_or_else(|| student_t((n - 1) as f64));
        let (best, worst) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
        Some(Spread { mean, plus_minus: t * (variance / n as f64).sqrt(), best, worst })
    }
}

impl Confidence {
    pub(crate) fn of(seeds: &[Seed]) -> Confidence {
        let spread = |f: fn(&Summary) -> Option<f64>| {
            let values: Vec<f64> = seeds.iter().filter_map(|s| f(&s.summary)).collect();
            Spread::of(&values)
        };
        Confidence {
            max_over_ideal: spread(|s| s.max_over_ideal),
            median_over_ideal: spread(|s| s.median_over_ideal),
            retransmit_share: spread(|s| Some(s.retransmits as f64 / s.packets.max(1) as f64)),
        }
    }
}

/// The value that a share `q` of the sorted values does not exceed; `None` if there are none.
pub(crate) fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Jain's index: 1 if all are equal, 1/n if one has everything; `None` if there is nothing to share.
pub(crate) fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Index of the run with the most flows that did not finish; of those with as many, the one whose slowest flow is the slowest, or
/// whose shares are the least fair where no flow ends; nothing to share is the worst of all.
pub(crate) fn worst<'a>(runs: impl IntoIterator<Item = &'a Run>) -> usize {
    let badness =
        |r: &Run| (r.summary.unfinished, r.summary.max_over_ideal.unwrap_or(1.0 - r.summary.jain.unwrap_or(0.0)));
    let order = |(_, a): &(usize, &'a Run), (_, b): &(usize, &'a Run)| {
        let (a, b) = (badness(a), badness(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    runs.into_iter().enumerate().max_by(order).map_or(0, |(i, _)| i)
}

impl Summary {
    /// Fills in all that follows from the flows and samples; background traffic is left out.
    pub(crate) fn of_flows(flows: &[Flow], samples: Option<&Samples>) -> Summary {
        let counted: Vec<&Flow> = flows.iter().filter(|f| !f.background).collect();
        let mut over: Vec<f64> = counted.iter().filter_map(|f| f.over_ideal).collect();
        over.sort_by(f64::total_cmp);
        let rates: Vec<f64> = counted.iter().map(|f| f.goodput_gbps).collect();
        let sized = counted.iter().filter(|f| f.bytes.is_some());
        let start = counted.iter().map(|f| f.start_us).fold(f64::MAX, f64::min);
        let end = counted.iter().filter_map(|f| Some(f.start_us + f.fct_us?)).fold(0.0, f64::max);
        let open = counted.iter().filter(|f| f.fct_us.is_none()).filter_map(|f| f.over_ideal);
        Summary {
            open_over_ideal: open.min_by(f64::total_cmp),
            flows: sized.clone().count(),
            unfinished: sized.filter(|f| f.fct_us.is_none()).count(),
            max_over_ideal: over.last().copied(),
            median_over_ideal: percentile(&over, 0.5),
            p99_over_ideal: percentile(&over, 0.99),
            min_over_ideal: over.first().copied(),
            max_fct_us: counted.iter().filter_map(|f| f.fct_us).max_by(f64::total_cmp),
            jain: jain(&rates),
            worst_sample_over_fair: samples.and_then(|s| worst_sample(s, flows)),
            retransmits: counted.iter().map(|f| f.retransmits).sum(),
            duration_us: (end - start).max(0.0),
            ..Summary::default()
        }
    }
}

/// Of all samples that are not the first (flows are still starting then), the one furthest from the mean of its moment's. Only
/// flows that were under way all the time count, and moments in which something arrived.
fn worst_sample(samples: &Samples, flows: &[Flow]) -> Option<f64> {
    let rows: Vec<(&Vec<f64>, &Flow)> = samples.gbps.iter().zip(flows).filter(|(_, f)| !f.background).collect();
    let count = rows.iter().map(|(r, _)| r.len()).min()?;
    let time = |k: usize| k as f64 * samples.interval_us;
    let shares = (1..count).flat_map(|k| {
        let whole = rows.iter().filter(|(_, f)| f.is_active(time(k)) && f.is_active(time(k + 1)));
        let values: Vec<f64> = whole.map(|(r, _)| r[k]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.into_iter().filter(move |_| mean > 0.0).map(move |v| v / mean)
    });
    shares.max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
}
