//! The size of datagrams: smaller once it is plain that a network swallows large ones, and larger again when one gets through.
//!
//! A full queue that counts bytes also drops large datagrams where small ones pass, but not all of them and not for ever. So
//! a hole is believed in only after several large ones in a row were lost, over more than a round trip and on more than one
//! path, while small ones passed that were sent meanwhile. One large one that arrives acquits the network, however late; and
//! a mistake is found out soon, since the next size is tried again after a few round trips, then ever more rarely.

use crate::path::PathBits;
use crate::sent::Sent;
use crate::time::{Span, Time};

/// Lost large packets in a row after which datagrams get smaller.
const LARGE_LOST: u32 = 8;
/// Of these, so many make it worth asking with a small packet.
const SUSPICIOUS: u32 = 4;
/// Small packets, sent since the first of those was, that must have arrived.
const SMALL_PASSED: u32 = 2;
/// Sizes to fall back to: half of jumbo frames, Ethernet with tunnels, the IPv6 minimum, our own minimum.
const PLATEAUS: [u16; 4] = [4400, 1400, 1200, crate::MIN_DATAGRAM];
/// Round trips before the next larger size is tried; doubles with each try that fails, up to the longest pause.
const GROW_RTTS: u64 = 8;
const LONGEST_PAUSE: Span = Span::from_secs(10);

/// See the module documentation.
#[derive(Debug)]
pub(super) struct DatagramSize {
    size: u16,
    full: u16,
    suspicion: Suspicion,
    /// A small packet should ask whether small ones pass.
    ask: bool,
    /// The largest packet beyond `size` that arrived.
    proven: u16,
    grow_at: Time,
    pause: Span,
}

/// Large packets that were lost since one arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Suspicion {
    lost: u32,
    paths: PathBits,
    /// When the first and the last of them were sent.
    since: Time,
    until: Time,
    /// Small packets that arrived although they were sent later than the first.
    small: u32,
}

impl DatagramSize {
    pub(super) fn new(full: u16) -> DatagramSize {
        let suspicion = Suspicion::default();
        DatagramSize { size: full, full, suspicion, ask: false, proven: 0, grow_at: Time::NEVER, pause: Span::ZERO }
    }

    /// Largest datagram to send now, in bytes.
    pub(super) fn get(&self) -> u16 {
        self.size
    }

    /// The first hop carries no more than this.
    pub(super) fn limit(&mut self, max: u16) {
        self.size = self.size.min(max);
        self.full = self.full.min(max);
    }

    fn is_large(&self, bytes: u16) -> bool {
        bytes > crate::MIN_DATAGRAM && bytes <= self.size && u32::from(bytes) * 8 >= u32::from(self.size) * 7
    }

    /// A packet is taken for lost. Larger ones than are in use were only tried.
    pub(super) fn on_lost(&mut self, s: &Sent) {
        if !self.is_large(s.bytes) {
            return;
        }
        let suspicion = &mut self.suspicion;
        if suspicion.lost == 0 {
            (suspicion.since, suspicion.until) = (s.at, s.at);
        }
        suspicion.lost = suspicion.lost.saturating_add(1);
        suspicion.paths.insert(s.path);
        suspicion.since = suspicion.since.min(s.at);
        suspicion.until = suspicion.until.max(s.at);
        self.ask |= suspicion.lost >= SUSPICIOUS;
    }

    /// A packet arrived, whether it had been taken for lost or not.
    pub(super) fn on_arrived(&mut self, s: &Sent) {
        if s.bytes > self.size {
            self.proven = self.proven.max(s.bytes);
        }
        if self.suspicion.lost == 0 {
            return;
        }
        if s.bytes >= self.size || self.is_large(s.bytes) {
            self.suspicion = Suspicion::default();
            self.ask = false;
        } else if s.bytes <= self.size / 2 && s.at >= self.suspicion.since {
            self.suspicion.small += 1;
        }
    }

    /// Whether a small packet should ask; once.
    pub(super) fn take_question(&mut self) -> bool {
        std::mem::take(&mut self.ask)
    }

    /// Draws the conclusions, for a connection with so many paths and this RTT. Says whether datagrams got smaller.
    // [MTU-3]
    pub(super) fn adapt(&mut self, now: Time, paths: usize, srtt: Span) -> bool {
        let proven = std::mem::take(&mut self.proven).min(self.full);
        if proven > self.size {
            self.change(now, proven, srtt);
        }
        let s = &self.suspicion;
        if s.lost < LARGE_LOST || s.small < SMALL_PASSED {
            return false;
        }
        let everywhere = paths == 1 || s.paths.iter().nth(1).is_some();
        let lasts = s.until.since(s.since) > srtt;
        if !everywhere || !lasts {
            return false;
        }
        let Some(&smaller) = PLATEAUS.iter().find(|&&p| p < self.size) else { return false };
        self.change(now, smaller, srtt);
        true
    }

