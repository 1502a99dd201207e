//! The loop of `bw` and `rate`: as many messages outstanding as agreed, all the time.

use srd::{Driver as _, Span};

use super::client::{Client, ClientArgs, Ended, Meter};
use super::control::Start;
use crate::exit::Fault;
use crate::interrupt;

/// How long an interrupted test waits for what is still outstanding.
const PATIENCE: Span = Span::from_millis(500);

/// Keeps `start.depth` messages outstanding until time or count is up.
pub(crate) fn run(client: &mut Client, args: &ClientArgs, start: &Start) -> Ended {
    let mut meter = Meter::new(client, args);
    let bidir = u64::from(start.bidir);
    loop {
        let turned = client.pump.turn_with(|endpoint, upper, _, now| {
            let (sent, received) = (upper.take_done(), upper.recycle());
            for posted in upper.samples.drain(..) {
                meter.latencies.record(now.since(posted));
            }
            meter.count(sent, received * bidir);
            if upper.failed.is_none() {
                upper.post(endpoint, now, u64::MAX);
            }
            meter.turn(now);
        });
        let fault = match turned {
            Err(e) => Some(Fault::driver(e)),
            Ok(_) if meter.is_over() => None,
            Ok(_) if interrupt::requested() => Some(Fault::interrupted()),
            Ok(_) if client.pump.upper.failed.is_some() => client.idle().err(),
            Ok(true) => continue,
            Ok(false) => match client.idle() {
                Ok(()) => continue,
                Err(fault) => Some(fault),
            },
        };
        let ended = meter.end(client, fault);
        return drain(client, ended);
    }
}

/// Waits for what is outstanding; the measurement is over, but the test must end with everything delivered.
fn drain(client: &mut Client, mut ended: Ended) -> Ended {
    let mut last = client.pump.driver.now();
    while client.pump.upper.outstanding() > 0 {
        let turned = client.pump.turn_with(|_, upper, _, now| {
            if upper.take_done() + upper.recycle() > 0 {
                last = now;
            }
            upper.samples.clear();
        });
        let fault = match turned {
            Err(e) => Fault::driver(e),
            Ok(true) => continue,
            Ok(false) if ended.fault.is_some() && client.pump.now.since(last) > PATIENCE => break,
            Ok(false) if ended.fault.is_none() && interrupt::requested() => Fault::interrupted(),
            Ok(false) => match client.idle() {
                Ok(()) => continue,
                Err(fault) => fault,
            },
        };
        ended.fault.get_or_insert(fault);
        break;
    }
    ended
}
