//! An AF_XDP socket with its memory and its four rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::option;
use super::ring::{Consumer, Producer};
use super::umem::{Frame, Umem, UmemSize};

/// How the socket shall be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mode {
    /// The NIC reads and writes our memory itself; else the kernel copies.
    pub(crate) zero_copy: bool,
    /// Packets may span several frames.
    pub(crate) multi: bool,
}

/// Sizes of the rings, powers of two. The fill ring is twice as large as the receive ring: the kernel publishes what it has
/// received before it gives the slots of the fill ring back, so these may be missing for a moment when we fill again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    pub(crate) rx: u32,
    pub(crate) tx: u32,
}

/// A piece of a packet that has arrived.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) frame: Frame,
    /// Where the piece begins in the frame.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// The packet goes on in the next piece.
    pub(crate) more: bool,
}

/// What the kernel counts per socket.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Statistics {
    /// Packets dropped for want of a valid frame, or because they were too long.
    pub(crate) rx_dropped: u64,
    /// Packets dropped because the receive ring was full.
    pub(crate) rx_ring_full: u64,
    /// Times that no frame was free to receive into: a packet dropped each, but with zero copy.
    pub(crate) rx_no_frame: u64,
    /// Descriptors to send that the kernel refused.
    pub(crate) tx_refused: u64,
}

/// See the module documentation. Field order matters: rings are unmapped before the socket is closed, or it would live on;
/// the memory of the frames goes last.
#[derive(Debug)]
pub(crate) struct Xsk {
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<libc::xdp_desc>,
    tx: Producer<libc::xdp_desc>,
    fd: OwnedFd,
    umem: Umem,
}

/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): packets that one call sends in copy mode.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// 32 by default, which makes a call per 32 packets.
const TX_BUDGET: libc::c_int = 256;

impl Xsk {
    /// A socket bound to a queue of an interface, and all its frames. Nothing arrives before frames are given to
    /// [`fill`](Self::fill) and a program sends packets here.
    ///
    /// # Errors
    /// The kernel's answer: `EOPNOTSUPP` and `EINVAL` if it does not have the mode, `EBUSY` if the queue is taken.
    pub(crate) fn open(
        interface: u32,
        queue: u32,
        size: UmemSize,
        rings: Rings,
        mode: Mode,
    ) -> io::Result<(Xsk, Vec<Frame>)> {
        let fd = socket()?;
        let (umem, frames) = Umem::new(size)?;
        let set = |name, value: u32| option::set(fd.as_fd(), libc::SOL_XDP, name, &(value as libc::c_int));
        option::set(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &umem.registration())?;
        set(libc::XDP_UMEM_FILL_RING, 2 * rings.rx)?;
        set(libc::XDP_UMEM_COMPLETION_RING, rings.tx)?;
        set(libc::XDP_RX_RING, rings.rx)?;
        set(libc::XDP_TX_RING, rings.tx)?;
        // Older kernels do not know it.
        let _ = option::set(fd.as_fd(), libc::SOL_XDP, MAX_TX_SKB_BUDGET, &TX_BUDGET);
        let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let none = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
        let offsets = option::get(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, none)?;
        let xsk = Xsk {
            fill: Producer::map(fd.as_fd(), libc::XDP_UMEM_PGOFF_FILL_RING, 2 * rings.rx, &offsets.fr)?,
            completion: Consumer::map(fd.as_fd(), libc::XDP_UMEM_PGOFF_COMPLETION_RING, rings.tx, &offsets.cr)?,
            rx: Consumer::map(fd.as_fd(), libc::XDP_PGOFF_RX_RING as u64, rings.rx, &offsets.rx)?,
            tx: Producer::map(fd.as_fd(), libc::XDP_PGOFF_TX_RING as u64, rings.tx, &offsets.tx)?,
            fd,
            umem,
        };
        xsk.bind(interface, queue, mode)?;
        Ok((xsk, frames))
    }

