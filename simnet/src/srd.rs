//! The node that runs the transport: an [`Endpoint`] and a mailbox, driven as the core's own run loop drives them.

use std::collections::{BTreeMap, VecDeque};

use srd_core::{
    CheckedConfig, Ecn, Endpoint, Event, Failure, Outbound, PathState, PeerId, PeerStats, SendError, Stats, Time,
    TxBatch,
};

use crate::app::{App, AppCx, Post};
use crate::check::{Model, outcome_code};
use crate::host::{Io, Node};
use crate::log::LogEvent;
use crate::packet::{Addr, HostId, IP_UDP_OVERHEAD, MAIN_PORT};
use crate::watch::{NUMBER, Sabotage, Watch};

/// Longest header that an application can put before its payload, in bytes: the simulator needs eight of the transport's.
pub const MAX_APP_HEADER: usize = srd_core::MAX_HEADER - NUMBER;

/// What runs on an SRD host.
#[derive(Clone, Debug)]
pub struct SrdSpec {
    /// The endpoint's configuration.
    pub config: CheckedConfig,
    /// Bytes of messages that the mailbox holds for an application that does not read.
    pub mailbox: usize,
    /// Throw payload away instead of keeping it for the application, which then sees no messages: for large experiments.
    pub discard: bool,
    /// What to do wrong, for tests of the checkers.
    pub sabotage: Option<Sabotage>,
    /// Every how many turns the in-flight limit is checked; 0 for never.
    pub check_every: u32,
}

impl SrdSpec {
    /// A host with this configuration, 64 MiB of mailbox and thorough checks.
    pub fn new(config: CheckedConfig) -> SrdSpec {
        SrdSpec { config, mailbox: 64 << 20, discard: false, sabotage: None, check_every: 8 }
    }
}

/// What the schedule can tell an SRD node.
#[derive(Debug)]
pub enum Command {
    /// Send a message.
    Post(Post),
    /// The application reads what arrives, or leaves it lying in the mailbox.
    Reading(bool),
    /// Close the endpoint once everything is sent.
    Close,
    /// Close it at once.
    Abort,
}

/// Calls of `handle_timeout` per virtual millisecond that a host may make beyond two for each packet it sends or receives.
const MAX_IDLE_TIMEOUTS: u64 = 1_000;
/// Batches that one turn may send before it counts as endless.
const MAX_BATCHES: u32 = 1_000_000;

/// See the module documentation.
pub struct SrdNode {
    spec: SrdSpec,
    app: Option<Box<dyn App>>,
    endpoint: Option<Endpoint>,
    watch: Watch,
    batch: TxBatch,
    scratch: Vec<u8>,
    peers: BTreeMap<HostId, PeerId>,
    /// The message that an outgoing token stands for, by token.
    messages: Vec<Option<u64>>,
    /// Messages that the endpoint had no room for.
    backlog: VecDeque<Post>,
    /// Timers of the application; the second number keeps those of one moment apart.
    timers: BTreeMap<(Time, u64), u64>,
    timer_count: u64,
    reading: bool,
    turns: u32,
    last_placed: Option<(HostId, u64, u32)>,
    storm: Storm,
    stats: NodeStats,
}

/// Counters of an SRD node over all its incarnations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NodeStats {
    /// Calls of `handle_timeout`.
    pub timeouts: u64,
    /// Connections that the endpoints reported as established.
    pub connected: u64,
    /// Connections that the endpoints reported as ended.
    pub disconnected: u64,
}

/// How much is in flight to a peer, and how much may be.
#[derive(Debug)]
struct Flight {
    host: HostId,
    in_flight: u64,
    window: u64,
    slack: u64,
}

/// Counts within one virtual millisecond.
#[derive(Debug, Default)]
struct Storm {
    millisecond: u64,
    timeouts: u64,
    packets: u64,
}

impl SrdNode {
    /// A node with an application, or without one if the schedule posts all messages.
    pub fn new(spec: SrdSpec, app: Option<Box<dyn App>>) -> SrdNode {
        let watch = Watch::new(spec.mailbox, spec.sabotage, spec.discard);
        SrdNode {
            spec,
            app,
            endpoint: None,
            watch,
            batch: TxBatch::new(),
            scratch: Vec::new(),
            peers: BTreeMap::new(),
            messages: Vec::new(),
            backlog: VecDeque::new(),
            timers: BTreeMap::new(),
            timer_count: 0,
            reading: true,
            turns: 0,
            last_placed: None,
            storm: Storm::default(),
            stats: NodeStats::default(),
        }
    }

