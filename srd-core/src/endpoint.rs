//! The endpoint: all connections of one card, or of one of its processing units.
//!
//! Finds the connection that a packet belongs to, answers what belongs to none without keeping state, and schedules who is
//! looked at next: peers that may send wait in a queue, all others behind one deadline each.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustc_hash::FxHashMap;

use crate::batch::TxBatch;
use crate::config::{CheckedConfig, Checksum, MIN_DATAGRAM};
use crate::conn::{Conn, Cx};
use crate::cookie::{Cookies, Secrets};
use crate::driver::{RxMeta, SourcePort};
use crate::inbound::Inbound;
use crate::line::Line;
use crate::once::OnceQueue;
use crate::outbox::Outbox;
use crate::peer::{Peer, State, write_control};
use crate::replies::{Asked, Occasion, Replies, main_addr};
use crate::seq::Seq;
use crate::stall::StallWatch;
use crate::stats::{PeerStats, Stats};
use crate::time::Time;
use crate::timers::Timers;
use crate::upper::{Failure, MAX_HEADER, Token, Upper};
use crate::wire::{Accept, Close, Closed, DecodeError, Hello, Init, Packet, Retry, Unknown, decode_packet, features};

/// A peer of an endpoint; connections to it come and go underneath. One that the application asked for stays valid as long
/// as the endpoint, or until it is [released](Endpoint::release); one that came by itself may be forgotten when it has no
/// connection and its place is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

impl PeerId {
    // A place in the table and how many had it before: so many that none comes again.
    fn new(slot: usize, generation: u64) -> PeerId {
        PeerId(slot as u64 | generation << INDEX_BITS)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    /// The next peer in the same place.
    fn successor(self) -> PeerId {
        PeerId::new(self.slot(), (self.0 >> INDEX_BITS) + 1)
    }
}

/// How often a message is offered to a receiver that is not ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RnrRetry {
    /// Until the receiver takes it or the connection ends.
    #[default]
    Forever,
    /// At most this many times again after the first attempt.
    Times(u8),
}

/// A message to send, as the upper storey announces it.
#[derive(Clone, Copy, Debug)]
pub struct Outbound {
    /// The upper storey's name for it.
    pub token: Token,
    /// Length of its header, 0..=[`MAX_HEADER`] bytes.
    pub header_len: u8,
    /// Length of its payload in bytes.
    pub len: u32,
    /// What to do when the receiver is not ready.
    pub rnr: RnrRetry,
}

/// Why a message was not accepted for sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// As many messages as `send_queue` allows wait for this peer already; try again after a completion.
    #[error("{depth} messages are queued for this peer, which is the limit; wait for completions")]
    QueueFull {
        /// The limit.
        depth: u32,
    },
    /// The message is longer than `max_message`, or its header longer than [`MAX_HEADER`].
    #[error("message of {len} bytes, at most {max} are permitted")]
    TooLong {
        /// Its length.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// The peer came by itself, went, and has been forgotten.
    #[error("the peer has been forgotten; ask for it by address")]
    UnknownPeer,
    /// The endpoint is closing.
    #[error("the endpoint is closed")]
    Closed,
}

/// What happened to a peer, for those who want to know; messages complete on their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection was established.
    Connected(PeerId),
    /// A connection ended.
    Disconnected(PeerId, crate::upper::Failure),
}

