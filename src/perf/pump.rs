//! The loop of a measurement: an engine with the buffers of a test.

use std::io;

use srd::{CheckedConfig, Driver as _, Endpoint, Engine, Span};

use super::upper::PerfUpper;
use crate::driver::AnyDriver;

/// An endpoint, a driver and the buffers of a test.
pub(crate) type Pump = Engine<AnyDriver, PerfUpper>;

/// Longest sleep, so that signals are noticed soon.
const NAP: Span = Span::from_millis(50);

/// A pump that has no peers yet.
pub(crate) fn start(mut driver: AnyDriver, config: CheckedConfig, seed: [u8; 32]) -> Pump {
    let now = driver.now();
    let endpoint = Endpoint::new(config, driver.local_addr(), seed, now);
    Engine::new(endpoint, driver, PerfUpper::new())
}

/// After a turn in which nothing moved: waits as the driver does, until the next deadline or a little while.
pub(crate) fn wait(pump: &mut Pump) -> io::Result<()> {
    pump.wait(Some(pump.now + NAP))
}

/// Says good-bye to all peers, and gives that `limit` to get through.
pub(crate) fn close(pump: &mut Pump, limit: Span) -> io::Result<()> {
    let now = pump.driver.now();
    pump.endpoint.close(now);
    let end = now + limit;
    while !pump.endpoint.is_closed() && pump.driver.now() < end {
        if !pump.turn()? {
            wait(pump)?;
        }
    }
    if !pump.endpoint.is_closed() {
        let now = pump.driver.now();
        pump.endpoint.abort(now, &mut pump.upper);
        pump.turn()?;
    }
    Ok(())
}
