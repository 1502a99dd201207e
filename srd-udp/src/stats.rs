//! Counters of the driver.

/// Counters of a [`UdpDriver`](crate::UdpDriver) since its start. What is dropped here, the protocol sees as loss.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UdpStats {
    /// Segmentation-offload calls that the kernel accepted.
    pub gso_bursts: u64,
    /// Datagrams sent by them.
    pub gso_datagrams: u64,
    /// Datagrams sent one by one.
    pub singles: u64,
    /// Bursts that the kernel refused to segment, and that were sent as single datagrams instead.
    pub gso_fallbacks: u64,
    /// Bursts in so many or so small pieces that they were copied together before sending; single datagrams do not count.
    pub copied_bursts: u64,
    /// Times that a send buffer or device queue was full (`EAGAIN`, `ENOBUFS`); most such calls succeed on retry.
    pub send_busy: u64,
    /// Datagrams dropped because it stayed full.
    pub dropped_busy: u64,
    /// Datagrams dropped because they are too large for the first hop (`EMSGSIZE`).
    pub dropped_too_big: u64,
    /// Datagrams dropped because the host has no route, a firewall rule forbids them, or their socket cannot be opened.
    pub dropped_other: u64,
    /// 'Port unreachable' reports (`ECONNREFUSED`): nobody listens at the peer's address.
    pub refused: u64,
    /// 'Host unreachable' reports, or no answer from the neighbour (`EHOSTUNREACH`, `EHOSTDOWN`).
    pub host_unreachable: u64,
    /// 'Network unreachable' reports, or no route (`ENETUNREACH`, `ENETDOWN`).
    pub net_unreachable: u64,
    /// Sends that a local firewall forbade (`EPERM`, `EACCES`).
    pub not_permitted: u64,
    /// Sends that failed for any other reason.
    pub other_errors: u64,
    /// Source-port sockets open now.
    pub sockets_open: u64,
    /// Times that a source-port socket could not be opened (descriptors or ports exhausted).
    pub socket_failures: u64,
    /// Buffers received, each with one datagram or several coalesced ones.
    pub rx_buffers: u64,
    /// Datagrams received.
    pub rx_datagrams: u64,
    /// Buffers dropped because they were longer than any datagram should be.
    pub rx_truncated: u64,
    /// Receive calls that failed for a passing reason, such as lack of memory.
    pub rx_errors: u64,
    /// Datagrams that the kernel dropped because the receive buffer was full: the loop was too slow or too long away, or
    /// the buffer is too small. Wraps at 2^32.
    pub rx_queue_drops: u64,
}
