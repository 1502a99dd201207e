//! The driver: ties sockets, clock and sleep together.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::Socket;
use srd_core::{Burst, Driver, Gather, MAX_DATAGRAM, MIN_DATAGRAM, RxMeta, SourcePort, Time, TxBatch};

use crate::clock::Clock;
use crate::error::BindError;
use crate::options::{UdpOptions, WaitMode};
use crate::route;
use crate::rx::{Assists, Receiver};
use crate::socket::{self, MainInfo};
use crate::stats::UdpStats;
use crate::sys::{self, NoCancel};
use crate::tx::Sender;
use crate::waker::Waker;

/// Moves datagrams through kernel UDP sockets: one that receives everything, bound to the address that peers send to, and
/// a pool of others that only send, one per source port.
///
/// ```
/// use srd_core::Driver;
/// use srd_udp::{UdpDriver, UdpOptions};
///
/// let driver = UdpDriver::bind("127.0.0.1:0".parse().unwrap(), UdpOptions::default()).unwrap();
/// assert_ne!(driver.local_addr().port(), 0);
/// ```
#[derive(Debug)]
pub struct UdpDriver {
    main: Socket,
    local: SocketAddr,
    options: UdpOptions,
    info: MainInfo,
    clock: Clock,
    rx: Receiver,
    tx: Sender,
    waker: Waker,
    /// The last reading of the clock, until it is used as the time of an arrival.
    read: Option<Time>,
    /// When something last moved, for [`WaitMode::Adaptive`].
    moved: Time,
    /// This thread's timers have been asked to be exact.
    fine_timers: bool,
    stats: UdpStats,
}

/// What the kernel granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UdpInfo {
    /// Size of the receive buffer in bytes, the kernel's overhead included.
    pub recv_buffer: usize,
    /// Most datagrams per segmentation-offload call; `None` if it is off, asked for or found not to work.
    pub gso_segments: Option<usize>,
    /// Whether the kernel coalesces what arrives, when much does.
    pub gro: bool,
    /// Whether the kernel stamps what arrives; else the time of reading counts. A spinning driver lets it do so only when
    /// much arrives.
    pub timestamps: bool,
}

/// UDP payload that every IPv6 network carries: 1,280 bytes less headers. For destinations without a route.
const UNKNOWN_MAX: u32 = 1232;
/// A sleep takes about as long as this to start and end, so an earlier deadline is waited for awake.
const SLEEP_COST: Duration = Duration::from_micros(50);

impl UdpDriver {
    /// Opens the main socket at `addr`. Port 0 lets the kernel choose; an unspecified IP receives at all addresses of the
    /// host and answers from the one that was addressed. IPv6 sockets do not take IPv4.
    ///
    /// # Errors
    /// What the kernel objects to, or an option out of its range, with what to do about it.
    pub fn bind(addr: SocketAddr, options: UdpOptions) -> Result<UdpDriver, BindError> {
        BindError::check(addr)?;
        options.check(addr)?;
        let (main, info) = socket::open_main(addr, &options)?;
        let os = |e| BindError::new("query", addr, e);
        let local = main.local_addr().map_err(os)?.as_socket().expect("an IP socket has an IP address");
        let waker = Waker::new().map_err(os)?;
        let tx = Sender::new(local, &options, socket::knows_gso(&main));
        let rx = Receiver::new(Assists {
            gro: info.gro,
            // Whoever sleeps in between needs the time at which the kernel saw a datagram.
            timestamps: info.timestamps && options.wait == WaitMode::Spin,
        });
        let clock = Clock::new();
        let stats = UdpStats::default();
        Ok(UdpDriver {
            main,
            local,
            options,
            info,
            clock,
            rx,
            tx,
            waker,
            read: None,
            moved: Time::ZERO,
            fine_timers: false,
            stats,
        })
    }

