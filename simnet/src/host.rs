//! Hosts: what stands between the network and the protocol that runs on it.
//!
//! A host has a clock, a bounded receive queue and a processor that may be immediate, busy, stalled or dead. The protocol
//! is a [`Node`]; the host drives it as a run loop would: everything that waits is read, then timers, then transmission.

use std::collections::VecDeque;
use std::fmt::Debug;

use srd_core::{Ecn, RxMeta, Span, Time};

use crate::clock::Clock;
use crate::log::{DropReason, LogEvent};
use crate::net::{Event, Net};
use crate::packet::{Addr, HostId, MAIN_PORT, Packet, PacketId};
use crate::rng::Rng;

/// A protocol that runs on a host. Times are the host's own clock unless said otherwise.
pub trait Node {
    /// What all nodes of a world share: a model that checks them, tables, counters.
    type Shared;
    /// What a schedule can ask of a node.
    type Command: Debug;

    /// The host starts, for the first time or again after a crash; nothing that it knew before is left.
    fn start(&mut self, shared: &mut Self::Shared, io: &mut Io<'_>);

    /// Reads all that waits, runs due timers, sends.
    fn turn(&mut self, shared: &mut Self::Shared, io: &mut Io<'_>);

    /// Does what it is told. A turn follows.
    fn command(&mut self, command: Self::Command, shared: &mut Self::Shared, io: &mut Io<'_>);

    /// When it next wants a turn without any input.
    fn deadline(&self) -> Option<Time>;

    /// The host dies: whatever it knew is gone.
    fn crash(&mut self, shared: &mut Self::Shared, io: &mut Io<'_>);
}

/// When a host handles what arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Processing {
    /// At once.
    #[default]
    Immediate,
    /// At the multiples of this span, all together: a busy host, interrupt moderation, a slow scheduler. Timers wait, too.
    Every(Span),
}

/// Datagrams that a host which takes time to read them reads in a turn, as drivers do.
const BATCH: usize = 32;

/// How a host behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpec {
    /// Its clock.
    pub clock: Clock,
    /// When it handles what arrives.
    pub processing: Processing,
    /// Datagrams that its receive queue holds; more are dropped.
    pub receive_queue: usize,
    /// Bits per second that it can take in: it is busy for so long after reading, while more may arrive. `None`: no time.
    pub drain: Option<u64>,
    /// Whether datagrams carry the time of their arrival at the host; otherwise that of their being read.
    pub timestamps: bool,
    /// Whether datagrams that a link damaged are dropped, as the UDP checksum would have it.
    pub udp_checksum: bool,
    /// Size of the pool of source ports.
    pub source_ports: u16,
    /// The MTU of its interface.
    pub mtu: u32,
}

impl Default for HostSpec {
    fn default() -> HostSpec {
        HostSpec {
            clock: Clock::default(),
            processing: Processing::Immediate,
            receive_queue: 8_192,
            drain: None,
            timestamps: true,
            udp_checksum: true,
            source_ports: 64,
            mtu: 9_000,
        }
    }
}

/// Counters of a host.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HostStats {
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of UDP payload sent.
    pub sent_bytes: u64,
    /// Datagrams handed to the node.
    pub received: u64,
    /// Bytes of UDP payload handed to the node.
    pub received_bytes: u64,
    /// Datagrams dropped because the receive queue was full.
    pub overflows: u64,
    /// Turns of the node.
    pub turns: u64,
}

/// Everything about a host but its node.
#[derive(Debug)]
pub struct Host {
    pub(crate) id: HostId,
    pub(crate) spec: HostSpec,
    pub(crate) stats: HostStats,
    pub(crate) ports: Vec<u16>,
    pub(crate) rx: VecDeque<(PacketId, Time)>,
    pub(crate) stalled_until: Time,
    pub(crate) up: bool,
    pub(crate) incarnation: u32,
    /// Time of the earliest wake-up event that is under way.
    pub(crate) wake_at: Time,
    /// The node's chance, a stream of its own per incarnation.
    pub(crate) rng: Rng,
    seed: u64,
}

impl Host {
    pub(crate) fn new(id: HostId, spec: HostSpec, seed: u64) -> Host {
        let mut host = Host {
            id,
            spec,
            stats: HostStats::default(),
            ports: Vec::new(),
            rx: VecDeque::new(),
            stalled_until: Time::ZERO,
            up: false,
            incarnation: 0,
            wake_at: Time::NEVER,
            rng: Rng::new(0),
            seed,
        };
        host.reseed();
        host
    }

