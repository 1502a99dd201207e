//! The driver's clock.

use srd_core::{Span, Time};

use crate::sys;

/// Nanoseconds since the driver was made, on `CLOCK_MONOTONIC`. A reading takes about 30 ns (vDSO, no system call); std's
/// `Instant` takes a quarter more, and the run loop reads the clock several times per turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start_ns: u64,
}

/// A datagram cannot have been in the socket for longer: the real-time clock was set meanwhile.
const MAX_AGE_NS: u64 = 1_000_000_000;

impl Clock {
    /// A clock that starts now.
    pub(crate) fn new() -> Clock {
        Clock { start_ns: sys::monotonic_ns() }
    }

    /// The present time.
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(sys::monotonic_ns().saturating_sub(self.start_ns))
    }

    /// The time of a moment on `CLOCK_MONOTONIC`.
    pub(crate) fn at(&self, monotonic_ns: u64) -> Time {
        Time::from_nanos(monotonic_ns.saturating_sub(self.start_ns))
    }

    /// Reads both clocks, to convert real-time stamps of the recent past.
    pub(crate) fn reading(&self) -> Reading {
        let realtime_ns = sys::realtime_ns();
        // The monotonic clock last: then an age taken at the real-time clock never reaches into the future.
        Reading { realtime_ns, now: self.now() }
    }
}

/// Both clocks at one moment.
///
/// A stamp is converted by its age at the moment of reading, not by an offset between the clocks that was measured some
/// time ago: adjustments of the real-time clock then matter only if they happen while the datagram waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    realtime_ns: u64,
    now: Time,
}

impl Reading {
    /// The time of the real-time stamp `stamp_ns`, never later than the reading; the reading itself if it makes
    /// no sense.
    pub(crate) fn convert(&self, stamp_ns: u64) -> Time {
        let age = self.realtime_ns.saturating_sub(stamp_ns);
        if age <= MAX_AGE_NS { self.now - Span::from_nanos(age) } else { self.now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convert_keeps_the_age_and_refuses_nonsense() {
        let reading = Reading { realtime_ns: 1_000_000_000_000, now: Time::from_nanos(5_000_000_000) };
        let at = |stamp| reading.convert(stamp).as_nanos();
        assert_eq!(at(999_999_999_000), 4_999_999_000);
        assert_eq!(at(1_000_000_000_001), 5_000_000_000, "from the future");
        assert_eq!(at(0), 5_000_000_000, "older than any queue");
    }
}
