//! The ring of a completion queue.

use std::sync::atomic::{Ordering, fence};

use verbs_shim::{Completion, CqId, Nic};

use super::layout::{self, CqDoorbell};
use super::ring::{Place, Ring};
use crate::cq::Cq;

/// Completions that are taken from the card at a time.
const BATCH: usize = 16;

/// The ring of a completion queue.
pub(super) struct Queue {
    pub(super) cq: CqId,
    /// The object that the program knows: it outlives this.
    object: *const Cq,
    ring: Ring,
    /// What the program said last.
    rung: u32,
    /// The program wants to hear of the next entry.
    armed: bool,
    /// It has asked for that by the doorbell before.
    asks: bool,
    /// One of its queue pairs is used by its rings. Until then the program polls by functions.
    pub(super) is_used: bool,
}

// The object is only told of events, for which it has locks.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(object: &Cq, depth: usize, is_wide: bool) -> Queue {
        let entry = if is_wide { layout::WIDE_CQE } else { layout::CQE };
        let ring = Ring::new(entry, depth as u32);
        Queue { cq: object.id, object, ring, rung: 0, armed: false, asks: false, is_used: false }
    }

    pub(super) fn place(&self) -> Place {
        self.ring.place()
    }

    /// Moves completions from the card to the ring, and says whether there was anything to do.
    pub(super) fn serve(&mut self, nic: &Nic) -> bool {
        if !self.is_used {
            return false;
        }
        let listened = self.listen();
        let mut entries = [Completion::EMPTY; BATCH];
        let n = nic.poll_cq(self.cq, &mut entries);
        entries[..n].iter().for_each(|entry| self.push(entry));
        if n > 0 {
            self.tell();
        }
        n > 0 || listened
    }

    /// Writes an entry.
    pub(super) fn push(&mut self, entry: &Completion) {
        let cqe = layout::completion(entry);
        let at = self.ring.at(0);
        let word = |k: usize| u64::from_ne_bytes(*cqe[8 * k..].first_chunk().expect("it has whole words"));
        (1..self.ring.entry / 8).for_each(|k| self.ring.area.publish(at + 8 * k, word(k)));
        // The first round has ones.
        self.ring.area.publish(at, layout::with_phase(word(0), !self.ring.is_even_round(0)));
        self.ring.advance(1);
    }

    /// The program wants to hear of the next entry, if it did not see it already.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Looks at the doorbell.
    fn listen(&mut self) -> bool {
        let word = self.ring.doorbell.get();
        if word == std::mem::replace(&mut self.rung, word) {
            return false;
        }
        let said = CqDoorbell::read(word);
        self.asks |= said.arm;
        // One that arms and goes on polling has written over it since: libfabric does so before it sleeps, and every word may
        // hide one that arms.
        if self.asks {
            self.armed = true;
            // There is more than it had seen when it said so.
            if said.consumed != self.ring.done as u16 {
                self.tell();
            }
        }
        true
    }

    /// Tells the program of entries, if it wants to know and has no event that it has not taken yet.
    pub(super) fn tell(&mut self) {
        // Whoever arms looks at the ring after that; whoever writes an entry looks after that whether it is armed.
        fence(Ordering::SeqCst);
        if std::mem::take(&mut self.armed) {
            unsafe { &*self.object }.notify_once();
        }
    }
}
