//! What stands above the transport at a station: plain messages that are counted, or the verbs card.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use srd_core::card::Card;
use srd_core::{Endpoint, Failure, Gather, Outbound, PeerId, PlaceToken, Placement, RnrRetry, Time, Token, Upper};

use super::tally::{HEADER, Tally};
use super::verbs::{Door, Memory, Verbs};

/// See the module documentation.
#[derive(Debug)]
pub(super) enum Storey {
    Plain(Tally),
    Verbs(Box<Verbs>),
}

/// To whom a message goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) peer: PeerId,
    pub(super) addr: SocketAddr,
    /// How its memory is reached, if it runs the verbs card.
    pub(super) door: Option<Door>,
    /// What the interface carries.
    pub(super) max_datagram: u16,
}

impl Storey {
    /// Sends a message of a flow.
    pub(super) fn post(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        to: &Target,
        flow: u32,
        len: u32,
    ) -> Result<(), String> {
        match self {
            Storey::Plain(tally) => {
                let outbound = Outbound {
                    token: tally.post(flow),
                    flow: flow as u8,
                    header_len: HEADER as u8,
                    len,
                    rnr: RnrRetry::Forever,
                };
                endpoint.send(now, to.peer, outbound).map_err(|e| e.to_string())
            }
            Storey::Verbs(verbs) => {
                let door = to.door.ok_or("the peer has no card")?;
                verbs.post(endpoint, now, (to.addr, door, to.max_datagram), flow, len).map_err(|e| e.to_string())
            }
        }
    }

    /// (flow, bytes) that arrived since this was last asked for.
    pub(super) fn arrived(&mut self) -> &mut Vec<(u32, u64)> {
        match self {
            Storey::Plain(tally) => &mut tally.arrived,
            Storey::Verbs(verbs) => &mut verbs.card.memory_mut().arrived,
        }
    }

    /// The flow of a message that completed, and whether it succeeded.
    pub(super) fn completed(&mut self) -> Option<(u32, bool)> {
        match self {
            Storey::Plain(tally) => tally.completed.pop().map(|(flow, failure)| (flow, failure.is_none())),
            Storey::Verbs(verbs) => verbs.poll(),
        }
    }

    /// A flow of this station has ended.
    pub(super) fn end(&mut self, endpoint: &mut Endpoint, flow: u32) -> Result<(), String> {
        match self {
            Storey::Plain(_) => Ok(()),
            Storey::Verbs(verbs) => verbs.end(endpoint, flow).map_err(|e| e.to_string()),
        }
    }

    /// Work between receiving and sending.
    pub(super) fn work(&mut self, endpoint: &mut Endpoint, now: Time) {
        if let Storey::Verbs(verbs) = self {
            verbs.card.work(endpoint, now);
        }
    }

    /// When there is such work without any input.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Storey::Plain(_) => None,
            Storey::Verbs(verbs) => Some(verbs.card.deadline()).filter(|at| *at != Time::NEVER),
        }
    }
}

/// Calls the same method of whichever storey it is.
macro_rules! both {
    ($self:expr, $storey:ident => $call:expr) => {
        match $self {
            Storey::Plain($storey) => $call,
            Storey::Verbs(verbs) => {
                let $storey: &mut Card<Memory> = &mut verbs.card;
                $call
            }
        }
    };
    (ref $self:expr, $storey:ident => $call:expr) => {
        match $self {
            Storey::Plain($storey) => $call,
            Storey::Verbs(verbs) => {
                let $storey: &Card<Memory> = &verbs.card;
                $call
            }
        }
    };
}

impl Gather for Storey {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        both!(ref self, s => s.payload(token, offset, len))
    }
}

impl Upper for Storey {
    fn header(&self, token: Token) -> &[u8] {
        both!(ref self, s => s.header(token))
    }

    fn waits_for(&self, token: Token) -> Option<NonZeroU16> {
        both!(ref self, s => s.waits_for(token))
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        both!(self, s => Upper::completed(s, token, outcome));
    }

    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement {
        both!(self, s => s.place(peer, header, len))
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        both!(self, s => s.write(place, offset, bytes));
    }

    fn placed(&mut self, place: PlaceToken) {
        both!(self, s => s.placed(place));
    }

    fn abandoned(&mut self, place: PlaceToken) {
        both!(self, s => s.abandoned(place));
    }

    fn revoked(&self, place: PlaceToken) -> Option<u8> {
        both!(ref self, s => s.revoked(place))
    }

    fn connected(&mut self, peer: PeerId, addr: SocketAddr, tag: u8) {
        both!(self, s => s.connected(peer, addr, tag));
    }

    fn closed(&mut self, peer: PeerId) {
        both!(self, s => s.closed(peer));
    }

    fn ended(&mut self, peer: PeerId, why: Option<Failure>) {
        both!(self, s => s.ended(peer, why));
    }
}
