//! A model of TCP, single path: selective acknowledgements (RFC 6675), retransmission timer (RFC 6298), delayed
//! acknowledgements, an initial window. Segments are counted, not bytes; there is no tail-loss probe and no handshake, but
//! the round trip that it would have measured is known.

use std::collections::{BTreeMap, VecDeque};

use srd_core::{Span, Time};

use super::control::{TcpControl, Window};

/// Parameters of the TCP model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpConfig {
    /// Congestion control.
    pub control: TcpControl,
    /// Smallest retransmission timeout, not 0. Linux has 200 ms; the SRD paper's tail shows 50 ms.
    pub min_rto: Span,
    /// Segments sent before the first acknowledgement. Linux sends 10, whatever their size; RFC 6928 stops at 14,600 bytes.
    pub initial_window: u32,
    /// MTU of its packets.
    pub mtu: u32,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig { control: TcpControl::Cubic, min_rto: Span::from_millis(50), initial_window: 10, mtu: 9_000 }
    }
}

impl TcpConfig {
    /// Payload of a full segment: the MTU less IPv4 (20), TCP (20) and the timestamp option (12).
    pub(super) fn segment(&self) -> u32 {
        self.mtu - 52
    }
}

/// Segments acknowledged later than a hole that prove it lost.
const DUPLICATES: u32 = 3;
/// Ranges in one acknowledgement, as much as fits beside timestamps.
const MAX_RANGES: usize = 3;
/// Longest timeout.
const MAX_RTO: Span = Span::from_secs(60);
/// Longest time that an acknowledgement waits for a second segment.
const DELAYED_ACK: Span = Span::from_millis(1);
/// Segments at the start that are acknowledged one by one (Linux's quick acknowledgements).
const QUICK: u32 = 16;

/// An acknowledgement.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Ack {
    /// All segments before this one have arrived.
    pub(super) next: u32,
    /// So have these ranges.
    pub(super) ranges: [(u32, u32); MAX_RANGES],
    /// Whether the segments that it is for were marked.
    pub(super) marked: bool,
    /// When the segment was sent that this answers.
    pub(super) echo: Time,
}

impl Ack {
    /// The ranges that there are.
    pub(super) fn given_ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ranges.into_iter().take_while(|(from, to)| from < to)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    arrived: bool,
    lost: bool,
    /// Sent again after it was lost.
    again: bool,
}

/// The sending side of a flow.
#[derive(Debug)]
pub(super) struct Sender {
    config: TcpConfig,
    window: Window,
    /// Segments in all; `None` for no end.
    total: Option<u32>,
    /// From the first segment that is not acknowledged up to the next new one.
    flight: VecDeque<Segment>,
    first: u32,
    /// Segments in the network, as far as one can tell.
    pipe: u32,
    /// Lost segments that have not been sent again.
    holes: u32,
    /// Whether the window held back what could have been sent since the last acknowledgement.
    limited: bool,
    /// Fast recovery, or that after a timeout, lasts until this one is acknowledged.
    recovery: Option<(u32, bool)>,
    /// The window of marks ends with this one.
    round_end: u32,
    srtt: Span,
    rttvar: Span,
    backoff: u32,
    pub(super) timer: Option<Time>,
    pub(super) packets: u64,
    pub(super) retransmits: u64,
    pub(super) timeouts: u64,
}

impl Sender {
    /// A sender whose handshake, which is not modelled, has measured this round trip.
    pub(super) fn new(config: TcpConfig, total: Option<u32>, rtt: Span) -> Sender {
        Sender {
            config,
            window: Window::new(config.control, config.initial_window),
            total,
            flight: VecDeque::new(),
            first: 0,
            pipe: 0,
            holes: 0,
            limited: false,
            recovery: None,
            round_end: 0,
            srtt: rtt,
            rttvar: rtt / 2,
            backoff: 0,
            timer: None,
            packets: 0,
            retransmits: 0,
            timeouts: 0,
        }
    }

