//! A lane: one AF_XDP socket on one queue of the interface, and the frames that travel on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use srd_core::{Burst, Gather, RxMeta, Time};

use crate::checksum::{copy_sum, fold};
use crate::packet::{Bad, Headers, Origin, parse};
use crate::stats::XdpStats;
use crate::sys::{Frame, METADATA, Mode, Rings, Statistics, UmemSize, Xsk};

/// Pieces of a packet at most: 16 KB in frames of 4 KB, above what the protocol sends.
const MAX_PIECES: usize = 4;
/// Frames handed over per call, so that a flood does not keep the caller from sending.
const FRAMES_PER_CALL: u32 = 64;
/// Where the kernel copies, it is told after so many datagrams, while they are in the cache.
const DATAGRAMS_PER_KICK: u32 = 64;
/// System calls to send what is queued, while the kernel is busy. What is left goes with the next batch or turn.
const KICKS: u32 = 64;
/// With zero copy, how long a device that has all frames may take to send one. What is for it is dropped then, until it does.
const PATIENCE: Duration = Duration::from_millis(10);
/// Bytes before a received packet that the kernel keeps (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Bytes that devices' drivers keep at the end of a page (`struct skb_shared_info`).
const TAILROOM: u32 = 320;
/// Where in a UDP header the checksum is.
const CHECKSUM_OFFSET: u16 = 6;
/// Longest received packet; what is longer no sender of ours has sent.
const MAX_PACKET: usize = 65_536;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Lane {
    xsk: Xsk,
    mode: Mode,
    /// To send from.
    free: Vec<Frame>,
    /// Datagrams that are queued, and the kernel has not been told.
    unsent: u32,
    /// The kernel was told, and has not taken all.
    held_up: bool,
    /// The interface was down or gone when the kernel was told. It is told again with the next datagrams, and not in each turn.
    down: bool,
    /// The device was waited for in vain, and has not moved since.
    jammed: bool,
    /// The datagram that is being written.
    packet: Packet,
    /// A packet of several pieces as far as it has come.
    assembly: Vec<u8>,
    /// When the packet that is being received arrived.
    arrived: Time,
    stats: LaneStats,
}

/// Counters of a lane.
#[derive(Clone, Copy, Default, Debug)]
struct LaneStats {
    tx_datagrams: u64,
    tx_dropped: u64,
    tx_busy: u64,
    tx_down: u64,
    rx_datagrams: u64,
    rx_partial_checksums: u64,
    rx_malformed: u64,
    rx_bad_checksums: u64,
}

/// Bytes of the largest frame: a page, as the kernel demands.
pub(crate) const LARGEST_FRAME: u32 = 4096;

/// Bytes per frame for an interface of this MTU.
pub(crate) fn frame_size(mtu: u32, zero_copy: bool) -> u32 {
    // With headroom and Ethernet header. Some NICs (82576, 82599) count the room in a frame in KiB: of 2048 bytes less headroom
    // they would use 1024, and cut what is longer.
    if mtu + HEADROOM + 22 <= 2048 && !zero_copy { 2048 } else { LARGEST_FRAME }
}

/// Bytes of memory that a lane with so many frames to receive into, and to send from, locks.
pub(crate) fn locked_bytes(frame: u32, frames: u32) -> u64 {
    u64::from(frame) * 2 * u64::from(frames)
}

/// Longest packet that fits one frame when received, and one page before that. What takes two pages when it comes out of a device
/// is a packet of several pieces, and kernels before 6.6 throw such ones away instead of handing them over.
pub(crate) fn capacity(frame_size: u32) -> u32 {
    frame_size.min(LARGEST_FRAME - TAILROOM) - HEADROOM
}

impl Lane {
    /// Opens a socket on a queue, with as many frames to receive into as to send from.
    ///
    /// # Errors
    /// As [`Xsk::open`].
    pub(crate) fn open(interface: u32, queue: u32, frame: u32, frames: u32, mode: Mode) -> io::Result<Lane> {
        let rings = Rings { rx: frames, tx: frames };
        let open =
            |metadata| Xsk::open(interface, queue, UmemSize { frame, frames: 2 * frames, metadata }, rings, mode);
        // Where the kernel copies, it does what the metadata says. With zero copy, many devices ignore it.
        let (mut xsk, mut free) = match if mode.zero_copy { open(0) } else { open(METADATA) } {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && !mode.zero_copy => open(0),
            opened => opened,
        }?;
        // Those used last are in the cache, so hand out the same ones again and again: a stack.
        for frame in free.drain(frames as usize..) {
            xsk.fill(frame);
        }
        xsk.publish_fill();
        Ok(Lane {
            xsk,
            mode,
            free,
            unsent: 0,
            held_up: false,
            down: false,
            jammed: false,
            packet: Packet::default(),
            assembly: Vec::new(),
            arrived: Time::ZERO,
            stats: LaneStats::default(),
        })
    }

