//! How soon flows to one receiver share its link equally after some of them came or went.

use super::{Flow, Samples};

/// How far from its equal share a flow may be.
const TOLERANCE: f64 = 0.05;
/// Packets of each flow that a window has at least: one packet more or less is chance, not unfairness.
const PACKETS: f64 = 20.0;
/// Changes are judged where nothing else changes for so many windows after them.
const QUIET: f64 = 3.0;

/// Microseconds from a change (flows start or end) to the first window of 20 packets per flow in which every flow under way
/// has its equal share, within 5 % and one packet of `mtu` bytes. The largest over all changes; one after which that does not
/// come counts with the time up to the next. `None` if there is no change that can be judged: flows have several receivers, or
/// samples are too coarse.
pub(crate) fn time(samples: &Samples, flows: &[Flow], mtu: u32) -> Option<f64> {
    let counted: Vec<usize> = (0..flows.len()).filter(|f| !flows[*f].background).collect();
    let receiver = &flows[*counted.first()?].to;
    if counted.iter().any(|f| flows[*f].to != *receiver) {
        return None;
    }
    let interval = samples.interval_us;
    let count = counted.iter().map(|f| samples.gbps[*f].len()).min()?;
    let ends = counted.iter().filter_map(|f| Some(flows[*f].start_us + flows[*f].arrived_us?));
    let mut changes: Vec<f64> = counted.iter().map(|f| flows[*f].start_us).chain(ends).collect();
    changes.push(count as f64 * interval);
    changes.sort_by(f64::total_cmp);
    let packet = f64::from(mtu) * 8e-3;
    let mut worst: Option<f64> = None;
    for change in changes.windows(2) {
        let (from, until) = (change[0], change[1]);
        let active: Vec<&Vec<f64>> =
            counted.iter().filter(|f| flows[**f].is_active(from)).map(|f| &samples.gbps[*f]).collect();
        // Samples that lie between the changes.
        let (first, end) = ((from / interval).ceil() as usize, ((until / interval).floor() as usize).min(count));
        if active.is_empty() || first >= end {
            continue;
        }
        // What each gets in the end, if that is fair: an equal part of what all get.
        let tail = first + (end - first) / 2;
        let sum: f64 = active.iter().flat_map(|row| &row[tail..end]).sum();
        let share = sum / (end - tail) as f64 / active.len() as f64;
        let window = (PACKETS * packet / (share.max(1e-9) * interval)).ceil() as usize;
        if ((end - first) as f64) < QUIET * window as f64 || window as f64 * interval > until - from {
            continue;
        }
        let wanted = share * window as f64 * interval;
        let allowed = TOLERANCE * wanted + packet;
        let fair = |k: &usize| {
            active.iter().all(|row| (row[*k..k + window].iter().sum::<f64>() * interval - wanted).abs() <= allowed)
        };
        let began = (first..=end - window).find(fair).map_or(until, |k| k as f64 * interval);
        let took = began - from;
        worst = Some(worst.unwrap_or(0.0).max(took));
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two flows to one host, the second from 1,000 us on; after that the first falls from 10 to 5 Gbit/s by a half-life.
    fn case(half_life_us: f64) -> (Samples, Vec<Flow>) {
        let (interval_us, n) = (50.0, 80);
        let second = |k: usize| match (k as f64 + 0.5) * interval_us - 1_000.0 {
            t if t < 0.0 => 0.0,
            t => 5.0 * (1.0 - 0.5f64.powf(t / half_life_us)),
        };
        let gbps = vec![(0..n).map(|k| 10.0 - second(k)).collect(), (0..n).map(second).collect()];
        let flow = |start_us| Flow { to: "h2".into(), start_us, ..Flow::default() };
        (Samples { interval_us, gbps }, vec![flow(0.0), flow(1_000.0)])
    }

    #[test]
    fn time_follows_the_half_life() {
        let at = |half_life| {
            let (samples, flows) = case(half_life);
            time(&samples, &flows, 1_000).expect("there are changes")
        };
        assert_eq!(at(0.001), 0.0);
        // Windows of 50 us hold 31,250 bytes of a fair flow: 5 % and a packet is 8.2 % of that, after 3.6 half-lives.
        assert!((300.0..=400.0).contains(&at(100.0)), "{}", at(100.0));
        assert!((600.0..=800.0).contains(&at(200.0)), "{}", at(200.0));
        assert_eq!(at(1e6), 3_000.0, "it does not come in the time there is");
    }

    #[test]
    fn what_cannot_be_judged_is_not() {
        let (mut samples, mut flows) = case(100.0);
        assert_eq!(time(&samples, &flows, 100_000), None, "a window is longer than all samples");
        flows[1].to = "h3".into();
        assert_eq!(time(&samples, &flows, 1_000), None, "two receivers");
        samples.gbps.iter_mut().for_each(Vec::clear);
        flows[1].to = "h2".into();
        assert_eq!(time(&samples, &flows, 1_000), None, "no samples");
    }
}
