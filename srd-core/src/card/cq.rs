//! Completion queues.

use std::collections::VecDeque;

use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Gid, Status, below};
use crate::time::{Span, Time};

/// What completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode {
    /// A send of ours.
    Send,
    /// An RDMA read of ours.
    RdmaRead,
    /// An RDMA write of ours.
    RdmaWrite,
    /// A message arrived.
    Recv,
    /// A peer wrote into our memory and said so.
    RecvRdmaWithImm,
}

impl Opcode {
    /// Whether it belongs to the receive queue.
    pub fn is_recv(self) -> bool {
        matches!(self, Opcode::Recv | Opcode::RecvRdmaWithImm)
    }
}

impl Default for Completion {
    fn default() -> Completion {
        Completion::EMPTY
    }
}

/// An entry of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's id; without meaning if it is `unsolicited`.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes received (UD: with the 40 bytes of the GRH); 0 for what was sent.
    pub byte_len: u32,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// The queue pair.
    pub qpn: u16,
    /// The sender's queue pair.
    pub src_qpn: u16,
    /// The address handle of the sender in the protection domain of the queue pair; [`UNKNOWN_AH`] if there is none.
    pub ah: u16,
    /// The sender's address.
    pub sgid: Gid,
    /// It consumed no receive work request.
    pub unsolicited: bool,
}

impl Completion {
    /// An entry that says nothing: to start from, and to fill buffers with.
    pub const EMPTY: Completion = Completion {
        wr_id: 0,
        status: Status::Ok,
        opcode: Opcode::Send,
        byte_len: 0,
        imm: None,
        qpn: 0,
        src_qpn: 0,
        ah: UNKNOWN_AH,
        sgid: Gid([0; 16]),
        unsolicited: false,
    };
}

/// Number of no address handle.
pub const UNKNOWN_AH: u16 = 0xffff;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    entries: VecDeque<Completion>,
    depth: usize,
    /// Completions that the fault injector holds back, and since when nothing was added.
    held: Vec<Completion>,
    held_since: Time,
    armed: bool,
    overrun: bool,
    /// Queue pairs that use it.
    pub(super) users: u32,
}

/// What came of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Quietly,
    /// Someone waits for it.
    Notify,
    /// There was no room, for the first time: it is lost.
    Overrun,
}

impl CompletionQueue {
    pub(super) fn new(depth: usize) -> CompletionQueue {
        CompletionQueue {
            entries: VecDeque::with_capacity(depth.min(4096)),
            depth,
            held: Vec::new(),
            held_since: Time::ZERO,
            armed: false,
            overrun: false,
            users: 0,
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Adds an entry, which `fill` makes of an empty one, in place.
    #[inline]
    pub(super) fn push(&mut self, fill: impl FnOnce(&mut Completion)) -> Pushed {
        if self.entries.len() == self.depth {
            return if std::mem::replace(&mut self.overrun, true) { Pushed::Quietly } else { Pushed::Overrun };
        }
        self.entries.push_back(Completion::EMPTY);
        fill(self.entries.back_mut().expect("it was just added"));
        if std::mem::replace(&mut self.armed, false) { Pushed::Notify } else { Pushed::Quietly }
    }

    /// Holds the entry back, with up to `window` others, and releases one of them when there are more.
    pub(super) fn hold(&mut self, now: Time, entry: Completion, window: usize, rng: &mut Xoshiro256PlusPlus) -> Pushed {
        self.held.push(entry);
        self.held_since = now;
        if self.held.len() <= window {
            return Pushed::Quietly;
        }
        let pick = below(rng, self.held.len());
        let picked = self.held.swap_remove(pick);
        self.push(|entry| *entry = picked)
    }

    /// When the entries that are held back must go.
    pub(super) fn held_until(&self, hold: Span) -> Time {
        if self.held.is_empty() { Time::NEVER } else { self.held_since + hold }
    }

    /// Takes an entry that is held back, any.
    pub(super) fn unhold(&mut self, rng: &mut Xoshiro256PlusPlus) -> Option<Completion> {
        if self.held.is_empty() {
            return None;
        }
        let pick = below(rng, self.held.len());
        Some(self.held.swap_remove(pick))
    }

    /// Moves as many entries to the start of `out` as there are and as it has room for, and says how many.
    #[inline]
    pub(super) fn pop_many(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.entries.len());
        for (slot, entry) in out.iter_mut().zip(self.entries.drain(..count)) {
            *slot = entry;
        }
        if self.entries.is_empty() {
            // It begins at its start again: what is in the cache is used again, of however much there is room for.
            self.entries.clear();
        }
        count
    }

    /// Asks for a notification of the next entry. If there are entries already, which count as it, returns `true` and
    /// there is none later.
    pub(super) fn arm(&mut self) -> bool {
        self.armed = self.entries.is_empty();
        !self.armed
    }

    /// Forgets the entries of a queue pair.
    pub(super) fn forget(&mut self, qpn: u16) {
        self.entries.retain(|e| e.qpn != qpn);
        self.held.retain(|e| e.qpn != qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that polls one entry at a time must not walk through all of a deep queue, which is in no cache.
    #[test]
    fn a_queue_that_was_empty_starts_where_it_did() {
        let mut queue = CompletionQueue::new(1024);
        let mut places = std::collections::BTreeSet::new();
        for wr_id in 0..100 {
            queue.push(|entry| entry.wr_id = wr_id);
            places.insert(std::ptr::from_ref(&queue.entries[0]).addr());
            let mut out = [Completion::EMPTY; 2];
            assert_eq!((queue.pop_many(&mut out), out[0].wr_id), (1, wr_id));
        }
        assert_eq!(places.len(), 1);
    }
}
