//! The contract between the core and whatever moves its packets: kernel UDP, AF_XDP, a simulated network.
//!
//! A driver moves batches of datagrams, tells the time, and sleeps or spins until a deadline or readiness. It knows
//! neither connections nor messages. [`TxBatch`] carries datagrams from the core to the driver.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::batch::TxBatch;
use crate::time::Time;
use crate::upper::Gather;

/// ECN codepoint of a datagram (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ecn {
    /// Not ECN-capable, or unknown.
    #[default]
    NotEct,
    /// ECN-capable, not marked.
    Ect,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// The codepoint in a traffic class (in IPv4 once type of service): its two low bits.
    #[inline]
    pub fn of_traffic_class(class: u8) -> Ecn {
        match class & 3 {
            0 => Ecn::NotEct,
            3 => Ecn::Ce,
            _ => Ecn::Ect,
        }
    }
}

/// Which source port of the driver's pool a datagram leaves from: an index in `0..Driver::source_ports()`, not a port
/// number. A path of a connection is bound to one index; the driver opens the socket when it is first used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourcePort(pub u16);

/// Where an incoming datagram came from and what the network said about it.
#[derive(Clone, Copy, Debug)]
pub struct RxMeta {
    /// Source address.
    pub from: SocketAddr,
    /// Local address it was sent to, where the driver knows it.
    pub to: Option<IpAddr>,
    /// ECN mark.
    pub ecn: Ecn,
    /// When it arrived at the host (kernel or NIC timestamp where there is one, else when it was read), on the driver's
    /// clock.
    pub at: Time,
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn now(&mut self) -> Time {
        (**self).now()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        (**self).recv(sink)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        (**self).send(batch, mem)
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        (**self).wait(until)
    }

    fn local_addr(&self) -> SocketAddr {
        (**self).local_addr()
    }

    fn source_ports(&self) -> u16 {
        (**self).source_ports()
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        (**self).max_datagram(to)
    }
}

/// A driver: see the module documentation. All calls come from one thread.
pub trait Driver {
    /// The driver's monotonic clock.
    fn now(&mut self) -> Time;

    /// Hands what has arrived, a bounded number of datagrams, to `sink` one by one, and returns how many it was. Never
    /// blocks. `sink` gets whole UDP payloads.
    ///
    /// # Errors
    /// Only what ends the driver (the socket is gone); passing trouble is counted and hidden.
    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize>;

    /// Sends all bursts of the batch; payload that the batch only names is read through `mem`. A datagram that the kernel
    /// refuses counts as lost in the network, and is counted.
    ///
    /// # Errors
    /// Only what ends the driver.
    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()>;

    /// Returns when something has arrived, when `until` has come, or earlier; a spinning driver returns at once.
    ///
    /// # Errors
    /// Only what ends the driver.
    fn wait(&mut self, until: Option<Time>) -> io::Result<()>;

    /// The address that peers send to (the main port).
    fn local_addr(&self) -> SocketAddr;

    /// Size of the pool of source ports, 1..=1024.
    fn source_ports(&self) -> u16;

    /// The largest UDP payload in bytes that the first hop towards `to` carries, as far as the driver knows.
    fn max_datagram(&mut self, to: SocketAddr) -> u16;
}
