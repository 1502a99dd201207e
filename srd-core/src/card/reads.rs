//! Reads of ours whose data has not arrived, by the id that request and data carry.
//!
//! Ids are given in turn, so one comes back after 2^32 others: a late answer to a read that was given up meets no other read.
//! The low bits of an id are its slot. At least half of all slots are free, and an id whose slot is taken, by a read that
//! takes long, is passed over.

use super::memory::Segment;
use super::out::Request;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) id: u32,
    pub(super) request: Request,
    pub(super) seg: Segment,
    /// The peer has taken the request.
    pub(super) requested: bool,
    /// Where its data goes, once the first of it is here.
    pub(super) place: Option<usize>,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Reads {
    /// None, or a power of two.
    slots: Vec<Option<Read>>,
    live: usize,
    next: u32,
}

/// Reads under way at a time.
const MAX_READS: usize = 1 << 20;
const MIN_SLOTS: usize = 64;

impl Reads {
    /// None yet; the first one will have this id.
    pub(super) fn new(first: u32) -> Reads {
        Reads { slots: Vec::new(), live: 0, next: first }
    }

    /// Adds a read and returns its id, or `None` if there are too many.
    #[inline]
    pub(super) fn add(&mut self, request: Request, seg: Segment) -> Option<u32> {
        if self.live * 2 >= self.slots.len() {
            self.grow()?;
        }
        while self.slots[self.slot(self.next)].is_some() {
            self.next = self.next.wrapping_add(1);
        }
        let (id, slot) = (self.next, self.slot(self.next));
        self.slots[slot] = Some(Read { id, request, seg, requested: false, place: None });
        self.next = id.wrapping_add(1);
        self.live += 1;
        Some(id)
    }

    #[cold]
    fn grow(&mut self) -> Option<()> {
        if self.live == MAX_READS {
            return None;
        }
        let more = (self.slots.len() * 2).max(MIN_SLOTS);
        let old = std::mem::take(&mut self.slots);
        self.slots.resize_with(more, || None);
        for read in old.into_iter().flatten() {
            let slot = self.slot(read.id);
            self.slots[slot] = Some(read);
        }
        Some(())
    }

    #[inline]
    fn slot(&self, id: u32) -> usize {
        id as usize & self.slots.len().wrapping_sub(1)
    }

    /// The read with this id.
    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Read> {
        let slot = self.slot(id);
        self.slots.get_mut(slot)?.as_mut().filter(|read| read.id == id)
    }

    /// The read with this id is over.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Option<Read> {
        self.get_mut(id)?;
        self.live -= 1;
        let slot = self.slot(id);
        self.slots[slot].take()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Read> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::CqId;
    use super::*;

    fn add(reads: &mut Reads) -> u32 {
        let request = Request { wr_id: 0, peer: None, cq: CqId(0), qpn: 0, remote_qpn: 0, ah: 0 };
        reads.add(request, Segment::default()).expect("there is room")
    }

    #[test]
    fn an_id_comes_back_after_all_others_even_beside_reads_that_take_long() {
        let mut reads = Reads::new(u32::MAX - 1000);
        let long: Vec<u32> = (0..100).map(|_| add(&mut reads)).collect();
        let mut last = *long.last().unwrap();
        for _ in 0..10_000 {
            let id = add(&mut reads);
            let step = id.wrapping_sub(last);
            assert!((1..=1 + long.len() as u32).contains(&step), "{id} after {last}");
            assert_eq!(reads.remove(id).map(|read| read.id), Some(id));
            last = id;
        }
        assert!(long.iter().all(|&id| reads.get_mut(id).is_some_and(|read| read.id == id)));
    }

    #[test]
    fn only_reads_that_are_there_are_found_while_the_table_grows() {
        let mut reads = Reads::new(7);
        assert!(reads.get_mut(7).is_none() && reads.remove(7).is_none());
        let ids: Vec<u32> = (0..5000).map(|_| add(&mut reads)).collect();
        let (odd, even): (Vec<u32>, Vec<u32>) = ids.iter().partition(|&id| id % 2 == 1);
        assert!(odd.iter().all(|&id| reads.remove(id).is_some() && reads.remove(id).is_none()));
        assert!(odd.iter().all(|&id| reads.get_mut(id).is_none()));
        assert!(even.iter().all(|&id| reads.get_mut(id).is_some_and(|read| read.id == id)));
        assert!(reads.get_mut(even[0].wrapping_add(1 << 20)).is_none());
        assert_eq!(reads.iter().count(), even.len());
    }

    #[test]
    fn there_is_an_end() {
        let mut reads = Reads::new(0);
        (0..MAX_READS).for_each(|_| _ = add(&mut reads));
        let request = Request { wr_id: 0, peer: None, cq: CqId(0), qpn: 0, remote_qpn: 0, ah: 0 };
        assert_eq!(reads.add(request, Segment::default()), None);
        reads.remove(5);
        assert!(reads.add(request, Segment::default()).is_some());
    }
}
