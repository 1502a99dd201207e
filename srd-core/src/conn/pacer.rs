//! Spaces bursts out so that they leave at the paced rate.

use crate::time::{Span, Time};

/// When the next burst may leave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    next: Time,
}

impl Pacer {
    /// When the next burst may leave.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// A burst of `bytes` leaves at `rate` bytes per second. Time that was missed up to `credit` is made up for, so that
    /// late wake-ups do not lower the rate.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, rate: f64, credit: Span) {
        self.next = self.next.max(now - credit) + Span::from_secs_f64(bytes as f64 / rate);
    }
}
