//! The upper storey of simulated hosts: a [`Mailbox`] behind a guard that reports what the transport does to it.

use std::cell::RefCell;

use srd_core::{Failure, Gather, Mailbox, PeerId, PlaceToken, Placement, Token, Upper};

/// Bytes of the message number that every header begins with.
pub(crate) const NUMBER: usize = 8;

/// Something that a simulated host does wrong on purpose, so that tests can see the checkers find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Delivers every message twice.
    DeliverTwice,
    /// Changes a bit of every piece of payload.
    FlipBits,
    /// Loses every message that has arrived whole, and lets it complete.
    LoseMessages,
    /// Delivers again, after a restart, what the incarnation before had delivered last.
    ReplayAfterRestart,
    /// Never reports the completion of a message.
    SwallowCompletions,
    /// Reports every completion twice.
    CompleteTwice,
    /// Wants a turn all the time.
    TimerStorm,
}

/// A message that arrived whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) peer: PeerId,
    pub(crate) message: u64,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    peer: PeerId,
    message: u64,
    len: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) mailbox: Mailbox,
    pub(crate) sabotage: Option<Sabotage>,
    /// Payload that arrives is counted and thrown away; the mailbox only sends.
    discard: bool,
    /// What arrived since this was last emptied.
    pub(crate) placed: Vec<Placed>,
    /// Places given out, by token.
    places: Vec<Option<Place>>,
    /// Which outgoing tokens are in use, by token.
    outgoing: Vec<bool>,
    /// The first breach of the contract between transport and upper storey.
    broken: RefCell<Option<String>>,
}

impl Watch {
    pub(crate) fn new(budget: usize, sabotage: Option<Sabotage>, discard: bool) -> Watch {
        Watch {
            mailbox: Mailbox::new(budget),
            sabotage,
            discard,
            placed: Vec::new(),
            places: Vec::new(),
            outgoing: Vec::new(),
            broken: RefCell::new(None),
        }
    }

    /// The token was given to the transport.
    pub(crate) fn lend(&mut self, token: Token) {
        let i = token.0 as usize;
        if self.outgoing.len() <= i {
            self.outgoing.resize(i + 1, false);
        }
        self.outgoing[i] = true;
    }

    /// The first breach of contract since the last call.
    pub(crate) fn breach(&mut self) -> Option<String> {
        self.broken.get_mut().take()
    }

    /// Places given out and not yet taken back.
    pub(crate) fn open_places(&self) -> usize {
        self.places.iter().flatten().count()
    }

    fn is_out(&self, token: Token) -> bool {
        self.outgoing.get(token.0 as usize).copied().unwrap_or(false)
    }

    fn breached(&self, what: impl FnOnce() -> String) {
        self.broken.borrow_mut().get_or_insert_with(what);
    }

    fn place_at(&self, place: PlaceToken, call: &str) -> Option<Place> {
        let found = self.places.get(place.0 as usize).copied().flatten();
        if found.is_none() {
            self.breached(|| format!("Upper::{call} names {place:?}, which is not in use"));
        }
        found
    }
}

impl Gather for Watch {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        if !self.is_out(token) {
            self.breached(|| format!("Gather::payload names {token:?}, which is not in use"));
            return &[0; 65_536][..len.min(65_536)];
        }
        self.mailbox.payload(token, offset, len)
    }
}

impl Upper for Watch {
    fn header(&self, token: Token) -> &[u8] {
        if !self.is_out(token) {
            self.breached(|| format!("Upper::header names {token:?}, which is not in use"));
        }
        self.mailbox.header(token)
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        if !self.is_out(token) {
            return self.breached(|| format!("{token:?} completed ({outcome:?}), but it is not in use"));
        }
        if self.sabotage == Some(Sabotage::SwallowCompletions) {
            return;
        }
        self.outgoing[token.0 as usize] = false;
        self.mailbox.completed(token, outcome);
        if self.sabotage == Some(Sabotage::CompleteTwice) {
            self.completed(token, outcome);
        }
    }

    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        let Some(number) = header.first_chunk::<NUMBER>() else {
            self.breached(|| format!("message with a header of {} bytes, none was sent", header.len()));
            return Placement::Refuse(255);
        };
        let placement = if self.discard {
            let free = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
            Placement::Accept(PlaceToken(free as u64))
        } else {
            self.mailbox.place(peer, header, len)
        };
        if let Placement::Accept(token) = placement {
            let i = token.0 as usize;
            if self.places.len() <= i {
                self.places.resize(i + 1, None);
            }
            self.places[i] = Some(Place { peer, message: u64::from_le_bytes(*number), len });
        }
        placement
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let Some(known) = self.place_at(place, "write") else { return };
        if u64::from(offset) + bytes.len() as u64 > u64::from(known.len) {
            let Place { message, len, .. } = known;
            return self.breached(|| {
                format!("write of {} bytes at {offset} of message {message}, which has {len}", bytes.len())
            });
        }
        if self.discard {
            return;
        }
        if self.sabotage == Some(Sabotage::FlipBits) && !bytes.is_empty() {
            let mut bytes = bytes.to_vec();
            bytes[0] ^= 1;
            return self.mailbox.write(place, offset, &bytes);
        }
        self.mailbox.write(place, offset, bytes);
    }

    fn placed(&mut self, place: PlaceToken) {
        let Some(Place { peer, message, len }) = self.place_at(place, "placed") else { return };
        self.places[place.0 as usize] = None;
        if self.sabotage == Some(Sabotage::LoseMessages) {
            return self.mailbox.abandoned(place);
        }
        if !self.discard {
            self.mailbox.placed(place);
        }
        self.placed.push(Placed { peer, message, len });
        if self.sabotage == Some(Sabotage::DeliverTwice) {
            self.placed.push(Placed { peer, message, len });
        }
    }

    fn abandoned(&mut self, place: PlaceToken) {
        if self.place_at(place, "abandoned").is_some() {
            self.places[place.0 as usize] = None;
            if !self.discard {
                self.mailbox.abandoned(place);
            }
        }
    }
}
