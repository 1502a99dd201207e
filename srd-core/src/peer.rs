//! A peer: opening, keeping and closing the connection to it (`docs/protocol.md` section 4).
//!
//! Owns the messages for the peer and the state of the connection; the endpoint decides which packets reach it. What it
//! guarantees: no connection before the peer has shown that it receives at its address; messages outstanding in a
//! connection that ended otherwise than by agreement fail, and with them those that waited; where none were outstanding, the
//! others wait for the next connection, but a peer that started again gets none that waited for its predecessor.

use std::net::{IpAddr, SocketAddr};

use rand_xoshiro::Xoshiro256PlusPlus;

use crate::batch::TxBatch;
use crate::conn::{Conn, Cx, Route};
use crate::driver::SourcePort;
use crate::endpoint::{Event, PeerId};
use crate::outbox::Outbox;
use crate::time::{Span, Time};
use crate::upper::{Failure, Token, Upper};
use crate::wire::{Accept, Close, Hello, Init, Sink, features};

/// Attempts to say good-bye for ever.
const CLOSE_ATTEMPTS: u32 = 5;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) addr: SocketAddr,
    /// Our address that it knows, where we have several.
    pub(crate) from: Option<IpAddr>,
    /// Largest datagram on the first hop.
    pub(crate) link_datagram: u16,
    /// Bytes in flight at the start of a connection.
    first_window: u32,
    /// The application asked for it, and may hold its id.
    pub(crate) held: bool,
    pub(crate) outbox: Outbox,
    /// The incarnation that the messages in the outbox are meant for, if they waited while a connection with it ended.
    meant_for: Option<u64>,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    /// No connection.
    Idle,
    /// We asked for one.
    Opening(Opening),
    /// There is one.
    Open {
        conn: Box<Conn>,
        /// An ACCEPT should go out.
        accept: bool,
        /// Since when, by [`Cx::awake`].
        since: Time,
    },
    /// We said good-bye.
    Closing(Closing),
}

#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) local: Hello,
    pub(crate) cookie: u64,
    next_at: Time,
    attempts: u32,
    since: Time,
}

#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) conn: Box<Conn>,
    since: Time,
    next_at: Time,
    attempts: u32,
    pub(crate) shutdown: bool,
}

impl Closing {
    /// When to forget the connection without an answer: a farewell soon, since nothing more comes of it; an idle
    /// connection only as late as a dead peer, since the other side may be sending and just not get through.
    fn patience(&self, cx: &Cx<'_>) -> Time {
        if self.shutdown && self.attempts >= CLOSE_ATTEMPTS {
            self.next_at
        } else {
            self.since + cx.lost + cx.config.peer_timeout
        }
    }
}

impl Peer {
    pub(crate) fn new(id: PeerId, addr: SocketAddr, link_datagram: u16, first_window: u32) -> Peer {
        let (outbox, state) = (Outbox::new(), State::Idle);
        Peer { id, addr, from: None, link_datagram, first_window, held: false, outbox, meant_for: None, state }
    }

    /// The first hop carries datagrams of at most so many bytes.
    pub(crate) fn set_link_datagram(&mut self, max: u16) {
        self.link_datagram = max;
        match &mut self.state {
            State::Open { conn, .. } => conn.limit_datagram(max),
            State::Closing(closing) => closing.conn.limit_datagram(max),
            State::Opening(_) | State::Idle => {}
        }
    }

    /// The connection, if there is one.
    pub(crate) fn conn(&self) -> Option<&Conn> {
        match &self.state {
            State::Open { conn, .. } => Some(conn),
            State::Closing(closing) => Some(&closing.conn),
            _ => None,
        }
    }

    /// The id that packets for this peer's connection carry.
    pub(crate) fn cid(&self) -> Option<u64> {
        match &self.state {
            State::Opening(opening) => Some(opening.local.cid),
            _ => self.conn().map(|c| c.local.cid),
        }
    }

