//! Sending: from bursts to the sockets of their paths.

mod pieces;
mod pool;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use srd_core::{Burst, Gather, Part, SourcePort};

use crate::options::{Offload, UdpOptions, WaitMode};
use crate::stats::UdpStats;
use crate::sys::{self, Control, RawAddr};
use pieces::{MAX_PIECES, Pieces};
pub(crate) use pool::Pool;

/// Segments per call that every kernel with segmentation offload takes.
const SEGMENTS_OLD: usize = 64;
/// Segments per call that newer kernels take (`UDP_MAX_SEGMENTS`).
const SEGMENTS_NEW: usize = 128;
/// Most bytes per call: 65,535 less IPv6 and UDP headers, which fits IPv4 too.
const MAX_BYTES: usize = 65_487;
/// Pieces that are on average no longer than this many bytes are copied together: cheaper than the kernel's work on a
/// gather list. Measured: 64 datagrams of 32 + 480 bytes or less take 14 us instead of 17, one takes 1.1 us instead of 1.3.
const SMALL_PIECE: usize = 256;
/// Attempts while the send buffer or the device's queue is full. Beyond them the datagrams are dropped, and the core takes
/// the loss for what it is: a sign of sending too fast.
const BUSY_ATTEMPTS: u32 = 64;
/// Attempts when a call fails otherwise: what it answers with may be an ICMP error, which is about an earlier datagram, and
/// this one was not sent.
const REPORT_ATTEMPTS: u32 = 3;

/// Sends bursts.
#[derive(Debug)]
pub(crate) struct Sender {
    pool: Pool,
    gso: Gso,
    /// Sockets are bound to all addresses, so the source address may be chosen.
    wildcard: bool,
    /// Whether to leave the core to others while a queue is full.
    polite: bool,
    /// For bursts in too many pieces.
    scratch: Vec<u8>,
}

/// Segmentation offload: believed while it works. One answer serves all sockets, as they share the device.
#[derive(Debug)]
struct Gso {
    /// Most segments per call; below 2 it is off.
    max_segments: usize,
    pretend_eio: bool,
}

/// Where the datagrams of a call go, and how.
struct Call<'a> {
    fd: BorrowedFd<'a>,
    /// `None`: the peer that the socket is connected to.
    to: Option<RawAddr>,
    control: Control,
}

/// The kernel does not segment this burst.
struct Refused;

