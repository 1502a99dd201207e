//! Which blocks of a message are there: used by the receiver for what it has placed, and by the sender for what it knows
//! to be placed. Marking is idempotent, so duplicates and spurious retransmissions cannot be counted twice.

use crate::wire::BLOCK;

/// A set of 64-byte blocks of a message of known length, at least one byte long.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Blocks 0..128, enough for an 8 KiB message.
    small: u128,
    /// The blocks of longer messages instead.
    large: Vec<u64>,
    missing: u32,
}

/// Sets that are free for reuse, with their memory: messages come and go, the allocator is asked once.
#[derive(Debug, Default)]
pub(crate) struct BlocksPool {
    #[expect(clippy::vec_box, reason = "a message that is not split should hold a pointer, not a set")]
    free: Vec<Box<Blocks>>,
}

/// More free sets than this are given back to the allocator, and longer ones: those of messages beyond 8 MiB, or each connection
/// that ever carried some of a gigabyte would keep 2 MiB for each.
const MAX_FREE: usize = 64;
const MAX_WORDS: usize = 2048;

impl BlocksPool {
    /// No block of a message of `len` bytes.
    pub(crate) fn take(&mut self, len: u32) -> Box<Blocks> {
        let mut blocks = self.free.pop().unwrap_or_default();
        blocks.restart(len);
        blocks
    }

    /// Gives a set back.
    pub(crate) fn put(&mut self, blocks: Box<Blocks>) {
        if self.free.len() < MAX_FREE && blocks.large.capacity() <= MAX_WORDS {
            self.free.push(blocks);
        }
    }
}

impl Blocks {
    /// Becomes the empty set of a message of `len` bytes.
    fn restart(&mut self, len: u32) {
        let blocks = len.div_ceil(BLOCK);
        self.large.clear();
        if blocks > 128 {
            self.large.resize(blocks.div_ceil(64) as usize, 0);
        }
        (self.small, self.missing) = (0, blocks);
    }

    /// Whether every block is there.
    pub(crate) fn is_full(&self) -> bool {
        self.missing == 0
    }

    /// Adds the blocks of `offset..offset + len` (offset a multiple of the block size) and says whether any was new.
    // [REL-9]
    pub(crate) fn mark(&mut self, offset: u32, len: u32) -> bool {
        let before = self.missing;
        self.each_word(offset, len, |word, mask, missing| {
            *missing -= (mask & !*word).count_ones();
            *word |= mask;
        });
        self.missing != before
    }

    /// Whether all blocks of the range are there.
    pub(crate) fn contains(&self, offset: u32, len: u32) -> bool {
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        if self.large.is_empty() {
            let mask = mask128(first, end);
            return self.small & mask == mask;
        }
        (first / 64..end.div_ceil(64)).all(|w| {
            let mask = mask64(first.saturating_sub(w * 64), (end - w * 64).min(64));
            self.large[w as usize] & mask == mask
        })
    }

    fn each_word(&mut self, offset: u32, len: u32, mut f: impl FnMut(&mut u64, u64, &mut u32)) {
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        if self.large.is_empty() {
            let mask = mask128(first, end);
            let (mut lo, mut hi) = (self.small as u64, (self.small >> 64) as u64);
            f(&mut lo, mask as u64, &mut self.missing);
            f(&mut hi, (mask >> 64) as u64, &mut self.missing);
            self.small = u128::from(lo) | u128::from(hi) << 64;
            return;
        }
        for w in first / 64..end.div_ceil(64) {
            let mask = mask64(first.saturating_sub(w * 64), (end - w * 64).min(64));
            f(&mut self.large[w as usize], mask, &mut self.missing);
        }
    }
}

/// Bits `first..end` of 64.
fn mask64(first: u32, end: u32) -> u64 {
    if first >= end { 0 } else { (u64::MAX >> (64 - (end - first))) << first }
}

/// Bits `first..end` of 128.
fn mask128(first: u32, end: u32) -> u128 {
    if first >= end { 0 } else { (u128::MAX >> (128 - (end - first))) << first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repeatable::repeatable;
    use proptest::prelude::*;

    #[test]
    fn sets_of_long_messages_are_not_kept() {
        let mut pool = BlocksPool::default();
        for len in [1 << 30, u32::MAX, 8 << 20, 100] {
            let sets: Vec<_> = (0..3).map(|_| pool.take(len)).collect();
            sets.into_iter().for_each(|set| pool.put(set));
        }
        let kept: usize = pool.free.iter().map(|set| 8 * set.large.capacity()).sum();
        assert!(!pool.free.is_empty() && kept <= 3 * 16 * 1024, "{kept} bytes");
    }

    proptest! {
        #![proptest_config(repeatable())]

        /// Against a set of block numbers, for messages below and above the small representation.
        #[test]
        fn blocks_behave_like_a_set(len in 1u32..40_000, ranges in prop::collection::vec((0u32..700, 1u32..200), 1..40)) {
            let total = len.div_ceil(BLOCK);
            let mut model = std::collections::BTreeSet::new();
            let mut blocks = BlocksPool::default().take(len);
            for (first, count) in ranges {
                let first = first % total;
                let end = (first + count).min(total);
                let (offset, bytes) = (first * BLOCK, (end * BLOCK).min(len) - first * BLOCK);
                let all = (first..end).all(|b| model.contains(&b));
                prop_assert_eq!(blocks.contains(offset, bytes), all);
                prop_assert_eq!(blocks.mark(offset, bytes), !all);
                model.extend(first..end);
                prop_assert!(blocks.contains(offset, bytes));
                prop_assert_eq!(blocks.is_full(), model.len() == total as usize);
            }
        }
    }
}
