//! The loop of a measurement: receive, feed, work, send.
//!
//! As [`srd::Engine`], but the work of the test happens between receiving and sending, so that an answer leaves in the
//! turn in which the question came in, and the acknowledgement of the question travels with it.

use std::io;
use std::net::SocketAddr;

use srd::udp::UdpDriver;
use srd::{CheckedConfig, Driver as _, Endpoint, PeerId, Span, Time, TxBatch};

use super::upper::PerfUpper;

/// An endpoint, a driver and the buffers of a test.
pub(crate) struct Pump {
    pub(crate) endpoint: Endpoint,
    pub(crate) driver: UdpDriver,
    pub(crate) upper: PerfUpper,
    batch: TxBatch,
}

/// Batches sent per turn before receiving again, so that neither direction starves the other.
const SENDS_PER_TURN: usize = 4;

/// Longest sleep, so that signals are noticed soon.
const NAP: Span = Span::from_millis(50);

impl Pump {
    pub(crate) fn new(mut driver: UdpDriver, config: CheckedConfig, seed: [u8; 32]) -> Pump {
        let now = driver.now();
        let endpoint = Endpoint::new(config, driver.local_addr(), seed, now);
        Pump { endpoint, driver, upper: PerfUpper::new(), batch: TxBatch::new() }
    }

    /// The handle of the peer at `addr`; `None` if the table of peers is full.
    pub(crate) fn peer(&mut self, addr: SocketAddr) -> Option<PeerId> {
        let max = self.driver.max_datagram(addr);
        self.endpoint.peer(addr, max)
    }

    /// One turn without blocking, with `work` between receiving and sending. Returns whether anything moved. `work` gets
    /// the time of the turn's beginning.
    pub(crate) fn turn(
        &mut self,
        work: impl FnOnce(&mut Endpoint, &mut PerfUpper, &mut UdpDriver, Time),
    ) -> io::Result<bool> {
        let Pump { endpoint, driver, upper, batch } = self;
        let mut now = driver.now();
        let received = driver.recv(&mut |meta, bytes| endpoint.handle_datagram(now, meta, bytes, upper))?;
        if endpoint.poll_timeout().is_some_and(|t| t <= now) {
            endpoint.handle_timeout(now, upper);
        }
        work(endpoint, upper, driver, now);
        let mut moved = received > 0;
        for _ in 0..SENDS_PER_TURN {
            if !endpoint.poll_transmit(now, upper, batch) {
                break;
            }
            driver.send(batch, upper)?;
            batch.clear();
            moved = true;
            now = driver.now();
        }
        Ok(moved)
    }

    /// Waits as the driver does, until the next deadline or a little while.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        let limit = self.driver.now() + NAP;
        self.driver.wait(Some(self.endpoint.poll_timeout().map_or(limit, |t| t.min(limit))))
    }

    /// Says good-bye to all peers, and gives that `limit` to get through.
    pub(crate) fn close(&mut self, limit: Span) -> io::Result<()> {
        let now = self.driver.now();
        self.endpoint.close(now);
        let end = now + limit;
        while !self.endpoint.is_closed() && self.driver.now() < end {
            if !self.turn(|_, _, _, _| ())? {
                self.wait()?;
            }
        }
        if !self.endpoint.is_closed() {
            let now = self.driver.now();
            self.endpoint.abort(now, &mut self.upper);
            self.turn(|_, _, _, _| ())?;
        }
        Ok(())
    }
}
