//! The cheapest upper storey, for benches and for counting allocations.
#![allow(dead_code, unreachable_pub, reason = "shared by tests and benches")]

use srd_core::{Failure, Gather, PeerId, PlaceToken, Placement, Token, Upper};

/// An upper storey without memory of its own: one buffer for all that is sent, one for all that arrives.
#[derive(Debug)]
pub struct Lean {
    out: Vec<u8>,
    into: Vec<u8>,
    /// Messages of ours that were delivered.
    pub completed: u64,
    /// Messages that arrived.
    pub placed: u64,
}

impl Lean {
    /// With messages of `size` bytes at most.
    pub fn new(size: usize) -> Lean {
        Lean { out: vec![7; size], into: vec![0; size], completed: 0, placed: 0 }
    }
}

impl Gather for Lean {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.out[offset as usize..offset as usize + len]
    }
}

impl Upper for Lean {
    fn header(&self, _: Token) -> &[u8] {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    }
    fn completed(&mut self, _: Token, outcome: Result<(), Failure>) {
        outcome.expect("delivered");
        self.completed += 1;
    }
    fn place(&mut self, _: PeerId, _: &[u8], _: u32) -> Placement {
        Placement::Accept(PlaceToken(0))
    }
    fn write(&mut self, _: PlaceToken, offset: u32, bytes: &[u8]) {
        self.into[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn placed(&mut self, _: PlaceToken) {
        self.placed += 1;
    }
    fn abandoned(&mut self, _: PlaceToken) {}
}
