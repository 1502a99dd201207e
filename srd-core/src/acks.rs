//! What the receiver of packets knows of them, and what it says about it: the bitmap of packet numbers, and per path the
//! newest packet with its arrival time.

use crate::config::CheckedConfig;
use crate::driver::Ecn;
use crate::seq::Seq;
use crate::time::{Span, Time};
use crate::wire::{Ack, AckPath, Advice, CHECKSUM_LEN, MAX_ACK_PATHS, Refusal, Refuse, Sink, TRACKED_HEADER};

const _: () = assert!(MIN_ROOM + TRACKED_HEADER + CHECKSUM_LEN <= crate::MIN_DATAGRAM as usize);

/// Whether a packet is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    New,
    Duplicate,
    /// Outside the window: the sender breaks the rules.
    Violation,
}

#[derive(Clone, Copy, Debug, Default)]
struct PathSeen {
    newest: Seq,
    at: Time,
    ce: u8,
    pending: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Acks {
    /// Every packet before this one was received or given up by its sender.
    base: Seq,
    /// The newest packet received; the one before `base` if that is later.
    newest: Seq,
    window: u32,
    /// `words[(pn / 64) % len]`, bit `pn % 64`: received. Bits outside `base..base + window` are zero.
    words: Vec<u64>,
    paths: Vec<PathSeen>,
    pending_paths: Vec<u8>,
    /// Packets of which messages were turned away, with how many, and these messages, both in the order of arrival.
    refused_packets: Vec<(Seq, u8)>,
    refused: Vec<(Seq, Refusal)>,
    unacked: u32,
    /// The newest packet whose sender wants to hear of it, until all before it is here, too.
    wanted: Option<Seq>,
    /// When an acknowledgement must leave; `NEVER` if none is owed.
    due: Time,
    ack_every: u32,
    max_delay: Span,
}

/// Room that an acknowledgement with the refusals of one packet needs at most.
pub(crate) const MIN_ROOM: usize = 20 + 6 + 6 * MAX_PIECES;

/// Pieces of messages in one packet at most, so that a REFUSE of them all fits into the smallest datagram.
pub(crate) const MAX_PIECES: usize = 76;

/// Packets that a sender may have given up one after the other while none got through. Far more than probes can add up to
/// within any peer timeout, far less than half of the number space.
const MAX_GAP: u32 = 1 << 20;

/// Messages that were turned away and whose sender has not been told; packets with further ones are not acknowledged at all, so
/// that they come again.
const MAX_REFUSED: usize = 64 * MAX_PIECES;

impl Acks {
    pub(crate) fn new(first: Seq, config: &CheckedConfig) -> Acks {
        Acks {
            base: first,
            newest: before(first),
            window: config.packet_window,
            words: vec![0; config.packet_window as usize / 32],
            paths: Vec::new(),
            pending_paths: Vec::with_capacity(MAX_ACK_PATHS),
            refused_packets: Vec::new(),
            refused: Vec::new(),
            unacked: 0,
            wanted: None,
            due: Time::NEVER,
            ack_every: config.ack_every.into(),
            max_delay: config.max_ack_delay,
        }
    }

    fn bit(&self, pn: Seq) -> (usize, u64) {
        // A power of two, so that the wrap of numbers is no seam, and twice the window, so that a window that starts inside
        // a word never meets itself.
        ((pn.0 as usize / 64) & (self.words.len() - 1), 1 << (pn.0 % 64))
    }

    /// Looks at a packet's number, and lets the window slide to the sender's oldest unresolved packet.
    pub(crate) fn arrival(&mut self, pn: Seq, span: u16) -> Arrival {
        // [REL-3]
        let oldest = Seq(pn.0.wrapping_sub(span.into()));
        if u32::from(span) >= self.window {
            return Arrival::Violation;
        }
        if self.base.is_before(oldest) {
            if oldest.since(self.base) > MAX_GAP {
                return Arrival::Violation;
            }
            self.slide(oldest);
        }
        if pn.is_before(self.base) {
            return Arrival::Duplicate;
        }
        if pn.since(self.base) >= self.window {
            return Arrival::Violation;
        }
        let (word, bit) = self.bit(pn);
        if self.words[word] & bit != 0 { Arrival::Duplicate } else { Arrival::New }
    }

