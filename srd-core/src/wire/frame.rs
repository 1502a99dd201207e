//! Frames: what data packets carry (`docs/protocol.md` section 5).
//!
//! ```text
//! PADDING  0, then zeros to the end of the packet
//! WHOLE    1, header length 1, length 2, message id 4, header, payload
//! PART     2, header length 1, length 2, message id 4, total 4, offset 4, header, payload
//! PING     3
//! ACK      4, paths 1, words 2, cumulative 4, newest 4, share 4, start 4, words x 8,
//!          paths x (path 1, CE 1, behind 2, residence 2)
//! REFUSE   5, count 1, packet number 4, count x (message id 4, kind 1, status 1)
//! ```

use super::{DecodeError, Reader, Sink};
use crate::seq::Seq;
use crate::time::Span;
use crate::upper::MAX_HEADER;

const PADDING: u8 = 0;
const WHOLE: u8 = 1;
const PART: u8 = 2;
const PING: u8 = 3;
const ACK: u8 = 4;
const REFUSE: u8 = 5;

const WHOLE_HEAD: usize = 8;
const PART_HEAD: usize = 16;
const ACK_HEAD: usize = 20;

/// Granularity of fragment offsets and lengths (all but a message's last), in bytes.
pub(crate) const BLOCK: u32 = 64;
/// Paths reported in one ACK.
pub(crate) const MAX_ACK_PATHS: usize = 32;
const RESIDENCE_UNIT_NS: u64 = 64;

/// A decoded frame; borrows from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frame<'a> {
    /// A message or a part of one: `offset == 0 && payload.len() == total` when whole.
    Fragment {
        message: Seq,
        total: u32,
        offset: u32,
        header: &'a [u8],
        payload: &'a [u8],
    },
    Ping,
    Ack(Ack<'a>),
    Refuse(Refuse<'a>),
}

/// A share of the receiver's link, in units of 1,000 bytes per second; 0 is no advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share(pub(crate) u32);

impl Share {
    const UNIT: f64 = 1000.0;

    pub(crate) fn new(bytes_per_second: f64) -> Share {
        Share((bytes_per_second / Share::UNIT).ceil() as u32)
    }

    /// Bytes per second.
    pub(crate) fn rate(self) -> Option<f64> {
        (self.0 != 0).then(|| f64::from(self.0) * Share::UNIT)
    }
}

/// What a receiver advises a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Advice {
    /// Its share among those that send.
    pub(crate) share: Share,
    /// Its share if all that have sent before began at once.
    pub(crate) start: Share,
}

/// An acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ack<'a> {
    /// Every packet before this one was received, or the sender had given it up.
    pub(crate) cumulative: Seq,
    /// The newest packet received.
    pub(crate) newest: Seq,
    pub(crate) advice: Advice,
    words: &'a [u8],
    paths: &'a [u8],
}

/// What an acknowledgement says of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckPath {
    /// The data sender's index of the path.
    pub(crate) path: u8,
    /// Packets with a CE mark received on it, modulo 256.
    pub(crate) ce: u8,
    /// Newest packet received on it.
    pub(crate) pn: Seq,
    /// How long that packet waited at the receiver; `None` if too long to say.
    pub(crate) residence: Option<Span>,
}

impl Ack<'_> {
    /// Bits of the 64 packets from `cumulative + 64 * index`, lowest first; a set bit is a received packet.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.as_chunks::<8>().0.iter().map(|w| u64::from_be_bytes(*w))
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = AckPath> + '_ {
        self.paths.as_chunks::<6>().0.iter().map(|&[path, ce, b0, b1, r0, r1]| AckPath {
            path,
            ce,
            pn: Seq(self.newest.0.wrapping_sub(u16::from_be_bytes([b0, b1]).into())),
            residence: match u16::from_be_bytes([r0, r1]) {
                u16::MAX => None,
                r => Some(Span::from_nanos(u64::from(r) * RESIDENCE_UNIT_NS)),
            },
        })
    }

    /// Length of an ACK frame with so many words and paths.
    pub(crate) fn encoded_len(words: usize, paths: usize) -> usize {
        ACK_HEAD + 8 * words + 6 * paths
    }

    pub(crate) fn encode(
        cumulative: Seq,
        newest: Seq,
        advice: Advice,
        words: impl ExactSizeIterator<Item = u64>,
        paths: impl ExactSizeIterator<Item = AckPath>,
        out: &mut impl Sink,
    ) {
        let mut b = [0u8; ACK_HEAD];
        b[0] = ACK;
        b[1] = paths.len() as u8;
        b[2..4].copy_from_slice(&(words.len() as u16).to_be_bytes());
        b[4..8].copy_from_slice(&cumulative.0.to_be_bytes());
        b[8..12].copy_from_slice(&newest.0.to_be_bytes());
        b[12..16].copy_from_slice(&advice.share.0.to_be_bytes());
        b[16..20].copy_from_slice(&advice.start.0.to_be_bytes());
        out.put(&b);
        for w in words {
            out.put(&w.to_be_bytes());
        }
        for p in paths {
            let behind = u16::try_from(newest.since(p.pn)).expect("newest is within a window of every path's newest");
            let residence =
                p.residence.map_or(u16::MAX, |r| u16::try_from(r.as_nanos() / RESIDENCE_UNIT_NS).unwrap_or(u16::MAX));
            let ([b0, b1], [r0, r1]) = (behind.to_be_bytes(), residence.to_be_bytes());
            out.put(&[p.path, p.ce, b0, b1, r0, r1]);
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No buffer: try again under a new message id.
    NotReady,
    /// Never, with the upper storey's status.
    Refused(u8),
}

/// Messages of one packet that were not taken. The rest of the packet was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refuse<'a> {
    pub(crate) pn: Seq,
    entries: &'a [u8],
}

