//! Round-trip time estimation (RFC 6298 gains) with a windowed minimum.

use crate::time::{Span, Time};

/// Smoothed RTT, its variation, and the smallest recent RTT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    srtt: Span,
    var: Span,
    sampled: bool,
    min: WindowedMin,
}

impl Rtt {
    /// No sample yet; `initial` is assumed meanwhile.
    pub(crate) fn new(initial: Span) -> Rtt {
        Rtt { srtt: initial, var: initial / 2, sampled: false, min: WindowedMin::default() }
    }

    pub(crate) fn sample(&mut self, now: Time, rtt: Span) {
        self.min.sample(now, rtt);
        if !self.sampled {
            *self = Rtt { srtt: rtt, var: rtt / 2, sampled: true, min: self.min };
            return;
        }
        let error = self.srtt.abs_diff(rtt);
        self.var = Span::from_nanos((3 * self.var.as_nanos() + error.as_nanos()) / 4);
        self.srtt = Span::from_nanos((7 * self.srtt.as_nanos() + rtt.as_nanos()) / 8);
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