    /// A descriptor that polls as readable when something has arrived, for loops that sleep without holding the driver.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        self.main.as_fd().try_clone_to_owned()
    }

    /// A handle by which other threads end [`wait`](Driver::wait).
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Counters.
    pub fn stats(&self) -> UdpStats {
        let drops = sys::drops(self.main.as_fd()).unwrap_or(0);
        UdpStats { rx_queue_drops: drops.into(), ..self.stats }
    }

    /// What the kernel granted, as far as it is known by now.
    pub fn info(&self) -> UdpInfo {
        let MainInfo { recv_buffer, gro, timestamps } = self.info;
        UdpInfo { recv_buffer, gso_segments: self.tx.segments(), gro, timestamps }
    }

    /// The UDP port number behind a source-port index; `None` until it is first used.
    pub fn port_number(&self, port: SourcePort) -> Option<u16> {
        self.tx.pool().number(port)
    }

    /// Opens the socket behind a source-port index if it is not open yet, and returns its port number: nobody else on this
    /// host can take it. `to` is the peer that it will mostly be used for. `None`: not now. For drivers on top of this one.
    ///
    /// # Panics
    /// If `port` is not in the pool.
    pub fn reserve(&mut self, port: SourcePort, to: SocketAddr) -> Option<u16> {
        self.tx.reserve(port, to, &mut self.stats)
    }

    /// Sends one burst of a batch, see [`Driver::send`]. For drivers on top of this one.
    pub fn send_burst(&mut self, burst: &Burst<'_>, mem: &dyn Gather) {
        self.tx.send(burst, mem, &mut self.stats);
    }

    /// Has the kernel hand over each datagram for itself from now on. To be called before anything can have arrived. For drivers
    /// on top of this one.
    pub fn stop_coalescing(&mut self) {
        self.info.gro = false;
        self.rx.stop_coalescing(&self.main);
    }

    /// The driver's time at a moment on `CLOCK_MONOTONIC`, in nanoseconds. For drivers on top of this one.
    pub fn time_of(&self, monotonic_ns: u64) -> Time {
        self.clock.at(monotonic_ns)
    }

    /// Tells [`WaitMode::Adaptive`] that something has moved. For drivers on top of this one.
    pub fn note_moved(&mut self) {
        if self.options.wait != WaitMode::Spin {
            self.moved = self.clock.now();
        }
    }

    /// Sleeps as the wait mode says until something arrives here, one of `also` is readable, somebody calls or `until` has
    /// come. `false`: it is no time to sleep. For drivers on top of this one.
    ///
    /// # Errors
    /// As [`Driver::wait`].
    ///
    /// # Panics
    /// If there are more than 30 descriptors.
    pub fn sleep(&mut self, until: Option<Time>, also: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let Some(timeout) = self.sleep_time(until) else { return Ok(false) };
        if !std::mem::replace(&mut self.fine_timers, true) {
            sys::fine_timers();
        }
        self.waker.sleep(self.main.as_fd(), also, timeout).map(|()| true)
    }

    /// How long to sleep now; `None`: not at all. The inner `None`: for ever.
    fn sleep_time(&mut self, until: Option<Time>) -> Option<Option<Duration>> {
        let spin = match self.options.wait {
            WaitMode::Spin => return None,
            WaitMode::Sleep => None,
            WaitMode::Adaptive { spin } => Some(spin),
        };
        let now = self.clock.now();
        let timeout = until.map(|until| Duration::from(until.since(now)));
        let short = timeout.is_some_and(|t| t.is_zero() || spin.is_some() && t < SLEEP_COST);
        let busy = spin.is_some_and(|spin| Duration::from(now.since(self.moved)) < spin);
        if short || busy { None } else { Some(timeout) }
    }
}

impl Driver for UdpDriver {
    fn now(&mut self) -> Time {
        let now = self.clock.now();
        self.read = Some(now);
        now
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        let received = self.rx.recv(&self.main, &self.clock, self.read.take(), &mut self.stats, sink)?;
        if received > 0 {
            self.note_moved();
        }
        Ok(received)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        batch.bursts().for_each(|burst| self.send_burst(&burst, mem));
        self.note_moved();
        Ok(())
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        // What has left the socket already would not end a sleep.
        if self.rx.has_early() || self.sleep(until, &[])? {
            return Ok(());
        }
        self.rx.spin(&self.main, &mut self.stats)
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn source_ports(&self) -> u16 {
        self.tx.pool().len()
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        let _whole = NoCancel::begin();
        let headers = if self.local.is_ipv4() { 28 } else { 48 };
        let mtu = self.options.mtu.map_or_else(|| route::mtu(self.local, to).ok(), |mtu| Some(mtu.into()));
        let max = mtu.map_or(UNKNOWN_MAX, |mtu| mtu.saturating_sub(headers));
        max.clamp(MIN_DATAGRAM.into(), MAX_DATAGRAM.into()) as u16
    }
}
