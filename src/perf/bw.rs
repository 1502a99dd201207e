//! `srd perf bw`: bandwidth of large messages.

use clap::Args;

use super::client::{Client, ClientArgs};
use super::control::{Start, Test};
use super::{report, stream};
use crate::exit::{Exit, Result};
use crate::units;

/// Options of `srd perf bw`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BwArgs {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    /// Bytes per message: 64, 8k, 1M
    #[arg(long, short, value_name = "SIZE", default_value = "8k", value_parser = units::size)]
    size: u32,
    /// Messages outstanding at once, 1 to 32768
    #[arg(long, short, value_name = "N", default_value_t = 256)]
    depth: u32,
    /// Both sides send
    #[arg(long)]
    bidir: bool,
}

pub(crate) fn run(args: &BwArgs) -> Result<Exit> {
    let start = Start { test: Test::Bw, size: args.size, depth: args.depth, bidir: args.bidir };
    let mut client = Client::connect(&args.client, &start)?;
    let ended = stream::run(&mut client, &args.client, &start);
    report::finish(client, &args.client, &start, ended)
}
