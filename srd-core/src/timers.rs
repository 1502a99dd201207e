//! Deadlines of many peers, O(log n) to set and O(1) to look at.
//!
//! Deadlines mostly move later (every packet pushes a timeout back), so an entry stays in the heap until it comes up, and
//! is then put where it belongs by whoever owns it: moving a deadline later costs nothing. Per index, only an entry that is
//! earlier than all others is added, so that the heap holds few entries per index, each wanted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// Entries in the heap per index, the earliest last.
    queued: Vec<Vec<Time>>,
}

impl Timers {
    /// Index `index` wants to be looked at by `at`, or by `now` if that has passed: lateness counts from when it was asked.
    pub(crate) fn set(&mut self, index: u32, at: Time, now: Time) {
        let at = at.max(now);
        let i = index as usize;
        if i >= self.queued.len() {
            self.queued.resize_with(i + 1, Vec::new);
        }
        let queued = &mut self.queued[i];
        if queued.last().is_none_or(|&earliest| at < earliest) {
            queued.push(at);
            self.heap.push(Reverse((at, index)));
        }
    }

    /// When the next index comes up; early at worst.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next index that is up at `now`. Its owner must set it again.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        let &Reverse((at, index)) = self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        let popped = self.queued[index as usize].pop();
        debug_assert_eq!(popped, Some(at), "an index's earliest entry comes up first");
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_deadlines_before_a_long_one_leave_nothing_behind() {
        let mut timers = Timers::default();
        timers.set(0, Time::from_nanos(1_000_000), Time::ZERO);
        for i in 0..1000 {
            let now = Time::from_nanos(i * 10);
            timers.set(0, Time::from_nanos(i * 10 + 5), now);
            timers.set(0, Time::from_nanos(1_000_000), now);
            assert_eq!(timers.pop(Time::from_nanos(i * 10 + 5)), Some(0));
        }
        assert_eq!(timers.heap.len(), 1);
    }
}