    fn change(&mut self, now: Time, size: u16, srtt: Span) {
        self.size = size;
        self.suspicion = Suspicion::default();
        self.ask = false;
        self.pause = (srtt * GROW_RTTS).min(LONGEST_PAUSE);
        self.grow_at = if size < self.full { now + self.pause } else { Time::NEVER };
    }

    /// When a larger size is to be tried.
    pub(super) fn grow_at(&self) -> Time {
        self.grow_at
    }

    /// The size to try, if it is time to.
    pub(super) fn take_probe(&mut self, now: Time) -> Option<u16> {
        if now < self.grow_at {
            return None;
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.grow_at = now + self.pause;
        let larger = PLATEAUS.iter().rev().copied().find(|&p| p > self.size);
        Some(larger.unwrap_or(self.full).min(self.full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sent::{SentInfo, SentPackets};
    use crate::seq::Seq;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    const SRTT: Span = Span::from_micros(100);
    const PATHS: usize = 4;

    fn packet(at: Time, bytes: u16, path: u8) -> Sent {
        let mut packets = SentPackets::new(Seq(0), 64);
        let pn = packets.push(SentInfo { at, bytes, path, path_life: 0, probe: false, path_seq: 0 }, 0);
        *packets.get(pn).expect("just sent")
    }

    /// Sends alternately a large and a small packet, one per round trip, over paths in turn; `passes` says whether a
    /// packet of this size on this path arrives. Returns the sizes that were in use, each once, and packets tried.
    fn run(rounds: u64, full: u16, mut passes: impl FnMut(u16, u8) -> bool) -> (Vec<u16>, u32) {
        let mut size = DatagramSize::new(full);
        let (mut seen, mut tried) = (vec![full], 0);
        for i in 0..rounds {
            let now = Time::ZERO + SRTT * (i + 1);
            let path = (i / 2 % PATHS as u64) as u8;
            let small = i % 2 == 1;
            let bytes = size.take_probe(now).inspect(|_| tried += 1);
            let bytes = bytes.unwrap_or(if small { 64 } else { size.get() });
            let s = packet(now, bytes, path);
            if passes(bytes, path) {
                size.on_arrived(&s)
            } else {
                size.on_lost(&s)
            }
            size.adapt(now, PATHS, SRTT);
            if seen.last() != Some(&size.get()) {
                seen.push(size.get());
            }
        }
        (seen, tried)
    }

    #[test]
    fn a_hole_is_found_and_tried_ever_more_rarely() {
        let (seen, tried) = run(100_000, 8972, |bytes, _| bytes <= 1472);
        assert_eq!(seen, [8972, 4400, 1400]);
        // Doubling pauses of 8 RTT and more: 14 in 100,000 round trips.
        assert!((10..=20).contains(&tried), "{tried}");
    }

    #[test]
    fn a_hole_on_one_path_and_a_queue_that_is_full_are_none() {
        assert_eq!(run(10_000, 8972, |bytes, path| bytes <= 1472 || path != 2).0, [8972]);
        // Of one path's packets alone nothing is concluded, whatever the others carry.
        let mut size = DatagramSize::new(8972);
        for i in 0..100 {
            let now = Time::ZERO + SRTT * i;
            size.on_lost(&packet(now, 8972, 2));
            size.on_arrived(&packet(now, 64, 1));
            assert!(!size.adapt(now, PATHS, SRTT));
        }
        // All at one moment: that is a queue.
        let mut size = DatagramSize::new(8972);
        (0..100).for_each(|i| size.on_lost(&packet(Time::ZERO, 8972, i % 4)));
        (0..100).for_each(|_| size.on_arrived(&packet(Time::ZERO, 64, 0)));
        assert!(!size.adapt(Time::ZERO + SRTT * 9, PATHS, SRTT));
    }

    #[test]
    fn a_mistake_does_not_last() {
        for seed in 0..50 {
            // A queue that drops nine of ten large packets for a while, and then half of them.
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut i = 0;
            let (seen, _) = run(3_000, 1472, |bytes, _| {
                i += 1;
                bytes <= 64 || i > 2_000 || rng.random_bool(if i < 1_000 { 0.1 } else { 0.5 })
            });
            assert_eq!(*seen.last().expect("sizes"), 1472, "seed {seed}: {seen:?}");
        }
    }

    #[test]
    fn a_large_packet_that_arrives_late_acquits() {
        let mut size = DatagramSize::new(1472);
        for i in 0..7 {
            size.on_lost(&packet(Time::ZERO + SRTT * i, 1472, i as u8 % 4));
        }
        assert!(size.take_question() && !size.take_question());
        (0..4).for_each(|_| size.on_arrived(&packet(Time::ZERO + SRTT * 9, 64, 0)));
        size.on_arrived(&packet(Time::ZERO, 1472, 0));
        size.on_lost(&packet(Time::ZERO + SRTT * 9, 1472, 1));
        assert!(!size.adapt(Time::ZERO + SRTT * 10, PATHS, SRTT));
        assert_eq!(size.get(), 1472);
    }
}
