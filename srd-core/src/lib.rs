//! Sans-IO core of the Scalable Reliable Datagram transport.
#![forbid(unsafe_code)]

mod acks;
mod batch;
mod blocks;
pub mod card;
mod cc;
mod config;
mod conn;
mod cookie;
mod driver;
mod endpoint;
mod engine;
mod faulty;
mod inbound;
mod inbox;
mod intake;
mod line;
mod mailbox;
mod once;
mod outbox;
mod path;
mod peer;
#[cfg(test)]
#[path = "../tests/support/repeatable.rs"]
mod repeatable;
mod replies;
mod rtt;
mod sent;
mod seq;
mod stall;
mod stats;
mod time;
mod timers;
mod upper;
mod wire;

pub use batch::{Burst, BurstWriter, Part, TxBatch};
pub use config::{CcChoice, CheckedConfig, Checksum, Config, ConfigError, MAX_DATAGRAM, MIN_DATAGRAM, Tuning};
pub use driver::{Driver, Ecn, RxMeta, SourcePort};
pub use endpoint::{Endpoint, Event, Outbound, PeerId, RnrRetry, SendError};
pub use engine::Engine;
pub use faulty::{BlackHole, FaultCounts, FaultPlan, Faults, Faulty, Share, Way, Where};
pub use mailbox::{Mailbox, Received};
pub use stats::{PathState, PathStats, PeerStats, Stats};
pub use time::{Span, Time};
pub use upper::{Failure, Gather, MAX_HEADER, PlaceToken, Placement, Recall, Token, Upper};
pub use wire::{DissectError, dissect};