    /// The endpoint; `None` if the host is down.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The endpoint's counters; zero if the host is down.
    pub fn endpoint_stats(&self) -> Stats {
        self.endpoint.as_ref().map(|e| *e.stats()).unwrap_or_default()
    }

    /// What the endpoint knows of a peer.
    pub fn peer_stats(&self, peer: HostId) -> PeerStats {
        match (&self.endpoint, self.peers.get(&peer)) {
            (Some(endpoint), Some(peer)) => endpoint.peer_stats(*peer),
            _ => PeerStats::default(),
        }
    }

    /// The node's own counters.
    pub fn stats(&self) -> NodeStats {
        self.stats
    }

    /// Incoming messages that are half delivered.
    pub fn open_places(&self) -> usize {
        self.watch.open_places()
    }

    /// Gives a message to the endpoint, or to the backlog if there is no room.
    fn submit(&mut self, post: Post, model: &mut Model, io: &mut Io<'_>) {
        let now = io.now();
        let Some(endpoint) = &mut self.endpoint else { return };
        let peer = match self.peers.get(&post.to) {
            Some(peer) => *peer,
            None => {
                let max = (io.host().spec().mtu - IP_UDP_OVERHEAD).min(u32::from(u16::MAX)) as u16;
                let Some(peer) = endpoint.peer(Addr::of(post.to, MAIN_PORT).to_socket(), max) else {
                    return io.net.violate(format!("h{}: the table of peers is full", io.host.id.0));
                };
                self.peers.insert(post.to, peer);
                peer
            }
        };
        let mut header = [0; srd_core::MAX_HEADER];
        let header_len = NUMBER + post.header.len();
        header[..NUMBER].copy_from_slice(&post.message.to_le_bytes());
        header[NUMBER..header_len].copy_from_slice(&post.header);
        let len = post.data.len() as u32;
        let token = self.watch.mailbox.post(&header[..header_len], post.data.clone());
        self.watch.lend(token);
        let outbound = Outbound { token, flow: post.message as u8, header_len: header_len as u8, len, rnr: post.rnr };
        match endpoint.send(now, peer, outbound) {
            Ok(()) => {
                let i = token.0 as usize;
                if self.messages.len() <= i {
                    self.messages.resize(i + 1, None);
                }
                self.messages[i] = Some(post.message);
                model.handed(io.world_now(), post.message);
                io.log(LogEvent::Posted { host: io.host.id, to: post.to, message: post.message, len });
            }
            Err(SendError::QueueFull { .. }) => {
                self.watch.mailbox.unpost(token);
                self.backlog.push_back(post);
            }
            Err(error) => {
                self.watch.mailbox.unpost(token);
                // Legitimate only where endpoints are closed, which the model knows.
                if error != SendError::Closed
                    || model.completed(io.world_now(), post.message, Err(Failure::Closed)).is_err()
                {
                    io.net.violate(format!("h{}: message {} not accepted: {error}", io.host.id.0, post.message));
                }
            }
        }
    }

