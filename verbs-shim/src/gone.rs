//! What takes the place of a driver that has failed.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use srd_core::{Driver, Gather, MIN_DATAGRAM, RxMeta, Time, TxBatch};

/// Sends nothing and receives nothing, and its time goes on.
#[derive(Debug)]
pub(crate) struct Gone {
    since: Instant,
    at: Time,
    local: SocketAddr,
    source_ports: u16,
}

impl Gone {
    /// What is left of a driver.
    pub(crate) fn of(driver: &mut dyn Driver) -> Gone {
        let (local, source_ports) = (driver.local_addr(), driver.source_ports());
        Gone { at: driver.now(), since: Instant::now(), local, source_ports }
    }
}

impl Driver for Gone {
    fn now(&mut self) -> Time {
        self.at + self.since.elapsed().into()
    }

    fn recv(&mut self, _: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        Ok(0)
    }

    fn send(&mut self, _: &TxBatch, _: &dyn Gather) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<Time>) -> io::Result<()> {
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn source_ports(&self) -> u16 {
        self.source_ports
    }

    fn max_datagram(&mut self, _: SocketAddr) -> u16 {
        MIN_DATAGRAM
    }
}
