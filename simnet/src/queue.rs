//! The queue of future events, ordered by time and, within one nanosecond, by the order in which they were added.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use srd_core::Time;

/// Future events. A binary heap today; nothing outside this file knows that.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), sequence: 0 }
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, at: Time, event: E) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    /// Takes the next event that is not later than `limit`.
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<(Time, E)> {
        if self.heap.peek()?.at > limit {
            return None;
        }
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// Whether no event is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap keeps its greatest entry on top; the earliest event must be that.
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_by_time_then_by_insertion() {
        let mut q = EventQueue::new();
        for (at, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (9, 'e')] {
            q.push(Time::from_nanos(at), name);
        }
        let mut order = String::new();
        while let Some((_, name)) = q.pop_until(Time::from_nanos(8)) {
            order.push(name);
        }
        assert_eq!(order, "bdac");
        assert!(!q.is_empty());
        assert_eq!(q.pop_until(Time::NEVER), Some((Time::from_nanos(9), 'e')));
        assert!(q.is_empty());
    }
}
