//! Kernel UDP under the srd core: a [`Driver`](srd_core::Driver) and an async front end.
//!
//! [`UdpDriver`] moves the core's datagrams through ordinary sockets, as fast as the kernel permits: segmentation offload
//! in both directions, gather lists straight from the application's memory, one socket per path (source port), ECN,
//! arrival timestamps. It drives an [`Engine`](srd_core::Engine) from any thread, spinning or sleeping.
//!
//! [`Endpoint`] runs such an engine on a thread of its own and offers reliable, unordered messages to async code of any
//! runtime.
//!
//! Linux only. All `unsafe` of the crate is in its `sys` module.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod clock;
mod driver;
mod endpoint;
mod error;
#[doc(hidden)]
pub mod netlink;
mod options;
mod route;
mod rx;
mod socket;
mod stats;
#[expect(unsafe_code, reason = "system calls; see the module")]
mod sys;
mod tx;
mod waker;

pub use driver::{UdpDriver, UdpInfo};
pub use endpoint::{Endpoint, EndpointStats, Message, Options, SendError, StartError};
pub use error::BindError;
pub use options::{Offload, UdpOptions, WaitMode};
pub use stats::UdpStats;
#[doc(hidden)]
pub use sys::{NoCancel, spare_standard};
pub use waker::Waker;
