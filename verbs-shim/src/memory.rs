//! The program's own memory, as the card sees it.
//!
//! All of the crate's reads and writes through pointers are here.

use std::alloc::{Layout, alloc_zeroed};
use std::io::IoSliceMut;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use srd_core::card::HostMemory;

/// A range of the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct RawRegion {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is a name for memory; whoever made it promised that any thread may touch that memory.
unsafe impl Send for RawRegion {}

impl RawRegion {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// From the registration of the region to its end, the bytes are mapped and may be read by any thread, and written as
    /// far as its access permits local or remote writes. The program races with the card as it would with a real one: it
    /// does not touch buffers of work requests that have not completed.
    pub unsafe fn new(start: *mut u8, len: usize) -> RawRegion {
        RawRegion { start, len }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Where `len` bytes from `offset` on begin.
    #[inline]
    fn range(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset <= self.len && len <= self.len - offset, "a range outside its region");
        // SAFETY: it lies in the region, which is one object, or is its end.
        unsafe { self.start.add(offset) }
    }
}

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMem;

impl HostMemory for HostMem {
    type Region = RawRegion;

    #[inline]
    fn read<'m>(&'m self, region: &'m RawRegion, offset: u64, len: usize) -> &'m [u8] {
        let start = region.range(offset, len);
        // SAFETY: the range lies in the region, which its maker promised to be mapped while it is registered; the borrow
        // of the region ends before it can be deregistered.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// The kernel copies, so that memory that is mapped no more is an answer and not a fault.
    fn recall(&self, region: &RawRegion, offset: u64, len: usize, into: &mut Vec<u8>) -> bool {
        let from = RemoteIoVec { base: region.range(offset, len) as usize, len };
        let before = into.len();
        into.resize(before + len, 0);
        let copied = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut into[before..])], &[from]);
        if copied == Ok(len) {
            return true;
        }
        into.truncate(before);
        let is_gone = matches!(copied, Ok(_) | Err(Errno::EFAULT));
        if !is_gone {
            // Where this call is forbidden, all that is left is to trust the program.
            into.extend_from_slice(self.read(region, offset, len));
        }
        !is_gone
    }

    fn prefetch(&self, region: &RawRegion, offset: u64, len: usize) {
        let start = region.range(offset, len).wrapping_sub(NOTE);
        for at in (0..NOTE + len).step_by(CACHE_LINE) {
            fetch(start.wrapping_add(at));
        }
    }

    #[inline]
    fn write(&mut self, region: &RawRegion, offset: u64, bytes: &[u8]) {
        let start = region.range(offset, bytes.len());
        // SAFETY: as for reading, and the card writes only where local or remote writes are permitted. `bytes` is a
        // receive buffer of the driver or a scratch buffer, never memory of the program.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    }
}

const CACHE_LINE: usize = 64;

/// Bytes before a buffer that are fetched with it: many programs keep there what they know of it (libfabric's packet entries),
/// and read that when its completion comes.
const NOTE: usize = 128;

/// Fetches a cache line, if there is one at that address. For reading: to fetch for writing takes an instruction that not all
/// processors have, and a buffer of the program is in no other core's cache.
#[inline]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing that could be seen and faults nowhere ("Intel 64 and IA-32 Architectures Software
    // Developer's Manual", PREFETCHh); SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the same ("Arm Architecture Reference Manual", PRFM).
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Memory that a registration of the safe interface owns; zeroed at first.
///
/// It is shared between the card, which touches it with the lock of the card, and [`Piece`]s, which own parts of it
/// exclusively while no work request does.
#[derive(Debug)]
pub(crate) struct Slab {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes like a `Box<[u8]>`; who may touch which of them when is the business of its users here.
unsafe impl Send for Slab {}
// SAFETY: it gives out no reference by itself.
unsafe impl Sync for Slab {}

impl Slab {
    /// `None` if the system has not as much.
    pub(crate) fn new(len: usize) -> Option<Slab> {
        let layout = Layout::array::<u8>(len).ok()?;
        // SAFETY: it is asked for bytes only if there are any.
        let start = if len == 0 { NonNull::dangling() } else { NonNull::new(unsafe { alloc_zeroed(layout) })? };
        Some(Slab { start, len })
    }

    /// What the card is given.
    pub(crate) fn region(&self) -> RawRegion {
        // SAFETY: the slab is alive until after the registration has ended (`Registration` sees to that), and the card
        // touches only what work requests or peers may: the former own their pieces, and of the latter's regions there
        // are no pieces but only `peek` and `poke`.
        unsafe { RawRegion::new(self.start.as_ptr(), self.len) }
    }

