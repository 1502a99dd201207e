//! Messages that a receiver has turned away, and that may try until they are taken: one of them tries for all.
//!
//! A crowd are those that wait for the same thing. While some of it try, the others wait; each one that is taken, or comes to
//! another end, lets two more go, so the whole crowd is back as fast as the receiver takes it. As long as one waits, one tries:
//! nothing waits for a message that does not come.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

/// Messages that follow one that was taken.
const FOLLOW: usize = 2;

/// All crowds of an outbox. Messages are known by their slots.
#[derive(Debug, Default)]
pub(super) struct Crowds(BTreeMap<NonZeroU16, Crowd>);

#[derive(Debug, Default)]
struct Crowd {
    waiting: VecDeque<u32>,
    /// Those that have been turned away before, and try again or will after a pause.
    trying: u32,
    /// Attempts in vain since the last message was taken.
    attempts: u8,
}

impl Crowds {
    /// A message was turned away; `tried` if it is of those that try. Returns the number of attempts in vain if it is to try
    /// again; else it waits.
    pub(super) fn turned_away(&mut self, of: NonZeroU16, slot: u32, tried: bool) -> Option<u8> {
        let crowd = self.0.entry(of).or_default();
        crowd.trying -= u32::from(tried);
        if crowd.trying > 0 {
            crowd.waiting.push_back(slot);
            return None;
        }
        crowd.trying = 1;
        let attempts = crowd.attempts;
        crowd.attempts = attempts.saturating_add(1);
        Some(attempts)
    }

    /// A message that tried was taken, or is no more. Returns those that follow it, of those that wait and that `live`.
    pub(super) fn done(&mut self, of: NonZeroU16, live: impl Fn(u32) -> bool) -> [Option<u32>; FOLLOW] {
        let crowd = self.0.get_mut(&of).expect("it is of those that try");
        crowd.attempts = 0;
        let next = [(); FOLLOW].map(|()| std::iter::from_fn(|| crowd.waiting.pop_front()).find(|&slot| live(slot)));
        crowd.trying = crowd.trying - 1 + next.iter().flatten().count() as u32;
        if crowd.trying == 0 {
            self.0.remove(&of);
        }
        next
    }

    /// Forgets those that wait and do not `live`.
    pub(super) fn retain(&mut self, live: impl Fn(u32) -> bool) {
        self.0.values_mut().for_each(|crowd| crowd.waiting.retain(|&slot| live(slot)));
    }

    /// How many try of each crowd that there is.
    #[cfg(test)]
    pub(super) fn trying(&self) -> BTreeMap<NonZeroU16, u32> {
        self.0.iter().map(|(of, crowd)| (*of, crowd.trying)).collect()
    }
}
