//! The ring of a completion queue.

use std::sync::atomic::{Ordering, fence};

use verbs_shim::{Completion, CqId, Nic};

use super::area::{Area, Doorbell};
use super::layout::{self, CqDoorbell};
use crate::cq::Cq;

/// Completions that are taken from the card at a time.
const BATCH: usize = 16;

/// The ring of a completion queue.
pub(super) struct Queue {
    pub(super) cq: CqId,
    /// The object that the program knows: it outlives this.
    object: *const Cq,
    area: Area,
    /// Bytes of an entry.
    entry: usize,
    /// A power of two.
    depth: usize,
    /// Entries that were written.
    produced: usize,
    doorbell: Doorbell,
    rung: u32,
    /// The program wants to hear of the next entry.
    armed: bool,
    /// One of its queue pairs has been used by its rings. Until then the program polls by functions.
    pub(super) is_used: bool,
}

// The object is only told of events, for which it has locks.
unsafe impl Send for Queue {}

/// Where a ring is, for the program.
pub(crate) struct CqPlace {
    pub(crate) buffer: *mut u8,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) doorbell: *mut u32,
}

impl Queue {
    pub(super) fn new(object: &Cq, depth: usize, is_wide: bool) -> Queue {
        let entry = if is_wide { layout::WIDE_CQE } else { layout::CQE };
        let depth = depth.next_power_of_two();
        Queue {
            cq: object.id,
            object,
            area: Area::new(depth * entry),
            entry,
            depth,
            produced: 0,
            doorbell: Doorbell::new(),
            rung: 0,
            armed: false,
            is_used: false,
        }
    }

    pub(super) fn place(&self) -> CqPlace {
        CqPlace {
            buffer: self.area.address(),
            entry_size: self.entry as u32,
            num_entries: self.depth as u32,
            doorbell: self.doorbell.address(),
        }
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
        let at = self.produced % self.depth * self.entry;
        let word = |k: usize| u64::from_ne_bytes(*cqe[8 * k..].first_chunk().expect("it has whole words"));
        (1..self.entry / 8).for_each(|k| self.area.publish(at + 8 * k, word(k)));
        // The first round has ones.
        let phase = (self.produced / self.depth).is_multiple_of(2);
        self.area.publish(at, layout::with_phase(word(0), phase));
        self.produced += 1;
    }

    /// The program wants to hear of the next entry, if it did not see it already.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Looks at the doorbell.
    fn listen(&mut self) -> bool {
        let word = self.doorbell.get();
        if word == std::mem::replace(&mut self.rung, word) {
            return false;
        }
        let said = CqDoorbell::read(word);
        if said.arm {
            self.armed = true;
            // There is more than it had seen when it said so.
            if said.consumed != self.produced as u16 {
                self.tell();
            }
        }
        true
    }

    /// Tells the program of entries, if it wants to know.
    pub(super) fn tell(&mut self) {
        // Whoever arms looks at the ring after that; whoever writes an entry looks after that whether it is armed.
        fence(Ordering::SeqCst);
        if std::mem::take(&mut self.armed) {
            unsafe { &*self.object }.notify();
        }
    }
}