impl Sender {
    pub(crate) fn new(local: SocketAddr, options: &UdpOptions, knows_gso: bool) -> Sender {
        let on = knows_gso && options.gso == Offload::Auto;
        Sender {
            pool: Pool::new(local, options),
            gso: Gso { max_segments: if on { SEGMENTS_NEW } else { 1 }, pretend_eio: options.pretend_gso_eio },
            wildcard: local.ip().is_unspecified(),
            polite: options.wait != WaitMode::Spin,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens the socket of a source port, and returns its number.
    pub(crate) fn reserve(&mut self, port: SourcePort, to: SocketAddr, stats: &mut UdpStats) -> Option<u16> {
        self.pool.get(port, to, stats)?;
        self.pool.number(port)
    }

    /// Whether segmentation offload is in use.
    pub(crate) fn segments(&self) -> Option<usize> {
        (self.gso.max_segments > 1).then_some(self.gso.max_segments)
    }

    /// Sends one burst, or counts why not.
    pub(crate) fn send(&mut self, burst: &Burst<'_>, mem: &dyn Gather, stats: &mut UdpStats) {
        let failed = stats.other_errors;
        self.try_send(burst, mem, stats);
        if stats.other_errors != failed {
            self.pool.renew(burst.port, stats);
        }
    }

    fn try_send(&mut self, burst: &Burst<'_>, mem: &dyn Gather, stats: &mut UdpStats) {
        let datagrams = burst.datagrams();
        let Some(path) = self.pool.get(burst.port, burst.to, stats) else {
            stats.dropped_other += datagrams as u64;
            return;
        };
        let to = (path.peer != Some(burst.to)).then(|| RawAddr::new(burst.to));
        let call = Call { fd: path.socket.as_fd(), to, control: control(burst, self.wildcard) };

        let retry = Retry { polite: self.polite };
        if let [Part::Inline { start, len }] = *burst.parts
            && datagrams == 1
        {
            return send_small(&call, burst.inline(start, len), retry, stats);
        }
        let mut list: ArrayVec<IoSlice<'_>, MAX_PIECES> = ArrayVec::new();
        let mut gathered = burst.len > SMALL_PIECE * burst.parts.len();
        if gathered {
            burst.for_each_slice(mem, |slice| gathered &= list.try_push(IoSlice::new(slice)).is_ok());
        }
        if !gathered {
            self.scratch.clear();
            burst.copy_to(mem, &mut self.scratch);
            if datagrams == 1 {
                return send_small(&call, &self.scratch, retry, stats);
            }
            list.clear();
            list.push(IoSlice::new(&self.scratch));
            stats.copied_bursts += 1;
        }
        let mut pieces = Pieces::new(&list, burst.len);
        if datagrams > 1 && self.gso.per_call(burst.len, burst.segment) > burst.segment {
            let Err(Refused) = self.gso.send(&call, &mut pieces, burst.segment, retry, stats) else { return };
            stats.gso_fallbacks += 1;
            // If it does not work without offload either, then the datagrams are at fault.
            if send_singles(&call, &mut pieces, burst.segment, retry, stats) {
                self.gso.max_segments = 1;
            }
        } else {
            send_singles(&call, &mut pieces, burst.segment, retry, stats);
        }
    }
}

fn control(burst: &Burst<'_>, wildcard: bool) -> Control {
    let mut control = Control::new();
    if !burst.ect {
        // The sockets are set to ECT(0).
        control.push_tos(burst.to.is_ipv6(), 0);
    }
    if let Some(from) = burst.from.filter(|ip| wildcard && same_family(ip, burst.to)) {
        control.push_source(from);
    }
    control
}

fn same_family(ip: &IpAddr, addr: SocketAddr) -> bool {
    ip.is_ipv4() == addr.is_ipv4()
}

impl Gso {
    /// Bytes of the next call when `left` are to go as datagrams of `segment` bytes, of which the last may be shorter: that one
    /// often fits, though one of full length would not.
    fn per_call(&self, left: usize, segment: usize) -> usize {
        let most = MAX_BYTES.min(self.max_segments * segment);
        if left <= most { left } else { most / segment * segment }
    }

    /// Sends all pieces with as few calls as possible. If the kernel refuses, `pieces` stand at what was not sent.
    fn send(
        &mut self,
        call: &Call<'_>,
        pieces: &mut Pieces<'_>,
        segment: usize,
        retry: Retry,
        stats: &mut UdpStats,
    ) -> Result<(), Refused> {
        while pieces.left() > 0 {
            let mark = *pieces;
            let mut list = ArrayVec::<_, MAX_PIECES>::new();
            let bytes = pieces.take(self.per_call(pieces.left(), segment), &mut list);
            let datagrams = bytes.div_ceil(segment);
            let mut control = call.control;
            if datagrams > 1 {
                control.push_segment(segment as u16);
            }
            let result = retry.run(call.fd, stats, || {
                if self.pretend_eio {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                sys::send(call.fd, call.to.as_ref(), &list, &control)
            });
            match result {
                Ok(()) => {
                    stats.gso_bursts += 1;
                    stats.gso_datagrams += datagrams as u64;
                }
                Err(e) if is_refusal(&e) => {
                    *pieces = mark;
                    if datagrams <= SEGMENTS_OLD {
                        return Err(Refused);
                    }
                    self.max_segments = SEGMENTS_OLD;
                }
                Err(e) => count_dropped(&e, datagrams, stats),
            }
        }
        Ok(())
    }
}

/// Answers to a call with segmentation that may mean that the kernel, the device or the route cannot do it.
fn is_refusal(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP))
}

/// Sends one datagram.
fn send_small(call: &Call<'_>, bytes: &[u8], retry: Retry, stats: &mut UdpStats) {
    match retry.run(call.fd, stats, || sys::send_small(call.fd, call.to.as_ref(), bytes, &call.control)) {
        Ok(()) => stats.singles += 1,
        Err(e) => count_dropped(&e, 1, stats),
    }
}

/// Sends all pieces as datagrams of `segment` bytes, and returns whether the kernel took the first.
fn send_singles(call: &Call<'_>, pieces: &mut Pieces<'_>, segment: usize, retry: Retry, stats: &mut UdpStats) -> bool {
    let mut first = None;
    while pieces.left() > 0 {
        let mut list = ArrayVec::<_, { MAX_PIECES + sys::MAX_MESSAGES }>::new();
        let mut ends = ArrayVec::<usize, { sys::MAX_MESSAGES }>::new();
        while pieces.left() > 0 && !ends.is_full() {
            pieces.take(segment, &mut list);
            ends.push(list.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let datagrams: ArrayVec<&[IoSlice<'_>], { sys::MAX_MESSAGES }> =
            starts.zip(&ends).map(|(start, &end)| &list[start..end]).collect();
        let mut done = 0;
        while let Some(rest) = datagrams.get(done..).filter(|rest| !rest.is_empty()) {
            let result = retry.run(call.fd, stats, || match rest {
                [one] => sys::send(call.fd, call.to.as_ref(), one, &call.control).map(|()| 1),
                many => sys::send_many(call.fd, call.to.as_ref(), many, &call.control),
            });
            first.get_or_insert(result.is_ok());
            done += match result {
                Ok(sent) => {
                    stats.singles += sent as u64;
                    sent
                }
                Err(e) => {
                    // A full queue is full for all that follow; other errors may be about this one.
                    let dropped = if is_busy(&e) { rest.len() } else { 1 };
                    count_dropped(&e, dropped, stats);
                    dropped
                }
            };
        }
    }
    first == Some(true)
}

/// How long to insist.
#[derive(Clone, Copy)]
struct Retry {
    polite: bool,
}

impl Retry {
    /// Repeats `call` while the kernel is busy or reports on earlier datagrams, within bounds.
    fn run<T>(
        self,
        fd: BorrowedFd<'_>,
        stats: &mut UdpStats,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let (mut busy, mut reports) = (0, 0);
        loop {
            let e = match call() {
                Ok(value) => return Ok(value),
                Err(e) => e,
            };
            if is_busy(&e) {
                stats.send_busy += u64::from(busy == 0);
                busy += 1;
                if busy == BUSY_ATTEMPTS {
                    return Err(e);
                }
                if self.polite { std::thread::yield_now() } else { std::hint::spin_loop() }
            } else if e.raw_os_error() != Some(libc::EINTR) {
                count_report(&e, stats);
                // Reports pile up in the error queue, and each would make one more send fail. That there is none proves
                // nothing: datagrams of strangers, which nobody reads, may have left no room for it.
                sys::drain_errors(fd, sys::MAX_MESSAGES);
                reports += 1;
                if reports == REPORT_ATTEMPTS {
                    return Err(e);
                }
            }
        }
    }
}

fn is_busy(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// Counts an error that tells of the network.
fn count_report(e: &io::Error, stats: &mut UdpStats) {
    match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => stats.refused += 1,
        Some(libc::EHOSTUNREACH | libc::EHOSTDOWN) => stats.host_unreachable += 1,
        Some(libc::ENETUNREACH | libc::ENETDOWN) => stats.net_unreachable += 1,
        _ => {}
    }
}

/// Counts datagrams that were not sent because of `e`.
fn count_dropped(e: &io::Error, datagrams: usize, stats: &mut UdpStats) {
    let n = datagrams as u64;
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS) => stats.dropped_busy += n,
        Some(libc::EMSGSIZE) => stats.dropped_too_big += n,
        other => {
            match other {
                Some(libc::EPERM | libc::EACCES) => stats.not_permitted += 1,
                Some(
                    libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENETUNREACH | libc::ENETDOWN,
                ) => {}
                _ => stats.other_errors += 1,
            }
            stats.dropped_other += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_an_earlier_datagram_may_leave_no_report() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let mut stats = UdpStats::default();
        // 'Fragmentation needed'; to segmentation offload it would be a refusal.
        let mut answers = [Err(io::Error::from_raw_os_error(libc::EMSGSIZE)), Ok(())].into_iter();
        let result =
            Retry { polite: false }.run(socket.as_fd(), &mut stats, || answers.next().expect("no third attempt"));
        assert!(result.is_ok(), "{result:?}");
        let mut calls = 0;
        let result: io::Result<()> = Retry { polite: false }.run(socket.as_fd(), &mut stats, || {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        });
        assert_eq!((result.is_err(), calls), (true, REPORT_ATTEMPTS), "some errors stay");
    }
}
