//! Receiving: from the main socket to the sink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use srd_core::{RxMeta, Time};

use crate::clock::Clock;
use crate::stats::UdpStats;
use crate::sys::{self, Control, RawAddr};

/// The kernel coalesces no more than this.
const BUFFER: usize = 65535;
/// Most bytes handed over per call, so that a flood does not keep the caller from sending.
const BYTES_PER_CALL: usize = 256 * 1024;
/// Most buffers per call; single small datagrams take about 1 us each.
const BUFFERS_PER_CALL: u32 = 32;

/// The receive buffer. A single one, filled by `recvmsg`, which stays in the cache. (`recvmmsg` over eight buffers takes
/// 120 ns more for a lone datagram, 90 ns of 500 less for small ones in a row, and the same in bulk.)
#[derive(Debug)]
pub(crate) struct Receiver {
    buf: Box<[u8]>,
    from: RawAddr,
    control: Control,
    /// What the kernel may be asked to do when much arrives.
    assists: Assists,
    /// Whether it is asked to.
    assisted: bool,
    /// Datagrams since the socket was last found empty.
    run: u32,
    /// Runs of a single datagram, one after the other.
    lone: u32,
    /// The buffer is full already, with this many bytes.
    early: Option<usize>,
    /// Buffers to try for in the next call. Starts at 1, so that a lone datagram is handed over without asking for a
    /// second one first; doubles while there is more.
    quota: u32,
}

/// What the kernel does to help when much arrives: worth 10x in bulk, but each datagram that comes alone is 0.3 us later
/// for it (of 2 us half a round trip).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assists {
    /// Coalescing.
    pub gro: bool,
    /// Arrival timestamps. While datagrams come one by one, the time of reading is as good for a loop that spins.
    pub timestamps: bool,
}

/// Looks at the socket per turn in which nothing happens: together less than a microsecond, the finest deadline.
const SPINS: u32 = 4;
/// So many datagrams in one go are a crowd.
const CROWD: u32 = 4;
/// After so many datagrams in a row that came alone, the next one is expected to, too.
const LONE: u32 = 64;

impl Receiver {
    /// For a socket that has the `assists` switched on.
    pub(crate) fn new(assists: Assists) -> Receiver {
        let buf = vec![0; BUFFER].into_boxed_slice();
        let (from, control) = (RawAddr::EMPTY, Control::new());
        Receiver { buf, from, control, assists, assisted: true, run: 0, lone: 0, early: None, quota: 1 }
    }

    /// Hands over what has arrived at `socket`, within bounds, and returns the number of datagrams. `now` is a reading of
    /// the clock from just before, if there is one.
    pub(crate) fn recv(
        &mut self,
        socket: &impl AsFd,
        clock: &Clock,
        mut now: Option<Time>,
        stats: &mut UdpStats,
        sink: &mut dyn FnMut(&RxMeta, &[u8]),
    ) -> io::Result<usize> {
        let (mut datagrams, mut bytes) = (0, 0);
        for _ in 0..self.quota {
            let next = match self.early.take() {
                Some(len) => Some(len),
                None => self.next_buffer(socket.as_fd(), stats)?,
            };
            let Some(len) = next else {
                self.quota = 1;
                self.note_empty(socket.as_fd());
                return Ok(datagrams);
            };
            let count = self.hand_over(len, clock, now.take(), stats, sink);
            self.note(socket.as_fd(), count as u32);
            datagrams += count;
            bytes += len;
            if bytes >= BYTES_PER_CALL {
                return Ok(datagrams);
            }
        }
        self.quota = (self.quota * 2).min(BUFFERS_PER_CALL);
        Ok(datagrams)
    }

    /// Looks for an arrival a few times, as fast as possible: whoever spins notices it half a turn earlier on average. It is
    /// handed over by the next call of [`recv`](Self::recv).
    pub(crate) fn spin(&mut self, socket: &impl AsFd, stats: &mut UdpStats) -> io::Result<()> {
        for _ in 0..SPINS {
            if self.early.is_none() {
                self.early = self.next_buffer(socket.as_fd(), stats)?;
            }
            if self.early.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Whether [`spin`](Self::spin) has found something that was not handed over yet.
    pub(crate) fn has_early(&self) -> bool {
        self.early.is_some()
    }

    /// Datagrams were there.
    fn note(&mut self, fd: BorrowedFd<'_>, datagrams: u32) {
        self.run = self.run.saturating_add(datagrams);
        if self.run >= CROWD && !self.assisted {
            self.assist(fd, true);
        }
    }

    /// The socket is empty.
    fn note_empty(&mut self, fd: BorrowedFd<'_>) {
        match std::mem::take(&mut self.run) {
            0 => {}
            1 => {
                self.lone += 1;
                if self.lone >= LONE && self.assisted {
                    self.assist(fd, false);
                    // What came just before may have been coalesced, and would be taken for one datagram. (What comes from now
                    // on the kernel cuts up itself.)
                    if sys::has_arrivals(fd) {
                        self.assist(fd, true);
                        self.lone = LONE;
                    }
                }
            }
            _ => self.lone = 0,
        }
    }

    fn assist(&mut self, fd: BorrowedFd<'_>, on: bool) {
        self.assisted = on;
        self.lone = 0;
        // These options have been set before. If it fails nevertheless, then it works as it did.
        if self.assists.gro {
            let _ = sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, on.into());
        }
        if self.assists.timestamps {
            let _ = sys::set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, on.into());
        }
    }