    /// Address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out. The caller has the lock of the card, and there are no pieces.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(crate) fn peek(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= self.len && into.len() <= self.len - offset, "beyond the end of the window");
        // SAFETY: the range is inside; with the lock nobody else touches it; `into` is a unique borrow of other memory.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in. The caller has the lock of the card, and there are no pieces.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(crate) fn poke(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "beyond the end of the window");
        // SAFETY: as for `peek`; no reference to the slab's bytes exists, so `from` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: from the allocator in `new`, as the bytes of a box of this length are, and freed nowhere else.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// A part of a slab, owned exclusively: there is one whole for each slab, and splitting leaves no overlap. Whoever has it
/// may touch its bytes, so a work request that uses them must have it.
#[derive(Debug)]
pub(crate) struct Piece<O> {
    owner: Arc<O>,
    start: usize,
    len: usize,
}

/// Who keeps a slab alive and registered.
pub(crate) trait Owner {
    fn slab(&self) -> &Slab;
}

impl<O: Owner> Piece<O> {
    /// All of a slab that is new: `owner` is not shared yet, which shows that there are no other pieces.
    pub(crate) fn whole(owner: O) -> Piece<O> {
        let len = owner.slab().len();
        Piece { owner: Arc::new(owner), start: 0, len }
    }

    /// Cuts off what follows the first `at` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn split_off(&mut self, at: usize) -> Piece<O> {
        assert!(at <= self.len, "a buffer of {} bytes cannot be split at {at}", self.len);
        let rest = Piece { owner: self.owner.clone(), start: self.start + at, len: self.len - at };
        self.len = at;
        rest
    }

    pub(crate) fn owner(&self) -> &O {
        &self.owner
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.owner.slab().addr() + self.start as u64
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the slab, which lives as long as the owner; initialised. Nobody writes: pieces do not overlap,
        // this one is borrowed, and the card has no work request with it, since that would have the piece itself.
        unsafe { std::slice::from_raw_parts(self.owner.slab().start.as_ptr().add(self.start), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this one is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.owner.slab().start.as_ptr().add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    #[test]
    fn the_card_stays_inside_of_regions() {
        let mut memory = vec![1; 300];
        // SAFETY: the vector outlives the region, and nobody touches it meanwhile.
        let region = unsafe { RawRegion::new(memory[100..].as_mut_ptr(), 100) };
        assert_eq!((HostMem.read(&region, 0, 100), HostMem.read(&region, 100, 0)), (&[1; 100][..], &[][..]));
        for (offset, len) in [(0, 101), (1, 100), (50, 51), (100, 1), (101, 0), (u64::MAX, 1), (1, usize::MAX)] {
            let panics = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
            assert!(panics(&|| _ = HostMem.read(&region, offset, len)), "read {len} at {offset}");
            assert!(panics(&|| HostMem.prefetch(&region, offset, len)), "prefetch {len} at {offset}");
            if len <= 101 {
                assert!(panics(&|| HostMem.write(&region, offset, &vec![2; len])), "write {len} at {offset}");
            }
        }
        assert_eq!(memory, [1; 300]);
    }

    #[test]
    fn memory_that_is_unmapped_is_not_recalled() {
        const PAGES: NonZeroUsize = NonZeroUsize::new(3 * 4096).unwrap();
        let flags = MapFlags::MAP_PRIVATE;
        // SAFETY: new memory, wherever there is room.
        let start =
            unsafe { mmap_anonymous(None, PAGES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }.unwrap();
        // SAFETY: it was just mapped, and nothing but `recall` looks at it after it is not any more.
        let region = unsafe { RawRegion::new(start.as_ptr().cast(), PAGES.get()) };
        HostMem.write(&region, 8000, b"here it is");
        let recall = |offset, len| {
            let mut into = b"before ".to_vec();
            HostMem.recall(&region, offset, len, &mut into).then(|| into.clone()).ok_or(into)
        };
        assert_eq!(recall(8000, 10), Ok(b"before here it is".to_vec()));
        assert_eq!(recall(0, 0), Ok(b"before ".to_vec()));
        // SAFETY: the last page of the above; there are no references to it.
        unsafe { munmap(start.byte_add(8192), 4096) }.unwrap();
        assert_eq!(recall(8000, 192).map(|bytes| bytes.len()), Ok(199), "up to the hole");
        assert_eq!(recall(8000, 193), Err(b"before ".to_vec()), "half of it is gone");
        assert_eq!(recall(9000, 1), Err(b"before ".to_vec()));
        // SAFETY: as above.
        unsafe { munmap(start, 8192) }.unwrap();
    }
}
