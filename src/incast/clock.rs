//! Monotonic time of this host, as a number that travels.

use std::thread;
use std::time::{Duration, Instant};

/// Nanoseconds since some moment of this process. Clocks of two processes differ by an offset that the receiver measures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(super) fn now(self) -> i64 {
        i64::try_from(self.0.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The time of a moment, which may lie before this clock's beginning.
    pub(super) fn at(self, moment: Instant) -> i64 {
        let ns = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        match moment.checked_duration_since(self.0) {
            Some(after) => ns(after),
            None => -ns(self.0.duration_since(moment)),
        }
    }

    /// Sleeps until a time of this clock.
    pub(super) fn sleep_until(self, at: i64) {
        thread::sleep(duration(at - self.now()));
    }
}

/// A span of time; none if it is negative.
pub(super) fn duration(ns: i64) -> Duration {
    Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
}

/// A duration in nanoseconds.
pub(super) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}
