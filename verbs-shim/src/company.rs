//! What waits for company before it is sent: messages posted while others are under way, and acknowledgements of what was
//! handed out. A system call costs as much as posting ten short messages.
//!
//! A program that posts and polls is back soon, and all of it leaves then. One that posts and computes counts on a device that
//! works meanwhile: whoever stayed away for long is not trusted for a while to come back, and what it posts does not wait.

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

/// What waits.
#[derive(Debug, Default)]
pub(crate) struct Company {
    waiting: u32,
    /// Since when the first message of them waits.
    since: Option<Time>,
    /// Posts to come that do not wait.
    distrust: u32,
}

impl Company {
    /// So many messages were posted together. Says whether all that waits leaves now.
    #[inline]
    pub(crate) fn posted(&mut self, count: usize, now: impl FnOnce() -> Time) -> bool {
        if self.distrust > 0 {
            self.distrust -= 1;
            return true;
        }
        self.since.get_or_insert_with(now);
        self.join(count) >= SENDS
    }

    /// So many receives were handed out. Says whether all that waits leaves now.
    #[inline]
    pub(crate) fn handed_out(&mut self, count: usize) -> bool {
        self.join(count) >= RECEIVES
    }

    #[inline]
    fn join(&mut self, count: usize) -> u32 {
        self.waiting = self.waiting.saturating_add(count as u32);
        self.waiting
    }

    /// Whether any wait.
    pub(crate) fn any(&self) -> bool {
        self.waiting > 0
    }

    /// All leave.
    #[inline]
    pub(crate) fn leave(&mut self, now: Time) {
        self.waiting = 0;
        if self.since.take().is_some_and(|since| since + LONG < now) {
            self.distrust = DISTRUST;
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
    fn party(company: &mut Company, joins: fn(&mut Company) -> bool) -> u32 {
        let party = (1..).find(|_| joins(company)).expect("a number");
        company.leave(at(1000));
        party
    }

    fn posted(company: &mut Company) -> bool {
        company.posted(1, || at(1000))
    }

    #[test]
    fn enough_leave_together() {
        let company = &mut Company::default();
        let handed_out = |company: &mut Company| company.handed_out(1);
        assert_eq!((party(company, posted), party(company, handed_out)), (SENDS, RECEIVES));
        assert!(company.posted(SENDS as usize, || at(1000)), "all at once");
        company.leave(at(1000));
        assert!(!posted(company) && !company.handed_out(RECEIVES as usize - 2) && company.any());
        assert!(handed_out(company), "of both kinds");
    }

    #[test]
    fn nothing_waits_for_a_program_that_stays_away() {
        let company = &mut Company::default();
        company.handed_out(1);
        company.leave(at(9000));
        assert_eq!(party(company, posted), SENDS, "it posted nothing");
        company.posted(1, || at(2000));
        company.posted(1, || unreachable!("the first counts"));
        company.leave(at(2000) + LONG);
        assert_eq!(party(company, posted), SENDS, "not for long");
        company.posted(1, || at(3000));
        company.leave(at(3001) + LONG);
        for _ in 0..DISTRUST {
            assert_eq!(party(company, posted), 1);
        }
        assert_eq!(party(company, posted), SENDS, "it is tried again");
    }
}
