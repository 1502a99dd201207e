//! The contract between the core and whatever moves its packets: kernel UDP, AF_XDP, a simulated network.
//!
//! A driver moves batches of datagrams, tells the time, and sleeps or spins until a deadline or readiness. It knows
//! neither connections nor messages. [`TxBatch`] carries datagrams from the core to the driver, grouped into bursts that
//! one segmentation-offload call can send.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::time::Time;
use crate::upper::{Gather, Token};
use crate::wire::Sink;

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

/// Datagrams of one path on their way to the driver: all `segment` bytes long, only the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// Destination.
    pub to: SocketAddr,
    /// Local address to send from, when the driver has several and the peer addressed a certain one.
    pub from: Option<IpAddr>,
    /// Source port.
    pub port: SourcePort,
    /// Whether to set ECT(0).
    pub ect: bool,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// Bytes of all datagrams together.
    pub len: usize,
    /// The pieces that make up the datagrams, in order.
    pub parts: &'a [Part],
    arena: &'a [u8],
}

impl<'a> Burst<'a> {
    /// Number of datagrams, at least 1.
    pub fn datagrams(&self) -> usize {
        self.len.div_ceil(self.segment)
    }

    /// The bytes of an [`Part::Inline`] piece.
    pub fn inline(&self, start: u32, len: u32) -> &'a [u8] {
        &self.arena[start as usize..(start + len) as usize]
    }

    /// Calls `f` with each contiguous piece in order, payload read through `mem`.
    pub fn for_each_slice<'m>(&self, mem: &'m dyn Gather, mut f: impl FnMut(&'m [u8]))
    where
        'a: 'm,
    {
        for part in self.parts {
            match *part {
                Part::Inline { start, len } => f(self.inline(start, len)),
                Part::Payload { token, offset, len } => {
                    let (mut offset, mut left) = (offset, len as usize);
                    while left > 0 {
                        let slice = mem.payload(token, offset, left);
                        assert!(
                            !slice.is_empty() && slice.len() <= left,
                            "Gather::payload returned {} of {left}",
                            slice.len()
                        );
                        f(slice);
                        offset += slice.len() as u32;
                        left -= slice.len();
                    }
                }
            }
        }
    }

    /// Copies all datagrams into `out`, one after the other (for drivers that cannot gather, and for tests).
    pub fn copy_to(&self, mem: &dyn Gather, out: &mut Vec<u8>) {
        self.for_each_slice(mem, |s| out.extend_from_slice(s));
    }
}

