//! The simplest upper storey: owned messages in, owned messages out.
//!
//! Serves tests, the simulator, the demo and the async front end. It owns the bytes of outgoing messages until they
//! complete, and gives every incoming message a buffer of its own as long as its budget lasts; beyond the budget it
//! answers 'not ready', so that a receiver that does not read holds its senders back and nothing grows without bound.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::endpoint::PeerId;
use crate::upper::{Failure, Gather, MAX_HEADER, PlaceToken, Placement, Token, Upper};

/// A message that has arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub peer: PeerId,
    /// The sender's header.
    pub header: Vec<u8>,
    /// The payload.
    pub data: Vec<u8>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Mailbox {
    outgoing: Vec<Outgoing>,
    free_outgoing: Vec<u32>,
    incoming: Vec<Option<Received>>,
    free_incoming: Vec<u32>,
    inbox: VecDeque<Received>,
    completions: VecDeque<(Token, Result<(), Failure>)>,
    budget: usize,
    used: usize,
}

#[derive(Clone, Debug, Default)]
struct Outgoing {
    header: Vec<u8>,
    data: Bytes,
}

/// What every message costs against the budget beside its bytes, so that empty messages are bounded too.
const OVERHEAD: usize = 128;

impl Mailbox {
    /// A mailbox that holds up to `budget` bytes of incoming messages that nobody has read (plus 128 bytes for each).
    pub fn new(budget: usize) -> Mailbox {
        Mailbox {
            outgoing: Vec::new(),
            free_outgoing: Vec::new(),
            incoming: Vec::new(),
            free_incoming: Vec::new(),
            inbox: VecDeque::new(),
            completions: VecDeque::new(),
            budget,
            used: 0,
        }
    }

    /// Stores a message for sending and names it; pass the token to [`Endpoint::send`](crate::Endpoint::send).
    ///
    /// # Panics
    /// If the header is longer than [`MAX_HEADER`].
    pub fn post(&mut self, header: &[u8], data: Bytes) -> Token {
        assert!(header.len() <= MAX_HEADER, "header of {} bytes, at most {MAX_HEADER}", header.len());
        let slot = self.free_outgoing.pop().unwrap_or_else(|| {
            self.outgoing.push(Outgoing::default());
            (self.outgoing.len() - 1) as u32
        });
        let out = &mut self.outgoing[slot as usize];
        out.header.clear();
        out.header.extend_from_slice(header);
        out.data = data;
        Token(slot.into())
    }

    /// Takes back a message that [`Endpoint::send`](crate::Endpoint::send) did not accept.
    pub fn unpost(&mut self, token: Token) {
        self.outgoing[token.0 as usize].data = Bytes::new();
        self.free_outgoing.push(token.0 as u32);
    }

    /// The next message that has arrived.
    pub fn poll_received(&mut self) -> Option<Received> {
        let msg = self.inbox.pop_front()?;
        self.used -= msg.data.len() + OVERHEAD;
        Some(msg)
    }

    /// The next message of ours that completed. The token is free for reuse by the mailbox from then on.
    pub fn poll_completed(&mut self) -> Option<(Token, Result<(), Failure>)> {
        let done = self.completions.pop_front()?;
        self.unpost(done.0);
        Some(done)
    }

    /// A message that has arrived and waits to be read, by its place in the queue.
    pub fn peek(&self, index: usize) -> Option<&Received> {
        self.inbox.get(index)
    }

    /// Messages that arrived and wait to be read.
    pub fn unread(&self) -> usize {
        self.inbox.len()
    }

    /// Bytes of incoming messages held now, with overhead; never above the budget.
    pub fn held(&self) -> usize {
        self.used
    }
}

impl Gather for Mailbox {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        let offset = offset as usize;
        &self.outgoing[token.0 as usize].data[offset..offset + len]
    }
}

impl Upper for Mailbox {
    fn header(&self, token: Token) -> &[u8] {
        &self.outgoing[token.0 as usize].header
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        self.completions.push_back((token, outcome));
    }

    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        let cost = len as usize + OVERHEAD;
        if self.budget - self.used < cost {
            // A message that could never fit is refused, or its sender would try for ever.
            return if cost > self.budget { Placement::Refuse(0) } else { Placement::NotReady };
        }
        self.used += cost;
        let msg = Received { peer, header: header.to_vec(), data: vec![0; len as usize] };
        let slot = match self.free_incoming.pop() {
            Some(slot) => {
                self.incoming[slot as usize] = Some(msg);
                slot
            }
            None => {
                self.incoming.push(Some(msg));
                (self.incoming.len() - 1) as u32
            }
        };
        Placement::Accept(PlaceToken(slot.into()))
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let offset = offset as usize;
        let msg = self.incoming[place.0 as usize].as_mut().expect("write to a live place");
        msg.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn placed(&mut self, place: PlaceToken) {
        let msg = self.incoming[place.0 as usize].take().expect("placed once");
        self.free_incoming.push(place.0 as u32);
        self.inbox.push_back(msg);
    }

    fn abandoned(&mut self, place: PlaceToken) {
        let msg = self.incoming[place.0 as usize].take().expect("abandoned once");
        self.free_incoming.push(place.0 as u32);
        self.used -= msg.data.len() + OVERHEAD;
    }
}
