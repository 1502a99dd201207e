//! Options of the driver.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use srd_core::MIN_DATAGRAM;

use crate::error::BindError;

/// What [`Driver::wait`](srd_core::Driver::wait) does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitMode {
    /// Returns at once: the lowest latency (about 2 us half a round trip), and a core of its own at 100 %.
    Spin,
    /// Sleeps until something arrives or the deadline comes. Costs no CPU while idle, and a wake-up (some 35 us) per
    /// message that finds the loop asleep.
    Sleep,
    /// Spins while something arrived or was sent within this time, then sleeps.
    Adaptive {
        /// How long to spin.
        spin: Duration,
    },
}

/// Whether to use an offload of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offload {
    /// As far as it works.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// Options of a [`UdpDriver`](crate::UdpDriver). The default suits most hosts.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Size of the pool of source ports, 1..=1024; sockets are opened when they are first used. Default 64, the core's
    /// default pool of paths.
    pub source_ports: u16,
    /// Draw source ports at random from this range, at least `source_ports` ports, for firewalls that want to know them.
    /// Default `None`: the kernel chooses from its ephemeral range.
    pub source_port_range: Option<RangeInclusive<u16>>,
    /// What to do when there is nothing to do. Default: spin for 50 us, about what a wake-up costs, then sleep.
    pub wait: WaitMode,
    /// Receive buffer to ask for, in bytes. Default 32 MB: 5 ms at 50 Gbit/s. Without privilege the kernel grants at most
    /// `net.core.rmem_max`; [`UdpInfo::recv_buffer`](crate::UdpInfo::recv_buffer) tells what it was.
    pub recv_buffer: usize,
    /// Send buffer to ask for, per source port, in bytes. Default 4 MB. Without privilege the kernel grants at most
    /// `net.core.wmem_max`.
    pub send_buffer: usize,
    /// MTU to assume towards everyone, in bytes with IP and UDP headers, 560..=65535. Default `None`: ask the routing
    /// table, which means that of the route, else of the interface.
    pub mtu: Option<u16>,
    /// Segmentation offload on sending (GSO). Worth 10x in bulk.
    pub gso: Offload,
    /// Coalescing on receiving (GRO).
    pub gro: Offload,
    /// Arrival timestamps from the kernel. They keep the time that datagrams wait for the loop out of round-trip times, and
    /// cost about 0.1 us per datagram or coalesced buffer.
    pub timestamps: Offload,
    /// For tests: behave as if the network card refused segmentation offload.
    #[doc(hidden)]
    pub pretend_gso_eio: bool,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            source_ports: 64,
            source_port_range: None,
            wait: WaitMode::Adaptive { spin: Duration::from_micros(50) },
            recv_buffer: 32 << 20,
            send_buffer: 4 << 20,
            mtu: None,
            gso: Offload::Auto,
            gro: Offload::Auto,
            timestamps: Offload::Auto,
            pretend_gso_eio: false,
        }
    }
}

/// Largest pool of source ports; the core's path identifiers reach no further.
const MAX_SOURCE_PORTS: u16 = 1024;
/// IPv6 and UDP headers.
const MAX_HEADERS: u16 = 48;

impl UdpOptions {
    /// Checks ranges.
    pub(crate) fn check(&self, addr: SocketAddr) -> Result<(), BindError> {
        let bad = |option, problem| Err(BindError::Option { option, problem });
        if !(1..=MAX_SOURCE_PORTS).contains(&self.source_ports) {
            return bad("source_ports", format!("is {}, must be in 1..={MAX_SOURCE_PORTS}", self.source_ports));
        }
        if let Some(range) = &self.source_port_range {
            let (first, last) = (*range.start(), *range.end());
            let spare = range.clone().filter(|&port| port != addr.port()).count();
            if first == 0 || spare < self.source_ports.into() {
                let need = self.source_ports;
                return bad(
                    "source_port_range",
                    format!("is {first}..={last}, must leave {need} ports above 0 beside the main port"),
                );
            }
        }
        match self.mtu {
            Some(mtu) if mtu < MIN_DATAGRAM + MAX_HEADERS => {
                bad("mtu", format!("is {mtu}, must be at least {}", MIN_DATAGRAM + MAX_HEADERS))
            }
            _ => Ok(()),
        }
    }
}