    /// Lets the application do something, and sends what it posts.
    fn with_app(&mut self, model: &mut Model, io: &mut Io<'_>, f: impl FnOnce(&mut dyn App, &mut AppCx<'_>)) {
        let Some(mut app) = self.app.take() else { return };
        let (mut posts, mut timers) = (Vec::new(), Vec::new());
        let (host, now, world_now) = (io.host.id, io.now(), io.world_now());
        let rng = &mut io.host.rng;
        f(&mut *app, &mut AppCx { host, now, world_now, rng, model, posts: &mut posts, timers: &mut timers });
        self.app = Some(app);
        for (at, timer) in timers {
            self.timer_count += 1;
            self.timers.insert((at, self.timer_count), timer);
        }
        for post in posts {
            self.submit(post, model, io);
        }
    }

    /// Takes over what the endpoint has reported: events, arrivals, completions.
    fn collect(&mut self, model: &mut Model, io: &mut Io<'_>) {
        let Some(endpoint) = &mut self.endpoint else { return };
        let host = io.host.id;
        while let Some(event) = endpoint.poll_event() {
            let (peer, connected) = match event {
                Event::Connected(peer) => (peer, true),
                Event::Disconnected(peer, _) => (peer, false),
                _ => continue,
            };
            self.stats.connected += u64::from(connected);
            self.stats.disconnected += u64::from(!connected);
            if let Some(peer) = host_of(endpoint, peer) {
                io.log(LogEvent::Peer { host, peer, connected });
            }
        }
        for i in 0..self.watch.placed.len() {
            let placed = self.watch.placed[i];
            let from = host_of(endpoint, placed.peer);
            io.log(LogEvent::Placed { host, message: placed.message });
            if let Err(what) = model.placed(io.world_now(), host, from, placed.message, placed.len) {
                io.net.violate(what);
            }
            self.last_placed = from.map(|from| (from, placed.message, placed.len));
        }
        self.watch.placed.clear();
        while let Some((token, outcome)) = self.watch.mailbox.poll_completed() {
            let Some(message) = self.messages[token.0 as usize].take() else {
                io.net.violate(format!("h{}: completion of {token:?}, which stands for no message", host.0));
                return;
            };
            io.log(LogEvent::Completed { host, message, code: outcome_code(outcome) });
            if let Err(what) = model.completed(io.world_now(), message, outcome) {
                io.net.violate(what);
            }
            self.with_app(model, io, |app, cx| app.on_completion(cx, message, outcome));
            if let Some(post) = self.backlog.pop_front() {
                self.submit(post, model, io);
            }
        }
        self.read(model, io);
        if let Some(what) = self.watch.breach() {
            io.net.violate(format!("h{}: {what}", host.0));
        }
        if self.watch.mailbox.held() > self.spec.mailbox {
            let (held, budget) = (self.watch.mailbox.held(), self.spec.mailbox);
            io.net.violate(format!("h{}: mailbox holds {held} of {budget} bytes", host.0));
        }
    }

    fn read(&mut self, model: &mut Model, io: &mut Io<'_>) {
        while self.reading {
            let Some(received) = self.watch.mailbox.poll_received() else { return };
            let Some((number, header)) = received.header.split_first_chunk::<NUMBER>() else {
                return io.net.violate("a message without a number was read".into());
            };
            let message = u64::from_le_bytes(*number);
            io.log(LogEvent::Read { host: io.host.id, message });
            if let Err(what) = model.read(io.world_now(), io.host.id, message, header, &received.data) {
                return io.net.violate(what);
            }
            let from = self.endpoint.as_ref().and_then(|e| host_of(e, received.peer));
            if let Some(from) = from {
                self.with_app(model, io, |app, cx| app.on_message(cx, from, header, &received.data));
            }
        }
    }

    fn app_timers(&mut self, model: &mut Model, io: &mut Io<'_>) {
        let now = io.now();
        while let Some((&(at, count), &timer)) = self.timers.first_key_value() {
            if at > now {
                return;
            }
            self.timers.remove(&(at, count));
            self.with_app(model, io, |app, cx| app.on_timer(cx, timer));
        }
    }

    fn transmit(&mut self, io: &mut Io<'_>) -> u64 {
        let now = io.now();
        let Some(endpoint) = &mut self.endpoint else { return 0 };
        let max = usize::from(self.spec.config.max_datagram);
        let mut sent = 0;
        for _ in 0..MAX_BATCHES {
            if !endpoint.poll_transmit(now, &mut self.watch, &mut self.batch) {
                if !self.batch.is_empty() {
                    io.net.violate("poll_transmit said that it added nothing, and did".into());
                }
                return sent;
            }
            for burst in self.batch.bursts() {
                if burst.len == 0 || burst.segment == 0 || burst.segment > max {
                    let (segment, len) = (burst.segment, burst.len);
                    io.net.violate(format!("burst of {len} bytes in segments of {segment}, at most {max}"));
                    return sent;
                }
                let Some(dst) = Addr::from_socket(burst.to) else { continue };
                let ecn = if burst.ect { Ecn::Ect } else { Ecn::NotEct };
                sent += burst.datagrams() as u64;
                if burst.len <= burst.segment {
                    io.send(burst.port.0, dst, ecn, |p| burst.for_each_slice(&self.watch, |bytes| p.put(bytes)));
                } else {
                    self.scratch.clear();
                    burst.copy_to(&self.watch, &mut self.scratch);
                    for datagram in self.scratch.chunks(burst.segment) {
                        io.send(burst.port.0, dst, ecn, |p| p.put(datagram));
                    }
                }
            }
            self.batch.clear();
        }
        io.net.violate(format!("h{}: poll_transmit finds no end", io.host.id.0));
        sent
    }

    fn flights(&self) -> Vec<Flight> {
        let Some(endpoint) = &self.endpoint else { return Vec::new() };
        let flight = |(host, peer): (&HostId, &PeerId)| {
            let s = endpoint.peer_stats(*peer);
            let suspects = s.paths.iter().filter(|p| p.state == PathState::Suspect).count() as u64;
            let slack = (4 + suspects) * u64::from(s.datagram) + u64::from(self.spec.config.max_datagram);
            Flight { host: *host, in_flight: s.in_flight, window: s.window, slack }
        };
        self.peers.iter().map(flight).collect()
    }

    /// Sending must not take the bytes in flight further above the limit than four datagrams, one per path that is
    /// probed, and one of any length: the datagram that crosses the limit, two that repeat lost payload, a tail probe, and
    /// one that tries whether longer ones arrive.
    fn check_flights(&self, before: &[Flight], io: &mut Io<'_>) {
        for (was, is) in before.iter().zip(self.flights()) {
            if is.in_flight > is.window.max(was.in_flight) + is.slack {
                io.net.violate(format!(
                    "h{} has {} bytes in flight to h{} ({} before it sent), window {}",
                    io.host.id.0, is.in_flight, is.host.0, was.in_flight, is.window
                ));
            }
        }
    }

    fn check_storm(&mut self, timeouts: u64, packets: u64, io: &mut Io<'_>) {
        let millisecond = io.world_now().as_nanos() / 1_000_000;
        if self.storm.millisecond != millisecond {
            self.storm = Storm { millisecond, ..Storm::default() };
        }
        self.storm.timeouts += timeouts;
        self.storm.packets += packets;
        if self.storm.timeouts > MAX_IDLE_TIMEOUTS + 2 * self.storm.packets {
            let Storm { timeouts, packets, .. } = self.storm;
            io.net.violate(format!(
                "timer storm: h{} handled {timeouts} timeouts and {packets} packets within a millisecond",
                io.host.id.0
            ));
        }
    }
}

