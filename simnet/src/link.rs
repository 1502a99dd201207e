//! Links: one direction of a cable, made of parts that a packet passes one after the other.
//!
//! A packet's whole passage is computed when it enters the link, so a hop costs one event: the queue knows when everything
//! before the packet will have left. What changes later (rate, delay, loss) holds for packets that enter later, unless
//! [`Net::cut`](crate::Net::cut) or [`Net::set_rate`](crate::Net::set_rate) changes it, which work everything out anew.

use std::collections::VecDeque;

use srd_core::{Ecn, Span, Time};

use crate::log::DropReason;
use crate::packet::{Arena, IP_UDP_OVERHEAD, Label, PacketId, WIRE_OVERHEAD};
use crate::part::{Burst, Part, PartKind, Queue};
use crate::pool::Pool;
use crate::rng::Rng;

/// Counters of a link.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// Packets that entered and were not dropped.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets dropped because the queue was full.
    pub queue_drops: u64,
    /// Packets dropped for any other reason.
    pub other_drops: u64,
    /// Packets that got a congestion mark.
    pub marked: u64,
    /// Longest queue, in bytes.
    pub max_queue: u64,
    /// Time that the transmitter was busy.
    pub busy: Span,
}

impl LinkStats {
    /// Share of `elapsed` in which the transmitter was busy.
    pub fn utilisation(&self, elapsed: Span) -> f64 {
        self.busy.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
    }
}

/// What becomes of a packet that entered a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passage {
    Dropped(DropReason),
    Arrives {
        at: Time,
        /// A second copy arrives then.
        copy: Option<Time>,
    },
}

/// One direction of a cable. What most packets need of it is aligned to fill three cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub struct Link {
    /// The parts once more if they are a queue and a delay, which is what most links have.
    plain: Option<(Queue, Span)>,
    /// Bytes that a datagram takes beside itself.
    pub(crate) overhead: u32,
    /// The buffer that it shares with others.
    pub(crate) pool: Option<u32>,
    stats: LinkStats,
    /// Departure time and bytes of every packet in the queue.
    waiting: VecDeque<(Time, u32)>,
    queued: u64,
    busy_until: Time,
    /// Remainder of the last division by the rate, so that small packets on fast links add up exactly.
    carry: u64,
    rest: Box<Rest>,
}

/// What few packets need of a link.
#[derive(Debug)]
struct Rest {
    parts: Vec<Part>,
    rng: Rng,
    burst_bad: bool,
    /// When the last packet comes out that was late.
    late_until: Time,
}

impl Link {
    pub(crate) fn new(parts: &[Part], rng: Rng) -> Link {
        let mut link = Link {
            plain: None,
            overhead: WIRE_OVERHEAD,
            pool: None,
            stats: LinkStats::default(),
            waiting: VecDeque::new(),
            queued: 0,
            busy_until: Time::ZERO,
            carry: 0,
            rest: Box::new(Rest { parts: Vec::new(), rng, burst_bad: false, late_until: Time::ZERO }),
        };
        for part in parts {
            link.set(*part);
        }
        link
    }

    /// Adds a part, or replaces the one of its kind.
    pub fn set(&mut self, part: Part) {
        if let Part::Queue(q) = part {
            assert!(q.rate > 0, "a link's rate must be at least 1 bit/s");
        }
        match self.rest.parts.binary_search_by_key(&part.kind(), Part::kind) {
            Ok(i) => self.rest.parts[i] = part,
            Err(i) => self.rest.parts.insert(i, part),
        }
        self.note_plain();
    }

    fn note_plain(&mut self) {
        self.plain = match self.rest.parts[..] {
            [Part::Queue(queue), Part::Delay(delay)] => Some((queue, delay)),
            _ => None,
        };
    }

    /// Removes the part of this kind, if there is one.
    pub fn clear(&mut self, kind: PartKind) {
        self.rest.parts.retain(|p| p.kind() != kind);
        if kind == PartKind::Burst {
            self.rest.burst_bad = false;
        }
        self.note_plain();
    }

    /// The parts in the order in which packets pass them.
    pub fn parts(&self) -> &[Part] {
        &self.rest.parts
    }

    /// When its transmitter will be idle, or was last.
    pub(crate) fn busy_until(&self) -> Time {
        self.busy_until
    }

    /// Bytes that may wait before it; `u64::MAX` without a queue.
    pub fn limit(&self) -> u64 {
        self.queue().map_or(u64::MAX, |q| q.limit)
    }

    /// Its queue, if it has one.
    pub(crate) fn queue(&self) -> Option<Queue> {
        self.rest.parts.iter().find_map(|p| if let Part::Queue(q) = p { Some(*q) } else { None })
    }

