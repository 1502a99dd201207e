//! Memory regions: what of the host's memory the card may touch, for whom, under which keys.
//!
//! Every access of the card goes through [`Regions::resolve`] first, which checks key, protection domain, permission and
//! bounds; the result names the region and an offset in it, so that the memory itself is only touched inside regions.

use std::collections::VecDeque;
use std::ops::Deref;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng as _;

use super::{CardError, PdId};

/// The host's memory, as far as it is registered. The card only names ranges that lie within a region.
pub trait HostMemory {
    /// What a registration covers.
    type Region: std::fmt::Debug;

    /// `len` bytes of a region from `offset`.
    fn read<'m>(&'m self, region: &'m Self::Region, offset: u64, len: usize) -> &'m [u8];

    /// Copies bytes of a region to the end of `into`, or says `false`: the memory is gone, though it is still registered.
    /// Only memory that can vanish needs more than what is provided.
    fn recall(&self, region: &Self::Region, offset: u64, len: usize, into: &mut Vec<u8>) -> bool {
        into.extend_from_slice(self.read(region, offset, len));
        true
    }

    /// These bytes are likely to be written soon: the host may fetch them into its cache. Nothing else comes of it.
    fn prefetch(&self, _region: &Self::Region, _offset: u64, _len: usize) {}

    /// Writes into a region from `offset`.
    fn write(&mut self, region: &Self::Region, offset: u64, bytes: &[u8]);
}

/// What may be done to a region (`IBV_ACCESS_*` of `verbs.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Receives and reads of the owner may land there.
    pub local_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write it.
    pub remote_write: bool,
}

/// The keys of a region. They differ, so that an lkey that is sent to a peer is noticed. The other way it works, as with EFA:
/// its descriptors have room for 24 bits, in which the keys are the same, and there are programs that know only one key (UCCL).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MrKeys {
    /// For the owner's work requests; 24 bits. What more bits say does not matter there.
    pub lkey: u32,
    /// For peers; 32 bits, of which the low 24 are the lkey.
    pub rkey: u32,
}

/// A buffer of a work request.
///
/// Laid out as `struct ibv_sge`, so that lists of them need no copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of its first byte, in the region's address space.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Key of the region that holds it.
    pub lkey: u32,
}

/// What a key is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
}

/// A checked range of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Segment {
    region: u32,
    offset: u64,
    pub(super) len: u32,
}

/// Checked ranges, at most `N`, that hold the bytes of a message one after the other. None of them is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments<const N: usize> {
    all: [Segment; N],
    count: u8,
}

impl<const N: usize> Segments<N> {
    pub(super) const NONE: Segments<N> = Segments { all: [Segment { region: 0, offset: 0, len: 0 }; N], count: 0 };

    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds one at the end, unless it is empty. There must be room.
    #[inline]
    pub(super) fn push(&mut self, segment: Segment) {
        if segment.len > 0 {
            self.all[self.count as usize] = segment;
            self.count += 1;
        }
    }
}

impl<const N: usize> From<Segment> for Segments<N> {
    #[inline]
    fn from(segment: Segment) -> Segments<N> {
        let mut segments = Segments::NONE;
        segments.push(segment);
        segments
    }
}

impl<const N: usize> Deref for Segments<N> {
    type Target = [Segment];

    #[inline]
    fn deref(&self) -> &[Segment] {
        &self.all[..self.count as usize]
    }
}

#[derive(Debug)]
struct Region<R> {
    pd: PdId,
    base: u64,
    len: u64,
    access: Access,
    keys: MrKeys,
    memory: R,
    /// Work requests and places that speak of it.
    users: u32,
}

