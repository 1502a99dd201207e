//! Opens the drivers of a card.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use srd_core::Driver as _;
use srd_core::card::Gid;
use srd_udp::{BindError, UdpOptions};
use srd_xdp::{AnyDriver, DriverChoice, XdpOptions};

use crate::config::{NicConfig, OpenError};
use crate::nic::BoxedDriver;

/// What a processing unit needs of a driver.
pub(crate) type Opened = (BoxedDriver, Vec<OwnedFd>);

/// Attempts to find ports of which so many in a row are free, where the kernel chooses the first.
const ATTEMPTS: u32 = 64;

/// A driver for each processing unit, the first at the address of the card and the others at the ports that follow. If there is
/// no port in the address or one of them is taken, they are at other ports: in the range for source ports if there is such a
/// range, because then nothing else gets through.
pub(crate) fn open(config: &NicConfig) -> Result<Vec<Opened>, OpenError> {
    let NicConfig { addr, udp, units, .. } = config;
    // What cannot be is refused before anything is opened.
    Gid::with_units(SocketAddr::new(addr.ip(), 1), *units)?;
    if addr.port() != 0
        && let Ok(opened) = at(config, addr.port())
    {
        return Ok(opened);
    }
    let is_taken = |e: &OpenError| matches!(e, OpenError::Bind(BindError::InUse(_)));
    let Some(range) = &udp.source_port_range else {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match at(config, 0) {
                Err(e) if is_taken(&e) && attempts < ATTEMPTS => {}
                other => return other,
            }
        }
    };
    // Processes that start at once begin at different places.
    let count = (u32::from(range.end() - range.start()) + 1).saturating_sub(u32::from(*units) - 1).max(1);
    let begin = getrandom::u32().map_err(std::io::Error::from)? % count;
    for k in 0..count {
        match at(config, range.start() + ((begin + k) % count) as u16) {
            Err(e) if is_taken(&e) && k + 1 < count => {}
            other => return other,
        }
    }
    unreachable!("the last port of the range ends the search")
}

/// Drivers at this port and those that follow.
fn at(config: &NicConfig, port: u16) -> Result<Vec<Opened>, OpenError> {
    if config.units == 1 {
        return Ok(vec![one(config, port)?]);
    }
    // Kept until their drivers are opened, so that no other driver takes one for a source port.
    let hold = |port: u16| {
        let addr = SocketAddr::new(config.addr.ip(), port);
        UdpSocket::bind(addr).map_err(|e| BindError::new("bind", addr, e))
    };
    let first = hold(port)?;
    let port = first.local_addr()?.port();
    let mut held = VecDeque::from([first]);
    for unit in 1..config.units {
        // Beyond the last one there is none that is free.
        let next = port.checked_add(unit).ok_or(OpenError::Bind(BindError::InUse(config.addr)))?;
        held.push_back(hold(next)?);
    }
    let mut opened = Vec::new();
    while let Some(socket) = held.pop_front() {
        let port = socket.local_addr()?.port();
        drop(socket);
        opened.push(one(config, port)?);
    }
    Ok(opened)
}

fn one(config: &NicConfig, port: u16) -> Result<Opened, OpenError> {
    let udp: UdpOptions = config.udp.clone();
    let options = XdpOptions { queues: xdp_queues(config), udp, ..XdpOptions::default() };
    let addr = SocketAddr::new(config.addr.ip(), port);
    let (driver, why) = AnyDriver::open(config.driver, addr, options)?;
    if let Some(why) = why {
        tracing::warn!(device = %config.name, "using kernel UDP: {}", OpenError::from(why).whole());
    }
    tracing::info!(
        device = %config.name,
        address = %driver.local_addr(),
        source_ports = driver.source_ports(),
        driver = driver.name(),
        profile = %format_args!("{:x}", config.card.profile.part_id),
        "opened"
    );
    tracing::debug!(device = %config.name, transport = ?config.transport, udp = ?config.udp, "configuration");
    let readiness = driver.readiness()?;
    // Without the choice between the two in each call.
    let driver: BoxedDriver = match driver {
        AnyDriver::Udp(udp) => udp,
        AnyDriver::Xdp(xdp) => xdp,
    };
    Ok((driver, readiness))
}

/// Receive queues for each processing unit.
fn xdp_queues(config: &NicConfig) -> u32 {
    let all = config.xdp_queues;
    if config.units == 1 || config.driver == DriverChoice::Udp {
        return all;
    }
    // If it cannot be asked, it cannot be opened either.
    let there = srd_xdp::probe(config.addr.ip(), None).map_or(all, |found| found.queues);
    (all.min(there) / u32::from(config.units)).max(1)
}
