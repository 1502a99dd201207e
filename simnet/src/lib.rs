//! Deterministic network simulator that drives the srd core in virtual time.
//!
//! A [`World`] holds hosts, each with a clock of its own and a [`Node`] that runs on it, and a [`Net`] of links and
//! switches between them. Nothing in it reads a clock or starts a thread, and all its chance comes from one seed: the same
//! seed and the same calls give the same run, down to the hash of the event log.
//!
//! ```text
//! World -- schedule of Actions, event loop
//!   |-- Host + Node (SrdNode: Endpoint + Mailbox + App) -- Model (what may become of a message)
//!   '-- Net -- Link (Parts: queue, delay, loss, ...), Switch (routes, ECMP), Log
//! ```
#![forbid(unsafe_code)]

mod app;
mod cabling;
mod check;
mod clock;
mod clos;
mod host;
mod lengths;
mod link;
mod log;
mod net;
mod packet;
mod part;
mod plan;
mod pool;
mod queue;
mod rng;
mod srd;
mod srd_world;
mod switch;
mod topology;
mod watch;
mod world;

pub mod adversary;
pub mod experiment;

pub use app::{App, AppCx, Post};
pub use cabling::{Buffers, Cabling};
pub use check::{Expect, MAX_PAYLOAD, Message, Model, Totals, payload};
pub use clock::Clock;
pub use clos::Clos;
pub use host::{Host, HostSpec, HostStats, Io, Node, Processing};
pub use link::{Link, LinkStats};
pub use log::{DropReason, Log, LogEvent};
pub use net::{End, Net, Violation};
pub use packet::{Addr, HostId, IP_UDP_OVERHEAD, LinkId, MAIN_PORT, Packet, SwitchId, WIRE_OVERHEAD};
pub use part::{Burst, Part, PartKind, Queue};
pub use plan::{Cable, Plan, Port, Ways};
pub use rng::Rng;
pub use srd::{Command, MAX_APP_HEADER, NodeStats, SrdNode, SrdSpec};
pub use srd_world::SrdWorld;
pub use switch::Switch;
pub use topology::{Fabric, dumbbell, leaf_spine, pair, star};
pub use watch::Sabotage;
pub use world::{Action, Call, Counters, World};
