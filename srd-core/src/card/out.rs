//! Messages of the card on their way out.
//!
//! Each has a slot, whose number is the transport's token for it. It is written and read in place: a message is posted and
//! completed millions of times a second, and is too large to be moved around for that.

use std::num::NonZeroU32;

use super::CqId;
use super::header::Encoded;
use super::memory::Segments;
use crate::endpoint::{PeerId, RnrRetry};

/// A work request of the send queue that is under way: what its completion tells, and its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) peer: Option<PeerId>,
    pub(super) cq: CqId,
    pub(super) qpn: u16,
    pub(super) remote_qpn: u16,
    pub(super) ah: u16,
}

/// What an outgoing message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// None: the slot is free.
    Free,
    Send,
    Write,
    /// Asks for the data of this read.
    Request(u32),
    /// Data that a peer's read asked for; its read id.
    Data(u32),
    /// Tells a peer that there will be no data.
    Fail,
}

/// An outgoing message.
#[derive(Debug)]
pub(super) struct Out {
    /// The work request; of answers to peers' reads only the peer.
    pub(super) request: Request,
    pub(super) len: u32,
    pub(super) rnr: RnrRetry,
    pub(super) kind: Kind,
    /// It is a datagram, the one with this number.
    pub(super) ud: Option<NonZeroU32>,
    /// Its work request has completed: it is a datagram.
    pub(super) done: bool,
    /// It is being taken back.
    pub(super) doomed: bool,
    pub(super) header: Encoded,
    /// The payload, where it is in the program's memory.
    pub(super) segments: Segments<2>,
    /// The payload, if it was copied: inline data, and datagrams. Empty otherwise.
    pub(super) copy: Vec<u8>,
}

/// Outgoing messages by slot.
#[derive(Debug, Default)]
pub(super) struct Outs {
    slots: Vec<Out>,
    free: Vec<u32>,
}

impl Out {
    const NONE: Out = Out {
        request: Request { wr_id: 0, peer: None, cq: CqId(0), qpn: 0, remote_qpn: 0, ah: 0 },
        len: 0,
        rnr: RnrRetry::Forever,
        kind: Kind::Free,
        ud: None,
        done: false,
        doomed: false,
        header: Encoded::EMPTY,
        segments: Segments::NONE,
        copy: Vec::new(),
    };
}

impl Outs {
    /// Messages under way.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A slot for a message. All of it is to be set: it has what was there before, but nothing copied.
    #[inline]
    pub(super) fn take(&mut self) -> (usize, &mut Out) {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.slots.push(Out::NONE);
                self.slots.len() - 1
            }
        };
        (slot, &mut self.slots[slot])
    }

    /// The message is over. Its copy must have been taken.
    #[inline]
    pub(super) fn give_back(&mut self, slot: usize) {
        self.slots[slot].kind = Kind::Free;
        self.free.push(slot as u32);
    }

    /// The message in a slot, if there is one.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Out> {
        self.slots.get_mut(slot).filter(|out| out.kind != Kind::Free)
    }

    /// All messages, with their slots.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Out)> {
        self.slots.iter_mut().enumerate().filter(|(_, out)| out.kind != Kind::Free)
    }
}

impl std::ops::Index<usize> for Outs {
    type Output = Out;

    #[inline]
    fn index(&self, slot: usize) -> &Out {
        &self.slots[slot]
    }
}

impl std::ops::IndexMut<usize> for Outs {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Out {
        &mut self.slots[slot]
    }
}
