//! A station that runs what SRD shares the network with: TCP flows and flows of a constant rate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use srd_core::{Ecn, Span, Time};

use super::control::TcpControl;
use super::ledger::Ledger;
use super::tcp::{Ack, Receiver, Sender, TcpConfig};
use crate::host::Io;
use crate::packet::{Addr, MAIN_PORT};

/// What a flow of this station does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Legacy {
    /// TCP.
    Tcp(TcpConfig),
    /// Packets of this MTU at a constant rate; nothing answers, nothing is repeated.
    Constant { mtu: u32 },
}

/// The model's own headers. Their length on the wire is that of TCP's, whatever they need here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Header {
    Segment { flow: u32, segment: u32, last: bool, sent: Time },
    Ack { flow: u32, ack: Ack },
    Constant { flow: u32, bytes: u32 },
}

/// Bytes that a TCP header with timestamps (32) has more than a UDP header (8).
const TCP_EXTRA: u32 = 24;
/// Time's worth of packets in the host's own port beyond which TCP waits (TCP small queues).
const OWN_QUEUE: Span = Span::from_micros(10);
/// Segments come out of the host's cable late by up to so many millionths of the time that they take there. No host sends
/// as evenly as a model; without this, a flow that fills a drop-tail queue at the receiver's own rate is in step with it
/// for ever, and keeps all others out.
const JITTER_PPM: u64 = 1_000_000;
/// Longest encoded header.
const MAX_HEADER: usize = 46;

impl Header {
    fn encode(self) -> ([u8; MAX_HEADER], usize) {
        let mut out = [0; MAX_HEADER];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        match self {
            Header::Segment { flow, segment, last, sent } => {
                put(&[if last { 1 } else { 0 }]);
                put(&flow.to_le_bytes());
                put(&segment.to_le_bytes());
                put(&sent.as_nanos().to_le_bytes());
            }
            Header::Ack { flow, ack } => {
                put(&[if ack.marked { 3 } else { 2 }]);
                put(&flow.to_le_bytes());
                put(&ack.next.to_le_bytes());
                put(&ack.echo.as_nanos().to_le_bytes());
                for (from, to) in ack.given_ranges() {
                    put(&from.to_le_bytes());
                    put(&to.to_le_bytes());
                }
            }
            Header::Constant { flow, bytes } => {
                put(&[4]);
                put(&flow.to_le_bytes());
                put(&bytes.to_le_bytes());
            }
        }
        (out, at)
    }

    fn decode(mut bytes: &[u8]) -> Option<Header> {
        fn word(bytes: &mut &[u8]) -> Option<u32> {
            let (head, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*head))
        }
        fn time(bytes: &mut &[u8]) -> Option<Time> {
            let (low, high) = (word(bytes)?, word(bytes)?);
            Some(Time::from_nanos(u64::from(high) << 32 | u64::from(low)))
        }
        let (&kind, rest) = bytes.split_first()?;
        bytes = rest;
        let flow = word(&mut bytes)?;
        match kind {
            0 | 1 => {
                let segment = word(&mut bytes)?;
                Some(Header::Segment { flow, segment, last: kind == 1, sent: time(&mut bytes)? })
            }
            2 | 3 => {
                let mut ack = Ack { next: word(&mut bytes)?, marked: kind == 3, ..Ack::default() };
                ack.echo = time(&mut bytes)?;
                // What follows the last range are zeros.
                for range in &mut ack.ranges {
                    *range = (word(&mut bytes).unwrap_or(0), word(&mut bytes).unwrap_or(0));
                }
                Some(Header::Ack { flow, ack })
            }
            4 => Some(Header::Constant { flow, bytes: word(&mut bytes)? }),
            _ => None,
        }
    }
}

/// A flow that this station sends.
#[derive(Debug)]
struct Outgoing {
    port: u16,
    to: Addr,
    since: Time,
    rate: Option<u64>,
    bytes: Option<u64>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Tcp(Box<Sender>, TcpConfig),
    /// Packets sent so far.
    Constant {
        mtu: u32,
        sent: u64,
    },
}