    /// Counters.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Starts all counters at zero.
    pub(crate) fn reset_stats(&mut self) {
        self.stats = LinkStats::default();
    }

    /// Bytes in the queue at `now`.
    pub fn queued(&mut self, now: Time) -> u64 {
        // Nothing to look through if all has left.
        if self.busy_until <= now {
            self.waiting.clear();
            self.queued = 0;
        }
        while self.waiting.front().is_some_and(|w| w.0 <= now) {
            let (_, bytes) = self.waiting.pop_front().expect("just seen");
            self.queued -= u64::from(bytes);
        }
        self.queued
    }

    /// A packet of `len` bytes that had entered is lost after all.
    pub(crate) fn lose(&mut self, len: u32) {
        self.stats.packets = self.stats.packets.saturating_sub(1);
        self.stats.bytes = self.stats.bytes.saturating_sub(u64::from(len + self.overhead));
        self.stats.other_drops += 1;
    }

    /// Forgets all packets in the queue, which it returns.
    pub(crate) fn empty(&mut self, now: Time) -> VecDeque<(Time, u32)> {
        self.queued(now);
        self.queued = 0;
        self.rest.late_until = now;
        self.end_at(now, now);
        std::mem::take(&mut self.waiting)
    }

    /// Packets in the queue leave at another rate from now on. Returns when they were to leave, and when they do now.
    pub(crate) fn set_rate(&mut self, now: Time, rate: u64) -> [VecDeque<(Time, u32)>; 2] {
        let Some(queue) = self.queue() else { return Default::default() };
        self.queued(now);
        let before = self.waiting.clone();
        self.waiting.iter_mut().for_each(|w| w.0 = stretched(w.0, now, queue.rate, rate));
        self.end_at(stretched(self.busy_until, now, queue.rate, rate), now);
        self.carry = 0;
        self.rest.late_until = self.retimed(self.rest.late_until, now, rate);
        self.set(Part::Queue(Queue { rate, ..queue }));
        [before, self.waiting.clone()]
    }

    /// When a packet comes out that would at `at`, if the rate becomes another one now.
    pub(crate) fn retimed(&self, at: Time, now: Time, rate: u64) -> Time {
        let Some(queue) = self.queue() else { return at };
        let delay = self.rest.parts.iter().find_map(|p| if let Part::Delay(d) = p { Some(*d) } else { None });
        let delay = delay.unwrap_or_default();
        stretched(at - delay, now, queue.rate, rate) + delay
    }

    /// The transmitter will be idle at another time, `now` at the earliest.
    fn end_at(&mut self, end: Time, now: Time) {
        self.stats.busy = self.stats.busy - self.busy_until.since(now) + end.since(now);
        self.busy_until = end;
    }

