//! Goodput over time, and delays.

use std::fmt;
use std::time::{Duration, Instant};

use super::parcels::{Arrival, Departure};

/// Bytes received in bins of a millisecond.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    start: Instant,
    bins: Vec<u64>,
}

const BIN: Duration = Duration::from_millis(1);

impl Timeline {
    /// What has arrived since `start`.
    pub(crate) fn new(start: Instant, arrivals: &[Arrival]) -> Timeline {
        let mut timeline = Timeline { start, bins: Vec::new() };
        for arrival in arrivals.iter().filter(|a| a.at >= start) {
            let bin = timeline.bin(arrival.at);
            timeline.bins.resize(timeline.bins.len().max(bin + 1), 0);
            timeline.bins[bin] += u64::from(arrival.bytes);
        }
        timeline
    }

    /// What others have counted in bins of a millisecond.
    pub(crate) fn from_bins(start: Instant, bins: Vec<u64>) -> Timeline {
        Timeline { start, bins }
    }

    fn bin(&self, at: Instant) -> usize {
        (at.saturating_duration_since(self.start).as_nanos() / BIN.as_nanos()) as usize
    }

    fn sum(&self, from: usize, bins: usize) -> u64 {
        self.bins.iter().skip(from).take(bins).sum()
    }

    /// Bytes per second between two points in time.
    pub(crate) fn rate(&self, from: Instant, to: Instant) -> f64 {
        let (first, last) = (self.bin(from), self.bin(to));
        self.sum(first, last - first) as f64 / ((last - first) as f64 * BIN.as_secs_f64())
    }

    /// Goodput of each millisecond from `from`, in Mbit/s.
    pub(crate) fn each(&self, from: Instant, count: usize) -> Vec<f64> {
        (0..count).map(|i| self.sum(self.bin(from) + i, 1) as f64 * 8.0 / 1e3).collect()
    }

    /// The most that arrival falls behind a stream of `rate` bytes per second which begins at `from`, until `to`. That the
    /// sum counts makes it deaf to which side of a bin's edge a message lies on.
    pub(crate) fn lag(&self, from: Instant, to: Instant, rate: f64) -> Duration {
        let (first, last) = (self.bin(from), self.bin(to));
        let mut arrived = 0;
        let behind = (first..last).map(|bin| {
            arrived += self.bins.get(bin).copied().unwrap_or(0);
            (BIN * (bin - first + 1) as u32).saturating_sub(Duration::from_secs_f64(arrived as f64 / rate))
        });
        behind.max().unwrap_or_default()
    }

    /// The longest time in whole bins without a byte, between two points in time.
    pub(crate) fn longest_stall(&self, from: Instant, to: Instant) -> Duration {
        let bins = self.bins.iter().take(self.bin(to)).skip(self.bin(from));
        let (mut longest, mut now) = (0, 0);
        for bytes in bins {
            now = if *bytes == 0 { now + 1 } else { 0 };
            longest = longest.max(now);
        }
        BIN * longest
    }
}

/// How long messages took from posting to completion.
#[derive(Clone, Debug)]
pub(crate) struct Delays(Vec<Duration>);

impl Delays {
    /// Of the messages that were completed between two points in time.
    pub(crate) fn of(departures: &[Departure], from: Instant, to: Instant) -> Delays {
        let within = departures.iter().filter(|d| (from..to).contains(&d.completed));
        let mut delays: Vec<Duration> = within.map(|d| d.completed - d.posted).collect();
        delays.sort_unstable();
        Delays(delays)
    }

    /// The delay that a share of all messages does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }

    pub(crate) fn max(&self) -> Duration {
        self.quantile(1.0)
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |share| self.quantile(share).as_secs_f64() * 1e3;
        let (p50, p99, p999) = (ms(0.5), ms(0.99), ms(0.999));
        write!(f, "{} messages, ms: p50 {p50:.1} p99 {p99:.1} p99.9 {p999:.1} max {:.1}", self.0.len(), ms(1.0))
    }
}

/// Bytes per second as Mbit/s.
pub(crate) fn mbit(bytes_per_second: f64) -> f64 {
    bytes_per_second * 8.0 / 1e6
}
