//! The wire format: encode and decode side by side, specified in `docs/protocol.md`.
//!
//! Decoding is total: any bytes give a value or a [`DecodeError`], never a panic, and what was accepted encodes to the same
//! bytes again. All integers are big-endian. Nothing here knows connections or time.

mod dissect;
mod frame;
mod handshake;
mod packet;

pub use dissect::{DissectError, dissect};
pub(crate) use frame::{
    Ack, AckPath, Advice, BLOCK, Frame, Frames, MAX_ACK_PATHS, Refusal, Refuse, Share, fragment_len, is_ping,
    write_fragment_head, write_ping,
};
pub(crate) use handshake::{Accept, Close, Closed, Hello, Init, Retry, Unknown, features};
pub(crate) use packet::{
    CHECKSUM_LEN, DataHeader, Packet, TRACKED_HEADER, UNTRACKED_HEADER, decode_packet, encode_untracked, flags,
};

/// Protocol version in the first four bits of every packet.
pub(crate) const VERSION: u8 = 1;

/// Why bytes were not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// Shorter than its fields.
    #[error("truncated in {0}")]
    Truncated(&'static str),
    /// A version other than ours.
    #[error("protocol version {0}")]
    Version(u8),
    /// A packet kind that does not exist.
    #[error("packet kind {0}")]
    Kind(u8),
    /// A frame type that does not exist, or does not belong into this kind of packet.
    #[error("frame type {0}")]
    FrameType(u8),
    /// A field with an impossible value.
    #[error("impossible value in {0}")]
    Value(&'static str),
    /// The CRC32C does not match.
    #[error("checksum mismatch")]
    Checksum,
}

/// Reads fields from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated(field))?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[b]| b)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(DecodeError::Truncated(field))?;
        self.0 = tail;
        Ok(head)
    }
}

/// Where encoders put bytes: a growing buffer, or a batch on its way to the driver.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