impl<R> Region<R> {
    /// Where in the region a range begins; `None` if it may not be used like this.
    // [CARD-5]
    #[inline]
    fn offset_of(&self, pd: PdId, key: u32, addr: u64, len: u32, use_: Use) -> Option<u64> {
        let is_lkey = key & LKEY_MASK == self.keys.lkey;
        let permitted = match use_ {
            Use::LocalRead => is_lkey,
            Use::LocalWrite => is_lkey && self.access.local_write,
            Use::RemoteRead => key == self.keys.rkey && self.access.remote_read,
            Use::RemoteWrite => key == self.keys.rkey && self.access.remote_write,
        };
        let offset = addr.wrapping_sub(self.base);
        let inside = offset <= self.len && u64::from(len) <= self.len - offset;
        (permitted && self.pd == pd && inside).then_some(offset)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Regions<M: HostMemory> {
    memory: M,
    slots: Vec<Option<Region<M::Region>>>,
    /// Free slots, the one that has been free for longest first, so that keys are not reused soon.
    free: VecDeque<u32>,
    live: u32,
    /// Bytes of all regions.
    bytes: u64,
    max: u32,
    rng: Xoshiro256PlusPlus,
}

/// The low bits of both keys are the slot.
const SLOT_BITS: u32 = 18;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// An lkey has no more bits than these (EFA's descriptors).
const LKEY_BITS: u32 = 24;
const LKEY_MASK: u32 = (1 << LKEY_BITS) - 1;

impl<M: HostMemory> Regions<M> {
    pub(super) fn new(memory: M, max: u32, rng: Xoshiro256PlusPlus) -> Regions<M> {
        Regions {
            memory,
            slots: Vec::new(),
            free: VecDeque::new(),
            live: 0,
            bytes: 0,
            max: max.min(1 << SLOT_BITS),
            rng,
        }
    }

    pub(super) fn register(
        &mut self,
        pd: PdId,
        memory: M::Region,
        base: u64,
        len: u64,
        access: Access,
    ) -> Result<MrKeys, CardError> {
        if base.checked_add(len).is_none() {
            return Err(CardError::Invalid("the region wraps around the end of the address space"));
        }
        if self.live == self.max {
            return Err(CardError::NoMemory("the device has no more memory regions"));
        }
        // A slot is used again late, and only when there are enough others.
        let all = self.slots.len();
        let slot = match self.free.front() {
            Some(&slot) if all >= 64.min(self.max as usize) => {
                self.free.pop_front();
                slot
            }
            _ => {
                self.slots.push(None);
                all as u32
            }
        };
        let tag = self.rng.next_u32();
        // Never 0, and never the same for both.
        let lkey = slot | (1 + (tag >> 8) % 63) << SLOT_BITS;
        let rkey = lkey | (1 + (tag >> 16) % 255) << LKEY_BITS;
        let keys = MrKeys { lkey, rkey };
        self.slots[slot as usize] = Some(Region { pd, base, len, access, keys, memory, users: 0 });
        self.live += 1;
        self.bytes = self.bytes.saturating_add(len);
        Ok(keys)
    }

    /// Ends the registration of the region with this lkey. Says whether anything under way speaks of it: then `is_gone`
    /// tells of its segments.
    pub(super) fn deregister(&mut self, lkey: u32) -> Result<bool, CardError> {
        let slot = lkey & SLOT_MASK;
        let region = self.slots.get_mut(slot as usize).and_then(|s| s.take_if(|r| r.keys.lkey == lkey));
        let region = region.ok_or(CardError::Invalid("no memory region has this lkey"))?;
        self.live -= 1;
        self.bytes = self.bytes.saturating_sub(region.len);
        self.free.push_back(slot);
        Ok(region.users > 0)
    }

    /// How many there are, and their bytes.
    pub(super) fn registered(&self) -> (u32, u64) {
        (self.live, self.bytes)
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    pub(super) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The protection domain has regions.
    pub(super) fn has_any(&self, pd: PdId) -> bool {
        self.slots.iter().flatten().any(|r| r.pd == pd)
    }

    /// Whether a segment belongs to the region that had `lkey`; only true of segments made before it was deregistered.
    pub(super) fn is_of(segment: &Segment, lkey: u32) -> bool {
        segment.region == lkey & SLOT_MASK
    }

    /// Checks a range; `None` if it may not be used like this.
    #[inline]
    pub(super) fn resolve(&mut self, pd: PdId, key: u32, addr: u64, len: u32, use_: Use) -> Option<Segment> {
        let slot = key & SLOT_MASK;
        let region = self.slots.get_mut(slot as usize)?.as_mut()?;
        let offset = region.offset_of(pd, key, addr, len, use_)?;
        // A range of no bytes is never touched.
        region.users += u32::from(len > 0);
        Some(Segment { region: slot, offset, len })
    }

    /// See [`HostMemory::prefetch`]; of a buffer that may not be written nothing comes.
    pub(super) fn prefetch(&self, pd: PdId, sge: &Sge) {
        if let Some(Some(region)) = self.slots.get((sge.lkey & SLOT_MASK) as usize)
            && let Some(offset) = region.offset_of(pd, sge.lkey, sge.addr, sge.len, Use::LocalWrite)
        {
            self.memory.prefetch(&region.memory, offset, sge.len as usize);
        }
    }

    /// What is in a buffer; `None` if it may not be read.
    #[inline]
    pub(super) fn look(&self, pd: PdId, sge: &Sge) -> Option<&[u8]> {
        let region = self.slots.get((sge.lkey & SLOT_MASK) as usize)?.as_ref()?;
        let offset = region.offset_of(pd, sge.lkey, sge.addr, sge.len, Use::LocalRead)?;
        Some(if sge.len == 0 { &[] } else { self.memory.read(&region.memory, offset, sge.len as usize) })
    }

    /// Checks the buffers of a message and adds them to `segments`; `false`, and none is, if one of them may not be used like
    /// this.
    #[inline]
    pub(super) fn resolve_all<const N: usize>(
        &mut self,
        pd: PdId,
        sges: impl Iterator<Item = Sge>,
        use_: Use,
        segments: &mut Segments<N>,
    ) -> bool {
        for sge in sges {
            let Some(segment) = self.resolve(pd, sge.lkey, sge.addr, sge.len, use_) else {
                self.release_all(segments);
                segments.clear();
                return false;
            };
            segments.push(segment);
        }
        true
    }

    /// Segments are not used any more.
    #[inline]
    pub(super) fn release_all(&mut self, segments: &[Segment]) {
        segments.iter().for_each(|segment| self.release(segment));
    }

    /// A segment is not used any more. (Those of a region that goes are released while it goes.)
    #[inline]
    pub(super) fn release(&mut self, segment: &Segment) {
        if segment.len > 0
            && let Some(Some(region)) = self.slots.get_mut(segment.region as usize)
        {
            region.users = region.users.saturating_sub(1);
        }
    }

    /// Up to `len` bytes of a segment from `offset` on.
    ///
    /// # Panics
    /// If the region is gone; whoever deregisters first ends what speaks of it.
    #[inline]
    pub(super) fn read(&self, segment: &Segment, offset: u32, len: usize) -> &[u8] {
        let region = self.slots[segment.region as usize].as_ref().expect("a live region");
        let len = len.min((segment.len - offset) as usize);
        self.memory.read(&region.memory, segment.offset + u64::from(offset), len)
    }

    /// Copies `len` bytes of some segments from `offset` on to the end of `into`. Says whether their memory was still there.
    pub(super) fn recall(&self, segments: &[Segment], mut offset: u32, mut len: u32, into: &mut Vec<u8>) -> bool {
        for segment in segments {
            let here = segment.len.saturating_sub(offset).min(len);
            if here > 0 {
                let region = self.slots[segment.region as usize].as_ref().expect("a live region");
                if !self.memory.recall(&region.memory, segment.offset + u64::from(offset), here as usize, into) {
                    return false;
                }
            }
            offset = offset.saturating_sub(segment.len);
            len -= here;
        }
        true
    }

    /// Writes into a segment from `offset` on; `bytes` must fit.
    ///
    /// # Panics
    /// If the region is gone.
    pub(super) fn write(&mut self, segment: &Segment, offset: u32, bytes: &[u8]) {
        debug_assert!(offset as usize + bytes.len() <= segment.len as usize);
        let region = self.slots[segment.region as usize].as_ref().expect("a live region");
        self.memory.write(&region.memory, segment.offset + u64::from(offset), bytes);
    }
}
