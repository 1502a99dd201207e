//! The choice of the driver: kernel UDP or AF_XDP.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use srd::Driver as _;
use srd::udp::{UdpDriver, UdpOptions};
pub(crate) use srd::xdp::AnyDriver;
use srd::xdp::{DriverChoice, XdpOptions};

use crate::exit::{Exit, Fault, Result};
use crate::render;

/// Options of whatever opens a driver.
#[derive(Args, Clone, Debug)]
pub(crate) struct DriverArgs {
    /// What to move packets by: kernel UDP, AF_XDP (see docs/xdp.md), or the faster one that works
    #[arg(long, default_value = DriverChoice::NAMED[0].0, value_parser = by_name())]
    driver: DriverChoice,
    /// Interface for AF_XDP [default: the one with the local address]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Receive queues of the interface to take for AF_XDP, 1 to 16 [default: all that are free]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    xdp_queues: Option<u32>,
}

fn by_name() -> impl TypedValueParser<Value = DriverChoice> {
    PossibleValuesParser::new(DriverChoice::NAMED.map(|(name, _)| name))
        .map(|given| DriverChoice::NAMED.into_iter().find(|(name, _)| *name == given).expect("a possible value").1)
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
    /// Whether it is AF_XDP and nothing else.
    pub(crate) fn is_xdp(&self) -> bool {
        self.driver == DriverChoice::Xdp
    }

    /// Opens the driver; what goes wrong is the set-up's fault.
    pub(crate) fn open(&self, addr: SocketAddr, options: UdpOptions) -> Result<AnyDriver> {
        let unused = [("--interface", self.interface.is_some()), ("--xdp-queues", self.xdp_queues.is_some())];
        if let (DriverChoice::Udp, Some((name, _))) = (self.driver, unused.iter().find(|(_, given)| *given)) {
            return Err(Fault::usage(format_args!("{name} is for AF_XDP: give --driver xdp or auto, too")));
        }
        let plain = XdpOptions::default();
        let options = XdpOptions {
            interface: self.interface.clone(),
            queues: self.xdp_queues.unwrap_or(plain.queues),
            udp: options,
            ..plain
        };
        let (driver, why) = AnyDriver::open(self.driver, addr, options).map_err(|e| Fault::new(Exit::Setup, e))?;
        if let Some(why) = why {
            render::note(&format!("using kernel UDP: {}", Fault::new(Exit::Setup, why)));
        }
        tracing::info!(address = %driver.local_addr(), source_ports = driver.source_ports(), driver = driver.name(), "opened");
        Ok(driver)
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
