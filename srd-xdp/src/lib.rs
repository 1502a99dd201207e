//! AF_XDP under the srd core: a [`Driver`](srd_core::Driver) that bypasses the kernel's network stack.
//!
//! [`XdpDriver`] moves the core's datagrams between rings that it shares with the kernel and frames that it builds itself,
//! from the Ethernet header on; routes and neighbours are the kernel's, followed by netlink. A small XDP program at the
//! interface takes datagrams to our ports and nothing else.
//!
//! Linux only, with privilege. All `unsafe` of the crate is in its `sys` module.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod any;
mod asm;
mod checksum;
mod driver;
mod error;
mod filter;
mod info;
mod lane;
mod net;
mod open;
mod options;
mod packet;
mod probe;
mod program;
mod stamping;
mod stats;
#[expect(unsafe_code, reason = "system calls and memory shared with the kernel; see the module")]
mod sys;

pub use any::{AnyDriver, DriverChoice};
pub use driver::XdpDriver;
pub use error::OpenError;
pub use info::XdpInfo;
pub use options::{Attach, XdpOptions, ZeroCopy};
pub use probe::{Prospect, probe};
pub use srd_udp::{UdpOptions, WaitMode, Waker};
pub use stats::XdpStats;
