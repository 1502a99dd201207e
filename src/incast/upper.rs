//! The storeys above SRD: flows that are cut into messages on one side, counts on the other.
//!
//! A message carries the run's nonce and the number of its flow in its header. A message without payload only opens the
//! connection.

use std::ops::Range;

use srd::{Endpoint, Failure, Gather, Outbound, PeerId, PlaceToken, Placement, RnrRetry, Time, Token, Upper};

use super::control::Job;

/// Nonce and flow, in big-endian order.
const HEADER: usize = 12;
/// Status of a refusal: not a message of this run.
const REFUSED: u8 = 1;

/// The flows that one endpoint sends.
#[derive(Debug)]
pub(super) struct Outlet {
    flows: Vec<Out>,
    message: u64,
    depth: u32,
    /// What every message carries: zeros from the system, which take no memory as long as they are only read. There are many
    /// endpoints, and messages may be long.
    data: Box<[u8]>,
    is_open: bool,
    /// Flows (by index here) that have ended since the owner last looked.
    pub(super) ended: Vec<usize>,
    pub(super) failed: Option<Failure>,
}

#[derive(Debug)]
struct Out {
    header: [u8; HEADER],
    /// Bytes not yet posted.
    left: u64,
    outstanding: u32,
    delivered: u64,
}

impl Outlet {
    pub(super) fn new(job: &Job, flows: Range<u32>) -> Outlet {
        let out = |flow: u32| {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&job.nonce.to_be_bytes());
            header[8..].copy_from_slice(&flow.to_be_bytes());
            Out { header, left: job.bytes.unwrap_or(u64::MAX), outstanding: 0, delivered: 0 }
        };
        Outlet {
            flows: flows.map(out).collect(),
            message: job.message.into(),
            depth: job.depth,
            data: vec![0; job.message as usize].into(),
            is_open: false,
            ended: Vec::new(),
            failed: None,
        }
    }

    /// Sends the message that opens the connection; returns whether it was taken.
    pub(super) fn open(&mut self, endpoint: &mut Endpoint, now: Time, peer: PeerId) -> bool {
        let msg = Outbound { token: token(0, 0), flow: 0, header_len: HEADER as u8, len: 0, rnr: RnrRetry::Forever };
        endpoint.send(now, peer, msg).is_ok()
    }

    /// Whether the receiver has answered.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Posts as much as may be outstanding, each flow one message in turn.
    pub(super) fn post(&mut self, endpoint: &mut Endpoint, now: Time, peer: PeerId) {
        let mut posted = true;
        while std::mem::take(&mut posted) {
            for (index, flow) in self.flows.iter_mut().enumerate() {
                if flow.left == 0 || flow.outstanding >= self.depth {
                    continue;
                }
                let len = flow.left.min(self.message) as u32;
                let msg = Outbound {
                    token: token(index, len),
                    flow: index as u8,
                    header_len: HEADER as u8,
                    len,
                    rnr: RnrRetry::Forever,
                };
                if endpoint.send(now, peer, msg).is_err() {
                    return;
                }
                flow.left -= u64::from(len);
                flow.outstanding += 1;
                posted = true;
            }
        }
    }

    /// Bytes of a flow that have arrived for sure.
    pub(super) fn delivered(&self, index: usize) -> u64 {
        self.flows[index].delivered
    }
}

/// Index of the flow and length of the message.
fn token(index: usize, len: u32) -> Token {
    Token((index as u64) << 32 | u64::from(len))
}

impl Gather for Outlet {
    fn payload(&self, _token: Token, offset: u32, len: usize) -> &[u8] {
        &self.data[offset as usize..offset as usize + len]
    }
}

impl Upper for Outlet {
    fn header(&self, token: Token) -> &[u8] {
        &self.flows[(token.0 >> 32) as usize].header
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        let (index, len) = ((token.0 >> 32) as usize, token.0 & 0xffff_ffff);
        if let Err(failure) = outcome {
            self.failed.get_or_insert(failure);
        } else if len == 0 {
            self.is_open = true;
        } else {
            let flow = &mut self.flows[index];
            flow.outstanding -= 1;
            flow.delivered += len;
            if flow.left == 0 && flow.outstanding == 0 {
                self.ended.push(index);
            }
        }
    }

