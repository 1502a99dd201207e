//! The driver: lanes for what goes by AF_XDP, and the UDP driver below for everything else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use srd_core::{Driver, Gather, RxMeta, SourcePort, Span, Time, TxBatch};
use srd_udp::{UdpDriver, WaitMode, Waker};

use crate::error::OpenError;
use crate::filter::Filter;
use crate::info::XdpInfo;
use crate::lane::{self, Lane};
use crate::net::Table;
use crate::open;
use crate::options::XdpOptions;
use crate::packet::{Headers, Origin};
use crate::program::read_stamp;
use crate::stamping::{Stamping, clock_offset};
use crate::stats::XdpStats;

/// Moves datagrams through AF_XDP sockets, past the kernel's network stack.
///
/// What it cannot move itself goes through a [`UdpDriver`] at the same address, which also reserves all port numbers:
/// datagrams to hosts behind other interfaces (or this one), to neighbours whose hardware address is not known yet, and
/// what arrives on queues or interfaces without a socket of ours. On the wire there is no difference.
#[derive(Debug)]
pub struct XdpDriver {
    // In this order: first nothing is sent our way any more, then the sockets close.
    filter: Filter,
    lanes: Vec<Lane>,
    table: Table,
    udp: UdpDriver,
    local: SocketAddr,
    /// The address to send from, unless it is for the route to say.
    from: Option<IpAddr>,
    origin: Origin,
    info: XdpInfo,
    /// Numbers of the source ports that have been used.
    numbers: Vec<Option<u16>>,
    fallbacks: u64,
    /// The last reading of the clock, after a look at the rings, until it is used as the time of their arrivals.
    read: Option<Time>,
    stamping: Stamping,
    /// See [`clock_offset`].
    clock_offset: i64,
    /// When to look at the UDP socket again.
    udp_due: Time,
    /// When to ask for news again.
    news_due: Time,
}

/// How long a loop that does not sleep leaves the UDP socket alone after it was empty. Looking costs a system call.
const UDP_PAUSE: Span = Span::from_micros(50);
/// The same for news of the network.
const NEWS_PAUSE: Span = Span::from_millis(1);
/// Looks at the rings per turn in which nothing happens.
const SPINS: u32 = 16;
/// As many descriptors as a sleep watches.
const MAX_WATCHED: usize = 20;

impl XdpDriver {
    /// Opens the UDP driver below at `addr`, and AF_XDP sockets at the interface that has this address. Attaches the XDP
    /// program there, or shares the one of another driver, in whatever process.
    ///
    /// # Errors
    /// What is missing or in the way, and what to do about it.
    pub fn open(addr: SocketAddr, options: XdpOptions) -> Result<XdpDriver, OpenError> {
        options.check()?;
        let mut udp = UdpDriver::bind(addr, options.udp.clone())?;
        let local = udp.local_addr();
        let open::Opened { link, table, filter, lanes, interface_queues } = open::open(local, &options)?;
        let info = XdpInfo {
            interface: link.name.clone(),
            queues: lanes.iter().map(|(queue, _)| *queue).collect(),
            interface_queues,
            zero_copy: lanes.iter().all(|(_, lane)| lane.mode().zero_copy),
            multi_buffer: lanes.iter().all(|(_, lane)| lane.mode().multi),
            checksum_offload: lanes.iter().all(|(_, lane)| lane.socket().completes_checksums()),
            frame_size: lane::frame_size(link.mtu, lanes.iter().all(|(_, lane)| lane.mode().zero_copy)),
            huge_pages: lanes.iter().all(|(_, lane)| lane.socket().has_huge_pages()),
            veth: link.veth,
        };
        if filter.is_generic() {
            // Devices below this one (a bond's members) coalesce what a socket wants coalesced before the program sees it: to us
            // one long datagram, the checksum of which nobody has completed.
            udp.stop_coalescing();
        }
        tracing::info!("{info}");
        let numbers = vec![None; udp.source_ports().into()];
        let stamping = Stamping::new(options.udp.wait != WaitMode::Spin, udp.now());
        let mut driver = XdpDriver {
            filter,
            lanes: lanes.into_iter().map(|(_, lane)| lane).collect(),
            table,
            udp,
            local,
            from: Some(local.ip()).filter(|ip| !ip.is_unspecified()),
            origin: Origin { interface: link.index, partial_checksums: link.veth },
            info,
            numbers,
            fallbacks: 0,
            read: None,
            stamping,
            clock_offset: clock_offset(),
            udp_due: Time::ZERO,
            news_due: Time::ZERO,
        };
        let set = driver.filter.receive_at(local, driver.table.links(), link.index);
        set.map_err(|e| OpenError::os("register the port", &link, e))?;
        Ok(driver)
    }

    /// A handle by which other threads end [`wait`](Driver::wait).
    pub fn waker(&self) -> Waker {
        self.udp.waker()
    }