    /// Whether everything has been acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.total == Some(self.first)
    }

    /// The next new segment.
    pub(super) fn next_new(&self) -> u32 {
        self.first + self.flight.len() as u32
    }

    fn rto(&self) -> Span {
        let rto = (self.srtt + self.rttvar * 4).max(self.config.min_rto);
        (rto * (1 << self.backoff.min(16))).min(MAX_RTO)
    }

    /// The next segment to send, if the window allows one; new ones only below `available`.
    pub(super) fn poll(&mut self, now: Time, available: u32) -> Option<u32> {
        if f64::from(self.pipe) >= self.window.cwnd.max(1.0).floor() {
            self.limited = true;
            return None;
        }
        let hole = if self.holes > 0 { self.flight.iter().position(|s| s.lost && !s.again) } else { None };
        let segment = match hole {
            Some(i) => {
                self.flight[i].again = true;
                self.holes -= 1;
                self.retransmits += 1;
                self.first + i as u32
            }
            None => {
                let new = self.next_new();
                if new >= available || self.total.is_some_and(|all| new >= all) {
                    return None;
                }
                self.flight.push_back(Segment::default());
                new
            }
        };
        self.pipe += 1;
        self.packets += 1;
        self.timer.get_or_insert(now + self.rto());
        Some(segment)
    }

    /// An acknowledgement arrived.
    pub(super) fn on_ack(&mut self, ack: &Ack, now: Time) {
        if ack.next > self.next_new() {
            return;
        }
        self.measure(now.since(ack.echo));
        let mut newly = 0;
        let before = self.first;
        while self.first < ack.next {
            newly += self.arrive(0);
            self.flight.pop_front();
            self.first += 1;
        }
        let mut disorder = false;
        for (from, to) in ack.ranges {
            for segment in from.max(self.first)..to.min(self.next_new()) {
                disorder = true;
                newly += self.arrive((segment - self.first) as usize);
            }
        }
        let window_over = self.first > self.round_end;
        if window_over {
            self.round_end = self.next_new();
        }
        self.window.on_marks(newly, ack.marked, window_over && self.recovery.is_none());
        match self.recovery {
            Some((end, _)) if self.first >= end => self.recovery = None,
            // A window that held nothing back says nothing about the network (RFC 7661).
            Some((_, true)) | None if newly > 0 && self.limited => {
                self.window.on_acked(newly, now, self.srtt);
            }
            _ => {}
        }
        self.limited = false;
        if disorder {
            self.find_losses();
        }
        if self.first > before {
            self.backoff = 0;
            self.timer = None;
        }
        if self.flight.is_empty() {
            self.timer = None;
        } else {
            self.timer.get_or_insert(now + self.rto());
        }
    }

    /// A segment arrived, by its place in the flight. Returns 1 if that is news.
    fn arrive(&mut self, i: usize) -> u32 {
        let s = &mut self.flight[i];
        if s.arrived {
            return 0;
        }
        // A segment that counts as lost and was not sent again is not in the pipe.
        let hole = s.lost && !s.again;
        self.pipe -= u32::from(!hole);
        self.holes -= u32::from(hole);
        s.arrived = true;
        s.lost = false;
        1
    }

    /// Holes below three later arrivals are lost.
    fn find_losses(&mut self) {
        let (mut later, mut found) = (0, false);
        for s in self.flight.iter_mut().rev() {
            if s.arrived {
                later += 1;
            } else if later >= DUPLICATES && !s.lost {
                s.lost = true;
                self.pipe -= 1;
                self.holes += 1;
                found = true;
            }
        }
        if found && self.recovery.is_none() {
            self.window.on_loss();
            self.recovery = Some((self.next_new(), false));
        }
    }

    /// The timer expired: everything that has not arrived is lost.
    pub(super) fn on_timeout(&mut self, now: Time) {
        self.timeouts += 1;
        self.backoff += 1;
        self.holes = 0;
        for s in self.flight.iter_mut().filter(|s| !s.arrived) {
            (s.lost, s.again) = (true, false);
            self.holes += 1;
        }
        self.pipe = 0;
        self.window.on_timeout();
        self.recovery = Some((self.next_new(), true));
        self.timer = Some(now + self.rto());
    }

    fn measure(&mut self, rtt: Span) {
        self.rttvar = self.rttvar * 3 / 4 + rtt.abs_diff(self.srtt) / 4;
        self.srtt = self.srtt * 7 / 8 + rtt / 8;
    }
}

