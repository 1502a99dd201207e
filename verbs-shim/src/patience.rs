//! When a program that polls in vain lets others run.
//!
//! Where cores are few, whoever is to send what a program waits for may need the core that it polls on. But a program of
//! several threads polls with locks of its own held, often spinning ones (UCX's workers): a thread that sleeps with such a
//! lock keeps the others from it, and takes it again first. So only a program that uses the card from one thread yields.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use srd_core::{Span, Time};

/// How long nothing moves until the core is offered to others: several round trips of a fast network, because whoever
/// yields is late for what arrives meanwhile. It is a time and no number of turns, since a turn in vain takes 0.6 us over a
/// socket, and a tenth of that over AF_XDP.
const PATIENCE: Span = Span::from_micros(60);
/// The same where cores are scarce: then whoever is to send is likely to need this one. (Open MPI, which yields by itself where
/// it knows that there are few cores, does not while it waits for a send.)
const SHORT: Span = Span::from_micros(5);
/// No thread has polled yet.
const NOBODY: usize = 0;
/// More than one thread has.
const SEVERAL: usize = 1;

/// How patient the poller of a processing unit is.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// When the first turn since then was in vain, in nanoseconds of the driver's clock; 0 if none was.
    idle_since: AtomicU64,
    cores_are_scarce: AtomicBool,
}

/// The thread that polls a card, as an address of its own, or one of the two above.
#[derive(Debug, Default)]
pub(crate) struct Poller(AtomicUsize);

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

    /// The calling thread drove a turn in vain at `now`. Says whether it should yield.
    #[inline]
    pub(crate) fn is_over(&self, poller: &Poller, now: Time) -> bool {
        let alone = poller.is_alone();
        let since = self.idle_since.load(Ordering::Relaxed);
        if since == 0 {
            self.idle_since.store(now.as_nanos(), Ordering::Relaxed);
            return false;
        }
        let patience = if self.cores_are_scarce.load(Ordering::Relaxed) { SHORT } else { PATIENCE };
        alone && Time::from_nanos(since) + patience <= now
    }
}

impl Poller {
    /// Whether no other thread has been here before.
    #[inline]
    fn is_alone(&self) -> bool {
        thread_local!(static HERE: u8 = const { 0 });
        // An address of a living thread is no other one's, and not 0 or 1. One that ended may lend its address: it is gone.
        let me = HERE.with(|here| from_ref(here).addr());
        match self.0.load(Ordering::Relaxed) {
            known if known == me => true,
            SEVERAL => false,
            NOBODY => self.0.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
            _ => {
                self.0.store(SEVERAL, Ordering::Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_poller_yields_when_nothing_moves_for_long() {
        let (patience, poller) = (Patience::default(), Poller::default());
        let at = |us| Time::ZERO + Span::from_micros(us);
        // However many turns that are.
        assert!((0..600).all(|turn| !patience.is_over(&poller, at(1_000 + turn / 10))));
        assert!(patience.is_over(&poller, at(1_060)) && patience.is_over(&poller, at(1_061)));
        patience.begin();
        assert!(!patience.is_over(&poller, at(2_000)), "it may not have polled for long");
        assert!(!patience.is_over(&poller, at(2_059)) && patience.is_over(&poller, at(2_060)));
    }

    #[test]
    fn it_yields_sooner_where_cores_are_scarce() {
        let (patience, poller) = (Patience::default(), Poller::default());
        let at = |us| Time::ZERO + Span::from_micros(us);
        patience.note_cores(true);
        assert!(!patience.is_over(&poller, at(1_000)) && !patience.is_over(&poller, at(1_004)));
        assert!(patience.is_over(&poller, at(1_005)));
        patience.note_cores(false);
        assert!(!patience.is_over(&poller, at(1_059)));
    }

    /// NIXL's two threads poll under a spinning lock of UCX: yielding there starved the other one for seconds.
    #[test]
    fn nobody_yields_where_several_threads_poll() {
        let (patience, poller) = (Patience::default(), Poller::default());
        let at = |s| Time::ZERO + Span::from_secs(s);
        assert!(!patience.is_over(&poller, at(1)) && patience.is_over(&poller, at(2)));
        std::thread::scope(|scope| {
            // The first thread lives on, so the addresses differ.
            scope.spawn(|| assert!(!patience.is_over(&poller, at(3))));
        });
        assert!(!patience.is_over(&poller, at(4)));
    }
}
