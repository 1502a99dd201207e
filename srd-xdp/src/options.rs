//! Options of the driver.

use srd_udp::UdpOptions;

use crate::error::OpenError;

/// Where the XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attach {
    /// In the device's driver, or after it where that cannot be. On a virtual cable (veth) only in the driver, on a bond
    /// only after it.
    #[default]
    Auto,
    /// In the device's driver.
    Native,
    /// After it, on socket buffers. Every device can. On a virtual cable (veth) it takes what the other end's kernel sends
    /// with segmentation offload for single datagrams, so senders there must have that off. There is no zero copy then.
    Generic,
}

/// Whether the NIC reads and writes packets in our memory itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroCopy {
    /// If its driver can.
    #[default]
    Auto,
    /// Or the driver is not made.
    Require,
    /// The kernel copies.
    Off,
}

/// Options of an [`XdpDriver`](crate::XdpDriver). The default suits most hosts.
#[derive(Clone, Debug)]
pub struct XdpOptions {
    /// Name of the interface. Default `None`: the one with the address that the driver is bound to.
    pub interface: Option<String>,
    /// Queues to use, as many as are free from `first_queue` on, 1..=16. Default 16. A NIC spreads what arrives over its
    /// queues; what comes in by one without a socket of ours goes through the kernel.
    pub queues: u32,
    /// The first queue to try. Default 0.
    pub first_queue: u32,
    /// Where the program runs.
    pub attach: Attach,
    /// Whether to insist on zero copy.
    pub zero_copy: ZeroCopy,
    /// Frames to receive into and frames to send from, per queue; a power of two, 64..=32768. Default 1024: more drops out of
    /// the cache, fewer drop bursts.
    pub frames: u32,
    /// Whether datagrams longer than a page may be used (multi-buffer, Linux 6.6), where the MTU is that large. Default true.
    pub jumbo: bool,
    /// Let our own system calls poll the device for up to this many microseconds. Default `None`. Helps some NICs; on veth it
    /// costs.
    pub busy_poll_us: Option<u32>,
    /// The UDP driver below, which carries what cannot go by AF_XDP. Its wait mode and source ports are this driver's.
    pub udp: UdpOptions,
}

impl Default for XdpOptions {
    fn default() -> XdpOptions {
        XdpOptions {
            interface: None,
            queues: MAX_QUEUES,
            first_queue: 0,
            attach: Attach::Auto,
            zero_copy: ZeroCopy::Auto,
            frames: 1024,
            jumbo: true,
            busy_poll_us: None,
            udp: UdpOptions::default(),
        }
    }
}

/// Queues per driver; as many descriptors as one sleep can watch, with some to spare.
const MAX_QUEUES: u32 = 16;

impl XdpOptions {
    /// Checks ranges.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let bad = |option, problem| Err(OpenError::Option { option, problem });
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return bad("queues", format!("is {}, must be in 1..={MAX_QUEUES}", self.queues));
        }
        if !self.frames.is_power_of_two() || !(64..=32_768).contains(&self.frames) {
            return bad("frames", format!("is {}, must be a power of two in 64..=32768", self.frames));
        }
        Ok(())
    }
}
