//! Datagrams on their way from the core to a driver, grouped into bursts that one segmentation-offload call can send.

use std::net::{IpAddr, SocketAddr};

use crate::driver::SourcePort;
use crate::upper::{Gather, Token, gather};
use crate::wire::Sink;

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
                Part::Payload { token, offset, len } => gather(mem, token, offset, len, &mut f),
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
    /// The packet that is being written.
    packet: OpenPacket,
    /// Bytes of the arena that parts speak of; those behind belong to the packet that is being written.
    described: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenPacket {
    /// Where it begins in the arena.
    arena: usize,
    /// Index of the first part that holds bytes of it; an inline one may hold bytes of the packet before, too.
    part: usize,
    /// Bytes that it only names.
    payload: u32,
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
        self.described = self.arena.len();
    }

    /// Drops the burst that was written last.
    pub(crate) fn drop_burst(&mut self) {
        if let Some(burst) = self.bursts.pop() {
            self.parts.truncate(burst.first_part as usize);
        }
    }

    /// Begins a packet of the burst. Everything is written by [`Sink::put`] and [`payload`](Self::payload).
    pub(crate) fn begin_packet(&mut self) {
        let part = self.parts.len() - usize::from(self.continues_inline());
        self.packet = OpenPacket { arena: self.arena.len(), part, payload: 0 };
    }

    /// Whether the burst's last part is inline, so that what is put next continues it.
    fn continues_inline(&mut self) -> bool {
        let first = self.current().first_part as usize;
        matches!(self.parts[first..].last(), Some(Part::Inline { .. }))
    }

    /// Makes the parts speak of all that was put.
    fn describe(&mut self) {
        let (start, end) = (self.described, self.arena.len());
        if start == end {
            return;
        }
        self.described = end;
        let added = (end - start) as u32;
        if self.continues_inline()
            && let Some(Part::Inline { len, .. }) = self.parts.last_mut()
        {
            *len += added;
        } else {
            self.parts.push(Part::Inline { start: start as u32, len: added });
        }
    }

    /// Bytes of the packet so far.
    pub(crate) fn packet_len(&self) -> usize {
        self.arena.len() - self.packet.arena + self.packet.payload as usize
    }

    /// Where what is put next goes, for [`take_back`](Self::take_back).
    pub(crate) fn mark(&self) -> usize {
        self.arena.len()
    }

    /// Takes back what was put since `mark`; no payload was named meanwhile.
    pub(crate) fn take_back(&mut self, mark: usize) {
        debug_assert!(self.described <= mark, "parts speak of it");
        self.arena.truncate(mark);
    }

    /// Lets `f` put bytes at the end of the packet.
    pub(crate) fn append<T>(&mut self, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        f(&mut self.arena)
    }

    /// Names payload that the driver will gather.
    pub(crate) fn payload(&mut self, token: Token, offset: u32, len: u32) {
        self.describe();
        self.parts.push(Part::Payload { token, offset, len });
        self.packet.payload += len;
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
        self.describe();
        let mut sum = 0;
        for part in &self.parts[self.packet.part..] {
            match *part {
                Part::Inline { start, len } => {
                    let first = self.packet.arena.max(start as usize);
                    sum = crc32c::crc32c_append(sum, &self.arena[first..(start + len) as usize]);
                }
                Part::Payload { token, offset, len } => {
                    gather(mem, token, offset, len, |slice| sum = crc32c::crc32c_append(sum, slice));
                }
            }
        }
        self.put(&sum.to_be_bytes());
    }

    /// Ends the packet. The first one of a burst sets the segment size.
    pub(crate) fn end_packet(&mut self) {
        self.describe();
        let len = self.packet_len() as u32;
        let end = self.parts.len() as u32;
        let burst = self.current();
        burst.end_part = end;
        burst.len += len;
        if burst.segment == 0 {
            burst.segment = len;
        }
        debug_assert!(len <= burst.segment, "segments must not grow");
    }

    #[inline]
    fn current(&mut self) -> &mut BurstHead {
        self.bursts.last_mut().expect("in a burst")
    }

    /// Starts a burst at the end of the batch: datagrams of `segment` bytes each, only the last may be shorter. It counts
    /// from [`BurstWriter::finish`] on.
    ///
    /// # Panics
    /// If `segment` is 0.
    pub fn burst(&mut self, to: SocketAddr, port: SourcePort, segment: usize) -> BurstWriter<'_> {
        assert!(segment > 0, "a burst of datagrams of no bytes");
        let first_part = self.parts.len() as u32;
        let head =
            BurstHead { to, from: None, port, ect: true, segment: segment as u32, len: 0, first_part, end_part: 0 };
        BurstWriter { batch: self, head }
    }
}

/// Adds the pieces of one burst to a [`TxBatch`], in order. Dropped without [`finish`](Self::finish), the burst is not
/// part of the batch.
#[derive(Debug)]
pub struct BurstWriter<'a> {
    batch: &'a mut TxBatch,
    head: BurstHead,
}

impl BurstWriter<'_> {
    /// Sends from this local address.
    #[must_use]
    pub fn from(mut self, from: IpAddr) -> Self {
        self.head.from = Some(from);
        self
    }

    /// Whether to set ECT(0); it is set unless told otherwise.
    #[must_use]
    pub fn ect(mut self, ect: bool) -> Self {
        self.head.ect = ect;
        self
    }

    /// Copies `bytes` into the batch. Neighbouring pieces become one.
    pub fn inline(&mut self, bytes: &[u8]) {
        let (start, len) = (self.batch.arena.len() as u32, bytes.len() as u32);
        self.batch.arena.extend_from_slice(bytes);
        self.head.len += len;
        let first = self.head.first_part as usize;
        match self.batch.parts[first..].last_mut() {
            Some(Part::Inline { len: before, .. }) => *before += len,
            _ => self.batch.parts.push(Part::Inline { start, len }),
        }
    }

    /// Names `len` bytes of a message.
    pub fn payload(&mut self, token: Token, offset: u32, len: u32) {
        self.head.len += len;
        self.batch.parts.push(Part::Payload { token, offset, len });
    }

    /// Ends the burst. An empty burst leaves no trace.
    pub fn finish(mut self) {
        self.head.end_part = self.batch.parts.len() as u32;
        if self.head.len > 0 {
            self.batch.bursts.push(self.head);
        }
    }
}

impl Sink for TxBatch {
    // Inlined, copies of fixed length become a few moves.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.arena.extend_from_slice(bytes);
    }
}
