//! Cards, step by step.

mod bundles;
#[path = "../support/cards.rs"]
mod cards;
mod datagrams;
mod memory;
mod objects;
mod operations;
mod ourselves;
mod queues;

use std::cell::Cell;
use std::rc::Rc;

use cards::*;
use srd_core::card::*;

/// A usual pair that knows each other, and who of them is not heard.
fn with_switch() -> (Two, Rc<Cell<Option<usize>>>) {
    let mut two = Two::new();
    two.assert_usable();
    let mute = Rc::new(Cell::new(None));
    let is_mute = Rc::clone(&mute);
    two.world.wire = Box::new(move |from, _| if is_mute.get() == Some(from) { Fate::Lost } else { Fate::Arrives });
    (two, mute)
}

/// Memory that is longer than this host's: reading gives a pattern, and what is written must be the same pattern.
#[derive(Debug)]
struct Vast {
    pattern: Vec<u8>,
    written: u64,
}

const PERIOD: usize = 1 << 20;

impl Vast {
    fn new() -> Vast {
        let once: Vec<u8> = (0..PERIOD).map(|i| (i * 7 + i / 253) as u8).collect();
        Vast { pattern: once.repeat(2), written: 0 }
    }
}

impl HostMemory for Vast {
    type Region = ();

    fn read<'m>(&'m self, _: &'m (), offset: u64, len: usize) -> &'m [u8] {
        &self.pattern[offset as usize % PERIOD..][..len]
    }

    fn write(&mut self, region: &(), offset: u64, bytes: &[u8]) {
        assert!(bytes == self.read(region, offset, bytes.len()), "bytes at {offset} are those of another place");
        self.written += bytes.len() as u64;
    }
}
