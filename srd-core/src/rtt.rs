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
        if now.since(self.since) > BUCKET {
            self.previous = self.current.take();
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
    fn a_minimum_is_remembered_for_five_seconds_and_forgotten_after_ten() {
        let (short, long) = (Span::from_micros(10), Span::from_micros(50));
        for begin in 0..6 {
            let at = |second: u64| Time::ZERO + Span::from_secs(second);
            let mut rtt = Rtt::new(long);
            (0..begin).for_each(|s| rtt.sample(at(s), long, true, Span::ZERO));
            rtt.sample(at(begin), short, true, Span::ZERO);
            for s in begin + 1..begin + 15 {
                rtt.sample(at(s), long, true, Span::ZERO);
                let age = s - begin;
                assert!(age > 5 || rtt.min() == short, "after {age} s");
                assert!(age <= 11 || rtt.min() == long, "after {age} s");
            }
        }
    }
}
