//! How client and server agree on a test: control messages over SRD itself.
//!
//! ```text
//! client                                server
//!   | START {test, size, depth, bidir}    |
//!   |------------------------------------>|  BUSY, or REFUSED, if it cannot
//!   |                              READY  |
//!   |<------------------------------------|
//!   |  test data (messages without header), until the client has had enough and all are delivered
//!   | STOP                                |
//!   |------------------------------------>|  in a two-way test first delivers what it has sent
//!   |                 RESULT {cpu, ...}   |
//!   |<------------------------------------|
//! ```
//!
//! A control message has a header of eight bytes, `SRDP`, version 1, operation, two zeros, and a JSON object as its payload.
//! Messages arrive in any order, so nobody sends what depends on an answer before the answer is there.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::report::Counters;

/// Length of the header of control messages.
pub(crate) const HEADER: usize = 8;
/// Longest payload of control messages.
pub(crate) const MAX_BODY: usize = 4096;

const MAGIC: [u8; 4] = *b"SRDP";
const VERSION: u8 = 1;

/// What a control message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Op {
    /// Client: run this test with me ([`Start`]).
    Start = 1,
    /// Server: go ahead.
    Ready = 2,
    /// Server: I serve somebody else ([`Reason`]).
    Busy = 3,
    /// Server: I cannot do that ([`Reason`]).
    Refused = 4,
    /// Client: the test is over, all my messages are delivered.
    Stop = 5,
    /// Server: what I saw ([`Outcome`]).
    Result = 6,
}

impl Op {
    /// The header that says so.
    pub(crate) fn header(self) -> [u8; HEADER] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, VERSION, self as u8, 0, 0]
    }

    /// What a header says, `None` if it is none of ours.
    pub(crate) fn from_header(header: &[u8]) -> Option<Op> {
        let ops = [Op::Start, Op::Ready, Op::Busy, Op::Refused, Op::Stop, Op::Result];
        ops.into_iter().find(|op| op.header() == header)
    }
}

/// The kind of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Ping-pong of one message.
    Lat,
    /// As many bytes as possible.
    Bw,
    /// As many messages as possible.
    Rate,
}

impl Test {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::Lat => "lat",
            Test::Bw => "bw",
            Test::Rate => "rate",
        }
    }
}

/// Request for a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Its kind.
    pub(crate) test: Test,
    /// Bytes of each message.
    pub(crate) size: u32,
    /// Messages outstanding at once.
    pub(crate) depth: u32,
    /// Whether the server sends, too.
    pub(crate) bidir: bool,
}

/// Most messages outstanding at once.
pub(crate) const MAX_DEPTH: u32 = 32_768;
/// Most bytes outstanding at once: what both sides are ready to set aside.
pub(crate) const MAX_OUTSTANDING: u64 = 1 << 30;

impl Start {
    /// Whether the buffers that it takes are within reason; the sentence says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Start { size, depth, .. } = *self;
        let bytes = u64::from(size) * u64::from(depth);
        if size == 0 || depth == 0 || depth > MAX_DEPTH {
            Err(format!(
                "{depth} messages of {size} bytes at once make no test (1 to {MAX_DEPTH} messages of 1 byte and more)"
            ))
        } else if bytes > MAX_OUTSTANDING {
            Err(format!(
                "{depth} messages of {size} bytes at once take {bytes} bytes of buffers, at most {MAX_OUTSTANDING} are possible; reduce --depth or --size"
            ))
        } else {
            Ok(())
        }
    }

    /// Slots to send from. Ping-pong takes several, because its messages complete later than they are answered.
    pub(crate) fn send_slots(&self) -> usize {
        if self.test == Test::Lat { spare(self.size) } else { self.depth as usize }
    }

    /// Buffers to post: what can be outstanding, twice, for those are posted again only once per turn of the loop.
    pub(crate) fn receive_buffers(&self) -> usize {
        if self.test == Test::Lat { spare(self.size) } else { 2 * self.depth as usize }
    }
}

/// Buffers for ping-pong: 64, but not above 64 MB, and at least 2.
fn spare(size: u32) -> usize {
    ((64 << 20) / size as usize).clamp(2, 64)
}

/// Why a server does not run a test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reason {
    /// A clause that goes on after "the server at ... ".
    pub(crate) reason: String,
}

/// What a server saw of a test.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// From READY to STOP.
    pub(crate) duration_s: f64,
    /// CPU time over that time.
    pub(crate) cpu_cores: f64,
    /// Messages received.
    pub(crate) messages_received: u64,
    /// Messages sent and delivered.
    pub(crate) messages_sent: u64,
    /// What the protocol did.
    pub(crate) counters: Counters,
}

/// A control message's payload; its types always serialise.
pub(crate) fn encode(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// A control message's payload, `None` if it is not what it should be.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_their_operation() {
        for op in [Op::Start, Op::Ready, Op::Busy, Op::Refused, Op::Stop, Op::Result] {
            assert_eq!(Op::from_header(&op.header()), Some(op));
        }
        for bad in [
            &b""[..],
            b"SRDP\x01\x01\x00",
            b"SRDP\x02\x01\x00\x00",
            b"SRDP\x01\x07\x00\x00",
            b"SRDP\x01\x01\x00\x00\x00",
        ] {
            assert_eq!(Op::from_header(bad), None);
        }
    }

    #[test]
    fn start_is_checked() {
        let start = Start { test: Test::Bw, size: 8192, depth: 256, bidir: false };
        assert_eq!(start.check(), Ok(()));
        for (size, depth) in [(0, 1), (1, 0), (1, MAX_DEPTH + 1), (1 << 20, 1025), (u32::MAX, MAX_DEPTH)] {
            assert!(Start { size, depth, ..start }.check().is_err(), "{size} x {depth}");
        }
        assert_eq!(decode::<Start>(&encode(&start)), Some(start));
        assert_eq!(decode::<Start>(b"{}"), None);
    }
}