    fn slide(&mut self, to: Seq) {
        if self.newest.is_before(to) {
            // However long none is received, since all are refused: it would become one of the future.
            self.newest = before(to);
        }
        if to.since(self.base) as usize >= self.words.len() * 64 {
            self.words.fill(0);
            self.base = to;
            return;
        }
        let mut pn = self.base;
        while pn != to {
            let (word, bit) = self.bit(pn);
            if bit == 1 && to.since(pn) >= 64 {
                self.words[word] = 0;
                pn = pn.plus(64);
            } else {
                self.words[word] &= !bit;
                pn = pn.plus(1);
            }
        }
        self.base = to;
    }

    /// The packet was handled, every frame of it taken. Call only after [`Arrival::New`].
    pub(crate) fn received(&mut self, pn: Seq) {
        let (word, bit) = self.bit(pn);
        self.words[word] |= bit;
        if self.newest.is_before(pn) {
            self.newest = pn;
        }
        // Slide over what is complete, so that acknowledgements stay short.
        loop {
            let (word, bit) = self.bit(self.base);
            if bit == 1 && self.words[word] == u64::MAX {
                self.words[word] = 0;
                self.base = self.base.plus(64);
            } else if self.words[word] & bit != 0 {
                self.words[word] &= !bit;
                self.base = self.base.plus(1);
            } else {
                break;
            }
        }
    }

    /// The packet was handled, but these messages in it were turned away: it is answered by a REFUSE instead.
    // [RNR-1]
    pub(crate) fn refused(&mut self, pn: Seq, messages: &[(Seq, Refusal)]) {
        // [RNR-6]
        if self.refused.len() + messages.len() <= MAX_REFUSED {
            self.refused_packets.push((pn, messages.len() as u8));
            self.refused.extend_from_slice(messages);
        }
        self.due = Time::ZERO;
    }

    /// Notes which path a packet came on and when an acknowledgement is owed.
    pub(crate) fn note(&mut self, now: Time, pn: Seq, path: u8, at: Time, ecn: Ecn, ack_now: bool) {
        let index = usize::from(path);
        if index >= self.paths.len() {
            self.paths.resize(index + 1, PathSeen::default());
        }
        let seen = &mut self.paths[index];
        if !seen.pending || seen.newest.is_before(pn) {
            seen.newest = pn;
            seen.at = at;
        }
        if ecn == Ecn::Ce {
            // [CC-3]
            seen.ce = seen.ce.wrapping_add(1);
        }
        // [ACK-4]
        if !seen.pending && self.pending_paths.len() < MAX_ACK_PATHS {
            seen.pending = true;
            self.pending_paths.push(path);
        }
        self.unacked += 1;
        // On many paths the last packet to be sent is rarely the last one to arrive.
        let complete = self.wanted.take_if(|w| w.is_before(self.base)).is_some();
        if ack_now && !pn.is_before(self.base) && self.wanted.is_none_or(|w| w.is_before(pn)) {
            self.wanted = Some(pn);
        }
        // [ACK-2]
        if ack_now || complete || ecn == Ecn::Ce || self.unacked >= self.ack_every {
            self.due = Time::ZERO;
        } else {
            self.due = self.due.min(now + self.max_delay);
        }
    }

    /// When an acknowledgement must leave.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// An acknowledgement leaves by this time, with news or without.
    pub(crate) fn remind(&mut self, by: Time) {
        self.due = self.due.min(by);
    }

    /// Lets it wait once more.
    pub(crate) fn postpone(&mut self, now: Time) {
        self.due = now + self.max_delay;
    }

    /// Whether there is something to acknowledge, due or not.
    pub(crate) fn pending(&self) -> bool {
        self.due != Time::NEVER
    }

    /// The newest packet received; the last one that the sender has given up if that is later.
    pub(crate) fn newest(&self) -> Seq {
        self.newest
    }

    fn word_count(&self) -> usize {
        self.newest.plus(1).since(self.base).div_ceil(64) as usize
    }

    /// Words of the bitmap up to that of this packet; 0 if it is before all of them.
    fn words_to(&self, pn: Seq) -> usize {
        if pn.is_before(self.base) { 0 } else { (pn.since(self.base) / 64 + 1) as usize }
    }

