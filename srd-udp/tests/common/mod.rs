//! Two drivers on the loopback interface.

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod memory;

use std::net::SocketAddr;

pub(crate) use memory::{Memory, add};
use srd_core::{Driver, RxMeta, Span};
use srd_udp::{UdpDriver, UdpOptions, WaitMode};

/// The loopback addresses of both families, port 0.
pub(crate) fn loopbacks() -> [SocketAddr; 2] {
    ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()]
}

/// Sleeping drivers, so that tests do not compete for cores.
pub(crate) fn options() -> UdpOptions {
    UdpOptions { wait: WaitMode::Sleep, ..UdpOptions::default() }
}

/// A driver at `addr` with changed options.
pub(crate) fn driver(addr: SocketAddr, change: impl FnOnce(&mut UdpOptions)) -> UdpDriver {
    let mut options = options();
    change(&mut options);
    UdpDriver::bind(addr, options).unwrap()
}

/// Two drivers at `addr` with default options.
pub(crate) fn pair(addr: SocketAddr) -> (UdpDriver, UdpDriver) {
    (driver(addr, |_| {}), driver(addr, |_| {}))
}

/// Receives `count` datagrams, in order of arrival.
///
/// # Panics
/// If they do not come.
pub(crate) fn receive(driver: &mut UdpDriver, count: usize) -> Vec<(RxMeta, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = driver.now() + Span::from_secs(60);
    while got.len() < count {
        assert!(driver.now() < deadline, "{} of {count} datagrams arrived, {:?}", got.len(), driver.stats());
        if driver.recv(&mut |meta, bytes| got.push((*meta, bytes.to_vec()))).unwrap() == 0 {
            driver.wait(Some(deadline)).unwrap();
        }
    }
    got
}

/// The bytes alone, sorted.
pub(crate) fn sorted(datagrams: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = datagrams.into_iter().collect();
    all.sort();
    all
}
