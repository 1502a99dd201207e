//! Wrapping 32-bit sequence numbers, and a ring indexed by them.
//!
//! Packet numbers and message ids count upwards for ever and wrap. They are compared only by distance (RFC 1982), so
//! there is deliberately no `Ord`: `<` on them does not compile.

use std::collections::VecDeque;
use std::fmt;

/// A wrapping sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seq(pub(crate) u32);

impl Seq {
    /// The number `n` further on.
    pub(crate) fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// How far this number lies behind `earlier`, modulo 2^32.
    pub(crate) fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`, given that they are less than 2^31 apart.
    // [W-20]
    pub(crate) fn is_before(self, other: Seq) -> bool {
        (other.0.wrapping_sub(self.0) as i32) > 0
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A queue whose entries are found by sequence number in O(1): `base` is the oldest, the newest is pushed.
#[derive(Debug)]
pub(crate) struct SeqRing<T> {
    base: Seq,
    entries: VecDeque<T>,
}

impl<T> SeqRing<T> {
    /// An empty ring whose first entry will have number `base`.
    pub(crate) fn new(base: Seq) -> SeqRing<T> {
        SeqRing { base, entries: VecDeque::new() }
    }

    /// Number of the oldest entry, or of the next one to be pushed if there is none.
    pub(crate) fn base(&self) -> Seq {
        self.base
    }

    /// Number that the next pushed entry will have.
    pub(crate) fn next(&self) -> Seq {
        self.base.plus(self.entries.len() as u32)
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn push(&mut self, entry: T) -> Seq {
        let seq = self.next();
        self.entries.push_back(entry);
        seq
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.entries.front()
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let entry = self.entries.pop_front()?;
        self.base = self.base.plus(1);
        Some(entry)
    }

    pub(crate) fn get(&self, seq: Seq) -> Option<&T> {
        self.entries.get(seq.since(self.base) as usize)
    }

    pub(crate) fn get_mut(&mut self, seq: Seq) -> Option<&mut T> {
        self.entries.get_mut(seq.since(self.base) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_finds_entries_across_the_wrap() {
        let mut ring = SeqRing::new(Seq(u32::MAX - 1));
        for i in 0..4 {
            assert_eq!(ring.push(i), Seq((u32::MAX - 1).wrapping_add(i)));
        }
        assert_eq!(ring.get(Seq(0)), Some(&2));
        assert_eq!(ring.pop_front(), Some(0));
        assert_eq!(ring.get(Seq(u32::MAX - 1)), None);
        assert_eq!(ring.get(Seq(1)), Some(&3));
        assert_eq!(ring.get(Seq(2)), None);
        assert!(Seq(u32::MAX).is_before(Seq(0)) && !Seq(0).is_before(Seq(u32::MAX)));
    }
}