    /// Descriptors that poll as readable when something has arrived, for loops that sleep without holding the driver. The
    /// sockets stay bound until these are closed, too.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn readiness(&self) -> io::Result<Vec<OwnedFd>> {
        let lanes = self.lanes.iter().map(|lane| lane.as_fd().try_clone_to_owned());
        lanes.chain([self.udp.readiness()]).collect()
    }

    /// Counters.
    pub fn stats(&self) -> XdpStats {
        let mut stats = XdpStats {
            tx_fallbacks: self.fallbacks,
            rx_fragments: self.filter.fragments(),
            udp: self.udp.stats(),
            ..XdpStats::default()
        };
        self.lanes.iter().for_each(|lane| lane.add_to(&mut stats));
        stats
    }

    /// What the kernel granted.
    pub fn info(&self) -> &XdpInfo {
        &self.info
    }

    /// The UDP port number behind a source-port index; `None` until it is first used.
    pub fn port_number(&self, port: SourcePort) -> Option<u16> {
        self.udp.port_number(port)
    }

    fn follow(&mut self, now: Time) {
        let interface = self.origin.interface;
        let was_there = self.table.links().get(interface).is_some();
        if self.table.follow(now) {
            if was_there && self.table.links().get(interface).is_none() {
                let name = &self.info.interface;
                tracing::warn!(
                    "{name} is gone; until the driver at {} is opened anew, kernel UDP does its work",
                    self.local
                );
            }
            // If the map is full, the new addresses go through the kernel.
            let _ = self.filter.receive_at(self.local, self.table.links(), interface);
        }
    }

    /// Queues a burst, unless it is for the kernel.
    fn queue(&mut self, burst: &srd_core::Burst<'_>, mem: &dyn Gather) -> bool {
        let from = burst.from.filter(|ip| self.from.is_none() && ip.is_ipv4() == burst.to.is_ipv4()).or(self.from);
        let Some(hop) = self.table.hop(burst.to, from) else { return false };
        let number = &mut self.numbers[usize::from(burst.port.0)];
        if number.is_none() {
            *number = self.udp.reserve(burst.port, burst.to);
        }
        let Some(port) = *number else { return false };
        let Some(headers) = Headers::new(hop, port, burst.to, burst.ect) else { return false };
        let lanes = self.lanes.len();
        let lane = &mut self.lanes[usize::from(burst.port.0) % lanes];
        let fits =
            burst.segment + headers.ip_len() <= hop.mtu as usize && burst.segment <= lane.max_payload(headers.len());
        if fits {
            lane.send(&headers, burst, mem);
        }
        fits
    }
}

impl Driver for XdpDriver {
    fn now(&mut self) -> Time {
        // In this order: were it the other way round, what arrives in between would seem to have arrived before, perhaps
        // before it was sent.
        self.lanes.iter_mut().for_each(Lane::look);
        let now = self.udp.now();
        self.read = Some(now);
        now
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        let at = match self.read.take() {
            Some(at) => at,
            None => self.now(),
        };
        self.read = None;
        if let Some(wanted) = self.stamping.look(at) {
            // If it does not work, there are stamps without need, or none with.
            let _ = self.filter.set_stamps(wanted);
        }
        let mut received = 0;
        for lane in &mut self.lanes {
            let (udp, offset) = (&self.udp, self.clock_offset);
            let stamp = |frame: &[u8]| read_stamp(frame).map(|ns| udp.time_of(ns.wrapping_add_signed(offset)));
            let arrival = |frame: &[u8]| self.stamping.arrival(at, || stamp(frame));
            received += lane.recv(self.origin, &arrival, sink);
        }
        if received > 0 {
            self.udp.note_moved();
        }
        if at >= self.udp_due {
            if received > 0 {
                // That took a while, in which more may have come.
                self.udp.now();
            }
            let by_udp = self.udp.recv(sink)?;
            self.udp_due = if by_udp > 0 { at } else { at + UDP_PAUSE };
            received += by_udp;
            if at >= self.news_due {
                self.news_due = at + NEWS_PAUSE;
                self.follow(at);
            }
        }
        Ok(received)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        for burst in batch.bursts() {
            if !self.queue(&burst, mem) {
                self.fallbacks += 1;
                self.udp.send_burst(&burst, mem);
            }
        }
        self.lanes.iter_mut().for_each(Lane::flush);
        self.udp.note_moved();
        Ok(())
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        let mut watched: ArrayVec<BorrowedFd<'_>, MAX_WATCHED> = self.lanes.iter().map(AsFd::as_fd).collect();
        watched.push(self.table.as_fd());
        if self.udp.sleep(until, &watched)? {
            (self.udp_due, self.news_due) = (Time::ZERO, Time::ZERO);
            return Ok(());
        }
        for _ in 0..SPINS {
            if self.lanes.iter().any(Lane::has_arrivals) {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn source_ports(&self) -> u16 {
        self.udp.source_ports()
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        let max = self.udp.max_datagram(to);
        if self.info.multi_buffer {
            return max;
        }
        // Ethernet with two tags, IPv6, UDP: what a peer of the same kind receives in one frame.
        const HEADERS: u32 = 70;
        max.min((lane::capacity(self.info.frame_size) - HEADERS) as u16)
    }
}
