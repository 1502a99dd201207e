//! CPU time of this process.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// User and system time so far, in seconds.
pub(crate) fn seconds() -> f64 {
    // Cannot fail for the calling process; if it did, no time passed.
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |u| (u.user_time() + u.system_time()).num_microseconds() as f64 / 1e6)
}
