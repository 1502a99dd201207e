//! Two drivers on the loopback interface.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;

use srd_core::{Driver, Gather, RxMeta, SourcePort, Span, Token, TxBatch};
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

/// Payload in pieces of at most `piece` bytes.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) piece: usize,
}

impl Memory {
    /// `len` bytes without a pattern that repeats at any segment size.
    pub(crate) fn new(len: usize) -> Memory {
        Memory { bytes: (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(), piece: len }
    }
}

impl Gather for Memory {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.bytes[offset as usize..][..len.min(self.piece)]
    }
}

/// Adds a burst that carries the first `len` bytes of a memory, with `header` bytes of each datagram in the batch itself,
/// and returns its datagrams.
pub(crate) fn add(
    batch: &mut TxBatch,
    mem: &Memory,
    to: SocketAddr,
    port: u16,
    segment: usize,
    len: usize,
    header: usize,
) -> Vec<Vec<u8>> {
    let mut burst = batch.burst(to, SourcePort(port), segment);
    let mut offset = 0;
    let mut datagrams = Vec::new();
    for datagram in mem.bytes[..len].chunks(segment) {
        let header = header.min(datagram.len());
        burst.inline(&datagram[..header]);
        if header < datagram.len() {
            burst.payload(Token(1), (offset + header) as u32, (datagram.len() - header) as u32);
        }
        offset += datagram.len();
        datagrams.push(datagram.to_vec());
    }
    burst.finish();
    datagrams
}

/// Receives `count` datagrams, in order of arrival.
///
/// # Panics
/// If they do not come within five seconds.
pub(crate) fn receive(driver: &mut UdpDriver, count: usize) -> Vec<(RxMeta, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = driver.now() + Span::from_secs(5);
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