    /// Whether the kernel knows AF_XDP, and permits it.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn exists() -> io::Result<()> {
        socket().map(drop)
    }

    fn bind(&self, interface: u32, queue: u32, mode: Mode) -> io::Result<()> {
        let copy = if mode.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let multi = if mode.multi { libc::XDP_USE_SG } else { 0 };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: copy | multi | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer refers to an address of the stated length on this stack frame, which the kernel only reads.
        let rc = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Polls the device's driver from our own system calls for up to `us` microseconds.
    ///
    /// # Errors
    /// The kernel does not know how (before Linux 5.11).
    pub(crate) fn busy_poll(&self, us: u32) -> io::Result<()> {
        const BUDGET: libc::c_int = 64;
        let set = |name, value: libc::c_int| option::set(self.fd.as_fd(), libc::SOL_SOCKET, name, &value);
        set(libc::SO_BUSY_POLL, i32::try_from(us).unwrap_or(i32::MAX))?;
        set(libc::SO_BUSY_POLL_BUDGET, BUDGET)
    }

    /// Whether the frames lie on huge pages from the administrator's pool.
    pub(crate) fn has_huge_pages(&self) -> bool {
        self.umem.is_huge()
    }

    /// Longest packet, or piece of one, that can be sent from a frame.
    pub(crate) fn packet_size(&self) -> usize {
        self.umem.frame_size() - self.umem.metadata()
    }

    /// Where a packet to send is written.
    pub(crate) fn packet_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        &mut self.umem.bytes_mut(frame)[self.umem.metadata()..]
    }

    /// Whether [`complete_checksum`](Self::complete_checksum) can be had.
    pub(crate) fn completes_checksums(&self) -> bool {
        self.umem.metadata() > 0
    }

    /// Has the kernel, or the device, complete the checksum of the packet in this frame: the sum of all from `start` on, put
    /// `offset` bytes behind that. The packet has to be transmitted with `metadata`.
    pub(crate) fn complete_checksum(&self, frame: &mut Frame, start: u16, offset: u16) {
        let metadata = &mut self.umem.bytes_mut(frame)[..12];
        metadata[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
        metadata[8..10].copy_from_slice(&start.to_ne_bytes());
        metadata[10..].copy_from_slice(&offset.to_ne_bytes());
    }

    pub(crate) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.umem.bytes(frame)
    }

    /// Gives the kernel a frame to receive into, from the next [`publish_fill`](Self::publish_fill) on.
    ///
    /// # Panics
    /// If more frames are given than the receive ring has slots.
    pub(crate) fn fill(&mut self, frame: Frame) {
        self.fill.push(self.umem.address(&frame));
    }

    pub(crate) fn publish_fill(&mut self) {
        self.fill.publish();
        if self.fill.needs_wakeup() {
            self.wake_receive();
        }
    }

    /// Lets the driver of the device look at the fill ring.
    fn wake_receive(&self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // Not by `recvfrom`, where the thread can be cancelled (pthreads(7)).
        // SAFETY: a buffer of length 0 is not accessed.
        unsafe { libc::syscall(libc::SYS_recvfrom, self.fd.as_raw_fd(), none, 0usize, libc::MSG_DONTWAIT, none, none) };
    }

    /// Takes note of what has arrived by now.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.rx.look();
    }

    /// The next piece that had arrived at the last [`look`](Self::look).
    #[inline]
    pub(crate) fn receive(&mut self) -> Option<Received> {
        let desc = self.rx.pop()?;
        let (frame, offset) = self.umem.frame(desc.addr);
        let len = (desc.len as usize).min(self.umem.frame_size() - offset);
        Some(Received { frame, offset, len, more: desc.options & libc::XDP_PKT_CONTD != 0 })
    }

    /// Gives the slots of received pieces back.
    pub(crate) fn release_receive(&mut self) {
        self.rx.release();
    }

    /// Whether something has arrived.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.rx.has_some()
    }

    /// Free slots to transmit from.
    pub(crate) fn transmit_room(&mut self, wanted: u32) -> u32 {
        self.tx.room(wanted)
    }

    /// Queues the first `len` bytes of the packet in a frame; `metadata` if it has some. The kernel sees it from the next [`publish_transmit`](Self::publish_transmit) on.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn transmit(&mut self, frame: Frame, len: usize, more: bool, metadata: bool) {
        let options = (u32::from(more) * libc::XDP_PKT_CONTD) | (u32::from(metadata) * libc::XDP_TX_METADATA);
        let addr = self.umem.address(&frame) + self.umem.metadata() as u64;
        self.tx.push(libc::xdp_desc { addr, len: len as u32, options });
    }

    pub(crate) fn publish_transmit(&mut self) {
        self.tx.publish();
    }

    /// Whether the kernel has taken all that was published.
    pub(crate) fn is_transmitted(&mut self) -> bool {
        self.tx.is_drained()
    }

    /// Makes the kernel send, if it wants to be asked.
    ///
    /// # Errors
    /// `EAGAIN`, `EBUSY`, `ENOBUFS`: not all, and it may be asked again; others: the device is down or gone.
    pub(crate) fn kick(&self) -> io::Result<()> {
        if self.tx.needs_wakeup() { self.wake_transmit() } else { Ok(()) }
    }

    /// Makes the kernel, or the device's driver, send what is queued and tell what has been sent.
    ///
    /// # Errors
    /// As [`kick`](Self::kick).
    pub(crate) fn wake_transmit(&self) -> io::Result<()> {
        let none = std::ptr::null::<libc::c_void>();
        // Not by `sendto`, where the thread can be cancelled (pthreads(7)).
        // SAFETY: a buffer of length 0 is not accessed, and there is no address.
        let rc = unsafe {
            libc::syscall(libc::SYS_sendto, self.fd.as_raw_fd(), none, 0usize, libc::MSG_DONTWAIT, none, 0usize)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes note of what has been sent by now.
    pub(crate) fn look_sent(&mut self) {
        self.completion.look();
    }

    /// A frame that had been sent at the last [`look_sent`](Self::look_sent).
    pub(crate) fn reap(&mut self) -> Option<Frame> {
        let address = self.completion.pop()?;
        Some(self.umem.frame(address).0)
    }

    /// Gives the slots of reaped frames back.
    pub(crate) fn release_reaped(&mut self) {
        self.completion.release();
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let none = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        let s = option::get(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, none).unwrap_or(none);
        Statistics {
            rx_dropped: s.rx_dropped,
            rx_ring_full: s.rx_ring_full,
            rx_no_frame: s.rx_fill_ring_empty_descs,
            tx_refused: s.tx_invalid_descs,
        }
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this open descriptor, so nobody else owns it.
    srd_udp::spare_standard(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