    /// Bytes that [`write`](Self::write) will take, when given enough room.
    pub(crate) fn len(&self) -> usize {
        Ack::encoded_len(self.word_count(), self.pending_paths.len())
            + Refuse::encoded_len(self.refused_packets.len(), self.refused.len())
    }

    /// Writes what is owed into at most `room` bytes (at least [`MIN_ROOM`]) and considers it said. If the room is too
    /// small, path entries and the end of the bitmap are left out: later acknowledgements say the rest. Refusals that there is
    /// no room for are owed at once.
    pub(crate) fn write(&mut self, now: Time, room: usize, advice: Advice, out: &mut impl Sink) {
        let mut room = room - Ack::encoded_len(0, 0);
        let (mut packets, mut told, mut words_before) = (0, 0, 0);
        for &(pn, count) in &self.refused_packets {
            let messages = &self.refused[told..][..usize::from(count)];
            let len = Refuse::encoded_len(1, messages.len());
            // What was received before it is told of, too, or it would seem to have overtaken that.
            words_before = words_before.max(self.words_to(pn));
            if len + if packets > 0 { 8 * words_before } else { 0 } > room {
                break;
            }
            Refuse::encode(pn, messages, out);
            room -= len;
            (packets, told) = (packets + 1, told + messages.len());
        }
        // What is beyond a packet that is yet to be refused has not overtaken it.
        let untold =
            self.refused_packets[packets..].iter().map(|(pn, _)| pn.since(self.base)).min().unwrap_or(u32::MAX);
        // [ACK-8]
        let words = self.word_count().min(room / 8).min(untold.div_ceil(64) as usize);
        room -= 8 * words;
        let paths = self.pending_paths.len().min(room / 6);
        let (base, newest, this) = (self.base, self.newest, &*self);
        let words = (0..words as u32).map(|w| {
            let word = this.unaligned_word(base.plus(64 * w));
            if untold / 64 == w { word & ((1 << (untold % 64)) - 1) } else { word }
        });
        let paths = self.pending_paths[..paths].iter().map(|&p| {
            let seen = &this.paths[usize::from(p)];
            // A duplicate may be older than `behind` can say; it gives no RTT anyway.
            let known = newest.since(seen.newest) <= u32::from(u16::MAX);
            AckPath {
                path: p,
                ce: seen.ce,
                pn: if known { seen.newest } else { newest },
                residence: known.then(|| now.since(seen.at)),
            }
        });
        Ack::encode(base, newest, advice, words, paths, out);
        self.refused_packets.drain(..packets);
        self.refused.drain(..told);
        for path in self.pending_paths.drain(..) {
            self.paths[usize::from(path)].pending = false;
        }
        self.unacked = 0;
        // Refusals that are not told look like loss, and like a network that swallows large packets: these have the most.
        self.due = if self.refused_packets.is_empty() { Time::NEVER } else { now };
    }