    /// Wants each datagram for itself from now on.
    pub(crate) fn stop_coalescing(&mut self, socket: &impl AsFd) {
        self.assists.gro = false;
        let _ = sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0);
    }

    /// Fills the buffer; `None` if nothing has arrived.
    fn next_buffer(&mut self, fd: BorrowedFd<'_>, stats: &mut UdpStats) -> io::Result<Option<usize>> {
        loop {
            match sys::receive(fd, &mut self.buf, &mut self.from, &mut self.control) {
                Ok((_, true)) => {
                    stats.rx_buffers += 1;
                    stats.rx_truncated += 1;
                }
                Ok((len, false)) => return Ok(Some(len)),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    Some(libc::EINTR) => {}
                    // These say that the descriptor is not what it was, and the last that the socket was destroyed (`ss -K`).
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL | libc::ECONNABORTED) => {
                        return Err(e);
                    }
                    _ => {
                        stats.rx_errors += 1;
                        return Ok(None);
                    }
                },
            }
        }
    }

    /// Cuts the buffer into datagrams.
    fn hand_over(
        &mut self,
        len: usize,
        clock: &Clock,
        now: Option<Time>,
        stats: &mut UdpStats,
        sink: &mut dyn FnMut(&RxMeta, &[u8]),
    ) -> usize {
        let arrival = self.control.arrival();
        let Some(from) = self.from.get() else { return 0 };
        let at: Time = match arrival.realtime_ns {
            Some(stamp) => clock.reading().convert(stamp),
            None => now.unwrap_or_else(|| clock.now()),
        };
        let meta = RxMeta { from, to: arrival.to, ecn: arrival.ecn, at };
        stats.rx_buffers += 1;
        let data = &self.buf[..len];
        let datagrams = match arrival.segment {
            Some(segment) if segment < len => data.chunks(segment).map(|datagram| sink(&meta, datagram)).count(),
            _ => {
                sink(&meta, data);
                1
            }
        };
        stats.rx_datagrams += datagrams as u64;
        datagrams
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::time::{Duration, Instant};

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn what_comes_while_coalescing_is_switched_off_is_cut_up() {
        let socket = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
            socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
            socket
        };
        let (to, from) = (socket(), socket());
        if sys::set_int(to.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_err() {
            return;
        }
        let mut receiver = Receiver::new(Assists { gro: true, timestamps: false });
        let addr = RawAddr::new(to.local_addr().expect("bound").as_socket().expect("an IP address"));
        let burst = || {
            let mut control = Control::new();
            control.push_segment(100);
            sys::send(from.as_fd(), Some(&addr), &[IoSlice::new(&[7; 250])], &control).expect("sent");
            let end = Instant::now() + Duration::from_secs(60);
            while !sys::has_arrivals(to.as_fd()) {
                assert!(Instant::now() < end, "it does not arrive");
                std::thread::yield_now();
            }
        };
        // A lone datagram has been handed over, the socket was empty, and then came a burst.
        (receiver.lone, receiver.run) = (LONE - 1, 1);
        burst();
        receiver.note_empty(to.as_fd());
        let (clock, mut stats) = (Clock::new(), UdpStats::default());
        let mut receive = |receiver: &mut Receiver| {
            let mut sizes = Vec::new();
            receiver.recv(&to, &clock, None, &mut stats, &mut |_, bytes| sizes.push(bytes.len())).expect("received");
            sizes
        };
        assert_eq!(receive(&mut receiver), [100, 100, 50]);
        assert!(receiver.assisted, "it is tried again");
        // At the next lone datagram that is.
        receiver.run = 1;
        receiver.note_empty(to.as_fd());
        assert!(!receiver.assisted);
        burst();
        assert_eq!((0..3).flat_map(|_| receive(&mut receiver)).collect::<Vec<_>>(), [100, 100, 50], "by the kernel");
    }
}