    fn place(&mut self, _: PeerId, _: &[u8], _: u32) -> Placement {
        Placement::Refuse(REFUSED)
    }

    fn write(&mut self, _: PlaceToken, _: u32, _: &[u8]) {}

    fn placed(&mut self, _: PlaceToken) {}

    fn abandoned(&mut self, _: PlaceToken) {}
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Inlet {
    nonce: u64,
    flows: u32,
    message: u32,
    /// Where payload goes: one buffer for all, as nobody reads it.
    buffer: Box<[u8]>,
    /// Flows and bytes of the messages that have come since the owner last looked.
    pub(super) arrived: Vec<(usize, u64)>,
}

impl Inlet {
    pub(super) fn new(nonce: u64, flows: u32, message: u32) -> Inlet {
        Inlet { nonce, flows, message, buffer: vec![0; message as usize].into(), arrived: Vec::new() }
    }
}

impl Gather for Inlet {
    fn payload(&self, _: Token, _: u32, _: usize) -> &[u8] {
        &[]
    }
}

impl Upper for Inlet {
    fn header(&self, _: Token) -> &[u8] {
        &[]
    }

    fn completed(&mut self, _: Token, _: Result<(), Failure>) {}

    fn place(&mut self, _peer: PeerId, header: &[u8], len: u32) -> Placement {
        let Some((nonce, flow)) = header.split_first_chunk::<8>() else { return Placement::Refuse(REFUSED) };
        let flow = flow.try_into().map_or(u32::MAX, u32::from_be_bytes);
        if u64::from_be_bytes(*nonce) != self.nonce || flow >= self.flows || len > self.message {
            return Placement::Refuse(REFUSED);
        }
        Placement::Accept(PlaceToken(token(flow as usize, len).0))
    }

    fn write(&mut self, _place: PlaceToken, offset: u32, bytes: &[u8]) {
        self.buffer[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn placed(&mut self, place: PlaceToken) {
        self.arrived.push(((place.0 >> 32) as usize, place.0 & 0xffff_ffff));
    }

    fn abandoned(&mut self, _place: PlaceToken) {}
}

#[cfg(test)]
mod tests {
    use super::super::control::Transport;
    use super::super::plan::Plan;
    use super::*;

    #[test]
    fn long_messages_of_many_endpoints_take_no_memory() {
        const MESSAGE: u32 = 1 << 30;
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
            let pages = pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number");
            pages * 4_096
        };
        let plan = Plan { flows: 1, endpoints: 1, message: MESSAGE, depth: 1, ..Plan::default() };
        let before = resident();
        let outlets: Vec<_> = (0..4).map(|_| Outlet::new(&plan.job(Transport::Srd, 0), 0..1)).collect();
        let read: u64 = outlets.iter().map(|o| o.payload(token(0, MESSAGE), MESSAGE - 64, 64).len() as u64).sum();
        let grown = resident().saturating_sub(before);
        // Other tests run beside this one.
        assert!(read == 256 && grown < 3 * u64::from(MESSAGE), "{grown} bytes");
    }

    #[test]
    fn only_messages_of_the_run_are_taken() {
        let mut inlet = Inlet::new(7, 3, 100);
        let mut header = [0_u8; HEADER];
        header[7] = 7;
        header[11] = 2;
        let place = PlaceToken(2 << 32 | 100);
        assert_eq!(inlet.place(PeerId(0), &header, 100), Placement::Accept(place));
        inlet.write(place, 60, &[1; 40]);
        inlet.placed(place);
        assert_eq!(inlet.arrived, [(2, 100)]);
        let refused = Placement::Refuse(REFUSED);
        assert_eq!(inlet.place(PeerId(0), &header, 101), refused);
        header[11] = 3;
        assert_eq!(inlet.place(PeerId(0), &header, 1), refused);
        header[0] = 1;
        assert_eq!(inlet.place(PeerId(0), &header, 1), refused);
        for len in [0, 8, 11] {
            assert_eq!(inlet.place(PeerId(0), &header[..len], 1), refused);
        }
        assert_eq!(inlet.place(PeerId(0), &[7; 13], 1), refused);
    }
}
