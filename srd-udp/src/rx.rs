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
    /// Buffers to try for in the next call. Starts at 1, so that a lone datagram is handed over without asking for a
    /// second one first; doubles while there is more.
    quota: u32,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        let buf = vec![0; BUFFER].into_boxed_slice();
        Receiver { buf, from: RawAddr::EMPTY, control: Control::new(), quota: 1 }
    }

    /// Hands over what has arrived at `socket`, within bounds, and returns the number of datagrams.
    pub(crate) fn recv(
        &mut self,
        socket: &impl AsFd,
        clock: &Clock,
        stats: &mut UdpStats,
        sink: &mut dyn FnMut(&RxMeta, &[u8]),
    ) -> io::Result<usize> {
        let (mut datagrams, mut bytes) = (0, 0);
        for _ in 0..self.quota {
            let Some(len) = self.next_buffer(socket.as_fd(), stats)? else {
                self.quota = 1;
                return Ok(datagrams);
            };
            datagrams += self.hand_over(len, clock, stats, sink);
            bytes += len;
            if bytes >= BYTES_PER_CALL {
                return Ok(datagrams);
            }
        }
        self.quota = (self.quota * 2).min(BUFFERS_PER_CALL);
        Ok(datagrams)
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
                    // These say that the descriptor is not what it was.
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => return Err(e),
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
        stats: &mut UdpStats,
        sink: &mut dyn FnMut(&RxMeta, &[u8]),
    ) -> usize {
        let arrival = self.control.arrival();
        let Some(from) = self.from.get() else { return 0 };
        let at: Time = match arrival.realtime_ns {
            Some(stamp) => clock.reading().convert(stamp),
            None => clock.now(),
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
