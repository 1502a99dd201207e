//! Which thread of a program waits by polling, and whether it is the only one.
//!
//! A program may poll a card from several threads with locks of its own held, often spinning ones (UCX's workers): a thread that
//! gives away its core with such a lock keeps the others from it, and takes it again first. But a thread that looks in now and
//! then and sleeps in between (UCX's timers over UD) spins on nothing.

use std::cell::Cell;
use std::ptr::from_ref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nix::sys::resource::{UsageWho, getrusage};
use srd_core::{Span, Time};

/// No thread was seen to spin yet.
const NOBODY: usize = 0;
/// More than one thread was.
const SEVERAL: usize = 1;
/// A thread that polls so often in vain without having slept spins.
const SPINS: u32 = 16;
/// For so long the only spinner has company when another thread turned up of which nothing is known: it may spin on a lock that
/// it gets only rarely.
const VISIT: Span = Span::from_millis(20);

/// The thread that spins on a card.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// An address of its own, or one of the two above.
    spinner: AtomicUsize,
    /// Until when it has company, in nanoseconds of the driver's clock.
    company_until: AtomicU64,
}

/// What is known of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Unknown,
    /// It slept since it was here last.
    Sleeper,
    Spinner,
}

/// What a thread remembers of its visits.
#[derive(Clone, Copy, Debug)]
struct Visits {
    /// How often it had slept when it was here last.
    sleeps: i64,
    /// Visits in a row since it slept.
    awake: u32,
    kind: Kind,
}

impl Visits {
    const NONE: Visits = Visits { sleeps: -1, awake: 0, kind: Kind::Unknown };

    /// The same after another visit of a thread that has slept so often in its life.
    fn next(self, sleeps: i64) -> Visits {
        let slept = self.sleeps >= 0 && self.sleeps != sleeps;
        let awake = if slept { 0 } else { self.awake + 1 };
        let kind = match slept {
            true => Kind::Sleeper,
            false if awake >= SPINS => Kind::Spinner,
            false => self.kind,
        };
        Visits { sleeps, awake, kind }
    }
}

impl Poller {
    /// The calling thread has polled in vain for long by `now`. Says whether it spins on the card and no other thread does.
    #[inline]
    pub(crate) fn spins_alone(&self, now: Time) -> bool {
        thread_local!(static HERE: Cell<Visits> = const { Cell::new(Visits::NONE) });
        HERE.with(|here| {
            // An address of a living thread is no other one's, and not 0 or 1. One that ended may lend its address: it is gone.
            let me = from_ref(here).addr();
            match self.spinner.load(Ordering::Relaxed) {
                known if known == me => self.company_until.load(Ordering::Relaxed) <= now.as_nanos(),
                SEVERAL => false,
                other => {
                    let visits = here.get().next(sleeps());
                    here.set(visits);
                    self.visited(me, other, visits.kind, now)
                }
            }
        })
    }

    /// A thread was here that is not `spinner`. Says whether it is from now on.
    #[cold]
    fn visited(&self, me: usize, spinner: usize, kind: Kind, now: Time) -> bool {
        match (kind, spinner) {
            (Kind::Sleeper, _) | (Kind::Unknown, NOBODY) => false,
            (Kind::Unknown, _) => {
                self.company_until.store((now + VISIT).as_nanos(), Ordering::Relaxed);
                false
            }
            (Kind::Spinner, NOBODY) => {
                self.spinner.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            }
            (Kind::Spinner, _) => {
                self.spinner.store(SEVERAL, Ordering::Relaxed);
                false
            }
        }
    }
}

/// How often the calling thread has waited for something else than a core. Takes 0.2 us.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// Has this thread poll for so long that it is known to spin, or not to.
    fn spin(poller: &Poller, now: Time) -> bool {
        (0..SPINS).fold(false, |_, _| poller.spins_alone(now))
    }

    #[test]
    fn a_thread_that_does_not_sleep_spins() {
        let mut visits = Visits::NONE.next(7);
        assert_eq!(visits.kind, Kind::Unknown, "its life before counts for nothing");
        for _ in 2..SPINS {
            visits = visits.next(7);
            assert_eq!(visits.kind, Kind::Unknown);
        }
        visits = visits.next(7);
        assert_eq!(visits.kind, Kind::Spinner);
        visits = visits.next(8);
        assert_eq!(visits.kind, Kind::Sleeper);
        assert!((1..SPINS).all(|_| {
            visits = visits.next(8);
            visits.kind == Kind::Sleeper
        }));
        assert_eq!(visits.next(8).kind, Kind::Spinner, "not any more");
    }

    #[test]
    fn what_sleeps_is_told_by_the_kernel() {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(sleeps() > before);
    }

    /// NIXL's two threads poll under a spinning lock of UCX: yielding there starved the other one for seconds.
    #[test]
    fn nobody_spins_alone_where_several_threads_do() {
        let poller = Poller::default();
        assert!(spin(&poller, at(1)));
        let other = |now| {
            // This thread lives on, so the addresses differ.
            std::thread::scope(|scope| scope.spawn(|| spin(&poller, now)).join().expect("no panic"))
        };
        assert!(!other(at(2)));
        assert!(!spin(&poller, at(1000)) && !other(at(1000)));
    }

    #[test]
    fn a_thread_of_which_nothing_is_known_is_company_for_a_while() {
        let poller = Poller::default();
        let visit = |now| std::thread::scope(|scope| scope.spawn(|| poller.spins_alone(now)).join().expect("no panic"));
        assert!(!visit(at(1)) && spin(&poller, at(1)), "it came before");
        assert!(!visit(at(2)));
        assert!(!poller.spins_alone(at(21)) && poller.spins_alone(at(22)));
    }

    /// As UCX's timers over UD do.
    #[test]
    fn a_thread_that_looks_in_and_sleeps_disturbs_nobody() {
        let poller = Poller::default();
        assert!(spin(&poller, at(1)));
        let look_in = || {
            (0..4).for_each(|_| {
                poller.spins_alone(at(2));
                std::thread::sleep(std::time::Duration::from_millis(1));
            });
            poller.spins_alone(at(500))
        };
        let spins = std::thread::scope(|scope| scope.spawn(look_in).join().expect("no panic"));
        assert!(!spins && poller.spins_alone(at(501)));
    }
}