/// A piece of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Bytes in the batch's own memory.
    Inline {
        /// Offset in the batch's memory.
        start: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Bytes of a message, to be read through [`Gather`] when sending.
    Payload {
        /// The message.
        token: Token,
        /// Offset in the message.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct BurstHead {
    to: SocketAddr,
    from: Option<IpAddr>,
    port: SourcePort,
    ect: bool,
    segment: u32,
    len: u32,
    first_part: u32,
    end_part: u32,
}

/// A batch of bursts. Made once, filled by [`Endpoint::poll_transmit`](crate::Endpoint::poll_transmit), sent by the
/// driver, cleared, and filled again; it allocates only while it grows to its working size.
#[derive(Debug, Default)]
pub struct TxBatch {
    arena: Vec<u8>,
    parts: Vec<Part>,
    bursts: Vec<BurstHead>,
    /// Where the packet that is being written begins.
    packet: PacketStart,
}

#[derive(Clone, Copy, Debug, Default)]
struct PacketStart {
    arena: usize,
    /// Index of the first part that holds bytes of it; an inline one may hold bytes of the packet before, too.
    part: usize,
    /// Length of the burst before it.
    burst_len: u32,
}

impl TxBatch {
    /// An empty batch.
    pub fn new() -> TxBatch {
        TxBatch::default()
    }

    /// Forgets all datagrams, keeps the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.parts.clear();
        self.bursts.clear();
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bursts.is_empty()
    }

    /// Bytes of all datagrams.
    pub fn len_bytes(&self) -> usize {
        self.bursts.iter().map(|b| b.len as usize).sum()
    }

    /// The bursts in the order in which they should leave.
    pub fn bursts(&self) -> impl ExactSizeIterator<Item = Burst<'_>> {
        self.bursts.iter().map(|h| Burst {
            to: h.to,
            from: h.from,
            port: h.port,
            ect: h.ect,
            segment: h.segment as usize,
            len: h.len as usize,
            parts: &self.parts[h.first_part as usize..h.end_part as usize],
            arena: &self.arena,
        })
    }

    /// Begins a burst; packets follow.
    pub(crate) fn begin_burst(&mut self, to: SocketAddr, from: Option<IpAddr>, port: SourcePort) {
        let part = self.parts.len() as u32;
        self.bursts.push(BurstHead { to, from, port, ect: true, segment: 0, len: 0, first_part: part, end_part: part });
    }

    /// Begins a packet of the burst. Everything is written by [`Sink::put`] and [`payload`](Self::payload).
    pub(crate) fn begin_packet(&mut self) {
        let burst_len = self.burst().len;
        let shared = matches!(self.parts.last(), Some(Part::Inline { .. })) && burst_len > 0;
        let part = self.parts.len() - usize::from(shared);
        self.packet = PacketStart { arena: self.arena.len(), part, burst_len };
    }

    /// Bytes of the packet so far.
    pub(crate) fn packet_len(&self) -> usize {
        (self.bursts.last().expect("in a burst").len - self.packet.burst_len) as usize
    }

    /// Names payload that the driver will gather.
    pub(crate) fn payload(&mut self, token: Token, offset: u32, len: u32) {
        self.parts.push(Part::Payload { token, offset, len });
        self.burst().len += len;
    }

    /// Sets bits in a byte of the packet's header, `at` bytes from its start.
    pub(crate) fn set_bits(&mut self, at: usize, bits: u8) {
        self.arena[self.packet.arena + at] |= bits;
    }

    /// Appends `n` zero bytes to the packet.
    pub(crate) fn pad(&mut self, n: usize) {
        const ZEROS: [u8; 256] = [0; 256];
        let mut left = n;
        while left > 0 {
            let step = left.min(ZEROS.len());
            self.put(&ZEROS[..step]);
            left -= step;
        }
    }

    /// Appends the CRC32C of the packet so far.
    pub(crate) fn checksum(&mut self, mem: &impl Gather) {
        let mut sum = 0;
        for part in &self.parts[self.packet.part..] {
            match *part {
                Part::Inline { start, len } => {
                    let first = self.packet.arena.max(start as usize);
                    sum = crc32c::crc32c_append(sum, &self.arena[first..(start + len) as usize]);
                }
                Part::Payload { token, offset, len } => {
                    let (mut offset, mut left) = (offset, len as usize);
                    while left > 0 {
                        let slice = mem.payload(token, offset, left);
                        sum = crc32c::crc32c_append(sum, slice);
                        offset += slice.len() as u32;
                        left -= slice.len();
                    }
                }
            }
        }
        self.put(&sum.to_be_bytes());
    }

    /// Ends the packet. The first one of a burst sets the segment size.
    pub(crate) fn end_packet(&mut self) {
        let len = self.packet_len() as u32;
        let end = self.parts.len() as u32;
        let burst = self.burst();
        burst.end_part = end;
        if burst.segment == 0 {
            burst.segment = len;
        }
        debug_assert!(len <= burst.segment, "segments must not grow");
    }

    fn burst(&mut self) -> &mut BurstHead {
        self.bursts.last_mut().expect("in a burst")
    }
}

impl Sink for TxBatch {
    fn put(&mut self, bytes: &[u8]) {
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        let len = bytes.len() as u32;
        let first = self.burst().first_part as usize;
        match self.parts[first..].last_mut() {
            Some(Part::Inline { start: s, len: l }) if *s + *l == start => *l += len,
            _ => self.parts.push(Part::Inline { start, len }),
        }
        self.burst().len += len;
    }
}
