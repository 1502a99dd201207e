//! What happened, as typed events: a running hash of all of them, and the last ones kept for the reader of a failure.

use std::collections::VecDeque;
use std::fmt;

use srd_core::Time;

use crate::packet::{HostId, LinkId};

/// Why a packet ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DropReason {
    /// A black-holed link.
    Blackhole,
    /// Longer than the link's MTU.
    Mtu,
    /// Random loss.
    Loss,
    /// A full queue.
    QueueFull,
    /// Sender and receiver are partitioned.
    Partition,
    /// No host or no route for its destination.
    NoRoute,
    /// The destination port is not open.
    PortClosed,
    /// The host is down.
    HostDown,
    /// The host's receive queue was full.
    ReceiveQueueFull,
    /// The UDP checksum told that it was damaged.
    UdpChecksum,
}

/// An event of the log. Messages are named by the numbers that [`World::post`](crate::World::post) gave them, packets by
/// their serial number.
#[expect(missing_docs, reason = "fields say what they are")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEvent {
    /// A host sent a packet.
    Sent { host: HostId, packet: u64, to: HostId, port: u16, len: u32 },
    /// A link delivered a second copy of a packet under a new serial number.
    Copied { link: LinkId, packet: u64, copy: u64 },
    /// A packet reached its host's receive queue.
    Arrived { host: HostId, packet: u64, from: u16 },
    /// A packet that was made up was put before a host.
    Injected { host: HostId, packet: u64, len: u32 },
    /// A packet ended on a link.
    LostOnLink { link: LinkId, packet: u64, reason: DropReason },
    /// A packet ended at a host, the sender's or the receiver's.
    LostAtHost { host: HostId, packet: u64, reason: DropReason },
    /// A message was given to an endpoint.
    Posted { host: HostId, to: HostId, message: u64, len: u32 },
    /// A message arrived whole.
    Placed { host: HostId, message: u64 },
    /// The application read a message.
    Read { host: HostId, message: u64 },
    /// A message completed; `code` is 0 for success.
    Completed { host: HostId, message: u64, code: u8 },
    /// A peer was connected or disconnected.
    Peer { host: HostId, peer: HostId, connected: bool },
    /// A host started (again).
    Started { host: HostId, incarnation: u32 },
    /// A host stopped doing anything.
    Crashed { host: HostId },
    /// The action with this index in the schedule was executed.
    Acted { index: u32 },
    /// Free for nodes of other kinds.
    Note { host: HostId, code: u32, value: u64 },
}

/// The log of a world.
#[derive(Debug)]
pub struct Log {
    hash: u64,
    count: u64,
    keep: usize,
    tail: VecDeque<(Time, LogEvent)>,
    silent: bool,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log { hash: 0xcbf2_9ce4_8422_2325, count: 0, keep: 0, tail: VecDeque::new(), silent: false }
    }

    /// Keeps the last `n` events from now on (`usize::MAX`: all of them). Nothing is kept by default.
    pub fn keep(&mut self, n: usize) {
        self.keep = n;
        while self.tail.len() > n {
            self.tail.pop_front();
        }
    }

    /// Records nothing from now on: for experiments whose results are measured otherwise.
    pub fn silence(&mut self) {
        self.silent = true;
    }

    /// Hash over all events and their times since the start.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events since the start.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The events that were kept, oldest first.
    pub fn tail(&self) -> impl Iterator<Item = &(Time, LogEvent)> {
        self.tail.iter()
    }

    pub(crate) fn record(&mut self, now: Time, event: LogEvent) {
        if self.silent {
            return;
        }
        self.count += 1;
        let mut hash = self.hash;
        for word in [now.as_nanos()].into_iter().chain(event.words()) {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        self.hash = hash;
        if self.keep > 0 {
            if self.tail.len() >= self.keep {
                self.tail.pop_front();
            }
            self.tail.push_back((now, event));
        }
    }
}

