//! Round-trip time estimation (RFC 6298 gains) with a windowed minimum.

use crate::time::{Span, Time};

/// Smoothed RTT, its variation, and the smallest recent RTT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    srtt: Span,
    var: Span,
    sampled: bool,
    min: WindowedMin,
    /// Whether the minimum is that of large packets, which take longer than small ones on every link: mixing them would
    /// make a queue of what is none.
    large: bool,
}

impl Rtt {
    /// No sample yet; `initial` is assumed meanwhile.
    pub(crate) fn new(initial: Span) -> Rtt {
        Rtt { srtt: initial, var: initial / 2, sampled: false, min: WindowedMin::default(), large: false }
    }

    /// A sample of a packet that is `large` or not; large ones take at most `longer` on their way.
    pub(crate) fn sample(&mut self, now: Time, rtt: Span, large: bool, longer: Span) {
        if large && !self.large {
            self.large = true;
            let bound = self.min.get().map(|min| min + longer);
            self.min = WindowedMin::default();
            if let Some(bound) = bound {
                self.min.sample(now, bound);
            }
        }
        if large == self.large {
            self.min.sample(now, rtt);
        }
        if !std::mem::replace(&mut self.sampled, true) {
            (self.srtt, self.var) = (rtt, rtt / 2);
            return;
        }
        let error = self.srtt.abs_diff(rtt);
        self.var = Span::from_nanos((3 * self.var.as_nanos() + error.as_nanos()) / 4);
        self.srtt = Span::from_nanos((7 * self.srtt.as_nanos() + rtt.as_nanos()) / 8);
    }

    /// Takes this for the variation.
    pub(crate) fn expect_var(&mut self, var: Span) {
        self.var = var;
    }

    /// The route is another one: its smallest RTT is yet to be seen.
    pub(crate) fn forget_min(&mut self) {
        self.min = WindowedMin::default();
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.sampled
    }

    pub(crate) fn srtt(&self) -> Span {
        self.srtt
    }

    /// Variation (RFC 6298).
    pub(crate) fn var(&self) -> Span {
        self.var
    }

    /// Smallest RTT of the last 5 to 10 seconds; the assumed RTT before the first sample.
    pub(crate) fn min(&self) -> Span {
        self.min.get().unwrap_or(self.srtt)
    }

    /// `srtt + max(4 rttvar, granularity)` (RFC 6298 section 2).
    pub(crate) fn timeout(&self, granularity: Span) -> Span {
        self.srtt + (self.var * 4).max(granularity)
    }
}

/// Minimum over two buckets of 5 s each, so that a minimum is forgotten after 5 to 10 s.
#[derive(Clone, Copy, Debug, Default)]
struct WindowedMin {
    since: Time,
    current: Option<Span>,
    previous: Option<Span>,
}

const BUCKET: Span = Span::from_secs(5);

impl WindowedMin {
    fn sample(&mut self, now: Time, v: Span) {
        let age = now.since(self.since);
        if age > BUCKET {
            // After a pause that is no previous bucket, but one of long ago.
            self.previous = self.current.take().filter(|_| age <= BUCKET * 2);
            self.since = now;
        }
        self.current = Some(self.current.map_or(v, |c| c.min(v)));
    }

    fn get(&self) -> Option<Span> {
        match (self.current, self.previous) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_is_forgotten_after_ten_seconds_and_not_before_five() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        // A sample every so often, the first of them the least.
        for (every, pause) in [(1, 0), (900, 0), (4_000, 0), (1, 11_000), (900, 100_000)] {
            let mut rtt = Rtt::new(Span::from_millis(1));
            let first = 60_000;
            rtt.sample(at(first), Span::from_micros(10), true, Span::ZERO);
            for ms in (first + pause + every..first + pause + 20_000).step_by(every as usize) {
                rtt.sample(at(ms), Span::from_micros(50), true, Span::ZERO);
                let age = ms - first;
                match rtt.min().as_nanos() {
                    10_000 => assert!(age <= 10_000 + every, "known after {age} ms"),
                    _ => assert!(age >= 5_000, "forgotten after {age} ms"),
                }
            }
        }
    }
}
