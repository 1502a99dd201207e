//! The endpoint: all connections of one card, or of one of its processing units.

use std::net::SocketAddr;

use crate::config::CheckedConfig;
use crate::driver::{RxMeta, TxBatch};
use crate::stats::{PeerStats, Stats};
use crate::time::Time;
use crate::upper::{Token, Upper};

/// A peer of an endpoint. Stays valid as long as the endpoint; connections to the peer come and go underneath.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

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
    /// Length of its header, 0..=[`MAX_HEADER`](crate::MAX_HEADER) bytes.
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
    /// The message is longer than `max_message`, or its header longer than [`MAX_HEADER`](crate::MAX_HEADER).
    #[error("message of {len} bytes, at most {max} are permitted")]
    TooLong {
        /// Its length.
        len: u32,
        /// The limit.
        max: u32,
    },
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
#[derive(Debug)]
pub struct Endpoint {
    config: CheckedConfig,
}

#[expect(unused_variables, clippy::todo, reason = "skeleton")]
impl Endpoint {
    /// An endpoint that peers reach at `local` (its main port; an unspecified IP is fine). All its chance comes from
    /// `seed`; two endpoints must never be given the same one.
    pub fn new(config: CheckedConfig, local: SocketAddr, seed: [u8; 32], now: Time) -> Endpoint {
        Endpoint { config }
    }

    /// The handle of the peer whose main address is `addr`, made if there is none. `max_datagram` is what the driver says
    /// of the first hop to it. `None` if the table of peers is full of peers in use.
    pub fn peer(&mut self, addr: SocketAddr, max_datagram: u16) -> Option<PeerId> {
        todo!()
    }

    /// The address of a peer.
    pub fn peer_addr(&self, peer: PeerId) -> SocketAddr {
        todo!()
    }

    /// Queues a message. Its outcome comes by [`Upper::completed`].
    ///
    /// # Errors
    /// The message was not accepted and will not complete.
    pub fn send(&mut self, now: Time, peer: PeerId, msg: Outbound) -> Result<(), SendError> {
        todo!()
    }

    /// A datagram arrived.
    pub fn handle_datagram<U: Upper>(&mut self, now: Time, meta: &RxMeta, bytes: &[u8], upper: &mut U) {
        todo!()
    }

    /// Time passed. Call it when [`poll_timeout`](Self::poll_timeout) is due, after everything that has arrived was
    /// handed in; calling it early or often is harmless.
    pub fn handle_timeout<U: Upper>(&mut self, now: Time, upper: &mut U) {
        todo!()
    }

    /// Adds datagrams to `batch`, at most about one segmentation-offload call's worth, and says whether it added any.
    pub fn poll_transmit<U: Upper>(&mut self, now: Time, upper: &U, batch: &mut TxBatch) -> bool {
        todo!()
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) next has something to do
    /// without any input. O(1).
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }

    /// What happened to peers since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// Stops accepting messages, delivers those that are queued, then says good-bye to all peers. Done when
    /// [`is_closed`](Self::is_closed).
    pub fn close(&mut self, now: Time) {
        todo!()
    }

    /// Gives up at once: messages fail with `Closed`, one good-bye packet per peer is queued.
    pub fn abort<U: Upper>(&mut self, now: Time, upper: &mut U) {
        todo!()
    }

    /// Whether a close has run to its end.
    pub fn is_closed(&self) -> bool {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        todo!()
    }

    /// A snapshot of a peer; default values if there is no connection.
    pub fn peer_stats(&self, peer: PeerId) -> PeerStats {
        todo!()
    }

    /// Every peer with a connection.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        std::iter::empty()
    }
}
