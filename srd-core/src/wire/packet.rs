//! Packet headers: what precedes the frames of a data packet (`docs/protocol.md` section 3).
//!
//! ```text
//!  0        1        2        4                 12       16       20       22   23
//! +--------+--------+--------+-----------------+--------+--------+--------+----+-----------
//! |ver|kind| flags  | span   | connection id   | PN     | floor  | port   |path| frames ...   tracked
//! +--------+--------+--------+-----------------+--------+--------+--------+----+-----------
//! |ver|kind| flags  | connection id   | frames ...                                  untracked (acknowledgements only)
//! +--------+--------+-----------------+-----------
//! ```

use super::handshake::{Accept, Close, Closed, Init, Retry, Unknown};
use super::{DecodeError, Reader, Sink, VERSION};
use crate::seq::Seq;

/// Bytes before the frames of a tracked packet.
pub(crate) const TRACKED_HEADER: usize = 23;
/// Bytes before the frames of an untracked packet.
pub(crate) const UNTRACKED_HEADER: usize = 10;
/// Bytes of the CRC32C at the end of packets that carry one.
pub(crate) const CHECKSUM_LEN: usize = 4;

/// Packet flags.
pub(crate) mod flags {
    /// The last four bytes are a CRC32C of all before them.
    pub(crate) const CHECKSUM: u8 = 1;
    /// Acknowledge at once.
    pub(crate) const ACK_NOW: u8 = 2;
    /// All flags of this version.
    pub(crate) const ALL: u8 = CHECKSUM | ACK_NOW;
}

/// The low four bits of the first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Tracked = 0,
    Untracked = 1,
    Init = 2,
    Retry = 3,
    Accept = 4,
    Unknown = 5,
    Close = 6,
    Closed = 7,
}

impl Kind {
    fn from_bits(bits: u8) -> Result<Kind, DecodeError> {
        use Kind::*;
        [Tracked, Untracked, Init, Retry, Accept, Unknown, Close, Closed]
            .get(usize::from(bits))
            .copied()
            .ok_or(DecodeError::Kind(bits))
    }

    pub(crate) fn first_byte(self) -> u8 {
        (VERSION << 4) | self as u8
    }
}

/// Header of a packet that is tracked by number and acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataHeader {
    pub(crate) flags: u8,
    /// Packets between this one and the oldest whose fate the sender does not know.
    pub(crate) span: u16,
    /// Connection id that the receiver chose.
    pub(crate) cid: u64,
    pub(crate) pn: Seq,
    /// Oldest message whose outcome the sender does not know.
    pub(crate) floor: Seq,
    /// UDP port that the sender receives on, for those who do not know the connection.
    pub(crate) port: u16,
    /// The sender's index of the path.
    pub(crate) path: u8,
}

impl DataHeader {
    pub(crate) fn encode(&self, out: &mut impl Sink) {
        let mut b = [0u8; TRACKED_HEADER];
        b[0] = Kind::Tracked.first_byte();
        b[1] = self.flags;
        b[2..4].copy_from_slice(&self.span.to_be_bytes());
        b[4..12].copy_from_slice(&self.cid.to_be_bytes());
        b[12..16].copy_from_slice(&self.pn.0.to_be_bytes());
        b[16..20].copy_from_slice(&self.floor.0.to_be_bytes());
        b[20..22].copy_from_slice(&self.port.to_be_bytes());
        b[22] = self.path;
        out.put(&b);
    }

    // [W-9]
    fn decode(flags: u8, r: &mut Reader<'_>) -> Result<DataHeader, DecodeError> {
        Ok(DataHeader {
            flags,
            span: r.u16("span")?,
            cid: r.u64("connection id")?,
            pn: Seq(r.u32("packet number")?),
            floor: Seq(r.u32("message floor")?),
            port: r.u16("port")?,
            path: r.u8("path")?,
        })
    }
}

/// A packet, decoded as far as its header. Frames are decoded one by one while they are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packet<'a> {
    Tracked(DataHeader, &'a [u8]),
    Untracked { flags: u8, cid: u64, frames: &'a [u8] },
    Init(Init),
    Retry(Retry),
    Accept(Accept),
    Unknown(Unknown),
    Close(Close),
    Closed(Closed),
}

/// Writes the header of an untracked packet.
pub(crate) fn encode_untracked(flags: u8, cid: u64, out: &mut impl Sink) {
    let mut b = [0u8; UNTRACKED_HEADER];
    b[0] = Kind::Untracked.first_byte();
    b[1] = flags;
    b[2..10].copy_from_slice(&cid.to_be_bytes());
    out.put(&b);
}

/// Decodes a datagram, checking the checksum where it carries one.
pub(crate) fn decode_packet(bytes: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let mut r = Reader(bytes);
    let first = r.u8("first byte")?;
    // [W-2]
    if first >> 4 != VERSION {
        return Err(DecodeError::Version(first >> 4));
    }
    // [W-3]
    let kind = Kind::from_bits(first & 15)?;
    let flags = r.u8("flags")?;
    // [W-4]
    if flags & !flags::ALL != 0 {
        return Err(DecodeError::Value("flags"));
    }
    // [W-7]
    if flags != flags::CHECKSUM && !matches!(kind, Kind::Tracked | Kind::Untracked) {
        return Err(DecodeError::Value("flags of a control packet"));
    }
    // [W-6]
    if flags & flags::CHECKSUM != 0 {
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or(DecodeError::Truncated("checksum"))?;
        if body.len() < 2 {
            return Err(DecodeError::Truncated("checksum"));
        }
        if crc32c::crc32c(body) != u32::from_be_bytes(*sum) {
            return Err(DecodeError::Checksum);
        }
        r = Reader(&body[2..]);
    }
    match kind {
        Kind::Tracked => {
            let header = DataHeader::decode(flags, &mut r)?;
            Ok(Packet::Tracked(header, r.0))
        }
        // [W-10]
        Kind::Untracked => Ok(Packet::Untracked { flags, cid: r.u64("connection id")?, frames: r.0 }),
        Kind::Init => Init::decode(r).map(Packet::Init),
        Kind::Retry => Retry::decode(r).map(Packet::Retry),
        Kind::Accept => Accept::decode(r).map(Packet::Accept),
        Kind::Unknown => Unknown::decode(r).map(Packet::Unknown),
        Kind::Close => Close::decode(r).map(Packet::Close),
        Kind::Closed => Closed::decode(r).map(Packet::Closed),
    }
}
