//! The upper storey of experiments: payload is zeros by length, arrivals are counted per flow and thrown away.

use srd_core::{Failure, Gather, PeerId, PlaceToken, Placement, Token, Upper};

/// Flow number of a greeting, which is a message of no flow.
pub(super) const GREETING: u32 = u32::MAX;

/// Bytes of the header that every message has: the number of its flow.
pub(super) const HEADER: usize = 4;

/// What any payload consists of.
pub(super) static ZEROS: [u8; 65_536] = [0; 65_536];

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Headers of outgoing messages, by token.
    outgoing: Vec<[u8; HEADER]>,
    free_outgoing: Vec<u32>,
    /// Flows of incoming messages, by place.
    places: Vec<u32>,
    free_places: Vec<u32>,
    /// (flow, bytes) of payload that arrived since this was last emptied.
    pub(super) arrived: Vec<(u32, u64)>,
    /// Flows of messages that completed since this was last emptied, and whether they failed.
    pub(super) completed: Vec<(u32, Option<Failure>)>,
}

impl Tally {
    /// A token for a message of this flow.
    pub(super) fn post(&mut self, flow: u32) -> Token {
        let header = flow.to_le_bytes();
        match self.free_outgoing.pop() {
            Some(i) => {
                self.outgoing[i as usize] = header;
                Token(i.into())
            }
            None => {
                self.outgoing.push(header);
                Token(self.outgoing.len() as u64 - 1)
            }
        }
    }
}

impl Gather for Tally {
    fn payload(&self, _token: Token, _offset: u32, len: usize) -> &[u8] {
        &ZEROS[..len.min(ZEROS.len())]
    }
}

impl Upper for Tally {
    fn header(&self, token: Token) -> &[u8] {
        &self.outgoing[token.0 as usize]
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        self.completed.push((u32::from_le_bytes(self.outgoing[token.0 as usize]), outcome.err()));
        self.free_outgoing.push(token.0 as u32);
    }

    fn place(&mut self, _peer: PeerId, header: &[u8], _len: u32) -> Placement {
        let Some(flow) = header.first_chunk::<HEADER>() else { return Placement::Refuse(1) };
        let flow = u32::from_le_bytes(*flow);
        let place = self.free_places.pop().unwrap_or(self.places.len() as u32);
        match self.places.get_mut(place as usize) {
            Some(slot) => *slot = flow,
            None => self.places.push(flow),
        }
        Placement::Accept(PlaceToken(place.into()))
    }

    fn write(&mut self, place: PlaceToken, _offset: u32, bytes: &[u8]) {
        let flow = self.places[place.0 as usize];
        match self.arrived.last_mut() {
            Some((same, sum)) if *same == flow => *sum += bytes.len() as u64,
            _ => self.arrived.push((flow, bytes.len() as u64)),
        }
    }

    fn placed(&mut self, place: PlaceToken) {
        self.free_places.push(place.0 as u32);
    }

    fn abandoned(&mut self, place: PlaceToken) {
        self.free_places.push(place.0 as u32);
    }
}