/// The receiving side of a flow.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// All segments before this one have arrived.
    next: u32,
    /// Ranges beyond, from start to end.
    beyond: BTreeMap<u32, u32>,
    unacked: u32,
    /// Whether the last segment was marked.
    marked: bool,
    echo: Time,
    /// When an acknowledgement is due at the latest.
    pub(super) timer: Option<Time>,
}

impl Receiver {
    /// A segment arrived. Returns whether it is new, and the acknowledgements that are due at once.
    pub(super) fn on_segment(
        &mut self,
        segment: u32,
        last: bool,
        marked: bool,
        sent: Time,
        now: Time,
    ) -> (bool, [Option<Ack>; 2]) {
        // An acknowledgement is for marked segments or for others, never for both (RFC 8257, section 3.2). Where that
        // changes, the first of the new kind is acknowledged at once, as Linux does.
        let change = marked != self.marked;
        let pending = if change && self.unacked > 0 { Some(self.ack(u32::MAX)) } else { None };
        self.marked = marked;
        let in_order = segment == self.next;
        let filled = in_order && !self.beyond.is_empty();
        let new = self.insert(segment);
        self.unacked += 1;
        if self.unacked == 1 {
            self.echo = sent;
        }
        if !in_order || filled || last || change || segment < QUICK || self.unacked >= 2 {
            return (new, [pending, Some(self.ack(segment))]);
        }
        self.timer = Some(now + DELAYED_ACK);
        (new, [None, None])
    }

    fn insert(&mut self, segment: u32) -> bool {
        if segment < self.next || self.range_of(segment).is_some() {
            return false;
        }
        let mut start = segment;
        let mut end = self.beyond.remove(&(segment + 1)).unwrap_or(segment + 1);
        if let Some((s, e)) = self.beyond.range(..segment).next_back().map(|(s, e)| (*s, *e))
            && e == segment
        {
            self.beyond.remove(&s);
            start = s;
        }
        if start == self.next {
            self.next = end;
            end = start;
        }
        if end > start {
            self.beyond.insert(start, end);
        }
        true
    }

    fn range_of(&self, segment: u32) -> Option<(u32, u32)> {
        self.beyond.range(..=segment).next_back().map(|(s, e)| (*s, *e)).filter(|r| segment < r.1)
    }

    /// The acknowledgement of now: the range of the newest segment first, then the highest ones.
    pub(super) fn ack(&mut self, newest: u32) -> Ack {
        let mut ack = Ack { next: self.next, ranges: Default::default(), marked: self.marked, echo: self.echo };
        let first = self.range_of(newest);
        let others = self.beyond.iter().rev().map(|(s, e)| (*s, *e)).filter(|r| Some(*r) != first);
        for (slot, range) in ack.ranges.iter_mut().zip(first.into_iter().chain(others)) {
            *slot = range;
        }
        self.unacked = 0;
        self.timer = None;
        ack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every acknowledgement speaks of segments that were all marked or all not, so that the sender learns their share.
    #[test]
    fn acknowledgements_tell_how_many_segments_were_marked() {
        let mut receiver = Receiver::default();
        let (mut acked, mut marked, mut real) = (0, 0, 0);
        let mut hear = |ack: Ack| {
            marked += if ack.marked { ack.next - acked } else { 0 };
            acked = ack.next;
        };
        for segment in 0..QUICK + 90 {
            // Two unmarked ones and one that is, beyond those that are acknowledged one by one.
            let mark = segment >= QUICK && segment % 3 == 0;
            real += u32::from(mark);
            let (new, acks) = receiver.on_segment(segment, false, mark, Time::ZERO, Time::ZERO);
            assert!(new);
            acks.into_iter().flatten().for_each(&mut hear);
        }
        hear(receiver.ack(u32::MAX));
        assert_eq!((acked, marked, real), (QUICK + 90, 30, 30));
    }
}
