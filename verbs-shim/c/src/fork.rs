//! Processes that fork.
//!
//! A child has no thread that drives the cards of its parent, and the parent goes on using their sockets. So a child leaves them
//! alone: contexts that were opened before it was born are dead in it (`EIO`), and it opens devices of its own.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::export;
use crate::bindings::IBV_FORK_UNNEEDED;

/// How many forks lie between the process that loaded the library and this one, plus one. 0 stands for a closed context.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// The generation of this process.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Notices forks from now on.
pub(crate) fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // It fails without memory; then children of this process must not use its contexts, as verbs.h says anyway.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

export!(
    "IBVERBS_1.1",
    fn ibv_fork_init() -> c_int {
        0
    }
);

export!(
    "IBVERBS_1.13",
    fn ibv_is_fork_initialized() -> c_int {
        // The card reads and writes memory like the program itself; copy-on-write does not disturb it.
        IBV_FORK_UNNEEDED
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
        0
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
        0
    }
);
