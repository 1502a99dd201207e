//! Spaces bursts out so that they leave at the paced rate.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::time::{Span, Time};

/// When the next burst may leave.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    next: Time,
    /// The rate at which `next` was reckoned.
    rate: f64,
    rng: Xoshiro256PlusPlus,
}

impl Pacer {
    pub(super) fn new(rng: Xoshiro256PlusPlus) -> Pacer {
        Pacer { next: Time::ZERO, rate: 0.0, rng }
    }

    /// The rate is another one now: so is what is left of the wait.
    pub(super) fn adapt(&mut self, now: Time, rate: f64) {
        if rate != self.rate && self.rate > 0.0 && self.next > now {
            self.next = now + Span::from_secs_f64(self.next.since(now).as_secs_f64() * self.rate / rate);
        }
        self.rate = rate;
    }

    /// No wait is longer than what this many bytes take at the present rate: neither for probes that did not wait, nor
    /// because the rate was a small part of what it is now.
    pub(super) fn limit(&mut self, now: Time, bytes: u64, rate: f64) {
        if self.next > now {
            self.next = self.next.min(now + Span::from_secs_f64(bytes as f64 / rate));
        }
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
    /// Bursts that do not wait for their turn put off the next one, see [`limit`](Self::limit).
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, rate: f64, credit: Span, jitter: f64) {
        let mut gap = bytes as f64 / rate;
        if jitter > 0.0 {
            gap *= 1.0 + jitter * (2.0 * self.rng.random::<f64>() - 1.0);
        }
        self.rate = rate;
        self.next = self.next.max(now - credit) + Span::from_secs_f64(gap);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// What leaves in a second when the rate changes every so often, in bytes, beside what the rates allow.
    fn carried(change_every: Span) -> (f64, f64) {
        let mut pacer = Pacer::new(Xoshiro256PlusPlus::seed_from_u64(1));
        let rates = [1e6, 64e6, 4e6, 16e6];
        let (mut now, mut sent, mut allowed) = (Time::ZERO, 0.0, 0.0);
        for i in 0.. {
            let (rate, end) = (rates[i % 4], now + change_every);
            if end > Time::ZERO + Span::from_secs(1) {
                return (sent, allowed);
            }
            pacer.adapt(now, rate);
            while pacer.next(Span::ZERO) <= end {
                now = now.max(pacer.next(Span::ZERO));
                pacer.on_sent(now, 9_000, rate, Span::ZERO, 0.0);
                sent += 9_000.0;
            }
            allowed += rate * change_every.as_secs_f64();
            now = end;
        }
        unreachable!()
    }

    #[test]
    fn a_wait_follows_the_rate() {
        // A packet takes 9 ms at the lowest rate: most changes fall into a wait.
        for us in [100, 700, 5_000, 50_000] {
            let (sent, allowed) = carried(Span::from_micros(us));
            assert!((sent - allowed).abs() <= 18_000.0, "{us} us: {sent} of {allowed}");
        }
    }

    #[test]
    fn a_wait_from_slower_times_ends() {
        let mut pacer = Pacer::new(Xoshiro256PlusPlus::seed_from_u64(1));
        for _ in 0..100 {
            // Probes, one per second of pace each.
            pacer.on_sent(Time::ZERO, 1_000, 1_000.0, Span::ZERO, 0.0);
            pacer.limit(Time::ZERO, 8_000, 1_000.0);
        }
        assert_eq!(pacer.next(Span::ZERO), Time::ZERO + Span::from_secs(8));
        pacer.limit(Time::ZERO + Span::from_secs(1), 8_000, 1e6);
        assert_eq!(pacer.next(Span::ZERO), Time::ZERO + Span::from_millis(1_008));
    }

    #[test]
    fn those_who_begin_at_once_keep_their_place_in_the_gap() {
        let mut pacer = Pacer::new(Xoshiro256PlusPlus::seed_from_u64(1));
        pacer.adapt(Time::ZERO, 1e6);
        pacer.hold(Time::ZERO, Span::from_millis(9));
        let place = pacer.next(Span::ZERO).since(Time::ZERO);
        pacer.adapt(Time::ZERO, 0.5e6);
        assert_eq!(pacer.next(Span::ZERO).since(Time::ZERO), place * 2, "half the rate, twice the gap");
    }
}
