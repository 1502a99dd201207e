//! When a program that polls in vain lets others run.
//!
//! Where cores are few, whoever is to send what a program waits for may need the core that it polls on. Only a thread that spins
//! alone gives it away, see `poller.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use srd_core::{Span, Time};

/// How long nothing moves until the core is offered to others: several round trips of a fast network, because whoever
/// yields is late for what arrives meanwhile. It is a time and no number of turns, since a turn in vain takes 0.6 us over a
/// socket, and a tenth of that over AF_XDP.
const PATIENCE: Span = Span::from_micros(60);
/// The same where cores are scarce: then whoever is to send is likely to need this one. (Open MPI, which yields by itself where
/// it knows that there are few cores, does not while it waits for a send.)
const SHORT: Span = Span::from_micros(5);

/// How patient the poller of a processing unit is.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// When the first turn since then was in vain, in nanoseconds of the driver's clock; 0 if none was.
    idle_since: AtomicU64,
    cores_are_scarce: AtomicBool,
}

impl Patience {
    /// Something moved, or the program asked for it.
    #[inline]
    pub(crate) fn begin(&self) {
        self.idle_since.store(0, Ordering::Relaxed);
    }

    /// Whether there are enough cores for all that wants to run.
    pub(crate) fn note_cores(&self, scarce: bool) {
        self.cores_are_scarce.store(scarce, Ordering::Relaxed);
    }

    /// A turn was driven in vain at `now`. Says whether nothing has moved for long.
    #[inline]
    pub(crate) fn is_over(&self, now: Time) -> bool {
        let since = self.idle_since.load(Ordering::Relaxed);
        if since == 0 {
            self.idle_since.store(now.as_nanos(), Ordering::Relaxed);
            return false;
        }
        let patience = if self.cores_are_scarce.load(Ordering::Relaxed) { SHORT } else { PATIENCE };
        Time::from_nanos(since) + patience <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_nothing_moves_for_long() {
        let patience = Patience::default();
        let at = |us| Time::ZERO + Span::from_micros(us);
        // However many turns that are.
        assert!((0..600).all(|turn| !patience.is_over(at(1_000 + turn / 10))));
        assert!(patience.is_over(at(1_060)) && patience.is_over(at(1_061)));
        patience.begin();
        assert!(!patience.is_over(at(2_000)), "it may not have polled for long");
        assert!(!patience.is_over(at(2_059)) && patience.is_over(at(2_060)));
    }

    #[test]
    fn it_is_over_sooner_where_cores_are_scarce() {
        let patience = Patience::default();
        let at = |us| Time::ZERO + Span::from_micros(us);
        patience.note_cores(true);
        assert!(!patience.is_over(at(1_000)) && !patience.is_over(at(1_004)));
        assert!(patience.is_over(at(1_005)));
        patience.note_cores(false);
        assert!(!patience.is_over(at(1_059)));
    }
}
