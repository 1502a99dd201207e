//! What the kernel granted to a driver.

use std::fmt;

/// What the kernel granted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct XdpInfo {
    /// Name of the interface.
    pub interface: String,
    /// Its queues that have a socket of ours.
    pub queues: Vec<u32>,
    /// Queues that it has.
    pub interface_queues: u32,
    /// Whether the NIC reads and writes packets in our memory itself.
    pub zero_copy: bool,
    /// Whether packets may be longer than a frame.
    pub multi_buffer: bool,
    /// Whether the kernel or the device completes the checksums of what is sent (metadata, Linux 6.11).
    pub checksum_offload: bool,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Whether the frames lie on huge pages from the pool that the administrator keeps (`vm.nr_hugepages`).
    pub huge_pages: bool,
    /// Whether it is one end of a virtual cable.
    pub veth: bool,
}

impl fmt::Display for XdpInfo {
    /// In one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let either = |is, yes, no| if is { yes } else { no };
        write!(
            f,
            "AF_XDP at {}: queues {:?} of {}, {}, checksums by {}, frames of {} bytes{} on {}",
            self.interface,
            self.queues,
            self.interface_queues,
            either(self.zero_copy, "zero copy", "the kernel copies"),
            either(self.checksum_offload, "kernel or device", "the driver"),
            self.frame_size,
            either(self.multi_buffer, ", several per packet,", ""),
            either(self.huge_pages, "huge pages", "normal pages (no free huge ones, see vm.nr_hugepages)"),
        )
    }
}