impl Refuse<'_> {
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Seq, Refusal)> + '_ {
        self.entries.as_chunks::<6>().0.iter().map(|&[a, b, c, d, kind, status]| {
            let refusal = if kind == 0 { Refusal::NotReady } else { Refusal::Refused(status) };
            (Seq(u32::from_be_bytes([a, b, c, d])), refusal)
        })
    }

    /// Length of so many REFUSE frames with so many entries altogether.
    pub(crate) fn encoded_len(frames: usize, entries: usize) -> usize {
        6 * frames + 6 * entries
    }

    pub(crate) fn encode(pn: Seq, entries: &[(Seq, Refusal)], out: &mut impl Sink) {
        let [a, b, c, d] = pn.0.to_be_bytes();
        out.put(&[REFUSE, entries.len() as u8, a, b, c, d]);
        for &(message, refusal) in entries {
            let [a, b, c, d] = message.0.to_be_bytes();
            let (kind, status) = match refusal {
                Refusal::NotReady => (0, 0),
                Refusal::Refused(status) => (1, status),
            };
            out.put(&[a, b, c, d, kind, status]);
        }
    }
}

/// Bytes that a fragment takes before its payload.
pub(crate) fn fragment_len(header_len: u8, whole: bool) -> usize {
    usize::from(header_len) + if whole { WHOLE_HEAD } else { PART_HEAD }
}

/// Writes all of a fragment but its payload, which must follow.
pub(crate) fn write_fragment_head(message: Seq, total: u32, offset: u32, len: u16, header: &[u8], out: &mut impl Sink) {
    let whole = u32::from(len) == total;
    let kind = if whole { WHOLE } else { PART };
    // One number: a copy of bytes that were written in parts just before has to wait for them.
    let head = u64::from(kind) << 56 | (header.len() as u64) << 48 | u64::from(len) << 32 | u64::from(message.0);
    out.put(&head.to_be_bytes());
    if !whole {
        out.put(&(u64::from(total) << 32 | u64::from(offset)).to_be_bytes());
    }
    out.put(header);
}

/// Writes a PING.
pub(crate) fn write_ping(out: &mut impl Sink) {
    out.put(&[PING]);
}

/// Whether these frames are a PING and nothing else.
pub(crate) fn is_ping(frames: &[u8]) -> bool {
    frames == [PING]
}

/// Decodes frames one after the other; ends after the first error.
pub(crate) struct Frames<'a> {
    reader: Reader<'a>,
    tracked: bool,
}

impl<'a> Frames<'a> {
    /// The frames of a packet; an untracked one may carry only ACK and REFUSE.
    pub(crate) fn new(bytes: &'a [u8], tracked: bool) -> Frames<'a> {
        Frames { reader: Reader(bytes), tracked }
    }

    fn decode(&mut self) -> Result<Option<Frame<'a>>, DecodeError> {
        let r = &mut self.reader;
        let kind = r.u8("frame type")?;
        // [W-10, W-12]
        if !self.tracked && kind < ACK {
            return Err(DecodeError::FrameType(kind));
        }
        Ok(Some(match kind {
            // [W-13]
            PADDING => {
                if r.0.iter().any(|&b| b != 0) {
                    return Err(DecodeError::Value("padding"));
                }
                r.0 = &[];
                return Ok(None);
            }
            // [W-14]
            WHOLE | PART => {
                let header_len = usize::from(r.u8("header length")?);
                // [W-16]
                if header_len > MAX_HEADER {
                    return Err(DecodeError::Value("header length"));
                }
                let len = r.u16("length")?;
                let message = Seq(r.u32("message id")?);
                let (total, offset) =
                    if kind == WHOLE { (u32::from(len), 0) } else { (r.u32("total")?, r.u32("offset")?) };
                let end = u64::from(offset) + u64::from(len);
                // [W-15]
                let blocky = offset % BLOCK == 0 && (u32::from(len) % BLOCK == 0 || end == u64::from(total));
                if kind == PART && (len == 0 || u32::from(len) == total || end > u64::from(total) || !blocky) {
                    return Err(DecodeError::Value("fragment range"));
                }
                let header = r.bytes(header_len, "header")?;
                let payload = r.bytes(len.into(), "payload")?;
                Frame::Fragment { message, total, offset, header, payload }
            }
            // [W-17]
            PING => Frame::Ping,
            // [W-18]
            ACK => {
                let paths = usize::from(r.u8("paths")?);
                let words = usize::from(r.u16("words")?);
                let cumulative = Seq(r.u32("cumulative")?);
                let newest = Seq(r.u32("newest")?);
                let advice = Advice { share: Share(r.u32("share")?), start: Share(r.u32("start")?) };
                Frame::Ack(Ack {
                    cumulative,
                    newest,
                    advice,
                    words: r.bytes(words * 8, "words")?,
                    paths: r.bytes(paths * 6, "path entries")?,
                })
            }
            // [W-19]
            REFUSE => {
                let count = usize::from(r.u8("count")?);
                let pn = Seq(r.u32("packet number")?);
                let entries = r.bytes(count * 6, "entries")?;
                if entries.as_chunks::<6>().0.iter().any(|e| e[4] > 1 || (e[4] == 0 && e[5] != 0)) {
                    return Err(DecodeError::Value("refusal"));
                }
                Frame::Refuse(Refuse { pn, entries })
            }
            // [W-12]
            other => return Err(DecodeError::FrameType(other)),
        }))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let frame = self.decode();
        if frame.is_err() {
            self.reader.0 = &[];
        }
        frame.transpose()
    }
}