impl Node for SrdNode {
    type Shared = Model;
    type Command = Command;

    fn start(&mut self, model: &mut Model, io: &mut Io<'_>) {
        model.started(io.world_now(), io.host.id);
        let local = Addr::of(io.host.id, MAIN_PORT).to_socket();
        let seed = io.rng().seed32();
        self.endpoint = Some(Endpoint::new(self.spec.config.clone(), local, seed, io.now()));
        self.watch = Watch::new(self.spec.mailbox, self.spec.sabotage, self.spec.discard);
        self.reading = true;
        if let (Some(Sabotage::ReplayAfterRestart), Some((from, message, len))) = (self.spec.sabotage, self.last_placed)
            && let Err(what) = model.placed(io.world_now(), io.host.id, Some(from), message, len)
        {
            io.net.violate(what);
        }
        self.with_app(model, io, |app, cx| app.on_start(cx));
    }

    fn turn(&mut self, model: &mut Model, io: &mut Io<'_>) {
        let now = io.now();
        let (watch, Some(endpoint)) = (&mut self.watch, &mut self.endpoint) else { return };
        let received = io.receive(|meta, bytes| endpoint.handle_datagram(now, meta, bytes, watch));
        let due = endpoint.poll_timeout().is_some_and(|t| t <= now) || self.spec.sabotage == Some(Sabotage::TimerStorm);
        if due {
            endpoint.handle_timeout(now, watch);
            self.stats.timeouts += 1;
        }
        self.collect(model, io);
        self.app_timers(model, io);
        self.turns = self.turns.wrapping_add(1);
        let check = self.spec.check_every > 0 && self.turns.is_multiple_of(self.spec.check_every);
        let before = if check { self.flights() } else { Vec::new() };
        let sent = self.transmit(io);
        if check {
            self.check_flights(&before, io);
        }
        self.check_storm(u64::from(due), received as u64 + sent, io);
    }

    fn command(&mut self, command: Command, model: &mut Model, io: &mut Io<'_>) {
        match command {
            Command::Post(post) => self.submit(post, model, io),
            Command::Reading(reading) => self.reading = reading,
            Command::Close => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.close(io.now());
                }
            }
            Command::Abort => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.abort(io.now(), &mut self.watch);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.spec.sabotage == Some(Sabotage::TimerStorm) {
            return Some(Time::ZERO);
        }
        let endpoint = self.endpoint.as_ref()?.poll_timeout();
        let timer = self.timers.first_key_value().map(|(at, _)| at.0);
        match (endpoint, timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn crash(&mut self, model: &mut Model, io: &mut Io<'_>) {
        self.endpoint = None;
        self.peers.clear();
        self.messages.clear();
        for post in self.backlog.drain(..) {
            model.orphaned(post.message);
        }
        self.timers.clear();
        model.died(io.world_now(), io.host.id);
    }
}

impl std::fmt::Debug for SrdNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrdNode").field("spec", &self.spec).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The host behind a peer's handle. A peer's address is that of its main port.
fn host_of(endpoint: &Endpoint, peer: PeerId) -> Option<HostId> {
    let addr = Addr::from_socket(endpoint.peer_addr(peer)?)?;
    if addr.port == MAIN_PORT { addr.host() } else { None }
}