/// Counters of a flow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct LegacyCounters {
    pub(super) packets: u64,
    pub(super) retransmits: u64,
    pub(super) timeouts: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct LegacyStation {
    /// What the flows that start here are, by number.
    kinds: BTreeMap<usize, Legacy>,
    outgoing: BTreeMap<usize, Outgoing>,
    incoming: BTreeMap<usize, (Receiver, Addr)>,
    /// What wants a turn when: flows that send, and flows that arrive.
    alarms: BTreeSet<(Time, usize, bool)>,
    set: BTreeMap<(usize, bool), Time>,
    counters: BTreeMap<usize, LegacyCounters>,
    ports: u16,
    /// Source ports of flows that are bound to a way.
    pinned: BTreeMap<usize, u16>,
}

impl LegacyStation {
    /// The station starts this flow.
    pub(super) fn add(&mut self, flow: usize, kind: Legacy) {
        self.kinds.insert(flow, kind);
    }

    /// A flow gets the source port with this index.
    pub(super) fn pin(&mut self, flow: usize, port: u16) {
        self.pinned.insert(flow, port);
    }

    /// Source ports that it needs: one per flow that it starts, so that each hashes to a path of its own.
    pub(super) fn source_ports(&self) -> u16 {
        self.kinds.len().clamp(1, 1024) as u16
    }

    pub(super) fn counters(&self, flow: usize) -> LegacyCounters {
        self.counters.get(&flow).copied().unwrap_or_default()
    }

