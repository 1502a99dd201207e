//! Time as an argument: the core never reads a clock.
//!
//! [`Time`] is a point on the owner's monotonic clock, [`Span`] a distance between two points; both count nanoseconds and
//! saturate, so that no sequence of inputs can make them wrap or panic.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// Nanoseconds since an origin that the owner of the clock chooses (program start, simulation start).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Time {
    /// The origin of the clock.
    pub const ZERO: Time = Time(0);
    /// A point that is never reached; "no deadline".
    pub const NEVER: Time = Time(u64::MAX);

    /// The point `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// How long ago `earlier` was; zero if it lies in the future.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// Longer than anything that is measured; "for ever".
    pub const MAX: Span = Span(u64::MAX);

    /// A span of `ns` nanoseconds.
    pub const fn from_nanos(ns: u64) -> Span {
        Span(ns)
    }

    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Span {
        Span(us.saturating_mul(1_000))
    }

    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(ms.saturating_mul(1_000_000))
    }

    /// A span of `s` seconds.
    pub const fn from_secs(s: u64) -> Span {
        Span(s.saturating_mul(1_000_000_000))
    }

    /// A span of `s` seconds; negative and not-a-number count as zero, too large as [`Span::MAX`].
    pub fn from_secs_f64(s: f64) -> Span {
        Span((s * 1e9) as u64)
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds, with fraction.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Seconds, with fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The absolute difference.
    pub const fn abs_diff(self, other: Span) -> Span {
        Span(self.0.abs_diff(other.0))
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, d: Span) -> Time {
        Time(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, d: Span) {
        *self = *self + d;
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, d: Span) -> Time {
        Time(self.0.saturating_sub(d.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, d: Span) -> Span {
        Span(self.0.saturating_add(d.0))
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, d: Span) -> Span {
        Span(self.0.saturating_sub(d.0))
    }
}

impl Mul<u64> for Span {
    type Output = Span;
    fn mul(self, k: u64) -> Span {
        Span(self.0.saturating_mul(k))
    }
}

impl Div<u64> for Span {
    type Output = Span;
    fn div(self, k: u64) -> Span {
        Span(self.0 / k)
    }
}

impl From<std::time::Duration> for Span {
    fn from(d: std::time::Duration) -> Span {
        Span(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for std::time::Duration {
    fn from(s: Span) -> std::time::Duration {
        std::time::Duration::from_nanos(s.0)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Time::NEVER => f.write_str("never"),
            Time(ns) => write!(f, "{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&std::time::Duration::from_nanos(self.0), f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
