//! The program's own memory, as the card sees it.
//!
//! All of the crate's reads and writes through pointers are here.

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
}

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMem;

impl HostMemory for HostMem {
    type Region = RawRegion;

    #[inline]
    fn read<'m>(&'m self, region: &'m RawRegion, offset: u64, len: usize) -> &'m [u8] {
        let offset = offset as usize;
        assert!(offset <= region.len && len <= region.len - offset, "a range outside its region");
        // SAFETY: the range lies in the region, which its maker promised to be mapped while it is registered; the borrow
        // of the region ends before it can be deregistered.
        unsafe { std::slice::from_raw_parts(region.start.add(offset), len) }
    }

    #[inline]
    fn write(&mut self, region: &RawRegion, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        assert!(offset <= region.len && bytes.len() <= region.len - offset, "a range outside its region");
        // SAFETY: as for reading, and the card writes only where local or remote writes are permitted. `bytes` is a
        // receive buffer of the driver or a scratch buffer, never memory of the program.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.start.add(offset), bytes.len()) }
    }
}
