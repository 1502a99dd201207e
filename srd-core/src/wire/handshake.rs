//! Handshake and farewell packets (`docs/protocol.md` section 4). All carry a checksum and are complete in themselves.

use super::frame::Share;
use super::packet::{Kind, flags};
use super::{DecodeError, Reader, Sink};
use crate::seq::Seq;

/// Feature bits of [`Hello::features`]. Unknown bits are ignored, so that later versions can offer more.
pub(crate) mod features {
    /// The sender of this hello wants a checksum on every packet.
    pub(crate) const CHECKSUM: u32 = 1;
    /// Lowest of the eight bits in which the sender's upper storey says something of itself.
    pub(crate) const TAG: u32 = 8;
}

/// What each side tells the other about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// The id that packets to this side must carry.
    pub(crate) cid: u64,
    /// Drawn anew each time the endpoint starts.
    pub(crate) incarnation: u64,
    pub(crate) features: u32,
    /// Longest datagram it accepts.
    pub(crate) max_datagram: u16,
    /// Packets it tracks.
    pub(crate) packet_window: u32,
    /// Messages it tracks.
    pub(crate) message_window: u32,
    /// Longest message it accepts.
    pub(crate) max_message: u32,
    /// Messages of more than one packet that it keeps half delivered.
    pub(crate) max_partials: u32,
    /// Number of its first packet.
    pub(crate) first_pn: Seq,
    /// Id of its first message.
    pub(crate) first_message: Seq,
    /// Its longest acknowledgement delay in microseconds.
    pub(crate) max_ack_delay_us: u32,
    /// How fast the other side had better start.
    pub(crate) share: Share,
}

impl Hello {
    fn put(&self, out: &mut Vec<u8>) {
        out.put(&self.cid.to_be_bytes());
        out.put(&self.incarnation.to_be_bytes());
        out.put(&self.features.to_be_bytes());
        out.put(&self.max_datagram.to_be_bytes());
        for v in [
            self.packet_window,
            self.message_window,
            self.max_message,
            self.max_partials,
            self.first_pn.0,
            self.first_message.0,
            self.max_ack_delay_us,
            self.share.0,
        ] {
            out.put(&v.to_be_bytes());
        }
    }

    fn get(r: &mut Reader<'_>) -> Result<Hello, DecodeError> {
        let hello = Hello {
            cid: r.u64("cid")?,
            incarnation: r.u64("incarnation")?,
            features: r.u32("features")?,
            max_datagram: r.u16("max datagram")?,
            packet_window: r.u32("packet window")?,
            message_window: r.u32("message window")?,
            max_message: r.u32("max message")?,
            max_partials: r.u32("max partials")?,
            first_pn: Seq(r.u32("first packet number")?),
            first_message: Seq(r.u32("first message id")?),
            max_ack_delay_us: r.u32("max ack delay")?,
            share: Share(r.u32("share")?),
        };
        // [W-22]
        let window = |v: u32| v.is_power_of_two() && (64..=32768).contains(&v);
        if hello.max_datagram < crate::MIN_DATAGRAM {
            return Err(DecodeError::Value("max datagram"));
        }
        if hello.max_partials == 0 {
            return Err(DecodeError::Value("max partials"));
        }
        if !window(hello.packet_window) || !window(hello.message_window) {
            return Err(DecodeError::Value("window"));
        }
        Ok(hello)
    }
}

fn begin(kind: Kind, out: &mut Vec<u8>) {
    out.clear();
    out.put(&[kind.first_byte(), flags::CHECKSUM]);
}

fn seal(out: &mut Vec<u8>) {
    let sum = crc32c::crc32c(out);
    out.put(&sum.to_be_bytes());
}

fn end<T>(r: Reader<'_>, value: T) -> Result<T, DecodeError> {
    // [W-7]
    if r.is_empty() { Ok(value) } else { Err(DecodeError::Value("length")) }
}

/// Opens a connection. With cookie 0 it only asks for a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Init {
    /// The UDP port that the sender receives on; its address is that of the datagram.
    pub(crate) port: u16,
    pub(crate) cookie: u64,
    pub(crate) hello: Hello,
}

impl Init {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Init, out);
        out.put(&self.port.to_be_bytes());
        out.put(&self.cookie.to_be_bytes());
        self.hello.put(out);
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Init, DecodeError> {
        let init = Init { port: r.u16("port")?, cookie: r.u64("cookie")?, hello: Hello::get(&mut r)? };
        if init.port == 0 {
            return Err(DecodeError::Value("port"));
        }
        end(r, init)
    }
}

/// Answer to an INIT without a valid cookie: shorter than the INIT, and costs no state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retry {
    /// The cid of the INIT's sender.
    pub(crate) to: u64,
    pub(crate) cookie: u64,
}

impl Retry {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Retry, out);
        out.put(&self.to.to_be_bytes());
        out.put(&self.cookie.to_be_bytes());
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Retry, DecodeError> {
        let retry = Retry { to: r.u64("to")?, cookie: r.u64("cookie")? };
        end(r, retry)
    }
}

/// Answer to an INIT with a valid cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accept {
    /// The cid of the INIT's sender.
    pub(crate) to: u64,
    pub(crate) hello: Hello,
}

impl Accept {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Accept, out);
        out.put(&self.to.to_be_bytes());
        self.hello.put(out);
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Accept, DecodeError> {
        let accept = Accept { to: r.u64("to")?, hello: Hello::get(&mut r)? };
        end(r, accept)
    }
}

/// Answer to a packet for a connection that does not exist here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unknown {
    /// The connection id of the packet; only its sender and those on the path know it.
    pub(crate) cid: u64,
    pub(crate) incarnation: u64,
    /// UDP port that the answering endpoint receives on.
    pub(crate) port: u16,
}

impl Unknown {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Unknown, out);
        out.put(&self.cid.to_be_bytes());
        out.put(&self.incarnation.to_be_bytes());
        out.put(&self.port.to_be_bytes());
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Unknown, DecodeError> {
        let unknown = Unknown { cid: r.u64("cid")?, incarnation: r.u64("incarnation")?, port: r.u16("port")? };
        end(r, unknown)
    }
}

/// Ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Close {
    pub(crate) cid: u64,
    /// The number that the sender's next tracked packet would have.
    pub(crate) next_pn: Seq,
    /// The endpoint shuts down; otherwise the connection is merely idle and the receiver may keep it open.
    pub(crate) shutdown: bool,
    /// UDP port that the sender receives on.
    pub(crate) port: u16,
}

impl Close {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Close, out);
        out.put(&self.cid.to_be_bytes());
        out.put(&self.next_pn.0.to_be_bytes());
        out.put(&[self.shutdown.into()]);
        out.put(&self.port.to_be_bytes());
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Close, DecodeError> {
        let close = Close {
            cid: r.u64("cid")?,
            next_pn: Seq(r.u32("next packet number")?),
            shutdown: match r.u8("shutdown")? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::Value("shutdown")),
            },
            port: r.u16("port")?,
        };
        end(r, close)
    }
}

/// Confirms a CLOSE: the connection is forgotten here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed {
    pub(crate) cid: u64,
    /// UDP port that the answering endpoint receives on.
    pub(crate) port: u16,
}

impl Closed {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        begin(Kind::Closed, out);
        out.put(&self.cid.to_be_bytes());
        out.put(&self.port.to_be_bytes());
        seal(out);
    }

    pub(super) fn decode(mut r: Reader<'_>) -> Result<Closed, DecodeError> {
        let closed = Closed { cid: r.u64("cid")?, port: r.u16("port")? };
        end(r, closed)
    }
}
