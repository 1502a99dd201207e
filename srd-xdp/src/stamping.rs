//! When the XDP program shall stamp packets with their time of arrival.
//!
//! A stamp is a reading of the clock per packet, on the core where packets arrive: 6 % of what it takes to move a small one over
//! a virtual cable. A loop that looks at the rings all the time knows without stamps when packets arrive. One that sleeps, or
//! was kept away, does not, and would take its absence for a delay of the network.

use std::path::Path;

use srd_core::{Span, Time};

/// Looks that are no further apart tell the time of arrival well enough: far below the queueing delays that congestion control
/// aims at.
const PROMPT: Span = Span::from_micros(20);
/// Absence is forgiven at this part of the time: a loop that is away for less is seldom wrong.
const FORGIVEN: u64 = 20;
/// Absence that is not forgiven yet, from which on there are stamps, until all is.
const TOLERATED: Span = Span::from_micros(100);
/// No more is remembered, which takes 10 ms: time slices of other programs come more often.
const REMEMBERED: Span = Span::from_micros(500);

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Stamping {
    /// The loop sleeps.
    always: bool,
    /// Packets are stamped since then.
    since: Option<Time>,
    /// The last look.
    looked: Time,
    /// Time between looks that were not prompt, less what is forgiven.
    absence: Span,
}

impl Stamping {
    /// For a loop that looks at the rings all the time, or one that sleeps.
    pub(crate) fn new(sleeps: bool, now: Time) -> Stamping {
        Stamping { always: sleeps, since: Some(now), looked: now, absence: REMEMBERED }
    }

    /// The loop looks at the rings. Returns whether to stamp from now on, if that changes. Switching costs a system call.
    #[inline]
    pub(crate) fn look(&mut self, now: Time) -> Option<bool> {
        if self.always {
            return None;
        }
        let away = now.since(self.looked);
        self.looked = now;
        self.absence = self.absence - away / FORGIVEN;
        if away > PROMPT {
            self.absence = (self.absence + away).min(REMEMBERED);
        }
        let stamped = self.since.is_some();
        let wanted = self.absence > if stamped { Span::ZERO } else { TOLERATED };
        if wanted == stamped {
            return None;
        }
        self.since = wanted.then_some(now);
        Some(wanted)
    }

    /// When a packet arrived that was there `now`. What looks like a stamp from before the program was told to make them, or
    /// from the future, is none.
    #[inline]
    pub(crate) fn arrival(&self, now: Time, stamp: impl FnOnce() -> Option<Time>) -> Time {
        let Some(since) = self.since else { return now };
        stamp().filter(|stamp| (since..=now).contains(stamp)).unwrap_or(now)
    }
}

/// What is to be added to stamps, which are of the host's monotonic clock, to have them on that of this process, in nanoseconds:
/// they differ in a time namespace (time_namespaces(7)).
pub(crate) fn clock_offset() -> i64 {
    let of = |name: &str| std::fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    // The file tells the offsets of children, which are other than ours between unshare(2) and fork(2).
    if of("time") != of("time_for_children") {
        return 0;
    }
    std::fs::read_to_string("/proc/self/timens_offsets").ok().and_then(|text| monotonic(&text)).unwrap_or(0)
}

fn monotonic(offsets: &str) -> Option<i64> {
    let mut fields = offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?.split_whitespace();
    let mut next = || fields.next()?.parse::<i64>().ok();
    next()?.checked_mul(1_000_000_000)?.checked_add(next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_time_namespaces() {
        assert_eq!(monotonic("monotonic           0         0\nboottime            0         0\n"), Some(0));
        assert_eq!(monotonic("monotonic      864000       500\nboottime   7 7\n"), Some(864_000_000_000_500));
        assert_eq!(monotonic("boottime 7 7\nmonotonic  -2 900000000\n"), Some(-1_100_000_000));
        for text in ["", "monotonic", "monotonic 1", "monotonic x 0", "monotonic 9223372036854775807 0"] {
            assert_eq!(monotonic(text), None, "{text}");
        }
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    #[test]
    fn a_prompt_loop_needs_no_stamps_and_a_late_one_does() {
        let mut stamping = Stamping::new(false, at(0));
        let mut now = 0;
        let mut prompt = |stamping: &mut Stamping, us: u64| {
            let end = now + us;
            let mut changes = Vec::new();
            while now < end {
                now += 10;
                changes.extend(stamping.look(at(now)));
            }
            (now, changes)
        };
        assert!(prompt(&mut stamping, 9_000).1.is_empty(), "at first it may be late");
        let (now, changes) = prompt(&mut stamping, 2_000);
        assert_eq!(changes, [false]);
        assert_eq!(stamping.arrival(at(now), || Some(at(now - 1))), at(now), "not even looked at");
        assert_eq!(stamping.look(at(now + 60)), None, "once in a while");
        assert_eq!(stamping.look(at(now + 5000)), Some(true));
        let read = at(now + 5400);
        assert_eq!(stamping.look(read), None);
        assert_eq!(stamping.arrival(read, || Some(at(now + 5100))), at(now + 5100));
        assert_eq!(stamping.arrival(read, || Some(at(now + 4000))), read, "from before there were stamps");
        assert_eq!(stamping.arrival(read, || Some(at(now + 6000))), read, "a stamp of the future");
        assert_eq!(stamping.arrival(read, || None), read);
    }

    #[test]
    fn sleepers_always_need_them() {
        let mut stamping = Stamping::new(true, at(5));
        assert_eq!((0..1000).filter_map(|ms| stamping.look(at(1000 * ms))).count(), 0);
        assert_eq!(stamping.arrival(at(2000), || Some(at(1000))), at(1000));
    }
}
