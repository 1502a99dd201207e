//! How connections come and go: what the packets do that open and end them, and the answers to packets of none
//! (`docs/protocol.md` section 4).

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Endpoint, Event, FORGET_SEARCH, INDEX_BITS, MAX_EVENTS, canonical, split};
use crate::config::Checksum;
use crate::conn::Conn;
use crate::driver::RxMeta;
use crate::outbox::Outbox;
use crate::peer::State;
use crate::replies::{Asked, Occasion, main_addr};
use crate::seq::Seq;
use crate::time::Time;
use crate::upper::{Failure, Upper};
use crate::wire::{Accept, Close, Closed, Hello, Init, Retry, Unknown, features};

impl Endpoint {
    /// Asks for a connection with a peer.
    #[cold]
    pub(super) fn open(&mut self, now: Time, slot: usize) {
        let (awake, hello) = (self.awake(now), self.hello(now, slot));
        self.peers[slot].open(now, awake, hello);
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

    #[cold]
    pub(super) fn handle_init<U: Upper>(&mut self, now: Time, meta: &RxMeta, init: &Init, len: usize, upper: &mut U) {
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
    pub(super) fn handle_retry(&mut self, now: Time, retry: &Retry) {
        let Some(index) = self.find(retry.to) else {
            self.stats.rx_unknown += 1;
            return;
        };
        self.peers[index].on_retry(now, retry.to, retry.cookie);
        self.make_ready(index);
    }

    // [HS-9]
    #[cold]
    pub(super) fn handle_accept<U: Upper>(&mut self, now: Time, accept: &Accept, upper: &mut U) {
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
    pub(super) fn handle_unknown<U: Upper>(&mut self, now: Time, meta: &RxMeta, unknown: &Unknown, upper: &mut U) {
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
    pub(super) fn handle_close<U: Upper>(
        &mut self,
        now: Time,
        meta: &RxMeta,
        close: &Close,
        len: usize,
        upper: &mut U,
    ) {
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
    pub(super) fn handle_closed<U: Upper>(&mut self, now: Time, meta: &RxMeta, closed: &Closed, upper: &mut U) {
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
    pub(super) fn reopen_if_needed(&mut self, now: Time, index: usize) {
        if matches!(self.peers[index].state, State::Idle) && self.peers[index].outbox.live() > 0 {
            self.open(now, index);
        }
        self.make_ready(index);
    }

    /// Queues an answer without state; says whether it may be given.
    #[cold]
    pub(super) fn reply(
        &mut self,
        now: Time,
        occasion: Occasion,
        asked: Asked<'_>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let given = self.replies.push(now, occasion, asked, encode);
        self.stats.rx_refused += u64::from(!given);
        given
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
