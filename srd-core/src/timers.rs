//! Deadlines of many peers, O(log n) to set and O(1) to look at.
//!
//! Deadlines mostly move later (every packet pushes a timeout back), so an entry stays in the heap until it comes up, and
//! is then put where it belongs by whoever owns it: moving a deadline later costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// Earliest entry in the heap per index; `NEVER` if none.
    queued: Vec<Time>,
}

impl Timers {
    /// Index `index` wants to be looked at by `at`.
    pub(crate) fn set(&mut self, index: u32, at: Time) {
        let i = index as usize;
        if i >= self.queued.len() {
            self.queued.resize(i + 1, Time::NEVER);
        }
        if at < self.queued[i] {
            self.queued[i] = at;
            self.heap.push(Reverse((at, index)));
        }
    }

    /// When the next index comes up; early at worst.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next index that is up at `now`. Its owner must set it again.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        while let Some(&Reverse((at, index))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            // Entries that an earlier one has overtaken are left-overs.
            if self.queued[index as usize] == at {
                self.queued[index as usize] = Time::NEVER;
                return Some(index);
            }
        }
        None
    }
}