    /// Passes a packet through all parts.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        packet: PacketId,
        packets: &mut Arena,
        mut pool: Option<&mut Pool>,
    ) -> Passage {
        if let Some((queue, delay)) = self.plain {
            let label = packets.label_mut(packet);
            return match self.enqueue(now, queue, label, pool) {
                Some(departure) => self.passed(label, departure + delay, None),
                None => self.overflowed(),
            };
        }
        let mut at = now;
        let mut copy = None;
        for i in 0..self.rest.parts.len() {
            let dropped = match self.rest.parts[i] {
                Part::Blackhole => Some(DropReason::Blackhole),
                Part::Mtu(mtu) => (packets.label(packet).len + IP_UDP_OVERHEAD > mtu).then_some(DropReason::Mtu),
                Part::Loss(ppm) => self.rest.rng.chance(ppm).then_some(DropReason::Loss),
                Part::Burst(burst) => self.in_burst(burst).then_some(DropReason::Loss),
                Part::Corrupt(ppm) => {
                    if self.rest.rng.chance(ppm) {
                        packets.corrupt(packet, |data| corrupt(data, &mut self.rest.rng));
                    }
                    None
                }
                Part::Queue(queue) => match self.enqueue(at, queue, packets.label_mut(packet), pool.as_deref_mut()) {
                    Some(departure) => {
                        at = departure;
                        None
                    }
                    None => return self.overflowed(),
                },
                Part::Delay(delay) => {
                    at += delay;
                    None
                }
                Part::Jitter(most) => {
                    at += self.rest.rng.span(Span::ZERO, most);
                    None
                }
                Part::Reorder(ppm, most) => {
                    if self.rest.rng.chance(ppm) {
                        at += self.rest.rng.span(Span::ZERO, most);
                    }
                    None
                }
                Part::Duplicate(ppm, most) => {
                    if self.rest.rng.chance(ppm) {
                        copy = Some(at + self.rest.rng.span(Span::ZERO, most));
                    }
                    None
                }
            };
            if let Some(reason) = dropped {
                self.stats.other_drops += 1;
                return Passage::Dropped(reason);
            }
        }
        self.passed(packets.label(packet), at, copy)
    }

    /// When a packet of `len` bytes comes out that would at `at`, but is late by so many millionths of the time that it takes
    /// to send: not before other late ones that entered earlier.
    pub(crate) fn late(&mut self, at: Time, len: u32, ppm: u32) -> Time {
        let rate = self.queue().map_or(u64::MAX, |q| q.rate);
        let takes = u64::from(len + self.overhead) * 8_000_000_000 / rate;
        self.rest.late_until = self.rest.late_until.max(at + Span::from_nanos(takes * u64::from(ppm) / 1_000_000));
        self.rest.late_until
    }

    fn passed(&mut self, label: &Label, at: Time, copy: Option<Time>) -> Passage {
        self.stats.packets += 1;
        self.stats.bytes += u64::from(label.len + self.overhead);
        Passage::Arrives { at, copy }
    }

    fn overflowed(&mut self) -> Passage {
        self.stats.queue_drops += 1;
        Passage::Dropped(DropReason::QueueFull)
    }

    fn in_burst(&mut self, burst: Burst) -> bool {
        if self.rest.rng.chance(if self.rest.burst_bad { burst.leave } else { burst.enter }) {
            self.rest.burst_bad = !self.rest.burst_bad;
        }
        self.rest.burst_bad
    }

    /// When the packet will have left, or `None` if the queue has no room for it.
    fn enqueue(&mut self, now: Time, queue: Queue, label: &mut Label, pool: Option<&mut Pool>) -> Option<Time> {
        let bytes = label.len + self.overhead;
        let before = self.queued(now);
        let queued = before + u64::from(bytes);
        let mut limit = queue.limit;
        let pool = match pool {
            Some(pool) => {
                limit = limit.min(pool.threshold(now));
                Some(pool)
            }
            None => None,
        };
        if queued > limit && before > 0 {
            return None;
        }
        if before >= queue.ecn && label.ecn == Ecn::Ect && self.marks(before - queue.ecn, queue.ramp) {
            label.ecn = Ecn::Ce;
            self.stats.marked += 1;
        }
        if self.busy_until <= now {
            self.busy_until = now;
            self.carry = 0;
        }
        let work = u64::from(bytes) * 8_000_000_000 + self.carry;
        let service = Span::from_nanos(work / queue.rate);
        self.carry = work % queue.rate;
        self.busy_until += service;
        self.stats.busy = self.stats.busy + service;
        self.stats.max_queue = self.stats.max_queue.max(queued);
        self.queued = queued;
        self.waiting.push_back((self.busy_until, bytes));
        if let Some(pool) = pool {
            pool.take(self.busy_until, bytes);
        }
        Some(self.busy_until)
    }

    /// Whether a packet is marked that found the queue `excess` bytes longer than where marking begins.
    fn marks(&mut self, excess: u64, ramp: u64) -> bool {
        excess >= ramp || self.rest.rng.below(ramp) < excess
    }
}

/// When something ends that would at `at`, if what remains of it is done at another rate from now on.
fn stretched(at: Time, now: Time, before: u64, after: u64) -> Time {
    let left = at.since(now);
    if left == Span::ZERO {
        return at;
    }
    let nanos = u128::from(left.as_nanos()) * u128::from(before) / u128::from(after);
    now + Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Damages a datagram: mostly bit flips, sometimes a run of garbage, a cut or a longer tail.
pub(crate) fn corrupt(data: &mut Vec<u8>, rng: &mut Rng) {
    let len = data.len() as u64;
    if len == 0 {
        return;
    }
    match rng.below(8) {
        0 => data.truncate(rng.below(len) as usize),
        1 => {
            for _ in 0..=rng.below(16) {
                data.push(rng.next_u64() as u8);
            }
        }
        2 => {
            let start = rng.below(len) as usize;
            let end = (start + 1 + rng.below(32) as usize).min(data.len());
            // At least one bit changes: the first byte is inverted, the rest is random.
            data[start] = !data[start];
            rng.fill(&mut data[start + 1..end]);
        }
        _ => {
            // Odd numbers of flips in distinct bytes cannot cancel out.
            let first = rng.below(len) as usize;
            data[first] ^= 1 << rng.below(8);
            for _ in 0..rng.below(3) {
                let i = rng.below(len) as usize;
                if i != first {
                    data[i] ^= 1 << rng.below(8);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
