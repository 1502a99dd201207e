//! Opens the driver of a card.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use srd_udp::{BindError, UdpOptions};
use srd_xdp::{AnyDriver, XdpOptions};

use crate::nic::{BoxedDriver, NicConfig, OpenError};

/// What a card needs of a driver.
type Opened = (BoxedDriver, Vec<OwnedFd>);

/// A driver at the address of the card; if there is no port in it or that is taken, at another port: one of the range for
/// source ports if there is such a range, because then nothing else gets through.
pub(crate) fn open(config: &NicConfig) -> Result<Opened, OpenError> {
    let NicConfig { addr, udp, .. } = config;
    if addr.port() != 0
        && let Ok(opened) = at(config, addr.port())
    {
        return Ok(opened);
    }
    let Some(range) = &udp.source_port_range else { return at(config, 0) };
    // Processes that start at once begin at different places.
    let count = u32::from(range.end() - range.start()) + 1;
    let begin = getrandom::u32().map_err(std::io::Error::from)? % count;
    for k in 0..count {
        match at(config, range.start() + ((begin + k) % count) as u16) {
            Err(OpenError::Bind(BindError::InUse(_))) if k + 1 < count => {}
            other => return other,
        }
    }
    unreachable!("the last port of the range ends the search")
}

fn at(config: &NicConfig, port: u16) -> Result<Opened, OpenError> {
    let udp: UdpOptions = config.udp.clone();
    let options = XdpOptions { queues: config.xdp_queues, udp, ..XdpOptions::default() };
    let addr = SocketAddr::new(config.addr.ip(), port);
    let (driver, why) = AnyDriver::open(config.driver, addr, options)?;
    if let Some(why) = why {
        tracing::warn!(device = %config.name, "using kernel UDP: {why}");
    }
    let readiness = driver.readiness()?;
    // Without the choice between the two in each call.
    let driver: BoxedDriver = match driver {
        AnyDriver::Udp(udp) => udp,
        AnyDriver::Xdp(xdp) => xdp,
    };
    Ok((driver, readiness))
}

impl From<srd_xdp::OpenError> for OpenError {
    fn from(error: srd_xdp::OpenError) -> OpenError {
        match error {
            srd_xdp::OpenError::Udp(error) => error.into(),
            error => OpenError::Xdp(error),
        }
    }
}
