//! When a program that polls in vain lets others run.
//!
//! Where cores are few, whoever is to send what a program waits for may need the core that it polls on. Only a thread that spins
//! alone gives it away, see `poller.rs`.

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
    /// When the first turn since then was in vain.
    idle_since: Option<Time>,
}

impl Patience {
    /// Something moved, or the program asked for it.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.idle_since = None;
    }

    /// A turn was driven in vain at `now`. Says whether nothing has moved for long.
    #[inline]
    pub(crate) fn is_over(&mut self, now: Time, cores_are_scarce: bool) -> bool {
        let patience = if cores_are_scarce { SHORT } else { PATIENCE };
        now.since(*self.idle_since.get_or_insert(now)) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    #[test]
    fn it_is_over_when_nothing_moves_for_long() {
        let mut patience = Patience::default();
        // However many turns that are.
        assert!((0..600).all(|turn| !patience.is_over(at(1_000 + turn / 10), false)));
        assert!(patience.is_over(at(1_060), false) && patience.is_over(at(1_061), false));
        patience.begin();
        assert!(!patience.is_over(at(2_000), false), "it may not have polled for long");
        assert!(!patience.is_over(at(2_059), false) && patience.is_over(at(2_060), false));
    }

    #[test]
    fn it_is_over_sooner_where_cores_are_scarce() {
        let mut patience = Patience::default();
        assert!(!patience.is_over(at(1_000), true) && !patience.is_over(at(1_004), true));
        assert!(patience.is_over(at(1_005), true));
        assert!(!patience.is_over(at(1_059), false));
    }
}
