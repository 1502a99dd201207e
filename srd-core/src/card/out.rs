//! Messages of the card on their way out. The number of a message's slot is the transport's token for it.

use std::num::NonZeroU32;

use super::CqId;
use super::header::Encoded;
use super::memory::Segments;
use super::slots::Slot;
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
    /// Several sends; their bundle.
    Sends(u32),
    /// A send of a UD queue pair.
    Datagram,
    Write,
    /// Asks for the data of this read.
    Request(u32),
    /// Data that a peer's read asked for; its read id.
    Data(u32),
    /// Tells a peer that there will be no data.
    Fail,
}

impl Kind {
    /// Whether it is for a read of the peer, and belongs to no work request of ours.
    pub(super) fn is_answer(self) -> bool {
        matches!(self, Kind::Data(_) | Kind::Fail)
    }
}

/// An outgoing message.
#[derive(Debug)]
pub(super) struct Out {
    /// The work request; of answers to peers' reads the peer, and the queue pair that was asked.
    pub(super) request: Request,
    pub(super) len: u32,
    pub(super) rnr: RnrRetry,
    pub(super) kind: Kind,
    /// The number of a datagram that has started.
    pub(super) number: Option<NonZeroU32>,
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

impl Out {
    /// Becomes a message without payload, whose header is to be set.
    #[inline]
    pub(super) fn begin(&mut self, request: Request, kind: Kind, rnr: RnrRetry) {
        (self.request, self.kind, self.rnr, self.len) = (request, kind, rnr, 0);
        (self.number, self.done, self.doomed) = (None, false, false);
        self.segments.clear();
    }
}

impl Slot for Out {
    const FREE: Out = Out {
        request: Request { wr_id: 0, peer: None, cq: CqId(0), qpn: 0, remote_qpn: 0, ah: 0 },
        len: 0,
        rnr: RnrRetry::Forever,
        kind: Kind::Free,
        number: None,
        done: false,
        doomed: false,
        header: Encoded::EMPTY,
        segments: Segments::NONE,
        copy: Vec::new(),
    };

    #[inline]
    fn is_free(&self) -> bool {
        self.kind == Kind::Free
    }

    #[inline]
    fn set_free(&mut self) {
        self.kind = Kind::Free;
    }
}