    pub(crate) fn socket(&self) -> &Xsk {
        &self.xsk
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The largest UDP payload behind headers of `headers` bytes.
    pub(crate) fn max_payload(&self, headers: usize) -> usize {
        let pieces = if self.mode.multi { MAX_PIECES } else { 1 };
        pieces * self.xsk.packet_size() - headers
    }

    /// Queues all datagrams of a burst; none may be longer than [`max_payload`](Self::max_payload).
    pub(crate) fn send(&mut self, headers: &Headers, burst: &Burst<'_>, mem: &dyn Gather) {
        let mut rest = burst.len;
        let mut left = 0;
        burst.for_each_slice(mem, |mut slice| {
            while !slice.is_empty() {
                if left == 0 {
                    left = burst.segment.min(rest);
                    rest -= left;
                    self.begin(headers, left);
                }
                let (now, later) = slice.split_at(slice.len().min(left));
                left -= now.len();
                slice = later;
                self.packet.put(&self.xsk, now);
                if left == 0 {
                    self.finish(headers);
                }
            }
        });
    }

    /// Gets frames for a datagram and writes the headers; without frames it is dropped and counted.
    #[inline]
    fn begin(&mut self, headers: &Headers, payload: usize) {
        let (len, size) = (headers.len() + payload, self.xsk.packet_size());
        let pieces = if len <= size { 1 } else { len.div_ceil(size) };
        debug_assert!(pieces <= MAX_PIECES, "a datagram of {payload} bytes");
        let packet = &mut self.packet;
        (packet.piece, packet.at, packet.len, packet.sum) = (0, headers.len(), len, 0);
        if !self.has_room(pieces) && !self.make_room(pieces) {
            self.stats.tx_dropped += 1;
            return;
        }
        let packet = &mut self.packet;
        for _ in 0..pieces {
            packet.frames.extend(self.free.pop());
        }
        if let Some(first) = packet.frames.last_mut() {
            headers.write(self.xsk.packet_mut(first), payload);
            if self.xsk.completes_checksums() {
                self.xsk.complete_checksum(first, headers.checksum_start(), CHECKSUM_OFFSET);
            }
        }
    }

    /// Queues the datagram, if it has frames.
    #[inline]
    fn finish(&mut self, headers: &Headers) {
        let (packet, size) = (&mut self.packet, self.xsk.packet_size());
        let Some(first) = packet.frames.last_mut() else { return };
        debug_assert_eq!(packet.piece * size + packet.at, packet.len, "bytes of the datagram");
        let offload = self.xsk.completes_checksums();
        if !offload {
            headers.complete(self.xsk.packet_mut(first), packet.len - headers.len(), packet.sum);
        }
        let mut metadata = offload;
        let mut left = packet.len;
        while let Some(frame) = packet.frames.pop() {
            let len = left.min(size);
            left -= len;
            self.xsk.transmit(frame, len, left > 0, std::mem::take(&mut metadata));
        }
        self.stats.tx_datagrams += 1;
        self.unsent += 1;
        if self.unsent == DATAGRAMS_PER_KICK && !self.mode.zero_copy {
            self.flush();
        }
    }

    #[inline]
    fn has_room(&mut self, pieces: usize) -> bool {
        self.free.len() >= pieces && self.xsk.transmit_room(pieces as u32) >= pieces as u32
    }

    #[cold]
    fn make_room(&mut self, pieces: usize) -> bool {
        self.reap();
        if self.free.len() < pieces {
            self.flush();
        }
        // With zero copy the device sends at its own pace.
        if self.mode.zero_copy && !self.jammed {
            let began = Instant::now();
            while !self.has_room(pieces) && began.elapsed() < PATIENCE {
                // However it answers, something may have been sent.
                let _ = self.xsk.wake_transmit();
                self.reap();
            }
            self.jammed = !self.has_room(pieces);
        }
        self.has_room(pieces)
    }

    /// Makes the kernel send what is queued.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.unsent) > 0 || self.held_up {
            self.kick();
            self.reap();
        }
    }

    fn kick(&mut self) {
        self.xsk.publish_transmit();
        self.down = false;
        for _ in 0..KICKS {
            match self.xsk.kick() {
                // Zero copy: the device goes on by itself.
                Ok(()) if self.mode.zero_copy || self.xsk.is_transmitted() => break,
                Ok(()) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                        // In copy mode this is also how the kernel says that it has done its share.
                        if self.xsk.is_transmitted() {
                            break;
                        }
                        self.stats.tx_busy += 1;
                    }
                    _ => {
                        self.stats.tx_down += 1;
                        self.down = true;
                        break;
                    }
                },
            }
        }
        self.held_up = !self.xsk.is_transmitted();
    }

    fn reap(&mut self) {
        self.xsk.look_sent();
        while let Some(frame) = self.xsk.reap() {
            self.free.push(frame);
            self.jammed = false;
        }
        self.xsk.release_reaped();
    }

    /// Whether something has arrived.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.xsk.has_arrivals()
    }

    /// Takes note of what has arrived by now. A reading of the clock after it is not before any of the arrivals.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.xsk.look();
    }

    /// Hands over what had arrived at the last [`look`](Self::look), within bounds, and returns the number of datagrams.
    /// `arrival` tells when a packet arrived by the frame, or the first piece of it.
    pub(crate) fn recv(
        &mut self,
        origin: Origin,
        arrival: &impl Fn(&[u8]) -> Time,
        sink: &mut dyn FnMut(&RxMeta, &[u8]),
    ) -> usize {
        if self.held_up && !self.down {
            self.flush();
        }
        let (mut frames, mut handed) = (0, 0);
        while frames < FRAMES_PER_CALL
            && let Some(piece) = self.xsk.receive()
        {
            frames += 1;
            let bytes = &self.xsk.bytes(&piece.frame)[piece.offset..][..piece.len];
            if self.assembly.is_empty() {
                self.arrived = arrival(bytes);
            }
            let at = self.arrived;
            if !piece.more && self.assembly.is_empty() {
                handed += usize::from(self.stats.hand_over(bytes, origin, at, sink));
            } else {
                // Beyond the limit it stays incomplete, and is refused as such.
                let room = MAX_PACKET - self.assembly.len();
                self.assembly.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if !piece.more {
                    handed += usize::from(self.stats.hand_over(&self.assembly, origin, at, sink));
                    self.assembly.clear();
                }
            }
            self.xsk.fill(piece.frame);
        }
        if frames > 0 {
            self.xsk.release_receive();
            self.xsk.publish_fill();
        }
        handed
    }

    /// Adds this lane's counters.
    pub(crate) fn add_to(&self, sum: &mut XdpStats) {
        let (own, kernel): (LaneStats, Statistics) = (self.stats, self.xsk.statistics());
        sum.tx_datagrams += own.tx_datagrams;
        sum.tx_dropped += own.tx_dropped + kernel.tx_refused;
        sum.tx_busy += own.tx_busy;
        sum.tx_down += own.tx_down;
        sum.rx_datagrams += own.rx_datagrams;
        sum.rx_partial_checksums += own.rx_partial_checksums;
        sum.rx_malformed += own.rx_malformed;
        sum.rx_bad_checksums += own.rx_bad_checksums;
        // With zero copy a device that finds no frame looks again: nothing was dropped. Else what finds none is among those that
        // were dropped.
        let no_frame = if self.mode.zero_copy { 0 } else { kernel.rx_no_frame };
        sum.rx_queue_drops += kernel.rx_ring_full + no_frame;
        sum.rx_too_long += kernel.rx_dropped.saturating_sub(no_frame);
    }
}

