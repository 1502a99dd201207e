//! The choice of the driver: kernel UDP or AF_XDP.

use std::io;
use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use srd::udp::{UdpDriver, UdpOptions};
use srd::xdp::{OpenError, XdpDriver, XdpOptions, ZeroCopy};
use srd::{Driver, Gather, RxMeta, Time, TxBatch};

use crate::exit::{Exit, Fault, Result};
use crate::render;

/// What to move packets by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Choice {
    /// Kernel UDP: runs anywhere.
    #[default]
    Udp,
    /// AF_XDP, past the kernel's network stack: needs privilege.
    Xdp,
    /// AF_XDP where it is permitted, supported and faster; else UDP, and it says why.
    Auto,
}

/// Options of whatever opens a driver.
#[derive(Args, Clone, Debug)]
pub(crate) struct DriverArgs {
    /// What to move packets by: kernel UDP, AF_XDP (see docs/xdp.md), or the faster one that works
    #[arg(long, value_enum, default_value_t)]
    driver: Choice,
    /// Interface for AF_XDP [default: the one with the local address]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
}

/// A driver of either kind.
#[derive(Debug)]
pub(crate) enum AnyDriver {
    Udp(Box<UdpDriver>),
    Xdp(Box<XdpDriver>),
}

/// Datagrams that this host dropped: to the protocol that is loss.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Drops {
    /// Because a receive buffer or ring was full.
    pub(crate) received: u64,
    /// Because they could not be sent.
    pub(crate) sent: u64,
}

/// A driver that counts them.
pub(crate) trait CountsDrops {
    /// Since its start.
    fn drops(&self) -> Drops;
}

impl DriverArgs {
    /// Opens the driver; what goes wrong is the set-up's fault.
    pub(crate) fn open(&self, addr: SocketAddr, options: UdpOptions) -> Result<AnyDriver> {
        let xdp = |zero_copy| {
            let options = XdpOptions {
                interface: self.interface.clone(),
                zero_copy,
                udp: options.clone(),
                ..XdpOptions::default()
            };
            XdpDriver::open(addr, options).map(|driver| AnyDriver::Xdp(Box::new(driver)))
        };
        match self.driver {
            Choice::Udp => {}
            Choice::Xdp => return xdp(ZeroCopy::Auto).map_err(|e| Fault::new(Exit::Setup, e)),
            // Where the kernel copies, UDP with segmentation offload is faster.
            Choice::Auto => match xdp(ZeroCopy::Require) {
                Ok(driver) => return Ok(driver),
                Err(e @ OpenError::Udp(_)) => return Err(Fault::new(Exit::Setup, e)),
                Err(e) => render::note(&format!("using kernel UDP: {}", Fault::new(Exit::Setup, e))),
            },
        }
        let driver = UdpDriver::bind(addr, options).map_err(|e| Fault::new(Exit::Setup, e))?;
        Ok(AnyDriver::Udp(Box::new(driver)))
    }
}

impl AnyDriver {
    /// Its name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            AnyDriver::Udp(_) => "udp",
            AnyDriver::Xdp(_) => "xdp",
        }
    }

    fn as_driver(&mut self) -> &mut dyn Driver {
        match self {
            AnyDriver::Udp(driver) => &mut **driver,
            AnyDriver::Xdp(driver) => &mut **driver,
        }
    }
}

impl CountsDrops for UdpDriver {
    fn drops(&self) -> Drops {
        let stats = self.stats();
        let sent = stats.dropped_busy + stats.dropped_too_big + stats.dropped_other;
        Drops { received: stats.rx_queue_drops, sent }
    }
}

impl CountsDrops for AnyDriver {
    fn drops(&self) -> Drops {
        match self {
            AnyDriver::Udp(driver) => driver.drops(),
            AnyDriver::Xdp(driver) => {
                let stats = driver.stats();
                let udp = stats.udp;
                Drops {
                    received: stats.rx_queue_drops + udp.rx_queue_drops,
                    sent: stats.tx_dropped + udp.dropped_busy + udp.dropped_too_big + udp.dropped_other,
                }
            }
        }
    }
}

impl Driver for AnyDriver {
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
