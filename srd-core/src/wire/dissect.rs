//! One line of text per packet, for logs and tools.

use std::fmt::{self, Write};

use super::{Ack, DecodeError, Frame, Frames, Hello, Packet, Refusal, decode_packet, flags};
use crate::seq::Seq;

/// Why a datagram is not a whole packet. Prints what could be read before the fault, and the fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DissectError {
    before: String,
    why: DecodeError,
}

impl fmt::Display for DissectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.before.is_empty() {
            write!(f, "{} ", self.before)?;
        }
        write!(f, "<{}>", self.why)
    }
}

impl std::error::Error for DissectError {}

/// Describes a datagram of this protocol in one line. Knows no connection: whether numbers lie in their windows, and
/// whether a checksum was agreed on, it cannot tell.
///
/// ```
/// let closed = [0x17, 1, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0x0f, 0xa0, 0xe0, 0x25, 0x9e, 0x98];
/// assert_eq!(srd_core::dissect(&closed).unwrap(), "CLOSED cid=000000000000002a port=4000");
/// assert_eq!(srd_core::dissect(&closed[..3]).unwrap_err().to_string(), "<truncated in checksum>");
/// ```
///
/// # Errors
/// The bytes are no packet, or a frame in it is malformed.
pub fn dissect(bytes: &[u8]) -> Result<String, DissectError> {
    let mut line = String::new();
    match describe(bytes, &mut line) {
        Ok(()) => Ok(line),
        Err(why) => Err(DissectError { before: line, why }),
    }
}

fn describe(bytes: &[u8], line: &mut String) -> Result<(), DecodeError> {
    match decode_packet(bytes)? {
        Packet::Tracked(h, rest) => {
            put(line, format_args!("tracked cid={:016x} pn={} span={}", h.cid, h.pn.0, h.span));
            put(line, format_args!(" floor={} port={} path={}", h.floor.0, h.port, h.path));
            put_flags(line, h.flags);
            put_frames(line, rest, true)?;
        }
        Packet::Untracked { flags, cid, frames } => {
            put(line, format_args!("untracked cid={cid:016x}"));
            put_flags(line, flags);
            put_frames(line, frames, false)?;
        }
        Packet::Init(p) => {
            put(line, format_args!("INIT port={} cookie={:016x}", p.port, p.cookie));
            put_hello(line, &p.hello);
        }
        Packet::Retry(p) => put(line, format_args!("RETRY to={:016x} cookie={:016x}", p.to, p.cookie)),
        Packet::Accept(p) => {
            put(line, format_args!("ACCEPT to={:016x}", p.to));
            put_hello(line, &p.hello);
        }
        Packet::Unknown(p) => {
            put(line, format_args!("UNKNOWN cid={:016x} incarnation={:016x} port={}", p.cid, p.incarnation, p.port));
        }
        Packet::Close(p) => {
            let why = if p.shutdown { "shutdown" } else { "idle" };
            put(line, format_args!("CLOSE cid={:016x} next={} {why} port={}", p.cid, p.next_pn.0, p.port));
        }
        Packet::Closed(p) => put(line, format_args!("CLOSED cid={:016x} port={}", p.cid, p.port)),
    }
    Ok(())
}

fn put(line: &mut String, args: fmt::Arguments<'_>) {
    line.write_fmt(args).expect("a string takes everything");
}

fn put_flags(line: &mut String, bits: u8) {
    for (bit, name) in [(flags::CHECKSUM, " crc"), (flags::ACK_NOW, " ack-now")] {
        if bits & bit != 0 {
            line.push_str(name);
        }
    }
}

fn put_hello(line: &mut String, h: &Hello) {
    put(line, format_args!(" cid={:016x} incarnation={:016x} features={:x}", h.cid, h.incarnation, h.features));
    put(line, format_args!(" datagram={} packets={} messages={}", h.max_datagram, h.packet_window, h.message_window));
    put(line, format_args!(" message={} pn={} id={}", h.max_message, h.first_pn.0, h.first_message.0));
    put(line, format_args!(" ack-delay={}us share={}kB/s", h.max_ack_delay_us, h.share.0));
}

fn put_frames(line: &mut String, bytes: &[u8], tracked: bool) -> Result<(), DecodeError> {
    let mut separator = ": ";
    for frame in Frames::new(bytes, tracked) {
        let frame = frame?;
        line.push_str(separator);
        separator = ", ";
        match frame {
            Frame::Fragment { message, total, offset, header, payload } => {
                put(line, format_args!("msg {} ", message.0));
                if payload.len() == total as usize {
                    put(line, format_args!("whole {total}"));
                } else {
                    put(line, format_args!("{offset}..{} of {total}", offset as usize + payload.len()));
                }
                put(line, format_args!(" hdr {}", header.len()));
            }
            Frame::Ping => line.push_str("ping"),
            Frame::Ack(ack) => put_ack(line, &ack),
            Frame::Refuse(refuse) => {
                put(line, format_args!("refuse pn {}", refuse.pn.0));
                for (Seq(message), refusal) in refuse.entries() {
                    match refusal {
                        Refusal::NotReady => put(line, format_args!(" {message}:not-ready")),
                        Refusal::Refused(status) => put(line, format_args!(" {message}:status-{status}")),
                    }
                }
            }
        }
    }
    Ok(())
}

fn put_ack(line: &mut String, ack: &Ack<'_>) {
    put(
        line,
        format_args!(
            "ack <{} newest {} share {} start {}",
            ack.cumulative.0, ack.newest.0, ack.advice.share.0, ack.advice.start.0
        ),
    );
    for (i, mut word) in ack.words().enumerate() {
        let mut at = ack.cumulative.plus(64 * i as u32);
        // Runs of received packets, cut at word borders.
        while word != 0 {
            let skip = word.trailing_zeros();
            let run = (word >> skip).trailing_ones();
            let first = at.plus(skip);
            match run {
                1 => put(line, format_args!(" +{}", first.0)),
                _ => put(line, format_args!(" +{}..{}", first.0, first.plus(run - 1).0)),
            }
            at = first.plus(run);
            word = word.checked_shr(skip + run).unwrap_or(0);
        }
    }
    for p in ack.paths() {
        put(line, format_args!(" path {}@{} ce {}", p.path, p.pn.0, p.ce));
        match p.residence {
            Some(r) => put(line, format_args!(" {r}")),
            None => line.push_str(" -"),
        }
    }
}
