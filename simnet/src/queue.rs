//! The queue of future events, ordered by time and, within one nanosecond, by the order in which they were added.
//!
//! A radix heap: time only moves forward, so events can be kept in buckets by the highest bit in which their time differs
//! from the present. Equal times always share a bucket and buckets keep their order, so no sequence number is needed.
//! Everything moves sequentially through memory, unlike in a binary heap. Nothing outside this file knows that.

use std::collections::VecDeque;

use srd_core::Time;

/// Future events.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// Events at `last`, in order.
    present: VecDeque<E>,
    /// Bucket `b` holds the events whose time differs from `last` in bit `b` and in no higher one.
    buckets: [Vec<(u64, E)>; 64],
    /// Bit `b` is set if bucket `b` is not empty.
    filled: u64,
    /// Time of the event that was taken last.
    last: u64,
    /// An emptied bucket's memory, to be reused.
    spare: Vec<(u64, E)>,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> EventQueue<E> {
        EventQueue {
            present: VecDeque::new(),
            buckets: std::array::from_fn(|_| Vec::new()),
            filled: 0,
            last: 0,
            spare: Vec::new(),
        }
    }

    /// Adds an event.
    ///
    /// # Panics
    /// If it lies before the one that was taken last.
    pub(crate) fn push(&mut self, at: Time, event: E) {
        let at = at.as_nanos();
        assert!(at >= self.last, "an event at {at} is added after the one at {} has happened", self.last);
        self.insert(at, event);
    }

    fn insert(&mut self, at: u64, event: E) {
        match (at ^ self.last).checked_ilog2() {
            None => self.present.push_back(event),
            Some(bit) => {
                self.buckets[bit as usize].push((at, event));
                self.filled |= 1 << bit;
            }
        }
    }

    /// Takes the next event that is not later than `limit`.
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<(Time, E)> {
        if self.present.is_empty() {
            if self.filled == 0 {
                return None;
            }
            let lowest = self.filled.trailing_zeros() as usize;
            let first = self.buckets[lowest].iter().map(|e| e.0).min().expect("a filled bucket");
            if first > limit.as_nanos() {
                return None;
            }
            // All of them agree with `first` in bit `lowest`, so each finds a lower bucket, in the order it had.
            self.last = first;
            self.filled &= !(1 << lowest);
            let spare = std::mem::take(&mut self.spare);
            let mut bucket = std::mem::replace(&mut self.buckets[lowest], spare);
            for (at, event) in bucket.drain(..) {
                self.insert(at, event);
            }
            self.spare = bucket;
        } else if self.last > limit.as_nanos() {
            return None;
        }
        self.present.pop_front().map(|event| (Time::from_nanos(self.last), event))
    }

    /// Takes those of the events after the present moment that are `wanted`, in their order. It looks at all of them.
    pub(crate) fn extract(&mut self, mut wanted: impl FnMut(&E) -> bool) -> Vec<(Time, E)> {
        let mut out = Vec::new();
        for (bit, bucket) in self.buckets.iter_mut().enumerate() {
            out.extend(bucket.extract_if(.., |e| wanted(&e.1)).map(|(at, event)| (Time::from_nanos(at), event)));
            if bucket.is_empty() {
                self.filled &= !(1 << bit);
            }
        }
        // Equal times came from one bucket, where they are in order.
        out.sort_by_key(|e| e.0);
        out
    }

    /// The events of the moment of the one that was taken last, as far as they have been added and not been taken.
    pub(crate) fn present(&self) -> impl Iterator<Item = &E> {
        self.present.iter()
    }

    /// Whether no event is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.present.is_empty() && self.filled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

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

    #[test]
    fn extract_takes_what_is_to_come_in_order() {
        let mut q = EventQueue::new();
        for (at, event) in [(3, 0), (3, 1), (9, 2), (5, 4), (1 << 40, 6), (5, 7), (5, 8), (4, 10)] {
            q.push(Time::from_nanos(at), event);
        }
        assert_eq!(q.pop_until(Time::NEVER), Some((Time::from_nanos(3), 0)));
        let even = q.extract(|e| e % 2 == 0);
        let expected = [(4, 10), (5, 4), (5, 8), (9, 2), (1 << 40, 6)];
        assert_eq!(even, expected.map(|(at, e)| (Time::from_nanos(at), e)));
        // What happens in the present moment stays.
        assert_eq!(q.pop_until(Time::NEVER), Some((Time::from_nanos(3), 1)));
        assert_eq!(q.pop_until(Time::NEVER), Some((Time::from_nanos(5), 7)));
        assert!(q.is_empty() && q.pop_until(Time::NEVER).is_none());
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut rng = Rng::new(4);
        let mut q = EventQueue::new();
        let mut list: Vec<(u64, u64)> = Vec::new();
        let (mut now, mut number) = (0, 0);
        for _ in 0..20_000 {
            if rng.chance(550_000) {
                let at = now + rng.log_range(1, 1 << 40) - 1;
                number += 1;
                q.push(Time::from_nanos(at), number);
                list.push((at, number));
            } else {
                let limit = now + rng.log_range(1, 1 << 41);
                let expected = list.iter().min().copied().filter(|e| e.0 <= limit);
                let popped = q.pop_until(Time::from_nanos(limit)).map(|(at, n)| (at.as_nanos(), n));
                assert_eq!(popped, expected);
                list.retain(|e| Some(*e) != expected);
                now = expected.map_or(now, |e| e.0);
            }
        }
        assert_eq!(q.is_empty(), list.is_empty());
    }
}
