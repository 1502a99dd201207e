//! `srd perf lat`: ping-pong of one message.

use clap::Args;
use srd::{Driver as _, Span};

use super::client::{Client, ClientArgs, Ended, Meter};
use super::control::{Start, Test};
use super::report;
use crate::exit::{Exit, Fault, Result};
use crate::{interrupt, units};

/// Options of `srd perf lat`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LatArgs {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    /// Bytes per message: 64, 8k, 1M
    #[arg(long, short, value_name = "SIZE", default_value = "64", value_parser = units::size)]
    size: u32,
}

pub(crate) fn run(args: &LatArgs) -> Result<Exit> {
    let start = Start { test: Test::Lat, size: args.size, depth: 1, bidir: false };
    let mut client = Client::connect(&args.client, &start)?;
    let ended = ping(&mut client, &args.client);
    report::finish(client, &args.client, &start, ended)
}

/// Sends a message, waits for the answer, sends the next.
fn ping(client: &mut Client, args: &ClientArgs) -> Ended {
    let mut meter = Meter::new(client, args);
    let (mut pinged, mut waiting) = (None, false);
    // The last round trip, until there is time to record it: while nothing arrives.
    let mut sample: Option<Span> = None;
    loop {
        let turned = client.pump.turn_with(|endpoint, upper, driver, now| {
            let answered = upper.recycle() > 0;
            if !answered && let Some(span) = sample.take() {
                upper.samples.clear();
                meter.latencies.record(span);
            }
            if answered || !waiting {
                // The turn may have begun before the answer came, so look at the clock again.
                let now = if answered { driver.now() } else { now };
                if let (true, Some(then)) = (answered, pinged) {
                    if let Some(before) = sample.replace(now.since(then)) {
                        meter.latencies.record(before);
                    }
                    meter.count(1, 1);
                }
                waiting = upper.post(endpoint, now, 1) == 1;
                pinged = waiting.then_some(now);
            }
            if meter.turn(now) {
                sample = None;
            }
        });
        match turned {
            Err(e) => return meter.end(client, Some(Fault::driver(e))),
            Ok(_) if meter.is_over() => {
                if let Some(span) = sample {
                    meter.latencies.record(span);
                }
                return meter.end(client, None);
            }
            Ok(_) if interrupt::requested() => return meter.end(client, Some(Fault::interrupted())),
            Ok(true) => {}
            Ok(false) => {
                if let Err(fault) = client.idle() {
                    return meter.end(client, Some(fault));
                }
            }
        }
    }
}
