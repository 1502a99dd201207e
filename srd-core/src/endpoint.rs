//! The endpoint: all connections of one card, or of one of its processing units.
//!
//! Finds the connection that a packet belongs to, answers what belongs to none without keeping state, and schedules who is
//! looked at next: peers that may send wait in a queue, all others behind one deadline each.

mod handshake;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::batch::TxBatch;
use crate::config::{CheckedConfig, MIN_DATAGRAM};
use crate::conn::{Conn, Cx};
use crate::cookie::{Cookies, KeyedHash, Secrets};
use crate::driver::{RxMeta, SourcePort};
use crate::inbound::Inbound;
use crate::line::Line;
use crate::once::OnceQueue;
use crate::peer::{Peer, State, write_control};
use crate::replies::{Asked, Occasion, Replies};
use crate::stall::StallWatch;
use crate::stats::{PeerStats, Stats};
use crate::time::Time;
use crate::timers::Timers;
use crate::upper::{Failure, MAX_HEADER, Token, Upper};
use crate::wire::{DecodeError, Packet, Unknown, decode_packet};

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
    /// What it belongs to: messages of different flows to a peer take turns of about 64 KB, so that none waits for all that
    /// another has queued. The numbers mean nothing else; flows that are the same modulo 32 share their turns.
    pub flow: u8,
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
    by_addr: HashMap<SocketAddr, usize, KeyedHash>,
    /// Peers that came by themselves, whose first hop nobody has measured.
    new_peers: VecDeque<PeerId>,
    /// Where the search for a peer to forget goes on.
    forget_at: usize,
    /// Peers that may have something to send.
    ready: OnceQueue,
    /// Peers that send to us, and some that did.
    senders: OnceQueue,
    /// Peers that have had advice on the rate with which to begin, and some that are gone.
    met: OnceQueue,
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
        // [HS-3, SEC-5]
        let incarnation = secrets.draw();
        let table_key = [secrets.draw(), secrets.draw()];
        Endpoint {
            incarnation,
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
            by_addr: HashMap::with_hasher(KeyedHash::new(table_key)),
            ready: OnceQueue::default(),
            senders: OnceQueue::default(),
            met: OnceQueue::default(),
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

    /// Bytes of UDP payload that a datagram to a peer may have as far as is known now; 0 if it has been forgotten.
    pub fn datagram(&self, peer: PeerId) -> u16 {
        let of = |p: &Peer| p.conn().map_or(p.link_datagram, Conn::datagram);
        self.get(peer).map_or(0, of).min(self.config.max_datagram)
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
                    if closing.conn.must_have_checksum(header.flags) {
                        cx.stats.rx_bad_checksum += 1;
                        return;
                    }
                    peer.reopen(now);
                }
                if let State::Open { conn, .. } = &mut peer.state {
                    let is_new = !conn.has_met();
                    conn.handle_tracked(&mut cx, &header, frames, meta, &mut peer.outbox, upper);
                    let (sends, met) = (conn.sends(cx.inbound), is_new && conn.has_met());
                    if sends {
                        self.senders.push(index);
                    }
                    if met {
                        self.met.push(index);
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
        // Not all of the table: who opens and closes a few connections over and over would have us walk over it each time.
        for _ in 0..self.met.len() {
            let Some(slot) = self.met.pop() else { return };
            let (cx, peer) = split(self, now, slot);
            if let State::Open { conn, .. } = &mut peer.state
                && conn.tell_start(&cx)
            {
                self.met.push(slot);
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
