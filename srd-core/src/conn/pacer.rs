//! Spaces bursts out so that they leave at the paced rate.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::time::{Span, Time};

/// When the next burst may leave.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    next: Time,
    rng: Xoshiro256PlusPlus,
}

impl Pacer {
    pub(super) fn new(rng: Xoshiro256PlusPlus) -> Pacer {
        Pacer { next: Time::ZERO, rng }
    }

    /// When a burst may leave that is `short` of a full datagram by this time's worth: it need not wait for what it does
    /// not use.
    pub(super) fn next(&self, short: Span) -> Time {
        self.next - short
    }

    /// Nothing leaves before some time between now and `gap` later, so that those who start together do not meet.
    pub(super) fn hold(&mut self, now: Time, gap: Span) {
        self.next = self.next.max(now + Span::from_secs_f64(gap.as_secs_f64() * self.rng.random::<f64>()));
    }

    /// A burst of `bytes` leaves at `rate` bytes per second. Time that was missed up to `credit` is made up for, so that
    /// late wake-ups do not lower the rate. The gap to the next one varies by up to `jitter` of itself in both directions.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, rate: f64, credit: Span, jitter: f64) {
        let mut gap = bytes as f64 / rate;
        if jitter > 0.0 {
            gap *= 1.0 + jitter * (2.0 * self.rng.random::<f64>() - 1.0);
        }
        self.next = self.next.max(now - credit) + Span::from_secs_f64(gap);
    }
}