    fn unaligned_word(&self, pn: Seq) -> u64 {
        let shift = pn.0 % 64;
        let (word, _) = self.bit(pn);
        let low = self.words[word] >> shift;
        if shift == 0 {
            return low;
        }
        low | self.words[(word + 1) % self.words.len()] << (64 - shift)
    }
}

fn before(pn: Seq) -> Seq {
    Seq(pn.0.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::wire::{Frame, Frames};

    /// Packets arrive, the marked ones with ACK-NOW, and each time what is due at once is sent. Returns after which.
    fn acknowledged(arrivals: &[(u32, bool)]) -> Vec<u32> {
        let config = Config { ack_every: 255, ..Config::default() }.check().expect("valid");
        let mut acks = Acks::new(Seq(0), &config);
        let now = Time::from_nanos(1);
        let mut after = Vec::new();
        for &(pn, ack_now) in arrivals {
            assert_eq!(acks.arrival(Seq(pn), pn as u16), Arrival::New);
            acks.received(Seq(pn));
            acks.note(now, Seq(pn), pn as u8, now, Ecn::NotEct, ack_now);
            if acks.due() <= now {
                acks.due = Time::NEVER;
                after.push(pn);
            }
        }
        after
    }

    #[test]
    fn what_is_missing_before_a_packet_that_asked_is_told_of_when_it_comes() {
        assert_eq!(acknowledged(&[(0, false), (1, true), (2, false), (3, false)]), [1], "nothing was missing");
        assert_eq!(acknowledged(&[(0, false), (3, true), (1, false), (2, false), (4, false)]), [3, 2]);
        assert_eq!(acknowledged(&[(3, true), (5, true), (0, false), (1, false), (2, false), (4, false)]), [3, 5, 4]);
        assert_eq!(acknowledged(&[(2, true), (1, true), (0, false), (3, false)]), [2, 1, 0]);
    }

    #[test]
    fn numbers_outside_the_window_are_violations_and_change_nothing() {
        let config = Config { packet_window: 64, ..Config::default() }.check().expect("valid");
        let first = Seq(u32::MAX - 5);
        let mut acks = Acks::new(first, &config);
        acks.received(first);
        let base = acks.base;
        let far = base.plus(1 << 31);
        for (pn, span) in [(base.plus(64), 64), (base, 64), (base.plus(MAX_GAP + 1), 0), (far, 5), (far, 0)] {
            assert_eq!(acks.arrival(pn, span), Arrival::Violation, "{pn:?} with a span of {span}");
            assert_eq!((acks.base, acks.newest), (base, first));
        }
        assert_eq!(acks.arrival(base.plus(63), 63), Arrival::New);
        assert_eq!(acks.arrival(base.plus(MAX_GAP), 0), Arrival::New);
    }

    /// No packet is received, since in each a message is turned away: what was the newest must not become one of the future.
    #[test]
    fn the_newest_packet_is_never_far_behind() {
        let config = Config::default().check().expect("valid");
        let now = Time::from_nanos(1);
        let mut acks = Acks::new(Seq(7), &config);
        acks.received(Seq(7));
        let mut pn = Seq(7);
        for _ in 0..10_000 {
            pn = pn.plus(MAX_GAP - 100);
            assert_eq!(acks.arrival(pn, 0), Arrival::New);
            acks.refused(pn, &[(Seq(1), Refusal::NotReady)]);
            acks.note(now, pn, 0, now, Ecn::NotEct, false);
            let mut out = Vec::new();
            acks.write(now, 1400, Advice::default(), &mut out);
            let Some(Ok(Frame::Ack(ack))) = Frames::new(&out, false).last() else { panic!("no ACK: {out:?}") };
            assert_eq!((ack.cumulative, ack.words().count()), (pn, 0));
            assert_eq!(ack.newest.plus(1), pn, "cumulative - 1");
        }
    }

    /// What is told late seems to be lost: packets that are told of after it have overtaken it.
    #[test]
    fn packets_are_told_of_in_order_whether_received_or_refused() {
        let config = Config::default().check().expect("valid");
        let now = Time::from_nanos(1);
        for refused in 1..10 {
            let mut acks = Acks::new(Seq(0), &config);
            for pn in 0..300 {
                assert_eq!(acks.arrival(Seq(pn), pn as u16), Arrival::New);
                if pn * 7 % 10 < refused {
                    acks.refused(Seq(pn), &[(Seq(pn), Refusal::NotReady); 12]);
                } else {
                    acks.received(Seq(pn));
                }
                acks.note(now, Seq(pn), pn as u8, now, Ecn::NotEct, false);
            }
            let mut told = std::collections::BTreeSet::new();
            while acks.due() <= now {
                let mut out = Vec::new();
                acks.write(now, 1400, Advice::default(), &mut out);
                assert!(out.len() <= 1400);
                for frame in Frames::new(&out, false) {
                    match frame.expect("well-formed") {
                        Frame::Refuse(refuse) => _ = told.insert(refuse.pn.0),
                        Frame::Ack(ack) => {
                            told.extend(0..ack.cumulative.0);
                            let bits = ack.words().enumerate().flat_map(|(i, w)| (0..64).map(move |b| (i, w, b)));
                            let set = bits.filter(|(_, word, bit)| word >> bit & 1 == 1);
                            told.extend(set.map(|(i, _, bit)| ack.cumulative.0 + 64 * i as u32 + bit));
                        }
                        _ => panic!("neither"),
                    }
                }
                assert!(told.iter().copied().eq(0..told.len() as u32), "{refused} of 10 are refused: {told:?}");
            }
            assert_eq!(told.len(), 300);
        }
    }
}