impl LogEvent {
    /// The event as three numbers, for hashing.
    fn words(self) -> [u64; 3] {
        let pack = |kind: u64, a: u32, b: u64| kind << 56 | u64::from(a) << 24 | b;
        match self {
            LogEvent::Sent { host, packet, to, port, len } => {
                [pack(1, host.0, port.into()), packet, u64::from(to.0) << 32 | u64::from(len)]
            }
            LogEvent::Copied { link, packet, copy } => [pack(2, link.0, 0), packet, copy],
            LogEvent::Arrived { host, packet, from } => [pack(3, host.0, from.into()), packet, 0],
            LogEvent::Injected { host, packet, len } => [pack(4, host.0, 0), packet, len.into()],
            LogEvent::LostOnLink { link, packet, reason } => [pack(5, link.0, reason as u64), packet, 0],
            LogEvent::LostAtHost { host, packet, reason } => [pack(6, host.0, reason as u64), packet, 0],
            LogEvent::Posted { host, to, message, len } => {
                [pack(7, host.0, 0), message, u64::from(to.0) << 32 | u64::from(len)]
            }
            LogEvent::Placed { host, message } => [pack(8, host.0, 0), message, 0],
            LogEvent::Read { host, message } => [pack(9, host.0, 0), message, 0],
            LogEvent::Completed { host, message, code } => [pack(10, host.0, code.into()), message, 0],
            LogEvent::Peer { host, peer, connected } => [pack(11, host.0, connected.into()), peer.0.into(), 0],
            LogEvent::Started { host, incarnation } => [pack(12, host.0, 0), incarnation.into(), 0],
            LogEvent::Crashed { host } => [pack(13, host.0, 0), 0, 0],
            LogEvent::Acted { index } => [pack(14, index, 0), 0, 0],
            LogEvent::Note { host, code, value } => [pack(15, host.0, 0), value, code.into()],
        }
    }
}

impl fmt::Display for LogEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LogEvent::Sent { host, packet, to, port, len } => {
                write!(f, "h{}       > packet {packet}, {len} B to h{} from port {port}", host.0, to.0)
            }
            LogEvent::Copied { link, packet, copy } => write!(f, "   link {} copies packet {packet} as {copy}", link.0),
            LogEvent::Arrived { host, packet, from } => {
                write!(f, "h{}  <      packet {packet} from port {from}", host.0)
            }
            LogEvent::Injected { host, packet, len } => {
                write!(f, "h{}  <      packet {packet}, {len} B, forged", host.0)
            }
            LogEvent::LostOnLink { link, packet, reason } => {
                write!(f, "   link {} drops packet {packet}: {reason:?}", link.0)
            }
            LogEvent::LostAtHost { host, packet, reason } => {
                write!(f, "h{}    x    packet {packet}: {reason:?}", host.0)
            }
            LogEvent::Posted { host, to, message, len } => {
                write!(f, "h{}     post message {message}, {len} B to h{}", host.0, to.0)
            }
            LogEvent::Placed { host, message } => write!(f, "h{}     placed message {message}", host.0),
            LogEvent::Read { host, message } => write!(f, "h{}     read message {message}", host.0),
            LogEvent::Completed { host, message, code: 0 } => write!(f, "h{}     completed message {message}", host.0),
            LogEvent::Completed { host, message, code } => {
                write!(f, "h{}     failed message {message} ({code})", host.0)
            }
            LogEvent::Peer { host, peer, connected: true } => write!(f, "h{}     connected to h{}", host.0, peer.0),
            LogEvent::Peer { host, peer, connected: false } => {
                write!(f, "h{}     disconnected from h{}", host.0, peer.0)
            }
            LogEvent::Started { host, incarnation } => write!(f, "h{}     starts, incarnation {incarnation}", host.0),
            LogEvent::Crashed { host } => write!(f, "h{}     crashes", host.0),
            LogEvent::Acted { index } => write!(f, "== action {index}"),
            LogEvent::Note { host, code, value } => write!(f, "h{}     note {code}: {value}", host.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_events_times_and_order() {
        let run = |events: &[(u64, u32)]| {
            let mut log = Log::new();
            for (at, index) in events {
                log.record(Time::from_nanos(*at), LogEvent::Acted { index: *index });
            }
            log.hash()
        };
        assert_eq!(run(&[(1, 1), (1, 2)]), run(&[(1, 1), (1, 2)]));
        assert_ne!(run(&[(1, 1), (1, 2)]), run(&[(1, 2), (1, 1)]));
        assert_ne!(run(&[(1, 1)]), run(&[(2, 1)]));
    }

    #[test]
    fn tail_keeps_the_last() {
        let mut log = Log::new();
        log.keep(2);
        for index in 0..5 {
            log.record(Time::ZERO, LogEvent::Acted { index });
        }
        let kept: Vec<LogEvent> = log.tail().map(|e| e.1).collect();
        assert_eq!(kept, [LogEvent::Acted { index: 3 }, LogEvent::Acted { index: 4 }]);
        assert_eq!(log.count(), 5);
    }
}