/// See the module documentation. Made of four groups of methods: getters, `handle_*` (the world tells us), commands (the
/// application asks), `poll_*` (we want something done, until there is no more).
///
/// No call has to come in any particular order: several inputs before a drain, a late drain or a spurious timeout are
/// harmless.
#[derive(Debug)]
pub struct Endpoint {
    config: CheckedConfig,
    local: SocketAddr,
    incarnation: u64,
    peers: Vec<Peer>,
    by_addr: FxHashMap<SocketAddr, usize>,
    /// Peers that came by themselves, whose first hop nobody has measured.
    new_peers: VecDeque<PeerId>,
    /// Where the search for a peer to forget goes on.
    forget_at: usize,
    /// Peers that may have something to send.
    ready: OnceQueue,
    /// Peers that send to us, and some that did.
    senders: OnceQueue,
    timers: Timers,
    events: VecDeque<Event>,
    replies: Replies,
    inbound: Inbound,
    line: Line,
    cookies: Cookies,
    secrets: Secrets,
    /// Chooses paths; what must not be guessed comes from `secrets`.
    path_rng: Xoshiro256PlusPlus,
    draining: bool,
    tag: u8,
    stats: Stats,
    watch: StallWatch,
    scratch: Vec<u8>,
    /// Messages whose memory was found to be gone in the burst that is being written.
    gone: Vec<Token>,
}

/// Events that nobody has fetched; older ones are forgotten, since messages tell the story anyway.
const MAX_EVENTS: usize = 1024;
/// Peers looked at to find one to forget for a stranger.
const FORGET_SEARCH: usize = 64;
/// The low bits of a connection id are the peer's index, the rest is secret.
const INDEX_BITS: u32 = 20;

impl Endpoint {
    /// An endpoint that peers reach at `local` (its main port; an unspecified IP is fine). All its chance comes from
    /// `seed`; two endpoints must never be given the same one.
    pub fn new(config: CheckedConfig, local: SocketAddr, seed: [u8; 32], now: Time) -> Endpoint {
        let word = |i: usize| u64::from_le_bytes(*seed[8 * i..].first_chunk().expect("a seed of four words"));
        let mut secrets = Secrets::new([word(0), word(1)]);
        // The other way round, what the generator lets slip would tell the keys.
        let path_rng = Xoshiro256PlusPlus::seed_from_u64(secrets.draw());
        Endpoint {
            // [HS-3, SEC-5]
            incarnation: secrets.draw(),
            cookies: Cookies::new([word(2), word(3)]),
            path_rng,
            secrets,
            new_peers: VecDeque::new(),
            forget_at: 0,
            inbound: Inbound::new(&config, now),
            line: Line::new(&config),
            config,
            local,
            peers: Vec::new(),
            by_addr: FxHashMap::default(),
            ready: OnceQueue::default(),
            senders: OnceQueue::default(),
            timers: Timers::default(),
            events: VecDeque::new(),
            replies: Replies::new(now),
            draining: false,
            tag: 0,
            stats: Stats::default(),
            watch: StallWatch::default(),
            scratch: Vec::with_capacity(256),
            gone: Vec::new(),
        }
    }

    // ---- getters

    /// The address of a peer; `None` if it has been forgotten.
    pub fn peer_addr(&self, peer: PeerId) -> Option<SocketAddr> {
        self.get(peer).map(|p| p.addr)
    }

    fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.slot()).filter(|p| p.id == peer)
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// A snapshot of a peer; default values (but for the number of messages) if there is no connection.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        let Some(peer) = self.get(peer) else { return PeerStats::default() };
        match peer.conn() {
            Some(conn) => conn.snapshot(&peer.outbox),
            None => PeerStats { messages: peer.outbox.live(), ..PeerStats::default() },
        }
    }

    /// All peers, connected or not.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.iter().map(|p| p.id)
    }

    /// Whether a close has run to its end.
    pub fn is_closed(&self) -> bool {
        self.draining && self.replies.is_empty() && self.peers.iter().all(Peer::is_idle)
    }

    // ---- commands

    /// What the upper storey says of itself to peers that connect from now on; 0 at first. The transport does not look at it.
    pub fn set_tag(&mut self, tag: u8) {
        self.tag = tag;
    }

    /// The handle of the peer whose main address is `addr`, made if there is none. `max_datagram` is what the driver says
    /// of the first hop to it. `None` if the table of peers is full of peers in use.
    pub fn peer(&mut self, addr: SocketAddr, max_datagram: u16) -> Option<PeerId> {
        let addr = canonical(addr);
        let slot = match self.by_addr.get(&addr) {
            Some(&slot) => slot,
            None => self.add_peer(addr, usize::MAX)?,
        };
        self.peers[slot].held = true;
        let id = self.peers[slot].id;
        self.set_link_datagram(id, max_datagram);
        Some(id)
    }

    /// The application holds the peer's id no more: once it has nothing under way, its place in the table may go to
    /// another peer.
    pub fn release(&mut self, peer: PeerId) {
        if let Some(p) = self.peers.get_mut(peer.slot()).filter(|p| p.id == peer) {
            p.held = false;
        }
    }

    /// Tells what the driver says of the first hop to a peer, in bytes of UDP payload.
    pub fn set_link_datagram(&mut self, peer: PeerId, max: u16) {
        if self.get(peer).is_some() {
            self.peers[peer.slot()].set_link_datagram(max.max(MIN_DATAGRAM));
        }
    }

    /// A peer that came by itself, whose [`set_link_datagram`](Self::set_link_datagram) has not been called.
    pub fn poll_new_peer(&mut self) -> Option<PeerId> {
        self.new_peers.pop_front()
    }

    fn add_peer(&mut self, addr: SocketAddr, search: usize) -> Option<usize> {
        let link_datagram = self.config.max_datagram;
        let mut first_window = self.config.initial_window;
        if addr.ip() == self.local.ip() {
            first_window = first_window.max(self.config.local_window);
        }
        let slot = self.peers.len();
        if slot < self.config.max_peers as usize {
            self.peers.push(Peer::new(PeerId::new(slot, 0), addr, link_datagram, first_window));
            self.by_addr.insert(addr, slot);
            return Some(slot);
        }
        let slot = self.find_forgettable(search)?;
        let id = self.peers[slot].id.successor();
        let old = std::mem::replace(&mut self.peers[slot], Peer::new(id, addr, link_datagram, first_window));
        self.by_addr.remove(&old.addr);
        self.by_addr.insert(addr, slot);
        Some(slot)
    }

    /// A peer that the application does not hold and that has nothing under way. Looks at `search` of them.
    fn find_forgettable(&mut self, search: usize) -> Option<usize> {
        for _ in 0..search.min(self.peers.len()) {
            self.forget_at = (self.forget_at + 1) % self.peers.len();
            let peer = &self.peers[self.forget_at];
            if !peer.held && peer.is_idle() {
                return Some(self.forget_at);
            }
        }
        None
    }

    /// Queues a message. Its outcome comes by [`Upper::completed`].
    ///
    /// # Errors
    /// The message was not accepted and will not complete.
    #[inline]
    pub fn send(&mut self, now: Time, peer: PeerId, msg: Outbound) -> Result<(), SendError> {
        if self.draining {
            return Err(SendError::Closed);
        }
        if msg.len > self.config.max_message || usize::from(msg.header_len) > MAX_HEADER {
            return Err(SendError::TooLong { len: msg.len, max: self.config.max_message });
        }
        let depth = self.config.send_queue;
        let slot = peer.slot();
        let Some(p) = self.peers.get_mut(slot).filter(|p| p.id == peer) else { return Err(SendError::UnknownPeer) };
        if p.outbox.live() >= depth {
            return Err(SendError::QueueFull { depth });
        }
        if let Some(conn) = p.conn()
            && msg.len > conn.remote.max_message
        {
            return Err(SendError::TooLong { len: msg.len, max: conn.remote.max_message });
        }
        p.outbox.push(msg);
        if let State::Open { conn, .. } = &mut p.state {
            conn.seek_confirmation();
        }
        if matches!(p.state, State::Idle) {
            self.open(now, slot);
        }
        self.make_ready(slot);
        Ok(())
    }

    /// Asks for a connection with a peer.
    #[cold]
    fn open(&mut self, now: Time, slot: usize) {
        let (awake, hello) = (self.awake(now), self.hello(now, slot));
        self.peers[slot].open(now, awake, hello);
    }

    /// Takes back the messages to `peer` whose tokens `which` picks: they do not complete, and their payload is not read
    /// after this call. The receiver may have got them, whole or in part. Returns how many it was.
    pub fn withdraw(&mut self, peer: PeerId, which: impl FnMut(Token) -> bool) -> u32 {
        let slot = peer.slot();
        let Some(p) = self.peers.get_mut(slot).filter(|p| p.id == peer) else { return 0 };
        let withdrawn = p.withdraw(which);
        self.stats.messages_failed += u64::from(withdrawn);
        if withdrawn > 0 {
            let end = p.outbox.next_id();
            if let State::Open { conn, .. } = &mut p.state {
                conn.withdrew(end);
            }
            self.make_ready(slot);
        }
        withdrawn
    }

    /// Stops accepting messages, delivers those that are queued, then says good-bye to all peers. Done when
    /// [`is_closed`](Self::is_closed).
    pub fn close(&mut self, now: Time) {
        self.draining = true;
        let awake = self.awake(now);
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            if peer.outbox.live() == 0 && matches!(peer.state, State::Opening(_)) {
                peer.close(now, awake, true);
            }
            self.make_ready(index);
        }
    }

    /// Gives up at once: messages fail with `Closed`, one good-bye packet per peer is queued.
    pub fn abort<U: Upper>(&mut self, now: Time, upper: &mut U) {
        self.draining = true;
        let awake = self.awake(now);
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            self.stats.messages_failed += u64::from(peer.outbox.live());
            peer.outbox.fail_all(Failure::Closed, |token, why| upper.completed(token, Err(why)));
            peer.close(now, awake, true);
            self.make_ready(index);
        }
    }

    // [HS-2]
    fn hello(&mut self, now: Time, slot: usize) -> Hello {
        let config = &self.config;
        let secret = self.secrets.draw() << INDEX_BITS;
        let mut number = || config.first_number.unwrap_or(self.secrets.draw() as u32);
        Hello {
            cid: secret | slot as u64,
            incarnation: self.incarnation,
            features: u32::from(self.tag) << features::TAG
                | if config.checksum == Checksum::Crc32c { features::CHECKSUM } else { 0 },
            max_datagram: config.max_datagram,
            packet_window: config.packet_window,
            message_window: config.message_window,
            max_message: config.max_message,
            max_partials: config.max_partial_messages,
            first_pn: Seq(number()),
            first_message: Seq(number()),
            max_ack_delay_us: config.max_ack_delay.as_nanos().div_ceil(1000).min(100_000) as u32,
            share: self.inbound.newcomer_share(now),
        }
    }

    // ---- the world

    /// A datagram arrived.
    pub fn handle_datagram<U: Upper>(&mut self, now: Time, meta: &RxMeta, bytes: &[u8], upper: &mut U) {
        self.notice_stall(now);
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += bytes.len() as u64;
        match decode_packet(bytes) {
            Ok(Packet::Tracked(header, frames)) => {
                let Some(index) = self.find_from(header.cid, meta) else {
                    self.stats.rx_unknown += 1;
                    // [HS-13]
                    let reply = Unknown { cid: header.cid, incarnation: self.incarnation, port: self.local.port() };
                    let asked = Asked { meta, port: header.port, len: bytes.len() };
                    self.reply(now, Occasion::Stray, asked, |out| reply.encode(out));
                    return;
                };
                let (mut cx, peer) = split(self, now, index);
                if let State::Closing(closing) = &peer.state {
                    // [HS-19]
                    // News from the peer, not an echo of old times: it does not agree with our good-bye.
                    if closing.shutdown || closing.conn.has_received_from(header.pn) {
                        return;
                    }
                    peer.reopen(now);
                }
                if let State::Open { conn, .. } = &mut peer.state {
                    conn.handle_tracked(&mut cx, &header, frames, meta, &mut peer.outbox, upper);
                    if conn.sends(cx.inbound) {
                        self.senders.push(index);
                    }
                }
                self.make_ready(index);
                if self.inbound.has_emptied() {
                    self.tell_shares();
                }
                if self.inbound.has_doubled() {
                    self.tell_starts(now);
                }
            }
            Ok(Packet::Untracked { flags, cid, frames }) => {
                let Some(index) = self.find_from(cid, meta) else {
                    self.stats.rx_unknown += 1;
                    return;
                };
                let (mut cx, peer) = split(self, now, index);
                if let State::Open { conn, .. } = &mut peer.state {
                    conn.handle_untracked(&mut cx, flags, frames, meta, &mut peer.outbox, upper);
                }
                self.make_ready(index);
            }
            Ok(Packet::Init(init)) => self.handle_init(now, meta, &init, bytes.len(), upper),
            Ok(Packet::Retry(retry)) => self.handle_retry(now, &retry),
            Ok(Packet::Accept(accept)) => self.handle_accept(now, &accept, upper),
            Ok(Packet::Unknown(unknown)) => self.handle_unknown(now, meta, &unknown, upper),
            Ok(Packet::Close(close)) => self.handle_close(now, meta, &close, bytes.len(), upper),
            Ok(Packet::Closed(closed)) => self.handle_closed(now, meta, &closed, upper),
            // [SEC-6]
            Err(DecodeError::Checksum) => self.stats.rx_bad_checksum += 1,
            Err(_) => self.stats.rx_malformed += 1,
        }
    }

    /// The peer whose connection, open or being opened, has this id.
    // [HS-23]
    fn find(&self, cid: u64) -> Option<usize> {
        let index = (cid & ((1 << INDEX_BITS) - 1)) as usize;
        (self.peers.get(index)?.cid() == Some(cid)).then_some(index)
    }

    /// The same, if the packet comes from the peer's address.
    fn find_from(&self, cid: u64, meta: &RxMeta) -> Option<usize> {
        self.find(cid).filter(|&i| self.peers[i].addr.ip() == canonical(meta.from).ip())
    }

    // [HS-1]
    fn find_addr(&self, meta: &RxMeta, port: u16) -> Option<usize> {
        let addr = canonical(SocketAddr::new(meta.from.ip(), port));
        self.by_addr.get(&addr).copied()
    }

    #[cold]
    fn handle_init<U: Upper>(&mut self, now: Time, meta: &RxMeta, init: &Init, len: usize, upper: &mut U) {
        if self.draining {
            return;
        }
        let addr = canonical(main_addr(meta.from, init.port));
        let known = self.by_addr.get(&addr).copied();
        let mut salt = 0;
        if let Some(index) = known
            && let peer = &mut self.peers[index]
            && let Some(conn) = peer.conn()
        {
            if conn.remote.cid == init.hello.cid && conn.remote.incarnation == init.hello.incarnation {
                // [HS-7]
                // The ACCEPT was lost, or this is an echo: say it again.
                if let State::Open { accept, .. } = &mut peer.state {
                    *accept = true;
                    self.make_ready(index);
                }
                return;
            }
            // A cookie of before this connection must not end it.
            salt = conn.local.cid;
        }
        // [HS-4, SEC-1]
        if !self.cookies.check(now, addr, salt, init.cookie) {
            let retry = Retry { to: init.hello.cid, cookie: self.cookies.make(now, addr, salt) };
            if self.reply(now, Occasion::Opening, Asked { meta, port: init.port, len }, |out| retry.encode(out)) {
                self.inbound.knocked(now);
            }
            return;
        }
        // [HS-6]
        let Some(index) = known.or_else(|| self.add_peer(addr, FORGET_SEARCH)) else {
            self.stats.rx_refused += 1;
            return;
        };
        let id = self.peers[index].id;
        if !self.peers[index].held && self.new_peers.len() < MAX_EVENTS {
            self.new_peers.push_back(id);
        }
        let local = match &self.peers[index].state {
            // [HS-11]
            State::Opening(opening) => opening.local,
            _ => self.hello(now, index),
        };
        let rng = Xoshiro256PlusPlus::from_rng(&mut self.path_rng);
        let (mut cx, peer) = split(self, now, index);
        let event = match peer.conn().map(|conn| replaced(conn, &peer.outbox, init.hello.incarnation)) {
            Some(failure) => peer.end(&mut cx, failure, upper),
            None => None,
        };
        peer.from = meta.to;
        peer.established(&mut cx, local, init.hello, true, rng, upper);
        self.emit(event);
        self.emit(Some(Event::Connected(id)));
        self.make_ready(index);
    }

    #[cold]
    fn handle_retry(&mut self, now: Time, retry: &Retry) {
        let Some(index) = self.find(retry.to) else {
            self.stats.rx_unknown += 1;
            return;
        };
        self.peers[index].on_retry(now, retry.to, retry.cookie);
        self.make_ready(index);
    }

    // [HS-9]
    #[cold]
    fn handle_accept<U: Upper>(&mut self, now: Time, accept: &Accept, upper: &mut U) {
        let Some(index) = self.find(accept.to) else {
            self.stats.rx_unknown += 1;
            return;
        };
        let id = self.peers[index].id;
        let local = match &mut self.peers[index].state {
            State::Opening(opening) => opening.local,
            // Both sides opened at once.
            State::Open { conn, .. } if conn.remote.cid == accept.hello.cid => {
                conn.confirm();
                self.make_ready(index);
                return;
            }
            // We had answered an INIT of an attempt that the peer has given up; this answers ours.
            State::Open { conn, .. } if !conn.is_confirmed() => conn.local,
            _ => return,
        };
        let rng = Xoshiro256PlusPlus::from_rng(&mut self.path_rng);
        let (mut cx, peer) = split(self, now, index);
        let event = peer.end(&mut cx, None, upper);
        peer.established(&mut cx, local, accept.hello, false, rng, upper);
        self.emit(event);
        self.emit(Some(Event::Connected(id)));
        self.make_ready(index);
    }

    #[cold]
    fn handle_unknown<U: Upper>(&mut self, now: Time, meta: &RxMeta, unknown: &Unknown, upper: &mut U) {
        let Some(index) = self.find_addr(meta, unknown.port) else {
            self.stats.rx_unknown += 1;
            return;
        };
        let (mut cx, peer) = split(self, now, index);
        // [HS-14]
        // Only the peer and those on the path know the id, so this is no stranger's guess.
        let Some(conn) = peer.conn().filter(|conn| conn.remote.cid == unknown.cid) else {
            cx.stats.rx_unknown += 1;
            return;
        };
        let failure = replaced(conn, &peer.outbox, unknown.incarnation);
        let event = peer.end(&mut cx, failure, upper);
        self.emit(event);
        self.reopen_if_needed(now, index);
    }

    #[cold]
    fn handle_close<U: Upper>(&mut self, now: Time, meta: &RxMeta, close: &Close, len: usize, upper: &mut U) {
        let closed = Closed { cid: close.cid, port: self.local.port() };
        if let Some(index) = self.find(close.cid) {
            let (mut cx, peer) = split(self, now, index);
            let agreed = match &peer.state {
                // [HS-17]
                State::Open { .. } if close.shutdown => true,
                // [HS-16]
                // Something sent after this good-bye has arrived before it: the peer took it back.
                State::Open { conn, .. } => !conn.has_received_from(close.next_pn) && conn.is_quiet(&peer.outbox),
                State::Closing(closing) => close.shutdown || !closing.conn.has_received_from(close.next_pn),
                State::Opening(_) | State::Idle => return,
            };
            if !agreed {
                if let State::Open { conn, .. } = &mut peer.state {
                    // Its number is younger than the good-bye, so the other side takes that back.
                    conn.request_ping();
                    self.make_ready(index);
                }
                return;
            }
            if close.shutdown {
                upper.closed(peer.id);
            }
            // Nothing of ours is lost when an idle connection closes.
            let failure = (close.shutdown && peer.outbox.live() > 0).then_some(Failure::PeerClosed);
            let event = peer.end(&mut cx, failure, upper);
            self.emit(event);
            self.reopen_if_needed(now, index);
        }
        // [HS-18]
        self.reply(now, Occasion::Stray, Asked { meta, port: close.port, len }, |out| closed.encode(out));
    }

    // [HS-20]
    #[cold]
    fn handle_closed<U: Upper>(&mut self, now: Time, meta: &RxMeta, closed: &Closed, upper: &mut U) {
        if let Some(index) = self.find_addr(meta, closed.port)
            && let State::Closing(closing) = &self.peers[index].state
            && closing.conn.remote.cid == closed.cid
        {
            let (mut cx, peer) = split(self, now, index);
            let event = peer.end(&mut cx, None, upper);
            self.emit(event);
            self.reopen_if_needed(now, index);
        }
    }

    /// Messages that were queued while the old connection ended want a new one.
    fn reopen_if_needed(&mut self, now: Time, index: usize) {
        if matches!(self.peers[index].state, State::Idle) && self.peers[index].outbox.live() > 0 {
            self.open(now, index);
        }
        self.make_ready(index);
    }

    /// Queues an answer without state; says whether it may be given.
    #[cold]
    fn reply(&mut self, now: Time, occasion: Occasion, asked: Asked<'_>, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let given = self.replies.push(now, occasion, asked, encode);
        self.stats.rx_refused += u64::from(!given);
        given
    }

    fn emit(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    /// Time passed. Call it when [`poll_timeout`](Self::poll_timeout) is due, after everything that has arrived was
    /// handed in; calling it early or often is harmless.
    pub fn handle_timeout<U: Upper>(&mut self, now: Time, upper: &mut U) {
        self.notice_stall(now);
        if let Some(due) = self.timers.next().filter(|&due| due < now) {
            self.watch.woke(now, due);
        }
        while let Some(index) = self.timers.pop(now) {
            let draining = self.draining;
            let (mut cx, peer) = split(self, now, index as usize);
            let event = peer.on_timer(&mut cx, draining, upper);
            self.emit(event);
            self.reopen_if_needed(now, index as usize);
        }
    }

    /// Has to come before anything takes the time by [`Cx::awake`].
    fn notice_stall(&mut self, now: Time) {
        if let Some(due) = self.timers.next()
            && due < now
            && self.watch.notice(now, due, &self.config)
        {
            self.stats.stalls += 1;
        }
    }

    /// See [`Cx::awake`].
    fn awake(&mut self, now: Time) -> Time {
        self.notice_stall(now);
        now - self.watch.lost
    }

    // ---- what we want done

    fn make_ready(&mut self, slot: usize) {
        self.ready.push(slot);
    }

    /// Tells all that send of their share.
    // [CC-6]
    #[cold]
    fn tell_shares(&mut self) {
        for _ in 0..self.senders.len() {
            let Some(slot) = self.senders.pop() else { return };
            if let State::Open { conn, .. } = &mut self.peers[slot].state
                && conn.tell_share(&self.inbound)
            {
                self.senders.push(slot);
                self.make_ready(slot);
            }
        }
    }

    /// Tells all that have had advice with what rate to begin.
    // [CC-7]
    #[cold]
    fn tell_starts(&mut self, now: Time) {
        for slot in 0..self.peers.len() {
            let (cx, peer) = split(self, now, slot);
            if let State::Open { conn, .. } = &mut peer.state
                && conn.tell_start(&cx)
            {
                self.make_ready(slot);
            }
        }
    }

    /// Adds datagrams to `batch`, at most about one segmentation-offload call's worth and an answer to a stranger, and says
    /// whether it added any.
    pub fn poll_transmit<U: Upper>(&mut self, now: Time, upper: &mut U, batch: &mut TxBatch) -> bool {
        // Beside what a connection sends, never in its place: strangers may ask without an end.
        let answered = !self.replies.is_empty() && self.transmit_reply(batch);
        while let Some(slot) = self.whose_turn(now) {
            let source = self.any_source();
            let mut scratch = std::mem::take(&mut self.scratch);
            let (port, draining) = (self.local.port(), self.draining);
            let (mut cx, peer) = split(self, now, slot);
            let sent = peer.transmit(&mut cx, port, source, upper, batch, &mut scratch);
            let deadline = if sent { Time::NEVER } else { peer.deadline(&cx, draining) };
            if !sent && peer.waits_for_link(&cx) {
                cx.line.wait(slot);
            }
            self.scratch = scratch;
            if !self.gone.is_empty() {
                self.fail_gone(slot, upper, batch);
                continue;
            }
            if sent {
                // Others first, then it may have more.
                self.make_ready(slot);
                return true;
            }
            if deadline != Time::NEVER {
                self.timers.set(slot as u32, deadline, now);
            }
        }
        answered
    }

    #[cold]
    fn transmit_reply(&mut self, batch: &mut TxBatch) -> bool {
        let Some(reply) = self.replies.pop() else { return false };
        let source = self.any_source();
        write_control(reply.to, reply.from, source, &reply.bytes, batch);
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += reply.bytes.len() as u64;
        true
    }

    /// Ends the messages to a peer whose memory turned out to be gone. The burst that was written may speak of it, too: it
    /// counts as lost on its way.
    #[cold]
    fn fail_gone<U: Upper>(&mut self, slot: usize, upper: &mut U, batch: &mut TxBatch) {
        batch.drop_burst();
        let mut gone = std::mem::take(&mut self.gone);
        // Pieces of one message may have come one by one.
        gone.sort_unstable();
        gone.dedup();
        self.withdraw(self.peers[slot].id, |token| gone.contains(&token));
        gone.drain(..).for_each(|token| upper.completed(token, Err(Failure::MemoryGone)));
        self.gone = gone;
    }

    /// The peer to look at next: one that waited for our link, if that is free, else one that may have something to send.
    fn whose_turn(&mut self, now: Time) -> Option<usize> {
        self.line.take(now).or_else(|| self.ready.pop())
    }

    fn any_source(&mut self) -> SourcePort {
        SourcePort(self.path_rng.random_range(0..self.config.path_pool))
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) next has something to do
    /// without any input. O(1).
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.ready.is_empty() || !self.replies.is_empty() {
            return Some(Time::ZERO);
        }
        [self.timers.next(), self.line.next()].into_iter().flatten().min()
    }

    /// What happened to peers since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// The peer has a new connection, or has forgotten this one: what becomes of messages. A peer that started again gets none
/// that was meant for its predecessor, whether begun or not, if that was ever heard in the connection. Otherwise they wait for
/// the next connection, unless one is in progress.
// [HS-15]
fn replaced(conn: &Conn, outbox: &Outbox, incarnation: u64) -> Option<Failure> {
    if conn.is_confirmed() && conn.remote.incarnation != incarnation {
        return Some(Failure::PeerRestarted);
    }
    outbox.in_progress().then_some(Failure::Unresponsive)
}

/// The context of a call, and the peer that it concerns.
fn split(endpoint: &mut Endpoint, now: Time, index: usize) -> (Cx<'_>, &mut Peer) {
    endpoint.notice_stall(now);
    let Endpoint { config, stats, inbound, line, gone, watch, peers, .. } = endpoint;
    let granularity = watch.granularity(config);
    (
        Cx { now, config, stats, inbound, line, gone, granularity, stall_end: watch.stall_end, lost: watch.lost },
        &mut peers[index],
    )
}

/// The same peer always has the same address: without flow label, and with a scope only where it means something.
fn canonical(mut addr: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_flowinfo(0);
        if !v6.ip().is_unicast_link_local() {
            v6.set_scope_id(0);
        }
    }
    addr
}
