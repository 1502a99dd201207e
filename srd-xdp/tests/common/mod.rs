//! Drivers on both ends of a virtual cable.

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

#[path = "../../../srd-udp/tests/common/memory.rs"]
mod memory;

use std::net::SocketAddr;
use std::os::fd::AsFd;

pub(crate) use memory::{Memory, add};
use srd_core::{Driver, RxMeta, SourcePort, Span, Time, TxBatch};
use srd_udp::{UdpDriver, UdpOptions, WaitMode};
use srd_xdp::{XdpDriver, XdpOptions, XdpStats};
use testbed::{Family, Host, Pair, PairBuilder};

/// Nothing that comes at all takes as long as this.
pub(crate) const PATIENCE: Span = Span::from_secs(60);

/// A pair of hosts that no packet has crossed yet; `None` where there are no test beds.
pub(crate) fn bed(settings: PairBuilder) -> Option<Pair> {
    let bed = settings.for_test()?;
    bed.hosts().iter().for_each(|host| await_carrier(host, "eth0"));
    Some(bed)
}

/// Sleeping drivers, so that tests do not compete for cores.
pub(crate) fn udp_options() -> UdpOptions {
    UdpOptions { wait: WaitMode::Sleep, ..UdpOptions::default() }
}

/// The same.
pub(crate) fn options() -> XdpOptions {
    XdpOptions { udp: udp_options(), ..XdpOptions::default() }
}

/// A driver on a host: its sockets open where the calls are made, so all calls are made there.
pub(crate) struct Side<D> {
    pub(crate) host: Host,
    pub(crate) driver: D,
}

/// A driver over AF_XDP at an address of the host, any port.
pub(crate) fn xdp(host: &Host, family: Family) -> Side<XdpDriver> {
    xdp_at(host, SocketAddr::new(host.ip(family), 0), options())
}

/// A driver over AF_XDP.
pub(crate) fn xdp_at(host: &Host, addr: SocketAddr, options: XdpOptions) -> Side<XdpDriver> {
    let driver = host.enter(|| XdpDriver::open(addr, options)).expect("the host is there");
    let driver = driver.unwrap_or_else(|e| panic!("{e}: {e:?}"));
    await_carrier(host, &driver.info().interface);
    Side { host: host.clone(), driver }
}

/// NICs go down and come back, some after seconds, when a program is attached to them, or they move to another host.
fn await_carrier(host: &Host, device: &str) {
    let is_up = || {
        let mut interfaces = nix::ifaddrs::getifaddrs().expect("interfaces");
        interfaces.any(|i| i.interface_name == device && i.flags.contains(nix::net::if_::InterfaceFlags::IFF_RUNNING))
    };
    for _ in 0..6000 {
        if host.enter(is_up).expect("the host is there") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{device} does not come back");
}

/// A driver over kernel UDP at an address of the host, any port.
pub(crate) fn udp(host: &Host, family: Family) -> Side<UdpDriver> {
    udp_at(host, SocketAddr::new(host.ip(family), 0))
}

/// A driver over kernel UDP.
pub(crate) fn udp_at(host: &Host, addr: SocketAddr) -> Side<UdpDriver> {
    let driver = host.enter(|| UdpDriver::bind(addr, udp_options())).expect("the host is there");
    Side { host: host.clone(), driver: driver.expect("bind") }
}

impl Side<XdpDriver> {
    pub(crate) fn stats(&self) -> XdpStats {
        self.driver.stats()
    }

    /// Waits until something has arrived, without looking at it.
    ///
    /// # Panics
    /// If nothing comes.
    pub(crate) fn await_arrival(&self) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let sockets = self.driver.readiness().expect("descriptors");
        let mut fds: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        assert_ne!(poll(&mut fds, PollTimeout::from(60_000u16)), Ok(0), "nothing arrives");
    }
}

impl<D: Driver + Send> Side<D> {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    pub(crate) fn send(&mut self, batch: &TxBatch, mem: &Memory) {
        let driver = &mut self.driver;
        self.host.enter(|| driver.send(batch, mem)).expect("the host is there").expect("send");
    }

    /// Sends one datagram.
    pub(crate) fn say(&mut self, to: SocketAddr, text: &str) {
        let mut batch = TxBatch::new();
        let mut burst = batch.burst(to, SourcePort(0), text.len());
        burst.inline(text.as_bytes());
        burst.finish();
        self.send(&batch, &Memory::new(0));
    }

    /// Receives `count` datagrams, in order of arrival.
    ///
    /// # Panics
    /// If they do not come.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<(RxMeta, Vec<u8>)> {
        let got = self.receive_until(count, PATIENCE);
        assert_eq!(got.len(), count, "datagrams that arrived in time");
        got
    }

    /// Receives up to `count` datagrams in a certain time, of whose end it makes use, too: whoever has no core meanwhile gets
    /// what has arrived, and hears the news that the driver looks for now and then.
    pub(crate) fn receive_until(&mut self, count: usize, time: Span) -> Vec<(RxMeta, Vec<u8>)> {
        let mut got = Vec::new();
        let end: Time = self.driver.now() + time;
        loop {
            let is_over = self.driver.now() >= end;
            let more = self.driver.recv(&mut |meta, bytes| got.push((*meta, bytes.to_vec()))).expect("receive");
            if got.len() >= count || is_over {
                return got;
            }
            if more == 0 {
                self.driver.wait(Some(end)).expect("wait");
            }
        }
    }
}

/// Lets both sides learn each other's hardware address: the first datagrams go through the kernel.
pub(crate) fn meet<A: Driver + Send, B: Driver + Send>(a: &mut Side<A>, b: &mut Side<B>) {
    let (to_a, to_b) = (a.addr(), b.addr());
    a.say(to_b, "hello");
    assert_eq!(b.receive(1)[0].1, b"hello");
    b.say(to_a, "welcome");
    assert_eq!(a.receive(1)[0].1, b"welcome");
    // Receiving is also when the driver hears the news.
    assert_eq!(a.receive_until(1, Span::from_millis(5)).len() + b.receive_until(1, Span::from_millis(5)).len(), 0);
}