    /// Whether anything is under way.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.outbox.live() == 0
    }

    /// Asks for a connection; `awake` is [`Cx::awake`].
    pub(crate) fn open(&mut self, now: Time, awake: Time, local: Hello) {
        self.state = State::Opening(Opening { local, cookie: 0, next_at: now, attempts: 0, since: awake });
    }

    /// Both sides know each other.
    pub(crate) fn established<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        local: Hello,
        remote: Hello,
        accept: bool,
        rng: Xoshiro256PlusPlus,
        upper: &mut U,
    ) {
        // [HS-15]
        if self.meant_for.is_some_and(|incarnation| incarnation != remote.incarnation) {
            self.fail_all(cx, Failure::PeerRestarted, upper);
        }
        self.outbox.start_ids(local.first_message, remote.message_window, remote.max_partials);
        // [REL-12]
        self.outbox.fail_longer_than(remote.max_message, |token| {
            cx.stats.messages_failed += 1;
            upper.completed(token, Err(Failure::TooLong { max: remote.max_message }));
        });
        let conn = Conn::new(cx, self.id, local, remote, self.link_datagram, self.first_window, rng);
        let mut conn = Box::new(conn);
        if accept {
            conn.admit(cx);
        } else {
            // [HS-10]
            conn.confirm();
        }
        // Someone must speak first: whoever has nothing to send shows that it knows the other's id, and whoever may not
        // send yet asks whether the other does.
        if accept == self.outbox.is_waiting() {
            conn.request_ping();
        }
        self.state = State::Open { conn, accept, since: cx.awake() };
        cx.stats.connections_opened += 1;
        upper.connected(self.id, self.addr, (remote.features >> features::TAG) as u8);
    }

    /// The connection is over. Messages that were in it fail, unless it ended by agreement (`failure` is `None`); nothing
    /// is in progress then.
    pub(crate) fn end<U: Upper>(&mut self, cx: &mut Cx<'_>, failure: Option<Failure>, upper: &mut U) -> Option<Event> {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let conn = match state {
            State::Open { conn, .. } | State::Closing(Closing { conn, .. }) => Some(conn),
            State::Opening(_) | State::Idle => None,
        };
        let had_conn = conn.is_some();
        if let Some(mut conn) = conn {
            conn.abandon(cx, upper);
            if conn.is_confirmed() {
                self.meant_for = Some(conn.remote.incarnation);
            }
        }
        self.forget_whom_nothing_is_meant_for();
        // [REL-13]
        let Some(failure) = failure else {
            if had_conn {
                upper.ended(self.id, None);
            }
            return None;
        };
        if had_conn {
            cx.stats.connections_failed += 1;
        }
        let failed = self.fail_all(cx, failure, upper);
        if had_conn {
            upper.ended(self.id, Some(failure));
        }
        (had_conn || failed > 0).then_some(Event::Disconnected(self.id, failure))
    }

    /// Fails all messages; says how many.
    fn fail_all<U: Upper>(&mut self, cx: &mut Cx<'_>, failure: Failure, upper: &mut U) -> u32 {
        let failed = self.outbox.live();
        cx.stats.messages_failed += u64::from(failed);
        self.outbox.fail_all(failure, |token, why| upper.completed(token, Err(why)));
        self.meant_for = None;
        failed
    }

    /// Takes messages back, see [`Endpoint::withdraw`](crate::Endpoint::withdraw).
    pub(crate) fn withdraw(&mut self, which: impl FnMut(Token) -> bool) -> u32 {
        let withdrawn = self.outbox.withdraw(which);
        self.forget_whom_nothing_is_meant_for();
        withdrawn
    }

    fn forget_whom_nothing_is_meant_for(&mut self) {
        if self.outbox.live() == 0 {
            self.meant_for = None;
        }
    }

    /// Starts to say good-bye.
    pub(crate) fn close(&mut self, now: Time, awake: Time, shutdown: bool) {
        self.state = match std::mem::replace(&mut self.state, State::Idle) {
            State::Open { conn, .. } => {
                State::Closing(Closing { conn, since: awake, next_at: now, attempts: 0, shutdown })
            }
            State::Closing(closing) => {
                let shutdown = shutdown || closing.shutdown;
                State::Closing(Closing { shutdown, next_at: now, ..closing })
            }
            State::Opening(_) | State::Idle => State::Idle,
        };
    }

    /// The peer has something for us after all: take the good-bye back.
    pub(crate) fn reopen(&mut self, now: Time) {
        self.state = match std::mem::replace(&mut self.state, State::Idle) {
            State::Closing(mut closing) => {
                closing.conn.reopen(now);
                State::Open { conn: closing.conn, accept: false, since: now }
            }
            other => other,
        };
    }

    /// When [`on_timer`](Self::on_timer) or [`transmit`](Self::transmit) next has something to do without any input.
    pub(crate) fn deadline(&self, cx: &Cx<'_>, draining: bool) -> Time {
        match &self.state {
            State::Idle => Time::NEVER,
            State::Opening(opening) => opening.next_at.min(opening.since + cx.lost + cx.config.peer_timeout),
            State::Open { accept: true, .. } => cx.now,
            State::Open { conn, since, .. } => {
                let timeout = cx.config.peer_timeout;
                let mut at = conn.deadline(cx, &self.outbox).min(conn.silent_at(cx, timeout));
                if !conn.is_confirmed() {
                    if self.outbox.live() == 0 {
                        at = at.min(*since + cx.lost + timeout);
                    }
                } else if draining && conn.is_done(&self.outbox) {
                    at = cx.now;
                } else {
                    at = at.min(conn.keepalive_at(cx));
                    if conn.is_quiet(&self.outbox) {
                        at = at.min(conn.last_used + cx.config.idle_timeout);
                    }
                }
                at
            }
            State::Closing(closing) => closing.next_at.min(closing.patience(cx)),
        }
    }

    /// Runs what is due. `draining`: the endpoint is closing.
    pub(crate) fn on_timer<U: Upper>(&mut self, cx: &mut Cx<'_>, draining: bool, upper: &mut U) -> Option<Event> {
        let timeout = cx.config.peer_timeout;
        let verdict = match &mut self.state {
            State::Idle => None,
            State::Opening(opening) => {
                (cx.awake().since(opening.since) >= timeout).then_some(Some(Failure::Unreachable))
            }
            State::Open { conn, since, .. } => {
                conn.on_timer(cx, &mut self.outbox);
                let confirmed = conn.is_confirmed();
                // Messages that wait ask whether the peer knows the connection, and it has as long to answer as ever.
                let forgotten = !confirmed && self.outbox.live() == 0 && cx.awake().since(*since) >= timeout;
                // [HS-21]
                if forgotten || conn.silence(cx) >= timeout {
                    Some(Some(if confirmed { Failure::Unresponsive } else { Failure::Unreachable }))
                } else {
                    if confirmed && conn.keepalive_at(cx) <= cx.now {
                        conn.keep_alive(cx);
                    }
                    let idle = conn.is_quiet(&self.outbox) && conn.last_used + cx.config.idle_timeout <= cx.now;
                    if confirmed && (idle || draining && conn.is_done(&self.outbox)) {
                        self.close(cx.now, cx.awake(), draining);
                    }
                    None
                }
            }
            State::Closing(closing) => (closing.patience(cx) <= cx.now).then_some(None),
        };
        match verdict {
            Some(failure) => self.end(cx, failure, upper),
            None => None,
        }
    }

    /// Whether data would leave now if our link were free.
    pub(crate) fn waits_for_link(&self, cx: &Cx<'_>) -> bool {
        matches!(&self.state, State::Open { conn, .. } if conn.waits_for_link(cx, &self.outbox))
    }

    /// Adds one burst to the batch. Says whether there was any.
    pub(crate) fn transmit<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        port: u16,
        source: SourcePort,
        upper: &U,
        batch: &mut TxBatch,
        scratch: &mut Vec<u8>,
    ) -> bool {
        match &mut self.state {
            State::Idle => return false,
            State::Opening(opening) => {
                if opening.next_at > cx.now {
                    return false;
                }
                Init { port, cookie: opening.cookie, hello: opening.local }.encode(scratch);
                // [HS-12]
                opening.next_at = cx.now + retry_pause(cx, opening.attempts);
                opening.attempts += 1;
            }
            State::Open { conn, accept, .. } => {
                if !*accept {
                    let route = Route { to: self.addr, from: self.from, port };
                    return conn.transmit(cx, route, &mut self.outbox, upper, batch);
                }
                *accept = false;
                Accept { to: conn.remote.cid, hello: conn.local }.encode(scratch);
            }
            State::Closing(closing) => {
                if closing.next_at > cx.now || closing.patience(cx) <= cx.now {
                    return false;
                }
                let Closing { conn, shutdown, attempts, .. } = closing;
                Close { cid: conn.remote.cid, next_pn: conn.next_pn(), shutdown: *shutdown, port }.encode(scratch);
                closing.next_at = cx.now + retry_pause(cx, *attempts).max(conn.srtt() * 2);
                closing.attempts += 1;
            }
        }
        write_control(self.addr, self.from, source, scratch, batch);
        cx.stats.tx_packets += 1;
        cx.stats.tx_bytes += scratch.len() as u64;
        true
    }

    /// A RETRY arrived for our attempt: try again with the cookie, at once if it is news.
    // [HS-8]
    pub(crate) fn on_retry(&mut self, now: Time, to: u64, cookie: u64) {
        if let State::Opening(opening) = &mut self.state
            && opening.local.cid == to
            && opening.cookie != cookie
        {
            opening.cookie = cookie;
            opening.next_at = now;
        }
    }
}

/// Writes a control packet as a burst of one.
pub(crate) fn write_control(
    to: SocketAddr,
    from: Option<IpAddr>,
    source: SourcePort,
    bytes: &[u8],
    batch: &mut TxBatch,
) {
    batch.begin_burst(to, from, source);
    batch.begin_packet();
    batch.put(bytes);
    batch.end_packet();
}

fn retry_pause(cx: &Cx<'_>, attempts: u32) -> Span {
    let first = (cx.config.initial_rtt * 2).max(cx.granularity).max(cx.config.rto_min);
    (first * (1 << attempts.min(16))).min(cx.config.rto_max.max(first))
}
