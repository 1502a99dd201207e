//! Thin, safe wrappers around the system calls of the driver: the only place of this crate with `unsafe`.
//!
//! They translate types and nothing else; what an error means is decided by the callers. Addresses and control messages
//! are encoded and decoded byte by byte, so that only the system calls themselves need `unsafe`.

mod addr;
mod cancel;
mod clock;
mod cmsg;
mod msg;
mod opt;
mod sleep;
mod standard;

pub(crate) use addr::RawAddr;
pub use cancel::NoCancel;
pub(crate) use clock::{monotonic_ns, realtime_ns};
pub(crate) use cmsg::Control;
pub(crate) use msg::{MAX_MESSAGES, drain_errors, has_arrivals, receive, send, send_many, send_small};
pub(crate) use opt::{drops, get_int, set_int};
pub(crate) use sleep::{EventFd, MAX_POLLED, fine_timers, poll};
pub use standard::spare_standard;
