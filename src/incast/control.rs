//! How the ranks agree: JSON lines over a TCP connection from each sender to the receiver.
//!
//! ```text
//! sender (rank 1 ..)                     receiver (rank 0)
//!   | Hello {rank, host}                   |
//!   |------------------------------------->|
//!   |            Ping, several times: whose clock is ahead, by how much
//!   |<------------------------------------>|
//!   |            Prepare {what to send, where to}         \
//!   |<-------------------------------------|               |
//!   | Ready, when all flows are connected  |               |
//!   |------------------------------------->|               | once per run
//!   |            Go {when, on the sender's clock}          |
//!   |<-------------------------------------|               |
//!   | Done {what became of each flow}      |               |
//!   |------------------------------------->|              /
//!   |            Bye, or Abort {why}       |
//!   |<-------------------------------------|
//! ```
//!
//! Either side ends it at any time: a sender with `Failed`, the receiver with `Abort`, both by closing the connection.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};

/// TCP port of the receiver unless told otherwise: the next one after `srd perf`'s.
pub(super) const DEFAULT_PORT: u16 = crate::perf::DEFAULT_PORT + 1;
/// What a Hello starts with, so that strangers are told from ranks.
pub(super) const MAGIC: &str = "srd-incast";
/// Changes with the messages below.
pub(super) const VERSION: u32 = 1;

/// What a sender says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromRank {
    /// Here I am.
    Hello { magic: String, version: u32, rank: u32, host: String },
    /// My clock says.
    Pong { clock_ns: i64 },
    /// All flows are connected.
    Ready,
    /// All flows have ended.
    Done(Outcome),
    /// I cannot go on.
    Failed { reason: String },
}

/// What the receiver says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToRank {
    /// What does your clock say?
    Ping,
    /// Connect these flows.
    Prepare(Job),
    /// Start them at this time of your clock.
    Go { at_ns: i64 },
    /// That was all.
    Bye,
    /// It is over before its end.
    Abort { reason: String },
}

/// What a flow is carried by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Transport {
    /// SRD.
    Srd,
    /// Kernel TCP with this congestion control, one connection per flow.
    Tcp(String),
}

impl Transport {
    /// Its name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Transport::Srd => "srd".into(),
            Transport::Tcp(congestion) => format!("tcp-{congestion}"),
        }
    }
}

/// One run, as a sender needs to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) transport: Transport,
    /// Port of the receiver's data socket.
    pub(super) port: u16,
    /// Tells this run's traffic from any other.
    pub(super) nonce: u64,
    /// Number of this sender's first flow.
    pub(super) first_flow: u32,
    /// This sender's flows.
    pub(super) flows: u32,
    /// Endpoints that they share (SRD).
    pub(super) endpoints: u32,
    /// Bytes per flow; none for flows that run for a time.
    pub(super) bytes: Option<u64>,
    /// Bytes per message (SRD).
    pub(super) message: u32,
    /// Messages outstanding per flow (SRD).
    pub(super) depth: u32,
    /// When flows end that are not done, in nanoseconds after the start; those without a size end then by intention.
    pub(super) limit_ns: u64,
}

/// Most flows of one run.
pub(super) const MAX_FLOWS: u32 = 16_384;
/// Most messages outstanding per flow.
pub(super) const MAX_DEPTH: u32 = 4_096;

impl Job {
    /// Whether a sender can be asked for that; the sentence says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let Job { flows, endpoints, message, depth, first_flow, .. } = *self;
        let wrong = |what: &str, value: u64, max: u64| Err(format!("{value} {what} are out of range, 1 to {max}"));
        if flows == 0 || u64::from(flows) + u64::from(first_flow) > MAX_FLOWS.into() {
            wrong("flows", u64::from(flows) + u64::from(first_flow), MAX_FLOWS.into())
        } else if endpoints == 0 || endpoints > flows {
            wrong("endpoints per sender", endpoints.into(), flows.into())
        } else if message == 0 || u64::from(message) > crate::units::MAX_SIZE {
            wrong("bytes per message", message.into(), crate::units::MAX_SIZE)
        } else if depth == 0 || depth > MAX_DEPTH {
            wrong("messages outstanding per flow", depth.into(), MAX_DEPTH.into())
        } else {
            Ok(())
        }
    }
}

/// What became of a sender's flows in one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) flows: Vec<FlowOutcome>,
    /// Packets sent, by SRD's endpoints or the host's TCP.
    pub(super) packets: u64,
    /// Retransmission timeouts, of the same.
    pub(super) timeouts: u64,
}

