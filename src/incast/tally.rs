//! What the receiver counts: bytes per flow, when the last one came, and how many came in each interval.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::clock::Clock;

/// What the threads of a run look at while they work.
#[derive(Debug)]
pub(super) struct Signals {
    /// When the flows start, on this process's clock; [`NOT_YET`] until that is agreed.
    start: AtomicI64,
    stop: AtomicBool,
}

const NOT_YET: i64 = i64::MIN;

impl Signals {
    pub(super) fn new() -> Signals {
        Signals { start: AtomicI64::new(NOT_YET), stop: AtomicBool::new(false) }
    }

    pub(super) fn go(&self, at: i64) {
        self.start.store(at, Ordering::Release);
    }

    pub(super) fn start(&self) -> Option<i64> {
        Some(self.start.load(Ordering::Acquire)).filter(|at| *at != NOT_YET)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// How to count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// Bytes that make a flow complete.
    pub(super) size: Option<u64>,
    /// Length of a sample in nanoseconds, and how many there are; what comes later is not counted.
    pub(super) samples: Option<(i64, usize)>,
}

/// One flow, as the receiver saw it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) bytes: u64,
    /// When the last byte came.
    pub(super) arrived: Option<i64>,
    /// Bytes per sample.
    pub(super) samples: Vec<u64>,
}

impl Tally {
    /// Takes note of bytes that came just now.
    pub(super) fn add(&mut self, counting: Counting, signals: &Signals, clock: Clock, bytes: u64) {
        let now = clock.now();
        if let Some((interval, count)) = counting.samples {
            let Some(since) = signals.start().map(|start| now - start).filter(|t| *t >= 0) else { return };
            let Some(index) = usize::try_from(since / interval).ok().filter(|i| *i < count) else { return };
            self.samples.resize(count, 0);
            self.samples[index] += bytes;
        }
        self.bytes += bytes;
        if self.arrived.is_none() && counting.size.is_some_and(|size| self.bytes >= size) {
            self.arrived = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_to_the_sample_of_their_time() {
        let (clock, signals) = (Clock::new(), Signals::new());
        let counting = Counting { size: None, samples: Some((3_600_000_000_000, 2)) };
        let mut tally = Tally::default();
        tally.add(counting, &signals, clock, 5);
        assert_eq!(tally.bytes, 0, "nothing has started");
        signals.go(clock.now() - 4_000_000_000_000);
        tally.add(counting, &signals, clock, 5);
        assert_eq!((tally.bytes, &tally.samples[..]), (5, &[0, 5][..]));
        signals.go(clock.now() - 8_000_000_000_000);
        tally.add(counting, &signals, clock, 5);
        assert_eq!(tally.bytes, 5, "later than the last sample");
    }

    #[test]
    fn a_flow_is_complete_with_its_last_byte() {
        let (clock, signals, counting) = (Clock::new(), Signals::new(), Counting { size: Some(10), samples: None });
        let mut tally = Tally::default();
        tally.add(counting, &signals, clock, 9);
        assert_eq!(tally.arrived, None);
        tally.add(counting, &signals, clock, 1);
        assert!(tally.arrived.is_some());
    }
}
