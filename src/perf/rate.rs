//! `srd perf rate`: small messages per second.

use clap::Args;

use super::client::{Client, ClientArgs};
use super::control::{Start, Test};
use super::{report, stream};
use crate::exit::{Exit, Result};
use crate::units;

/// Options of `srd perf rate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    /// Bytes per message: 64, 8k, 1M
    #[arg(long, short, value_name = "SIZE", default_value = "64", value_parser = units::size)]
    size: u32,
    /// Messages outstanding at once, 1 to 32768
    #[arg(long, short, value_name = "N", default_value_t = 1024)]
    depth: u32,
    /// Both sides send
    #[arg(long)]
    bidir: bool,
}

pub(crate) fn run(args: &RateArgs) -> Result<Exit> {
    let start = Start { test: Test::Rate, size: args.size, depth: args.depth, bidir: args.bidir };
    let mut client = Client::connect(&args.client, &start)?;
    let ended = stream::run(&mut client, &args.client, &start);
    report::finish(client, &args.client, &start, ended)
}
