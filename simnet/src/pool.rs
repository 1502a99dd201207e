//! A buffer that the queues of a switch share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use srd_core::Time;

/// See the module documentation. Queues know when each of their packets will have left, so the pool does, too.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: u64,
    alpha_percent: u32,
    used: u64,
    /// When which bytes become free.
    leaving: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Pool {
    pub(crate) fn new(bytes: u64, alpha_percent: u32) -> Pool {
        Pool { bytes, alpha_percent, used: 0, leaving: BinaryHeap::new() }
    }

    /// Bytes that a queue may hold at `now`: a share of what is free.
    pub(crate) fn threshold(&mut self, now: Time) -> u64 {
        while let Some(Reverse((at, bytes))) = self.leaving.peek()
            && *at <= now
        {
            self.used -= u64::from(*bytes);
            self.leaving.pop();
        }
        self.bytes.saturating_sub(self.used).saturating_mul(self.alpha_percent.into()) / 100
    }

    /// Packets that were to leave later have left.
    pub(crate) fn give_back(&mut self, waiting: &VecDeque<(Time, u32)>) {
        let mut all = std::mem::take(&mut self.leaving).into_vec();
        for gone in waiting {
            if let Some(i) = all.iter().position(|packet| packet.0 == *gone) {
                all.swap_remove(i);
                self.used -= u64::from(gone.1);
            }
        }
        self.leaving = all.into();
    }

    /// A packet of this many bytes stays until `until`.
    pub(crate) fn take(&mut self, until: Time, bytes: u32) {
        self.used += u64::from(bytes);
        self.leaving.push(Reverse((until, bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_a_share_of_what_is_free() {
        let us = |n: u64| Time::from_nanos(n * 1_000);
        let mut pool = Pool::new(1_000, 50);
        assert_eq!(pool.threshold(us(0)), 500);
        pool.take(us(5), 400);
        pool.take(us(3), 200);
        assert_eq!(pool.threshold(us(2)), 200);
        assert_eq!(pool.threshold(us(3)), 300);
        assert_eq!(pool.threshold(us(9)), 500);
        for (at, bytes) in [(20, 100), (30, 100), (30, 300)] {
            pool.take(us(at), bytes);
        }
        pool.give_back(&VecDeque::from([(us(30), 100), (us(20), 100)]));
        assert_eq!(pool.threshold(us(29)), 350);
        assert_eq!(pool.threshold(us(30)), 500);
        pool.take(us(40), 2_000);
        assert_eq!(pool.threshold(us(39)), 0);
    }
}
