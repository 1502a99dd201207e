//! Memory mappings.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Of huge pages from the administrator's pool.
    huge: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread; whoever has the value may use and unmap it.
unsafe impl Send for Mapping {}

/// Bytes of a huge page, of the size that all machines have.
const HUGE: usize = 2 << 20;

impl Mapping {
    /// Zeroed memory of its own, `len` bytes or a little more; of huge pages, if there are any to be had. There are pages only
    /// when they are used, or registered with the kernel.
    ///
    /// Children do not have it. The kernel must not let parent and child share its pages until one of them writes, since it keeps
    /// those that it was given; it copies all of them at each fork (since Linux 5.12), or forgets to.
    pub(super) fn anonymous(len: usize) -> io::Result<Mapping> {
        let map = Mapping::private(len)?;
        // SAFETY: the range is exactly the mapping, and the advice changes nothing of what it contains.
        let kept = unsafe { libc::madvise(map.start().cast(), map.len, libc::MADV_DONTFORK) } == 0;
        if kept { Ok(map) } else { Err(io::Error::last_os_error()) }
    }

    fn private(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let huge = flags | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        if let Ok(mut map) = Mapping::map(len.next_multiple_of(HUGE), huge, -1, 0) {
            // The pool may have promised pages that a limit of a group keeps from us: then any access would be the end.
            // SAFETY: the range is exactly the mapping, and populating changes nothing of what it contains.
            let populated = unsafe { libc::madvise(map.start().cast(), map.len, libc::MADV_POPULATE_WRITE) } == 0;
            map.huge = true;
            if populated {
                return Ok(map);
            }
        }
        let map = Mapping::map(len, flags, -1, 0)?;
        // A wish: from the pool that the administrator keeps there is none, but the kernel may have some left.
        // SAFETY: the range is exactly the mapping, and the advice changes nothing of what it contains.
        unsafe { libc::madvise(map.start().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(map)
    }

    /// The first `len` bytes of what the descriptor offers at `offset`.
    pub(super) fn of(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    fn map(len: usize, flags: i32, fd: i32, offset: u64) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a place that nothing else uses, so no memory of ours is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset as libc::off_t) };
        match NonNull::new(start.cast::<u8>()) {
            Some(place) if start != libc::MAP_FAILED => Ok(Mapping { start: place, len, huge: false }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether it is of huge pages from the administrator's pool.
    pub(super) fn is_huge(&self) -> bool {
        self.huge
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A pointer to `count` values of `T` at byte `offset`.
    ///
    /// # Panics
    /// If they are not all within the mapping, or not aligned.
    pub(super) fn at<T>(&self, offset: u64, count: usize) -> *mut T {
        let offset = offset as usize;
        let end = size_of::<T>().checked_mul(count).and_then(|n| n.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.len), "{count} values at {offset} of {} bytes", self.len);
        // SAFETY: `offset` is within the mapping, as asserted.
        let at = unsafe { self.start.as_ptr().add(offset) };
        assert!(at.cast::<T>().is_aligned(), "offset {offset} is not aligned");
        at.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is exactly what mmap returned, and nobody uses it any more: pointers into it live in values that
        // own the mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark of the kernel ("don't copy area on fork", proc(5)).
    #[test]
    fn children_do_not_have_it() {
        let map = Mapping::anonymous(1 << 16).expect("memory");
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("what is mapped");
        let from = format!("{:x}-", map.start().addr());
        let ours = smaps.lines().skip_while(|line| !line.starts_with(&from));
        let flags = ours.into_iter().find_map(|line| line.strip_prefix("VmFlags:")).expect("flags");
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}
