//! Payload for bursts, and the bursts: what the tests of every driver send.

use std::net::SocketAddr;

use srd_core::{Gather, SourcePort, Token, TxBatch};

/// Payload in pieces of at most `piece` bytes.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) piece: usize,
}

impl Memory {
    /// `len` bytes without a pattern that repeats at any segment size.
    pub(crate) fn new(len: usize) -> Memory {
        Memory { bytes: (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(), piece: len }
    }
}

impl Gather for Memory {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.bytes[offset as usize..][..len.min(self.piece)]
    }
}

/// Adds a burst that carries the first `len` bytes of a memory, with `header` bytes of each datagram in the batch itself,
/// and returns its datagrams.
pub(crate) fn add(
    batch: &mut TxBatch,
    mem: &Memory,
    to: SocketAddr,
    port: u16,
    segment: usize,
    len: usize,
    header: usize,
) -> Vec<Vec<u8>> {
    let mut burst = batch.burst(to, SourcePort(port), segment);
    let mut offset = 0;
    let mut datagrams = Vec::new();
    for datagram in mem.bytes[..len].chunks(segment) {
        let header = header.min(datagram.len());
        burst.inline(&datagram[..header]);
        if header < datagram.len() {
            burst.payload(Token(1), (offset + header) as u32, (datagram.len() - header) as u32);
        }
        offset += datagram.len();
        datagrams.push(datagram.to_vec());
    }
    burst.finish();
    datagrams
}
