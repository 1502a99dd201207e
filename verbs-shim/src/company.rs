//! What waits for company before it is sent: messages posted while others are under way, and acknowledgements of what was
//! handed out. A system call costs as much as posting ten short messages.
//!
//! A program that posts and polls is back soon, and all of it leaves then. One that posts and computes counts on a device that
//! works meanwhile: whoever stayed away for long is not trusted for a while to come back, and what it posts does not wait.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use srd_core::{Span, Time};

/// Messages that wait at most: enough to share the cost of a system call, few against the depth of queues (512 and more, where
/// that cost counts), so that both ends have something to do at the same time.
const SENDS: u32 = 256;
/// Receives whose acknowledgement waits at most: fewer, so that the sender goes on while the rest of its messages is taken.
const RECEIVES: u32 = 64;
/// Waiting for longer is a loss: more than a round trip with everything that it may have to queue behind.
const LONG: Span = Span::from_micros(100);
/// So many posts do not wait after that. Then it is tried again.
const DISTRUST: u32 = 64;

/// What waits. Used under the lock of its card only.
#[derive(Debug, Default)]
pub(crate) struct Company {
    waiting: AtomicU32,
    /// Since when the first message of them waits, in nanoseconds of the driver's clock; 0 if there is none.
    since: AtomicU64,
    /// Posts to come that do not wait.
    distrust: AtomicU32,
}

impl Company {
    /// So many messages were posted together. Says whether all that waits leaves now.
    #[inline]
    pub(crate) fn posted(&self, count: usize, now: impl FnOnce() -> Time) -> bool {
        let distrust = self.distrust.load(Ordering::Relaxed);
        if distrust > 0 {
            self.distrust.store(distrust - 1, Ordering::Relaxed);
            return true;
        }
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(now().as_nanos(), Ordering::Relaxed);
        }
        self.join(count) >= SENDS
    }

    /// So many receives were handed out. Says whether all that waits leaves now.
    #[inline]
    pub(crate) fn handed_out(&self, count: usize) -> bool {
        self.join(count) >= RECEIVES
    }

    #[inline]
    fn join(&self, count: usize) -> u32 {
        let waiting = self.waiting.load(Ordering::Relaxed).saturating_add(count as u32);
        self.waiting.store(waiting, Ordering::Relaxed);
        waiting
    }

    /// Whether any wait.
    pub(crate) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// All leave.
    #[inline]
    pub(crate) fn leave(&self, now: Time) {
        self.waiting.store(0, Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            self.since.store(0, Ordering::Relaxed);
            if Time::from_nanos(since) + LONG < now {
                self.distrust.store(DISTRUST, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    /// How many come, one by one, until all leave.
    fn party(company: &Company, joins: impl Fn() -> bool) -> u32 {
        let party = (1..).find(|_| joins()).expect("a number");
        company.leave(at(1000));
        party
    }

    #[test]
    fn enough_leave_together() {
        let company = Company::default();
        let (posted, handed_out) = (|| company.posted(1, || at(1000)), || company.handed_out(1));
        assert_eq!((party(&company, posted), party(&company, handed_out)), (SENDS, RECEIVES));
        assert!(company.posted(SENDS as usize, || at(1000)), "all at once");
        company.leave(at(1000));
        assert!(!posted() && !company.handed_out(RECEIVES as usize - 2) && company.any());
        assert!(handed_out(), "of both kinds");
    }

    #[test]
    fn nothing_waits_for_a_program_that_stays_away() {
        let company = Company::default();
        let party = || party(&company, || company.posted(1, || at(1000)));
        company.handed_out(1);
        company.leave(at(9000));
        assert_eq!(party(), SENDS, "it posted nothing");
        company.posted(1, || at(2000));
        company.posted(1, || unreachable!("the first counts"));
        company.leave(at(2000) + LONG);
        assert_eq!(party(), SENDS, "not for long");
        company.posted(1, || at(3000));
        company.leave(at(3001) + LONG);
        for _ in 0..DISTRUST {
            assert_eq!(party(), 1);
        }
        assert_eq!(party(), SENDS, "it is tried again");
    }
}
