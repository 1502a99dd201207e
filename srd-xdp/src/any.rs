//! The choice between AF_XDP and kernel UDP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use srd_core::{Driver, Gather, RxMeta, Time, TxBatch};
use srd_udp::{UdpDriver, Waker};

use crate::driver::XdpDriver;
use crate::error::OpenError;
use crate::options::{XdpOptions, ZeroCopy};

/// What shall move the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverChoice {
    /// Kernel UDP: runs anywhere.
    #[default]
    Udp,
    /// AF_XDP: needs privilege.
    Xdp,
    /// AF_XDP where it is permitted, supported and faster, which means with zero copy; else kernel UDP.
    Auto,
}

impl DriverChoice {
    /// All, by their names on command lines and in the environment.
    pub const NAMED: [(&'static str, DriverChoice); 3] =
        [("udp", DriverChoice::Udp), ("xdp", DriverChoice::Xdp), ("auto", DriverChoice::Auto)];
}

/// A driver of either kind.
#[derive(Debug)]
pub enum AnyDriver {
    /// Kernel UDP.
    Udp(Box<UdpDriver>),
    /// AF_XDP.
    Xdp(Box<XdpDriver>),
}

impl AnyDriver {
    /// Opens a driver at `addr`. If `choice` leaves it open and it became UDP, the error says why.
    ///
    /// # Errors
    /// What is missing or in the way, and what to do about it.
    pub fn open(
        choice: DriverChoice,
        addr: SocketAddr,
        options: XdpOptions,
    ) -> Result<(AnyDriver, Option<OpenError>), OpenError> {
        let xdp = |options| XdpDriver::open(addr, options).map(|driver| AnyDriver::Xdp(Box::new(driver)));
        let why = match choice {
            DriverChoice::Udp => None,
            DriverChoice::Xdp => return Ok((xdp(options)?, None)),
            // Where the kernel copies, UDP with segmentation offload is faster.
            DriverChoice::Auto => match xdp(XdpOptions { zero_copy: ZeroCopy::Require, ..options.clone() }) {
                Ok(driver) => return Ok((driver, None)),
                Err(e @ OpenError::Udp(_)) => return Err(e),
                Err(e) => Some(e),
            },
        };
        Ok((AnyDriver::Udp(Box::new(UdpDriver::bind(addr, options.udp)?)), why))
    }

    /// Its name on command lines.
    pub fn name(&self) -> &'static str {
        match self {
            AnyDriver::Udp(_) => "udp",
            AnyDriver::Xdp(_) => "xdp",
        }
    }

    /// A handle by which other threads end [`wait`](Driver::wait).
    pub fn waker(&self) -> Waker {
        match self {
            AnyDriver::Udp(driver) => driver.waker(),
            AnyDriver::Xdp(driver) => driver.waker(),
        }
    }

    /// Descriptors that poll as readable when something has arrived, for loops that sleep without holding the driver.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn readiness(&self) -> io::Result<Vec<OwnedFd>> {
        match self {
            AnyDriver::Udp(driver) => Ok(vec![driver.readiness()?]),
            AnyDriver::Xdp(driver) => driver.readiness(),
        }
    }

    #[inline]
    fn as_driver(&mut self) -> &mut dyn Driver {
        match self {
            AnyDriver::Udp(driver) => &mut **driver,
            AnyDriver::Xdp(driver) => &mut **driver,
        }
    }
}

impl Driver for AnyDriver {
    #[inline]
    fn now(&mut self) -> Time {
        match self {
            AnyDriver::Udp(driver) => driver.now(),
            AnyDriver::Xdp(driver) => driver.now(),
        }
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        self.as_driver().recv(sink)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        self.as_driver().send(batch, mem)
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        self.as_driver().wait(until)
    }

    fn local_addr(&self) -> SocketAddr {
        match self {
            AnyDriver::Udp(driver) => driver.local_addr(),
            AnyDriver::Xdp(driver) => driver.local_addr(),
        }
    }

    fn source_ports(&self) -> u16 {
        match self {
            AnyDriver::Udp(driver) => driver.source_ports(),
            AnyDriver::Xdp(driver) => driver.source_ports(),
        }
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        self.as_driver().max_datagram(to)
    }
}
