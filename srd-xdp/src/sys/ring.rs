//! The four rings of an AF_XDP socket: single producer, single consumer, one of them the kernel.
//!
//! ```text
//!   consumer          producer          indices count on and wrap at 2^32; the slot is index & mask
//!      v                 v
//!   .. | full full full | free free ..
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::map::Mapping;

/// Memory that the ring shares with the kernel.
#[derive(Debug)]
struct Shared<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    slots: *mut T,
    mask: u32,
    /// Owns all of the above.
    _map: Mapping,
}

// SAFETY: the pointers lead into the mapping that the value owns, which is not bound to a thread. T is plain data.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn map(fd: BorrowedFd<'_>, at: u64, size: u32, o: &libc::xdp_ring_offset) -> io::Result<Shared<T>> {
        assert!(size.is_power_of_two(), "a ring of {size} slots");
        let map = Mapping::of(fd, o.desc as usize + size as usize * size_of::<T>(), at)?;
        Ok(Shared {
            producer: map.at(o.producer, 1),
            consumer: map.at(o.consumer, 1),
            flags: map.at(o.flags, 1),
            slots: map.at(o.desc, size as usize),
            mask: size - 1,
            _map: map,
        })
    }

    fn load(&self, index: *const AtomicU32, order: Ordering) -> u32 {
        // SAFETY: `index` is one of the three pointers above: aligned, within the mapping, and only ever accessed
        // atomically by either side.
        unsafe { &*index }.load(order)
    }

    fn store(&self, index: *const AtomicU32, value: u32) {
        // SAFETY: as in `load`.
        unsafe { &*index }.store(value, Ordering::Release);
    }

    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is below the number of slots, all of which are within the mapping.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }

    fn needs_wakeup(&self) -> bool {
        self.load(self.flags, Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that we fill and the kernel empties.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    next: u32,
    /// The kernel's index as last seen.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(fd: BorrowedFd<'_>, at: u64, size: u32, o: &libc::xdp_ring_offset) -> io::Result<Producer<T>> {
        Ok(Producer { shared: Shared::map(fd, at, size, o)?, next: 0, consumed: 0 })
    }

    /// Free slots; looks at the kernel's index only when fewer than `wanted` are known.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        let size = self.shared.mask + 1;
        if size - self.next.wrapping_sub(self.consumed) < wanted {
            self.consumed = self.shared.load(self.shared.consumer, Ordering::Acquire);
        }
        size - self.next.wrapping_sub(self.consumed)
    }

    /// Fills a slot; the kernel sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn push(&mut self, value: T) {
        assert!(self.room(1) > 0, "the ring is full");
        // SAFETY: the slot is free (checked above), so the kernel does not read it before the index is published.
        unsafe { self.shared.slot(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) {
        self.shared.store(self.shared.producer, self.next);
    }

    /// Whether the kernel has taken all.
    pub(super) fn is_drained(&mut self) -> bool {
        self.consumed = self.shared.load(self.shared.consumer, Ordering::Acquire);
        self.consumed == self.next
    }

    /// Whether the kernel must be told by a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// A ring that the kernel fills and we empty.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    next: u32,
    /// The kernel's index as last seen.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(fd: BorrowedFd<'_>, at: u64, size: u32, o: &libc::xdp_ring_offset) -> io::Result<Consumer<T>> {
        Ok(Consumer { shared: Shared::map(fd, at, size, o)?, next: 0, produced: 0 })
    }

    /// Takes note of what the kernel has filled by now.
    #[inline]
    pub(super) fn look(&mut self) {
        self.produced = self.shared.load(self.shared.producer, Ordering::Acquire);
    }

    /// The oldest entry that was there at the last [`look`](Self::look). The kernel may use its slot again after
    /// [`release`](Self::release).
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            return None;
        }
        // SAFETY: the slot is between the two indices: the kernel has written it (acquire in `look`) and does not touch it
        // until the consumer's index passes it.
        let value = unsafe { self.shared.slot(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// Whether there is something, after another [`look`](Self::look).
    pub(super) fn has_some(&self) -> bool {
        self.next != self.shared.load(self.shared.producer, Ordering::Acquire)
    }

    pub(super) fn release(&mut self) {
        self.shared.store(self.shared.consumer, self.next);
    }
}
