//! Things that are under way, each in a slot whose number is its name elsewhere.
//!
//! They are written and read in place: a message comes and goes millions of times a second, and is too large to be moved around
//! for that.

use std::ops::{Index, IndexMut};

/// What can be in a slot.
pub(super) trait Slot {
    /// Nothing.
    const FREE: Self;

    fn is_free(&self) -> bool;

    /// Becomes nothing. Whatever belongs to it has been taken or is no longer needed.
    fn set_free(&mut self);
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T: Slot> Slots<T> {
    pub(super) fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    /// How many are under way.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A slot that was free. All of it is to be set, for it has what was there before.
    #[inline]
    pub(super) fn take(&mut self) -> (usize, &mut T) {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.slots.push(T::FREE);
                self.slots.len() - 1
            }
        };
        (slot, &mut self.slots[slot])
    }

    /// What is in the slot is over.
    #[inline]
    pub(super) fn give_back(&mut self, slot: usize) {
        self.slots[slot].set_free();
        self.free.push(slot as u32);
    }

    /// What is in a slot.
    #[inline]
    pub(super) fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot).filter(|it| !it.is_free())
    }

    /// All that are under way, with their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter(|(_, it)| !it.is_free())
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: usize) -> &T {
        &self.slots[slot]
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut T {
        &mut self.slots[slot]
    }
}