    /// New chance and new source ports for a new incarnation.
    pub(crate) fn reseed(&mut self) {
        let index = u64::from(self.id.0) << 32 | u64::from(self.incarnation);
        self.rng = Rng::derive(self.seed, "host", index);
        let mut rng = Rng::derive(self.seed, "ports", index);
        self.ports.clear();
        while self.ports.len() < usize::from(self.spec.source_ports) {
            let port = rng.range(32_768, 60_999) as u16;
            if !self.ports.contains(&port) {
                self.ports.push(port);
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// How it behaves.
    pub fn spec(&self) -> &HostSpec {
        &self.spec
    }

    /// Counters.
    pub fn stats(&self) -> &HostStats {
        &self.stats
    }

    /// Its source ports.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// How often it was started, less one.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Whether it runs (a stalled host does).
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The earliest moment, not before `at`, at which the host would act on something that is due at `at`.
    fn slot(&self, at: Time) -> Time {
        let at = at.max(self.stalled_until);
        match self.spec.processing {
            Processing::Immediate => at,
            Processing::Every(span) => {
                let span = span.as_nanos().max(1);
                Time::from_nanos(at.as_nanos().div_ceil(span).saturating_mul(span))
            }
        }
    }

    /// Makes sure that the host runs at `at` or as soon as it can after that.
    pub(crate) fn wake(&mut self, at: Time, net: &mut Net) {
        let at = self.slot(at.max(net.now));
        if at < self.wake_at {
            self.wake_at = at;
            net.events.push(at, Event::Wake { host: self.id });
        }
    }

    /// Takes a packet into the receive queue. Returns whether it did.
    pub(crate) fn take(&mut self, packet: PacketId, net: &mut Net) -> bool {
        let (p, label) = (net.packets.get(packet), net.packets.label(packet));
        let reason = if !self.up {
            DropReason::HostDown
        } else if label.corrupted && self.spec.udp_checksum {
            DropReason::UdpChecksum
        } else if p.dst.port != MAIN_PORT && !self.ports.contains(&p.dst.port) {
            DropReason::PortClosed
        } else if self.rx.len() >= self.spec.receive_queue {
            self.stats.overflows += 1;
            DropReason::ReceiveQueueFull
        } else {
            let event = LogEvent::Arrived { host: self.id, packet: p.serial, from: p.src.port };
            net.log.record(net.now, event);
            self.rx.push_back((packet, net.now));
            return true;
        };
        net.drop_at(self.id, packet, reason);
        false
    }

    /// Throws away what waits to be read.
    pub(crate) fn clear(&mut self, net: &mut Net) {
        for (packet, _) in self.rx.drain(..) {
            net.packets.free(packet);
        }
    }
}

/// What a node sees of its host and of the network.
#[derive(Debug)]
pub struct Io<'a> {
    /// The network, with the log.
    pub net: &'a mut Net,
    pub(crate) host: &'a mut Host,
}

impl Io<'_> {
    /// The host's clock.
    pub fn now(&self) -> Time {
        self.host.spec.clock.local(self.net.now)
    }

    /// The world's time, which no real host knows; for models and counters.
    pub fn world_now(&self) -> Time {
        self.net.now
    }

    /// The host.
    pub fn host(&self) -> &Host {
        self.host
    }

    /// The node's source of chance.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.host.rng
    }

    /// Writes to the log.
    pub fn log(&mut self, event: LogEvent) {
        self.net.log.record(self.net.now, event);
    }

    /// Hands what waits to be read to `sink`, oldest first: a number of datagrams at most if that takes the host time.
    pub fn receive(&mut self, mut sink: impl FnMut(&RxMeta, &[u8])) -> usize {
        let mut n = 0;
        let clock = self.host.spec.clock;
        let most = if self.host.spec.drain.is_some() { BATCH } else { usize::MAX };
        while n < most
            && let Some((packet, arrived)) = self.host.rx.pop_front()
        {
            let (p, label) = (self.net.packets.get(packet), self.net.packets.label(packet));
            let at = clock.local(if self.host.spec.timestamps { arrived } else { self.net.now });
            let to = Some(p.dst.to_socket().ip());
            let meta = RxMeta { from: p.src.to_socket(), to, ecn: label.ecn, at };
            self.host.stats.received += 1;
            self.host.stats.received_bytes += u64::from(label.len);
            p.with_payload(&mut self.net.zeros, |bytes| sink(&meta, bytes));
            self.net.packets.free(packet);
            n += 1;
        }
        n
    }

    /// Sends a datagram from the source port with this index in the pool; `fill` writes its payload. What the interface's
    /// MTU forbids is dropped.
    ///
    /// # Panics
    /// If the index is not below [`HostSpec::source_ports`].
    pub fn send(&mut self, port: u16, dst: Addr, ecn: Ecn, fill: impl FnOnce(&mut Packet)) {
        self.send_late(port, dst, ecn, 0, fill);
    }

    /// The same with a packet that comes out of the host's cable later, by so many millionths of the time that it takes
    /// there. Such packets do not overtake each other.
    ///
    /// # Panics
    /// Like [`send`](Self::send).
    pub fn send_late(&mut self, port: u16, dst: Addr, ecn: Ecn, late_ppm: u32, fill: impl FnOnce(&mut Packet)) {
        let src = Addr::of(self.host.id, self.host.ports[usize::from(port)]);
        let stats = &mut self.host.stats;
        self.net.send(self.host.spec.mtu, src, dst, ecn, late_ppm, |packet| {
            fill(packet);
            stats.sent += 1;
            stats.sent_bytes += u64::from(packet.len());
        });
    }

    /// How long the host's own port will be busy with what was given to it.
    pub fn backlog(&self) -> Span {
        self.net.backlog(self.host.id)
    }

    /// Gives another host's node a turn now, as if something had happened there.
    pub fn nudge(&mut self, host: HostId) {
        self.net.nudge(self.net.now, host);
    }
}