impl LaneStats {
    /// Hands over the datagram of a frame, or counts why not.
    #[inline]
    fn hand_over(&mut self, frame: &[u8], origin: Origin, at: Time, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> bool {
        match parse(frame, origin) {
            Ok(parsed) => {
                self.rx_datagrams += 1;
                self.rx_partial_checksums += u64::from(parsed.partial);
                let meta = RxMeta { from: parsed.from, to: Some(parsed.to.ip()), ecn: parsed.ecn, at };
                sink(&meta, &frame[parsed.payload]);
                true
            }
            Err(Bad::Malformed) => {
                self.rx_malformed += 1;
                false
            }
            Err(Bad::Checksum) => {
                self.rx_bad_checksums += 1;
                false
            }
        }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.xsk.as_fd()
    }
}

/// A packet that is being written.
#[derive(Debug, Default)]
struct Packet {
    /// Last piece first, all but that full. None: the packet is dropped.
    frames: ArrayVec<Frame, MAX_PIECES>,
    /// The piece that is being written, and how far.
    piece: usize,
    at: usize,
    /// Bytes in the end, headers included.
    len: usize,
    /// The [sum](crate::checksum::sum) of the payload so far.
    sum: u64,
}

impl Packet {
    /// Appends payload, and sums it up on the way.
    #[inline]
    fn put(&mut self, xsk: &Xsk, mut bytes: &[u8]) {
        let size = xsk.packet_size();
        while !bytes.is_empty() {
            if self.at == size {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
            let Some(index) = self.frames.len().checked_sub(1 + self.piece) else { return };
            let n = bytes.len().min(size - self.at);
            let place = &mut xsk.packet_mut(&mut self.frames[index])[self.at..self.at + n];
            if xsk.completes_checksums() {
                place.copy_from_slice(&bytes[..n]);
            } else {
                let sum = copy_sum(place, &bytes[..n]);
                // The payload begins at an even place. At an odd one, the halves of all words are the other way round.
                self.sum += if self.at.is_multiple_of(2) { sum } else { u64::from(fold(sum).swap_bytes()) };
            }
            self.at += n;
            bytes = &bytes[n..];
        }
    }
}

#[cfg(test)]
mod tests;