    fn alarm(&mut self, flow: usize, incoming: bool, at: Option<Time>) {
        let key = (flow, incoming);
        if self.set.get(&key).copied() == at {
            return;
        }
        if let Some(before) = self.set.remove(&key) {
            self.alarms.remove(&(before, flow, incoming));
        }
        if let Some(at) = at {
            self.set.insert(key, at);
            self.alarms.insert((at, flow, incoming));
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.alarms.first().map(|a| a.0)
    }

    pub(super) fn turn(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        let now = io.world_now();
        let mut arrivals = Vec::new();
        io.receive(|meta, bytes| arrivals.push((Header::decode(bytes), meta.from, meta.ecn)));
        for (header, from, ecn) in arrivals {
            if let Some(header) = header {
                self.receive(header, from, ecn == Ecn::Ce, now, ledger, io);
            }
        }
        let host = io.host().id();
        while let Some(flow) = ledger.take_due(host, now) {
            self.begin(flow, now, ledger, io);
        }
        while let Some(&(at, flow, incoming)) = self.alarms.first()
            && at <= now
        {
            self.alarm(flow, incoming, None);
            self.on_alarm(flow, incoming, now, io);
        }
    }

    fn begin(&mut self, flow: usize, now: Time, ledger: &mut Ledger, io: &mut Io<'_>) {
        let entry = &ledger.flows[flow];
        let Some(kind) = self.kinds.get(&flow) else {
            return io.net.violate(format!("flow {flow} starts at a station that does not know it"));
        };
        let kind = match *kind {
            Legacy::Tcp(config) => {
                let segments = entry.bytes.map(|b| b.div_ceil(config.segment().into()) as u32);
                Kind::Tcp(Box::new(Sender::new(config, segments, entry.rtt)), config)
            }
            Legacy::Constant { mtu } => Kind::Constant { mtu, sent: 0 },
        };
        let port = self.pinned.get(&flow).copied().unwrap_or(self.ports % self.source_ports());
        self.ports = self.ports.wrapping_add(1);
        let to = Addr::of(entry.to, MAIN_PORT);
        self.outgoing.insert(flow, Outgoing { port, to, since: now, rate: entry.rate, bytes: entry.bytes, kind });
        self.send(flow, now, io);
    }

    fn receive(
        &mut self,
        header: Header,
        from: SocketAddr,
        marked: bool,
        now: Time,
        ledger: &mut Ledger,
        io: &mut Io<'_>,
    ) {
        match header {
            Header::Segment { flow, segment, last, sent } => {
                let Some(from) = Addr::from_socket(from) else { return };
                let i = flow as usize;
                let (receiver, _) = self.incoming.entry(i).or_insert_with(|| (Receiver::default(), from));
                let (new, acks) = receiver.on_segment(segment, last, marked, sent, now);
                let timer = receiver.timer;
                acks.into_iter().flatten().for_each(|ack| send_ack(flow, from, ack, io));
                self.alarm(i, true, timer);
                if new {
                    // What a segment carries, its sender's station knows: all are full but the last.
                    let bytes = segment_bytes(ledger.flows[i].bytes, segment, ledger.segment(i));
                    ledger.delivered(i, bytes.into(), io);
                }
            }
            Header::Ack { flow, ack } => {
                let i = flow as usize;
                let Some(Outgoing { kind: Kind::Tcp(sender, _), .. }) = self.outgoing.get_mut(&i) else { return };
                sender.on_ack(&ack, now);
                if sender.is_done() {
                    self.outgoing.remove(&i);
                    self.alarm(i, false, None);
                    ledger.completed(i, io);
                } else {
                    self.send(i, now, io);
                }
            }
            Header::Constant { flow, bytes } => ledger.delivered(flow as usize, bytes.into(), io),
        }
    }

    fn on_alarm(&mut self, flow: usize, incoming: bool, now: Time, io: &mut Io<'_>) {
        if incoming {
            if let Some((receiver, from)) = self.incoming.get_mut(&flow) {
                let ack = receiver.ack(u32::MAX);
                send_ack(flow as u32, *from, ack, io);
            }
            return;
        }
        if let Some(Outgoing { kind: Kind::Tcp(sender, _), .. }) = self.outgoing.get_mut(&flow)
            && sender.timer.is_some_and(|t| t <= now)
        {
            sender.on_timeout(now);
        }
        self.send(flow, now, io);
    }

    /// Sends what a flow may send now, and sets its alarm.
    fn send(&mut self, flow: usize, now: Time, io: &mut Io<'_>) {
        let Some(out) = self.outgoing.get_mut(&flow) else { return };
        let counters = self.counters.entry(flow).or_default();
        let flow32 = flow as u32;
        let (rate, since, total) = (out.rate, out.since, out.bytes.unwrap_or(u64::MAX));
        // Bytes that the application has made by now, and when it will have made so many.
        let made = rate.map_or(u64::MAX, |rate| {
            (u128::from(now.since(since).as_nanos()) * u128::from(rate) / 8_000_000_000) as u64
        });
        let when = |bytes: u64| {
            let ns = |rate: u64| (u128::from(bytes) * 8_000_000_000).div_ceil(rate.into()) as u64;
            rate.map(|rate| since + Span::from_nanos(ns(rate)))
        };
        let at = match &mut out.kind {
            Kind::Tcp(sender, config) => {
                let size = config.segment();
                // All segments are full but the last.
                let full = (made / u64::from(size)).min(u32::MAX.into()) as u32;
                let available = if made >= total { u32::MAX } else { full };
                let ecn = if config.control == TcpControl::Dctcp { Ecn::Ect } else { Ecn::NotEct };
                let last = out.bytes.map(|b| b.div_ceil(size.into()) as u32 - 1);
                // As Linux does, what would only wait in the host's own port is not sent yet.
                while io.backlog() < OWN_QUEUE
                    && let Some(segment) = sender.poll(now, available)
                {
                    let header = Header::Segment { flow: flow32, segment, last: Some(segment) == last, sent: now };
                    let bytes = segment_bytes(out.bytes, segment, size);
                    let late = io.rng().below(JITTER_PPM) as u32;
                    put(out.port, out.to, ecn, header, bytes + TCP_EXTRA, late, io);
                }
                *counters = LegacyCounters {
                    packets: sender.packets,
                    retransmits: sender.retransmits,
                    timeouts: sender.timeouts,
                };
                let next = (u64::from(available) + 1) * u64::from(size);
                let more = if available == u32::MAX { None } else { when(next.min(total)) };
                let backlog = io.backlog();
                let drained = (backlog >= OWN_QUEUE).then(|| now + (backlog - OWN_QUEUE / 2));
                [sender.timer, more, drained].into_iter().flatten().min()
            }
            Kind::Constant { mtu, sent } => {
                let size = *mtu - 28;
                let all = total.div_ceil(size.into());
                let due = if made >= total { all } else { made / u64::from(size) };
                while *sent < due {
                    let bytes = segment_bytes(out.bytes, *sent as u32, size);
                    *sent += 1;
                    counters.packets += 1;
                    put(out.port, out.to, Ecn::NotEct, Header::Constant { flow: flow32, bytes }, bytes, 0, io);
                }
                if due == all { None } else { when(((due + 1) * u64::from(size)).min(total)) }
            }
        };
        self.alarm(flow, false, at.map(|at| at.max(now + Span::from_nanos(1))));
    }
}

/// Payload of a segment: all are full but the last.
fn segment_bytes(total: Option<u64>, segment: u32, size: u32) -> u32 {
    total.map_or(size, |all| all.saturating_sub(u64::from(segment) * u64::from(size)).min(size.into()) as u32)
}

/// Bytes of an acknowledgement beyond IPv4 and UDP headers: the option with the ranges has two of its own, which are padded to
/// four, and eight for each range.
fn ack_bytes(ack: &Ack) -> u32 {
    match ack.given_ranges().count() as u32 {
        0 => TCP_EXTRA,
        ranges => TCP_EXTRA + 4 + 8 * ranges,
    }
}

fn send_ack(flow: u32, to: Addr, ack: Ack, io: &mut Io<'_>) {
    put(0, to, Ecn::NotEct, Header::Ack { flow, ack }, ack_bytes(&ack), 0, io);
}

/// Sends a packet of `len` bytes beyond IPv4 and UDP headers that begins with this header, and is late.
fn put(port: u16, to: Addr, ecn: Ecn, header: Header, len: u32, late_ppm: u32, io: &mut Io<'_>) {
    let (bytes, used) = header.encode();
    io.send_late(port, to, ecn, late_ppm, |packet| {
        packet.put(&bytes[..used]);
        packet.put_zeros(len.saturating_sub(used as u32));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_went() {
        let ack = Ack { next: 7, ranges: [(9, 11), (20, 21), (0, 0)], marked: true, echo: Time::from_nanos(1 << 40) };
        let headers = [
            Header::Segment { flow: 3, segment: 8, last: true, sent: Time::from_nanos(u64::MAX - 1) },
            Header::Segment { flow: 3, segment: 8, last: false, sent: Time::ZERO },
            Header::Ack { flow: 1 << 31, ack },
            Header::Ack { flow: 2, ack: Ack { ranges: Default::default(), ..ack } },
            Header::Constant { flow: 5, bytes: 1_000 },
        ];
        for header in headers {
            let (bytes, len) = header.encode();
            assert_eq!(Header::decode(&bytes[..len]), Some(header));
            let padded = [&bytes[..len], &[0; 7]].concat();
            assert_eq!(Header::decode(&padded), Some(header));
        }
        for header in headers {
            let (bytes, _) = header.encode();
            assert_eq!(Header::decode(&bytes[..4]), None);
        }
        // As long as TCP's: 40 bytes of options at most, and 90 bytes on a cable without ranges.
        for (ranges, expected) in [(0, 24), (1, 36), (2, 44), (3, 52)] {
            let mut shorter = ack;
            shorter.ranges = [(9, 11), (20, 21), (30, 32)];
            shorter.ranges[ranges..].fill((0, 0));
            let (_, len) = Header::Ack { flow: 1, ack: shorter }.encode();
            assert!(ack_bytes(&shorter) == expected && len <= expected as usize, "{ranges} ranges: {len} bytes");
        }
    }
}
