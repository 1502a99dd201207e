//! Reading clocks.

use std::mem::MaybeUninit;

/// Nanoseconds on `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds on `CLOCK_REALTIME`, since 1970.
pub(crate) fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer refers to writable memory of the size of a timespec.
    let rc = unsafe { libc::clock_gettime(clock, now.as_mut_ptr()) };
    assert_eq!(rc, 0, "clock_gettime({clock}) of a clock that every Linux has");
    // SAFETY: clock_gettime returned 0, so it has written the timespec.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
