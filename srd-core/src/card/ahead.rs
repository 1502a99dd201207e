//! Which receive buffers the host may fetch into its cache before messages need them.
//!
//! A program that posts many receives gets each buffer back when it has long left the cache (libfabric posts 8,192 of 9 KB), and
//! copying into it then takes several times as long. As many messages as came in the last run are expected in the next one.

use std::ops::Range;

/// Buffers at most that are fetched ahead: with 8 KB in each, a fraction of the smallest second-level caches.
const MOST: u32 = 16;
/// Buffers that are fetched in one go, so that a poll in vain stays short: about a microsecond each, if they have 8 KB.
const PER_GO: u32 = 2;

/// What the last run of messages was like, and what has been made of it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The queue pair that received last.
    qpn: u16,
    /// Messages since everything was fetched, one after the other, and bytes of the longest.
    run: u32,
    len: u32,
    /// Buffers at the front of the queue that have been fetched.
    fetched: u32,
}

impl Ahead {
    /// A message of so many bytes was received.
    #[inline]
    pub(super) fn received(&mut self, qpn: u16, len: u32) {
        if self.qpn != qpn {
            *self = Ahead { qpn, ..Ahead::default() };
        }
        self.len = if self.run == 0 { len } else { self.len.max(len) };
        self.run = self.run.saturating_add(1);
        self.fetched = self.fetched.saturating_sub(1);
    }

    /// The queue pair whose buffers are to be fetched, if any are.
    pub(super) fn wanted(&self) -> Option<u16> {
        (self.run > 0).then_some(self.qpn)
    }

    /// The places in a queue of so many receives that are to be fetched now, and how many bytes of each.
    pub(super) fn fetch(&mut self, queue: usize) -> (Range<usize>, u32) {
        let want = self.run.min(MOST).min(queue as u32);
        let from = self.fetched.min(want);
        let to = want.min(from + PER_GO);
        self.fetched = to.max(self.fetched);
        if to == want {
            self.run = 0;
        }
        (from as usize..to as usize, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places that are fetched while nothing arrives, by turns.
    fn all(ahead: &mut Ahead, queue: usize) -> Vec<Vec<usize>> {
        std::iter::from_fn(|| ahead.wanted().map(|_| ahead.fetch(queue).0.collect())).take(100).collect()
    }

    fn receive(ahead: &mut Ahead, messages: usize) {
        (0..messages).for_each(|_| ahead.received(7, 100));
    }

    #[test]
    fn as_many_as_came_and_each_once() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.wanted(), None);
        receive(&mut ahead, 5);
        assert_eq!((ahead.wanted(), all(&mut ahead, 1000)), (Some(7), vec![vec![0, 1], vec![2, 3], vec![4]]));
        receive(&mut ahead, 2);
        assert_eq!(all(&mut ahead, 1000), [vec![]], "three are left");
        receive(&mut ahead, 4);
        assert_eq!(all(&mut ahead, 1000), [[0, 1], [2, 3]]);
        receive(&mut ahead, 100);
        assert_eq!(all(&mut ahead, 1000).concat(), (0..MOST as usize).collect::<Vec<_>>());
    }

    #[test]
    fn no_more_than_there_are() {
        let mut ahead = Ahead::default();
        receive(&mut ahead, 5);
        assert_eq!(all(&mut ahead, 3), [vec![0, 1], vec![2]]);
        receive(&mut ahead, 1);
        assert_eq!(all(&mut ahead, 0), [vec![]]);
    }

    #[test]
    fn the_longest_of_a_run_counts_and_only_of_one_queue_pair() {
        let mut ahead = Ahead::default();
        ahead.received(7, 200);
        ahead.received(7, 100);
        assert_eq!(ahead.fetch(9), (0..2, 200));
        ahead.received(7, 50);
        assert_eq!(ahead.fetch(9), (1..1, 50));
        ahead.received(8, 60);
        assert_eq!((ahead.wanted(), ahead.fetch(9)), (Some(8), (0..1, 60)));
    }
}
