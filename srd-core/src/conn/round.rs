//! A round: about a round trip's worth of acknowledgements, and what it says.

use crate::seq::Seq;
use crate::time::{Span, Time};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) start: Time,
    /// The round ends when this packet or a later one is acknowledged.
    pub(super) end: Seq,
    /// Packets acknowledged, lost on paths that work, and lost on paths that are silent; bytes acknowledged.
    acked: u32,
    pub(super) lost: u32,
    pub(super) dead: u32,
    bytes: u64,
    /// When the oldest and the newest of those that were acknowledged were sent.
    sent: Option<(Time, Time)>,
    /// Whether rate or window held us back, in this round and in the last one.
    pub(super) limited: bool,
    pub(super) was_limited: bool,
    pub(super) samples: u32,
    /// The last queueing delays, across rounds.
    pub(super) recent_queue: [Span; 4],
}

impl Round {
    pub(super) fn new(start: Time, end: Seq) -> Round {
        Round { start, end, ..Round::default() }
    }

    /// The next one begins.
    pub(super) fn next(&self, start: Time, end: Seq) -> Round {
        Round { was_limited: self.limited, recent_queue: self.recent_queue, ..Round::new(start, end) }
    }

    /// So many packets and bytes were acknowledged, that were sent between these times.
    pub(super) fn on_acked(&mut self, packets: u32, bytes: u64, oldest: Time, newest: Time) {
        self.acked += packets;
        self.bytes += bytes;
        let (from, to) = self.sent.unwrap_or((oldest, newest));
        self.sent = Some((from.min(oldest), to.max(newest)));
    }

    /// Bytes per second that the network delivers, as of `now`, if the round has lasted long enough to tell.
    ///
    /// Acknowledgements that were held up come all at once, and then say nothing of the rate: no more can have been
    /// delivered than was sent, so the rate is that of sending where that took longer, and no time is shorter than the
    /// smallest RTT (as in BBR's estimate of the delivery rate).
    pub(super) fn delivery_rate(&self, now: Time, min_rtt: Span) -> Option<f64> {
        let (oldest, newest) = self.sent?;
        let acknowledged = now.since(self.start);
        if acknowledged < min_rtt {
            return None;
        }
        let took = acknowledged.max(newest.since(oldest)).max(Span::from_nanos(1));
        Some(self.bytes as f64 / took.as_secs_f64())
    }

    /// Share of lost packets, with `dead` of those on silent paths.
    pub(super) fn loss_share(&self, dead: u32) -> f64 {
        let lost = self.lost + dead;
        f64::from(lost) / f64::from((lost + self.acked).max(1))
    }

    /// So much is gone that it cannot be a matter of some paths. (Half of all spines may die at once; then one round is
    /// mistaken for congestion.)
    pub(super) fn is_disaster(&self) -> bool {
        self.loss_share(self.dead) > 0.5 && self.lost + self.dead > 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    const MIN_RTT: Span = Span::from_micros(50);

    /// Sends at random, in bursts and with pauses, lets the acknowledgements pile up now and then, in any order, and ends
    /// rounds at random.
    #[test]
    fn no_sample_exceeds_what_was_sent_in_the_time_in_which_it_was_sent() {
        for seed in 0..200 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (mut now, mut round) = (Time::from_nanos(1), Round::default());
            let mut log: Vec<(Time, u64)> = Vec::new();
            let mut waiting = Vec::new();
            let mut samples = 0;
            for _ in 0..2_000 {
                let pause = if rng.random_bool(0.01) { 50_000_000 } else { rng.random_range(0..40_000) };
                now += Span::from_nanos(pause);
                for _ in 0..rng.random_range(0..4) {
                    log.push((now, rng.random_range(64..9_000)));
                    waiting.push(*log.last().expect("just pushed"));
                }
                if rng.random_bool(0.3) {
                    for _ in 0..rng.random_range(0..=waiting.len()) {
                        let (at, bytes) = waiting.swap_remove(rng.random_range(0..waiting.len()));
                        round.on_acked(1, bytes, at, at);
                    }
                }
                let Some(rate) = round.delivery_rate(now, MIN_RTT) else { continue };
                samples += 1;
                let (oldest, newest) = round.sent.expect("packets");
                let sent: u64 = log.iter().filter(|(at, _)| (oldest..=newest).contains(at)).map(|(_, b)| b).sum();
                let took = newest.since(oldest).max(MIN_RTT).as_secs_f64();
                assert!(rate <= sent as f64 / took * 1.000_001, "seed {seed}: {rate} B/s of {sent} B in {took} s");
                if rng.random_bool(0.5) {
                    round = round.next(now, Seq(0));
                }
            }
            assert!(samples > 100, "seed {seed}: {samples} samples");
        }
    }

    #[test]
    fn acknowledgements_that_were_held_up_do_not_make_a_slow_network_fast() {
        // 50 MB/s for 100 ms, and nothing is heard of it until the end of an outage.
        let mut round = Round::new(Time::from_nanos(100_000_000), Seq(0));
        let sent = |i: u64| Time::from_nanos(i * 20_000);
        for i in 0..5_000 {
            round.on_acked(1, 1_000, sent(i), sent(i));
        }
        let rate = round.delivery_rate(Time::from_nanos(100_060_000), MIN_RTT).expect("a round trip has passed");
        assert!((49e6..51e6).contains(&rate), "{rate}");
        assert_eq!(round.delivery_rate(Time::from_nanos(100_040_000), MIN_RTT), None, "too soon to tell");
    }
}
