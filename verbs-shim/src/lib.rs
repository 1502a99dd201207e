//! An EFA card in software.
//!
//! [`Nic`] is an open card: the card of [`srd_core::card`] over kernel UDP or AF_XDP, with a thread that drives it while the program
//! does not. [`api`] makes it safe and comfortable for Rust programs. [`Options`] are what `srd run` tells a program through the
//! environment.
#![cfg(target_os = "linux")]

mod answers;
pub mod api;
mod bind;
#[doc(hidden)]
pub mod cancel;
mod common;
mod company;
mod config;
mod cores;
pub mod counters;
mod cpu;
#[doc(hidden)]
pub mod deaf;
pub mod faults;
mod gone;
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod link;
#[doc(hidden)]
pub mod lock;
mod memory;
mod nic;
pub mod options;
mod patience;
#[doc(hidden)]
pub mod pipe;
mod poller;
#[doc(hidden)]
pub mod quiet;
#[cfg(test)]
#[path = "../../srd-core/tests/support/repeatable.rs"]
mod repeatable;
pub mod status;
mod thread;
mod trial;
mod unit;

pub use config::{NicConfig, OpenError};
pub use memory::{HostMem, RawRegion};
pub use nic::{Nic, NicCounters, NicSink};
pub use options::{OptionError, Options};
pub use srd_core::card::{
    self, Access, CardError, CardEvent, CardOptions, Completion, CqId, Gid, MrKeys, Opcode, PdId, Profile, QpAttr,
    QpCap, QpInit, QpModify, QpState, QpType, SendData, SendOp, SendOps, SendWr, Sge, Status,
};
#[doc(hidden)]
pub use srd_udp::spare_standard;
pub use srd_xdp::DriverChoice;
