//! What the transport asks of the storey above it.
//!
//! The transport moves bytes between two memories that it does not own. The upper storey (queue pairs, or the simple
//! [`Mailbox`](crate::Mailbox)) names its messages and its places by tokens, hands out bytes to send and takes bytes in.
//! So payload goes straight to where it belongs: the transport keeps no copy of it in either direction.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use crate::endpoint::PeerId;

/// The upper storey's name for a message that it sends. Returned with the completion, then free for reuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// The upper storey's name for a place that it gave to an incoming message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PlaceToken(pub u64);

/// Longest header that the upper storey may put before a message's payload, in bytes.
pub const MAX_HEADER: usize = 64;

/// The upper storey's answer to the first packet of an incoming message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Put the payload there.
    Accept(PlaceToken),
    /// No receive buffer now: the sender backs off and tries again (RNR).
    NotReady,
    /// Never: the sender's message completes with [`Failure::Refused`] and this status.
    Refuse(u8),
}

/// Why a message did not complete. A message that failed with anything but `Refused`, `NotReady` or `Unreachable` may or
/// may not have been delivered; it is never delivered after its failure was reported *and* the peer was heard again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The peer never answered the handshake within the peer timeout.
    #[error("peer never answered (is it running, is the UDP port open?)")]
    Unreachable,
    /// The peer answered before, and then not for the peer timeout.
    #[error("peer stopped answering")]
    Unresponsive,
    /// The peer runs again under a new incarnation and has forgotten what was outstanding.
    #[error("peer restarted and forgot its connections")]
    PeerRestarted,
    /// The message is longer than the peer accepts.
    #[error("message longer than the {max} bytes that the peer accepts")]
    TooLong {
        /// The peer's limit in bytes.
        max: u32,
    },
    /// The peer closed its endpoint.
    #[error("peer closed its endpoint")]
    PeerClosed,
    /// The receiver had no buffer in all permitted attempts.
    #[error("receiver not ready: no buffer posted in all permitted attempts")]
    NotReady,
    /// The receiver's upper storey refused the message with this status.
    #[error("receiver refused the message with status {0}")]
    Refused(u8),
    /// This endpoint was closed before the message was delivered.
    #[error("endpoint closed before delivery")]
    Closed,
    /// The payload was to be sent again, and its memory is gone: see [`Recall::Gone`].
    #[error("memory of the message is gone")]
    MemoryGone,
}

/// Bytes that are to be sent, addressed by token and offset. Drivers gather payload through it when they hand a batch to
/// the kernel; the core does so to copy small messages and to compute checksums.
pub trait Gather {
    /// Up to `len` bytes of the payload of message `token`, from `offset`. May return fewer (scattered memory; the caller
    /// asks again for the rest) but never none while `offset < message length`. The bytes must not change before the
    /// message completes.
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8];
}

/// Calls `f` with the payload from `offset` on, `len` bytes in as many pieces as its memory has.
pub(crate) fn gather<'m>(
    mem: &'m (impl Gather + ?Sized),
    token: Token,
    mut offset: u32,
    len: u32,
    mut f: impl FnMut(&'m [u8]),
) {
    let mut left = len as usize;
    while left > 0 {
        let slice = mem.payload(token, offset, left);
        assert!(!slice.is_empty() && slice.len() <= left, "Gather::payload returned {} of {left}", slice.len());
        f(slice);
        offset += slice.len() as u32;
        left -= slice.len();
    }
}

/// What is left of payload that was sent before, see [`Upper::recall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recall {
    /// It is where it was: [`Gather`] gives it.
    Kept,
    /// It was copied.
    Copied,
    /// Its memory is gone: the message fails with [`Failure::MemoryGone`].
    Gone,
}

/// The storey above the transport. All methods are called from within [`Endpoint`](crate::Endpoint) methods, on the
/// caller's thread.
pub trait Upper: Gather {
    /// The header that travels with the message (exactly the length that was announced when it was sent, at most
    /// [`MAX_HEADER`]). It comes back to the peer's [`Upper::place`].
    fn header(&self, token: Token) -> &[u8];

    /// `len` bytes of a message from `offset` on are to be sent again. Where the peer may have used them and said so by other
    /// ways than an acknowledgement, so that their owner may have given the memory up, they are copied to the end of `into`,
    /// or are [`Recall::Gone`].
    fn recall(&self, _token: Token, _offset: u32, _len: u32, _into: &mut Vec<u8>) -> Recall {
        Recall::Kept
    }

    /// What a message waits for that the receiver was not ready for, and that is to be tried for ever: of those to one peer
    /// that wait for the same, one tries for all, and the others follow when it was taken. `None`: it tries for itself.
    fn waits_for(&self, _token: Token) -> Option<NonZeroU16> {
        None
    }

    /// The message is placed at the receiver, or failed. The token is free after this call.
    fn completed(&mut self, token: Token, outcome: Result<(), Failure>);

    /// The first packet of a message of `len` bytes arrived from `peer`. Called once per message that is accepted or
    /// refused; again for each new attempt after [`Placement::NotReady`].
    fn place(&mut self, peer: PeerId, header: &[u8], len: u32) -> Placement;

    /// Payload for an accepted message. Ranges come in any order; a range may come twice with the same bytes. Never
    /// outside `0..len`.
    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]);

    /// Every byte of the message has been written: deliver it. The token is free after this call.
    fn placed(&mut self, place: PlaceToken);

    /// The rest of the message will never come (its connection ended, its sender withdrew it, or the place was
    /// [revoked](Self::revoked)). The token is free after this call.
    fn abandoned(&mut self, place: PlaceToken);

    /// Whether this storey took back the place of a message that is half here (the memory is gone), and with which status
    /// the rest of the message is refused. Asked before each further piece is written.
    fn revoked(&self, _place: PlaceToken) -> Option<u8> {
        None
    }

    /// A connection with `peer` was established; `addr` is the main address that it was reached at or proved to own, `tag`
    /// what its upper storey says of itself (see [`Endpoint::set_tag`](crate::Endpoint::set_tag)).
    fn connected(&mut self, _peer: PeerId, _addr: SocketAddr, _tag: u8) {}

    /// The peer closed its endpoint: nobody is at its address until somebody [connects](Self::connected) from there. What is
    /// under way ends after this call.
    fn closed(&mut self, _peer: PeerId) {}

    /// The connection with `peer` is over, after messages that were in it have completed. `why` is `None` if it ended by
    /// agreement, or if nothing of ours was in it and the peer is the same as before: what this storey expects to come over
    /// it will not come.
    fn ended(&mut self, _peer: PeerId, _why: Option<Failure>) {}
}