/// What became of one flow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FlowOutcome {
    pub(super) flow: u32,
    /// When it really started, on the sender's clock.
    pub(super) start_ns: i64,
    /// From there until the sender knew that all had arrived.
    pub(super) fct_ns: Option<u64>,
    /// Bytes that the sender knows to have arrived.
    pub(super) delivered: u64,
    /// Packets sent again.
    pub(super) retransmits: u64,
    /// Paths that carried it.
    pub(super) paths: u32,
}

/// How long a look for a message lasts.
const GLANCE: Duration = Duration::from_millis(20);
/// How long it may take to say something.
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// Silence of the other host, when it is asked whether it is there, after which the connection is broken. A host that is cut off
/// or loses its power says nothing; longer than a spine of a test bed is dead.
const SILENCE: Duration = Duration::from_secs(60);
/// Questions in that time.
const QUESTIONS: u32 = 10;
/// Longest line of a rank that has introduced itself: an Outcome of [`MAX_FLOWS`].
const MAX_LINE: usize = 4 << 20;
/// Longest line of a stranger.
const MAX_HELLO: usize = 1_024;

/// A connection, of which each line is a message.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
    limit: usize,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> io::Result<Line> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GLANCE))?;
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        let socket = SockRef::from(&stream);
        let often = SILENCE / QUESTIONS;
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(often).with_interval(often).with_retries(QUESTIONS))?;
        socket.set_tcp_user_timeout(Some(SILENCE))?;
        Ok(Line { stream, buffer: Vec::new(), limit: MAX_HELLO })
    }

    /// From now on lines may be long.
    pub(super) fn trust(&mut self) {
        self.limit = MAX_LINE;
    }

    /// Another hold of the same connection, to send by.
    pub(super) fn writer(&self) -> io::Result<Line> {
        Ok(Line { stream: self.stream.try_clone()?, buffer: Vec::new(), limit: 0 })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(message).map_err(io::Error::other)?;
        text.push(b'\n');
        self.stream.write_all(&text)
    }

    /// The next message; `None` if there is none for a moment.
    ///
    /// # Errors
    /// The connection is closed or broken, or what came is no message.
    pub(super) fn poll<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|_| foreign());
            }
            if self.buffer.len() > self.limit {
                return Err(foreign());
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
                Err(e) if is_glance(&e) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends the connection for all who hold it.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// What came is no message.
fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what is there is no 'srd incast', or one of another version")
}

/// Whether nothing has happened within a socket's timeout. (`TimedOut` is what a connection says that has broken.)
pub(super) fn is_glance(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    fn pair() -> (TcpStream, Line) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let here = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        (here, Line::new(listener.accept().expect("accept").0).expect("options"))
    }

    /// The next message, when it comes.
    fn hear<T: DeserializeOwned>(line: &mut Line) -> io::Result<T> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if let Some(message) = line.poll()? {
                return Ok(message);
            }
        }
        panic!("nothing comes");
    }

    #[test]
    fn strangers_cannot_fill_memory_nor_cause_a_panic() {
        let (mut here, mut line) = pair();
        here.write_all(&[b'x'; 100 << 10]).expect("send");
        assert_eq!(hear::<FromRank>(&mut line).expect_err("refused").kind(), io::ErrorKind::InvalidData);
        assert!(line.buffer.len() <= MAX_HELLO + (16 << 10));
        for garbage in ["{}\n", "\n", "\"Nonsense\"\n", "\u{fffd}\u{0}\n"] {
            let (mut here, mut line) = pair();
            here.write_all(garbage.as_bytes()).expect("send");
            assert_eq!(hear::<FromRank>(&mut line).expect_err("refused").kind(), io::ErrorKind::InvalidData);
        }
        let (here, mut line) = pair();
        drop(here);
        assert_eq!(hear::<FromRank>(&mut line).expect_err("closed").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_host_that_is_gone_is_noticed_although_nobody_says_anything() {
        let (_here, line) = pair();
        let socket = SockRef::from(&line.stream);
        let asked = socket.tcp_keepalive_time().expect("an option") + SILENCE;
        assert!(socket.keepalive().expect("an option") && asked <= 2 * SILENCE);
        assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(SILENCE));
    }

    #[test]
    fn messages_come_whole_and_one_by_one() {
        let (mut here, mut line) = pair();
        here.write_all(b"\"Ready\"\n{\"Pong\":{\"clock").expect("send");
        assert!(matches!(hear(&mut line), Ok(FromRank::Ready)));
        assert!(matches!(line.poll::<FromRank>(), Ok(None)));
        here.write_all(b"_ns\":-5}}\n").expect("send");
        assert!(matches!(hear(&mut line), Ok(FromRank::Pong { clock_ns: -5 })));
    }
}
