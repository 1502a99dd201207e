//! Counters of the driver.

use srd_udp::UdpStats;

/// Counters of an [`XdpDriver`](crate::XdpDriver) since its start. What is dropped here, the protocol sees as loss.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct XdpStats {
    /// Datagrams sent through AF_XDP.
    pub tx_datagrams: u64,
    /// Bursts left to kernel UDP: the peer is not reached through the interface, its neighbour is not known yet, or the
    /// datagrams are too long.
    pub tx_fallbacks: u64,
    /// Datagrams dropped because no frame was free to send from.
    pub tx_dropped: u64,
    /// System calls to send that failed for a passing reason; what they left is sent later.
    pub tx_busy: u64,
    /// System calls to send that failed because the interface is down or gone.
    pub tx_down: u64,
    /// Datagrams received through AF_XDP and handed over.
    pub rx_datagrams: u64,
    /// Those of them whose checksum the sender's kernel had left to hardware, which a virtual cable does not have.
    pub rx_partial_checksums: u64,
    /// Received frames dropped: cut short, with lengths that contradict each other, or from an address that no other host can
    /// have (loopback, multicast, our own).
    pub rx_malformed: u64,
    /// Received frames dropped: the checksum of IP header or datagram is wrong.
    pub rx_bad_checksums: u64,
    /// First fragments dropped by the XDP program, of all drivers at the interface: fragmented datagrams are not taken.
    pub rx_fragments: u64,
    /// Frames that the kernel dropped because no frame was free to receive into or the ring was full: the loop was too slow or
    /// too long away.
    pub rx_queue_drops: u64,
    /// Frames that the kernel dropped because they do not fit into our frames.
    pub rx_too_long: u64,
    /// What went through kernel UDP.
    pub udp: UdpStats,
}
