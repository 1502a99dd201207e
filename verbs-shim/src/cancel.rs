//! Threads that are cancelled: the verbs are none of the points where that happens, though many system calls in them are.

use std::time::Duration;

pub use srd_udp::NoCancel;

/// Sleeps without being cancelled.
pub(crate) fn sleep(time: Duration) {
    let _whole = NoCancel::begin();
    std::thread::sleep(time);
}
