//! Memory that a program and its device both read and write at any time: entries, and a word that tells of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A ring of entries, of which one side writes and the other one reads.
pub(super) struct Ring {
    pub(super) area: Area,
    pub(super) doorbell: Doorbell,
    /// Bytes of an entry.
    pub(super) entry: usize,
    /// A power of two.
    depth: u32,
    /// Entries that we have read or written.
    pub(super) done: u32,
}

/// Where a ring is, for the program.
pub(crate) struct Place {
    pub(crate) buffer: *mut u8,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) doorbell: *mut u32,
}

impl Ring {
    /// Of at least so many entries.
    pub(super) fn new(entry: usize, entries: u32) -> Ring {
        let depth = entries.next_power_of_two();
        Ring { area: Area::new(depth as usize * entry), doorbell: Doorbell::new(), entry, depth, done: 0 }
    }

    pub(super) fn place(&self) -> Place {
        Place {
            buffer: self.area.address(),
            entry_size: self.entry as u32,
            num_entries: self.depth,
            doorbell: self.doorbell.address(),
        }
    }

    /// How many entries it has.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Where in its area an entry is, so many after the next one.
    pub(super) fn at(&self, ahead: u32) -> usize {
        (self.done.wrapping_add(ahead) % self.depth) as usize * self.entry
    }

    /// Whether an entry, so many after the next one, is of the second round, the fourth, and so on.
    pub(super) fn is_even_round(&self, ahead: u32) -> bool {
        self.done.wrapping_add(ahead) / self.depth % 2 == 1
    }

    /// So many more entries were read or written.
    pub(super) fn advance(&mut self, entries: u32) {
        self.done = self.done.wrapping_add(entries);
    }
}

/// The entries of a ring, in whole pages, as those of a device would be.
#[derive(Debug)]
pub(super) struct Area(Box<[Page]>);

const WORDS: usize = 512;

#[derive(Debug)]
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

impl Area {
    /// So many bytes of zeros, a multiple of 8.
    pub(super) fn new(bytes: usize) -> Area {
        let page = || Page([const { AtomicU64::new(0) }; WORDS]);
        Area((0..bytes.div_ceil(size_of::<Page>())).map(|_| page()).collect())
    }

    /// Where it is.
    pub(super) fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index / WORDS].0[index % WORDS]
    }

    /// Copies from it. What is there was written before a doorbell that the caller has seen.
    #[inline]
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        for (k, bytes) in to.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.word(at / 8 + k).load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Writes a word. Whoever sees it sees what was written before.
    #[inline]
    pub(super) fn publish(&self, at: usize, word: u64) {
        self.word(at / 8).store(word, Ordering::Release);
    }
}

/// A word that a program writes to tell the device of something. The device has to look: nothing else tells it.
#[derive(Debug)]
pub(super) struct Doorbell(Box<Line>);

#[derive(Debug)]
#[repr(C, align(64))]
struct Line(AtomicU32);

impl Doorbell {
    pub(super) fn new() -> Doorbell {
        Doorbell(Box::new(Line(AtomicU32::new(0))))
    }

    /// Where it is.
    pub(super) fn address(&self) -> *mut u32 {
        self.0.0.as_ptr()
    }

    /// What it says. What was written before that can be read then.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.0.load(Ordering::Acquire)
    }

    /// Takes back what it says.
    pub(super) fn clear(&self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}
