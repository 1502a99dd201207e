//! `srd perf`: a server, and three measurements against it.

mod bw;
mod client;
mod control;
mod cpu;
mod lat;
mod pump;
mod rate;
mod report;
mod server;
mod stream;
mod upper;

use clap::Subcommand;

use crate::exit::{Exit, Result};

/// UDP port of servers unless told otherwise: SRD on a telephone's keys, in a range that IANA has not assigned, below the
/// ephemeral ports of Linux (32768 and up), so that no other program's outgoing socket can sit on it by chance.
pub(crate) const DEFAULT_PORT: u16 = 28773;

/// Subcommands of `srd perf`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Perf {
    /// Serve measurements, one client after the other
    Server(server::ServerArgs),
    /// Latency: ping-pong of one message, half round trips
    Lat(lat::LatArgs),
    /// Bandwidth: large messages, many outstanding
    Bw(bw::BwArgs),
    /// Message rate: small messages, many outstanding
    Rate(rate::RateArgs),
}

impl Perf {
    /// Whether standard output is for one JSON object.
    pub(crate) fn json(&self) -> bool {
        match self {
            Perf::Server(args) => args.json,
            Perf::Lat(args) => args.client.json,
            Perf::Bw(args) => args.client.json,
            Perf::Rate(args) => args.client.json,
        }
    }

    pub(crate) fn run(&self) -> Result<Exit> {
        match self {
            Perf::Server(args) => server::run(args),
            Perf::Lat(args) => lat::run(args),
            Perf::Bw(args) => bw::run(args),
            Perf::Rate(args) => rate::run(args),
        }
    }
}
