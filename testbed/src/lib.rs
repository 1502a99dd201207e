//! Network test beds made of Linux network namespaces.
//!
//! Two shapes: a [`Clos`] (hosts - ToR switches - spines - ToR switches -
//! hosts, with equal-cost routes chosen by a hash of addresses and ports, as
//! data-centre switches do) and a [`Pair`] (two hosts joined by one cable).
//! Links can be rate-limited with a queue bounded in bytes, can lose packets at
//! random, and can swallow everything without any sign to routing, which is
//! how real grey failures look.
//!
//! A bed is owned by the value that built it: dropping it, also while a panic
//! unwinds, kills what still runs inside and removes its namespaces. If the
//! process is killed, the next bed built on the machine removes what was left.
//! Nothing outside the bed's own namespaces is created, changed or removed.
//!
//! Root is needed, besides `ip`, `tc`, `nft` and (for real frames) `ethtool`;
//! [`available`] says in one sentence what is missing.
//!
//! ```no_run
//! use testbed::{Clos, Direction, Rate};
//!
//! # fn main() -> Result<(), testbed::Error> {
//! let bed = Clos::builder().spines(4).spine_rate(Rate::mbit(100)).build()?;
//! let server = bed.host(2).enter(|| std::net::UdpSocket::bind("0.0.0.0:7000"))?;
//! let client = bed.host(0).command("ping").arg(bed.host(2).addr().to_string()).spawn();
//! bed.hole(1, 0, Direction::Up)?; // what leaf 0 sends up to spine 1 vanishes
//! bed.heal()?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod bed;
mod cable;
mod clos;
mod error;
mod host;
mod icmp;
mod impair;
mod name;
mod netns;
mod nics;
mod pair;
mod rate;
mod stats;
mod tools;

pub mod probe;
pub mod tcp;

pub use bed::{keep_names, remove_kept, sweep};
pub use clos::{Clos, ClosBuilder};
pub use error::Error;
pub use host::{Family, Host};
pub use impair::{Direction, Moment, Traffic};
pub use pair::{Pair, PairBuilder};
pub use rate::Rate;
pub use stats::{CableStats, LinkDrops, LinkStats};
pub use tools::{available, runs_here};
