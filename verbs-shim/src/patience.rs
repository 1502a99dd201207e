//! When a program that polls in vain lets others run.
//!
//! Where cores are few, whoever is to send what a program waits for may need the core that it polls on. But a program of
//! several threads polls with locks of its own held, often spinning ones (UCX's workers): a thread that sleeps with such a
//! lock keeps the others from it, and takes it again first. So only a program that uses the card from one thread yields.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Turns without anything moving after which the core is offered to others.
const TURNS: u32 = 100;
/// No thread has polled yet.
const NOBODY: usize = 0;
/// More than one thread has.
const SEVERAL: usize = 1;

/// How patient the poller of a card is.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Turns in a row in which nothing moved.
    idle: AtomicU32,
    /// The thread that polls, as an address of its own, or one of the two above.
    poller: AtomicUsize,
}

impl Patience {
    /// The calling thread drove a turn, in which something moved or not. Says whether it should yield.
    #[inline]
    pub(crate) fn is_over(&self, moved: bool) -> bool {
        let alone = self.is_alone();
        if moved {
            self.idle.store(0, Ordering::Relaxed);
            return false;
        }
        alone && self.idle.fetch_add(1, Ordering::Relaxed) >= TURNS
    }

    /// Whether no other thread has been here before.
    #[inline]
    fn is_alone(&self) -> bool {
        thread_local!(static HERE: u8 = const { 0 });
        // An address of a living thread is no other one's, and not 0 or 1. One that ended may lend its address: it is gone.
        let me = HERE.with(|here| from_ref(here).addr());
        match self.poller.load(Ordering::Relaxed) {
            known if known == me => true,
            SEVERAL => false,
            NOBODY => self.poller.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
            _ => {
                self.poller.store(SEVERAL, Ordering::Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_poller_yields_after_many_turns_in_vain() {
        let patience = Patience::default();
        assert!((0..TURNS).all(|_| !patience.is_over(false)));
        assert!(patience.is_over(false) && patience.is_over(false));
        assert!(!patience.is_over(true) && !patience.is_over(false), "something moved: patient again");
    }

    /// NIXL's two threads poll under a spinning lock of UCX: yielding there starved the other one for seconds.
    #[test]
    fn nobody_yields_where_several_threads_poll() {
        let patience = Patience::default();
        assert!(!patience.is_over(false));
        std::thread::scope(|scope| {
            // The first thread lives on, so the addresses differ.
            scope.spawn(|| assert!((0..2 * TURNS).all(|_| !patience.is_over(false))));
        });
        assert!((0..2 * TURNS).all(|_| !patience.is_over(false)));
    }
}
