//! Who sends to this endpoint, and what share of its link each sender had better take.
//!
//! In an incast all queues stand at the receiver's link, and the receiver is the only one who knows how many share it. It
//! tells them: at once in the handshake, so that many newcomers start no faster than the link can carry, and in every
//! acknowledgement after that. The share is advice; whoever gets it still watches its own delays.
//!
//! A host may be slower than its link: then what is shared out is what it takes in, see [`Intake`].

use crate::config::CheckedConfig;
use crate::intake::Intake;
use crate::time::{Span, Time};
use crate::wire::{Advice, Share};

/// A connection's place in the count; the connection keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Sender {
    /// Not counted.
    #[default]
    Silent,
    /// Counted up to and including this period.
    Until(u32),
    /// In the middle of a message, so counted until that has an end.
    Streaming,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Inbound {
    link_rate: Option<u64>,
    /// Bytes that a datagram costs on the link beside itself.
    overhead: u64,
    intake: Intake,
    headroom: f64,
    /// Payload of a packet that counts as traffic; what is shorter uses little of its share.
    large: usize,
    shortest_period: Span,
    period: Span,
    /// Number of the period under way, and when it began.
    number: u32,
    since: Time,
    /// Bytes and packets of the period under way, large ones only, and what share of the wire their likes took before.
    bytes: u64,
    packets: u64,
    efficiency: f64,
    streaming: u32,
    recent: Expiring,
    /// How many sent when all of them were last told of their share, or the most since then.
    told: u32,
    /// Connections on which packets have come, and how many they were when those were told, or the fewest since then.
    known: u32,
    known_told: u32,
    /// Those that asked for a cookie. They prove nothing, so only newcomers hear of them, and they are no more than there is room
    /// for.
    knocking: Expiring,
    room: u32,
}

/// Periods for which a sender of complete messages counts after its last large packet.
const RECENT: u32 = 2;
/// Periods for which one counts that asks for a connection, and again once it has one: a round trip with a full queue.
const NEWCOMER: u32 = 7;

/// Counts that expire, by the last period for which they hold.
#[derive(Debug, Default)]
struct Expiring {
    by_period: [u32; 8],
    total: u32,
}

impl Expiring {
    fn slot(&mut self, period: u32) -> &mut u32 {
        &mut self.by_period[period as usize % 8]
    }

    fn add(&mut self, until: u32) {
        *self.slot(until) += 1;
        self.total += 1;
    }

    fn remove(&mut self, until: u32) {
        let slot = self.slot(until);
        if *slot > 0 {
            *slot -= 1;
            self.total -= 1;
        }
    }

    /// The period is over.
    fn expire(&mut self, period: u32) {
        self.total -= std::mem::take(self.slot(period));
    }
}

impl Inbound {
    pub(crate) fn new(config: &CheckedConfig, now: Time) -> Inbound {
        let (datagram, overhead) = (u64::from(config.max_datagram), u64::from(config.wire_overhead));
        Inbound {
            link_rate: config.link_rate,
            overhead,
            intake: Intake::new(config.target_delay.max(config.share_period), now),
            headroom: config.tuning.headroom,
            large: usize::from(config.max_datagram) / 2,
            shortest_period: config.share_period,
            period: config.share_period,
            number: 0,
            since: now,
            bytes: 0,
            packets: 0,
            efficiency: datagram as f64 / (datagram + overhead) as f64,
            streaming: 0,
            recent: Expiring::default(),
            told: 0,
            known: 0,
            known_told: 1,
            knocking: Expiring::default(),
            room: config.max_peers,
        }
    }

    fn roll(&mut self, now: Time) {
        let elapsed = now.since(self.since);
        if elapsed < self.period {
            return;
        }
        let periods = elapsed.as_nanos() / self.period.as_nanos();
        self.since += self.period * periods;
        if let Some(rate) = self.link_rate {
            self.intake.judge(rate, periods);
        }
        for _ in 0..periods.min(8) {
            self.recent.expire(self.number);
            self.knocking.expire(self.number);
            self.number = self.number.wrapping_add(1);
        }
        if self.packets > 0 {
            let seen = self.bytes as f64 / (self.bytes + self.overhead * self.packets) as f64;
            self.efficiency += (seen - self.efficiency) / 8.0;
            (self.bytes, self.packets) = (0, 0);
        }
        // Among many, each sends rarely.
        if let Some(rate) = self.link_rate {
            let all = u64::from(self.senders()) * 2 * self.large as u64;
            self.period = self.shortest_period.max(Span::from_secs_f64(all as f64 / rate as f64 / 2.0));
        }
    }

    /// A packet was read at `now` that arrived at the host at `at`.
    pub(crate) fn read(&mut self, now: Time, at: Time) {
        if self.link_rate.is_none() {
            return;
        }
        self.roll(now);
        self.intake.read(now, at);
    }

    /// Somebody wants a connection, and was given a cookie.
    pub(crate) fn knocked(&mut self, now: Time) {
        self.roll(now);
        if self.knocking.total < self.room {
            self.knocking.add(self.number.wrapping_add(NEWCOMER));
        }
    }

    /// Somebody who knocked has a connection now, and will want to use it.
    pub(crate) fn admitted(&mut self, now: Time, sender: &mut Sender) {
        self.roll(now);
        let number = self.number;
        if let Some(until) = (0..=NEWCOMER).map(|i| number.wrapping_add(i)).find(|&p| *self.knocking.slot(p) > 0) {
            self.knocking.remove(until);
        }
        self.change(sender, Sender::Until(number.wrapping_add(NEWCOMER)));
    }

    /// A packet of `len` bytes arrived from a sender; `streaming` if messages of it are half delivered, `asks` if it has
    /// more to send and wants to know how fast.
    pub(crate) fn heard(&mut self, now: Time, sender: &mut Sender, len: usize, streaming: bool, asks: bool) {
        if self.link_rate.is_none() {
            // There is no advice to give.
            return;
        }
        self.roll(now);
        if len >= self.large {
            self.bytes += len as u64;
            self.packets += 1;
            self.intake.took(len as u64 + self.overhead);
        }
        if streaming {
            self.change(sender, Sender::Streaming);
        } else if *sender == Sender::Streaming && len < self.large {
            // The end of a long message. If there is another, it will show.
            self.change(sender, Sender::Silent);
        } else if len >= self.large || *sender == Sender::Streaming {
            self.change(sender, Sender::Until(self.number.wrapping_add(RECENT)));
        } else if asks {
            self.change(sender, Sender::Until(self.number.wrapping_add(NEWCOMER)));
        }
    }

    /// The sender's connection is over.
    pub(crate) fn left(&mut self, sender: &mut Sender) {
        self.change(sender, Sender::Silent);
    }

    fn change(&mut self, sender: &mut Sender, new: Sender) {
        if *sender == new {
            return;
        }
        if self.counts(*sender) {
            match *sender {
                Sender::Silent => {}
                Sender::Until(period) => self.recent.remove(period),
                Sender::Streaming => self.streaming -= 1,
            }
        }
        match new {
            Sender::Silent => {}
            Sender::Until(period) => self.recent.add(period),
            Sender::Streaming => self.streaming += 1,
        }
        *sender = new;
    }

    /// When those that send nothing from now on will not be counted any more.
    pub(crate) fn forgets_by(&self, now: Time) -> Time {
        now + self.period * u64::from(NEWCOMER + 1)
    }

    /// How many send.
    pub(crate) fn senders(&self) -> u32 {
        self.streaming + self.recent.total
    }

    /// Whether this sender is one of them.
    pub(crate) fn counts(&self, sender: Sender) -> bool {
        match sender {
            Sender::Silent => false,
            Sender::Until(period) => period.wrapping_sub(self.number) < 8,
            Sender::Streaming => true,
        }
    }

    /// Whether no more than half of them are left since this was last so. Then all are told of their larger share: who
    /// sends one packet per many round trips would hear of it late.
    // [CC-6]
    pub(crate) fn has_emptied(&mut self) -> bool {
        let senders = self.senders();
        let emptied = senders > 0 && senders <= self.told / 2;
        self.told = if emptied { senders } else { self.told.max(senders) };
        emptied
    }

    /// The first packet on a connection came: from now on its sender has advice from us.
    pub(crate) fn met(&mut self) {
        self.known += 1;
    }

    /// A connection on which packets have come is over.
    pub(crate) fn parted(&mut self) {
        self.known -= 1;
        self.known_told = self.known_told.min(self.known).max(1);
    }

    /// Whether there are more than twice as many connections as when this was last so. Then all are told with what rate to
    /// begin: who believes in that of half as many would fill the queue.
    // [CC-7]
    pub(crate) fn has_doubled(&mut self) -> bool {
        let doubled = self.link_rate.is_some() && self.known > 2 * self.known_told;
        if doubled {
            self.known_told = self.known;
        }
        doubled
    }

    /// What to tell those that send.
    pub(crate) fn advice(&self) -> Advice {
        Advice { share: self.share(), start: self.among(self.known) }
    }

    /// The share of each of those that send.
    // [CC-4]
    fn share(&self) -> Share {
        // Strangers that knock count no more than those that are known, so that they cannot take much from them.
        let senders = self.senders();
        self.among(senders + self.knocking.total.min(senders))
    }

    /// The share of one more, if all that knock are let in.
    pub(crate) fn newcomer_share(&mut self, now: Time) -> Share {
        self.roll(now);
        self.among(self.senders() + self.knocking.total)
    }

    fn among(&self, senders: u32) -> Share {
        let rate = self
            .link_rate
            .map(|r| r as f64 * self.intake.capacity() * self.efficiency * self.headroom / f64::from(senders.max(1)));
        rate.map_or(Share::default(), Share::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const LINK: u64 = 12_500_000_000;

    fn inbound(link_rate: Option<u64>) -> Inbound {
        let config = Config { link_rate, ..Config::fabric() };
        Inbound::new(&config.check().expect("valid"), Time::ZERO)
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    /// The share in parts of the link, to one decimal place.
    fn parts(share: Share) -> f64 {
        (LINK as f64 / share.rate().expect("advice") * 10.0).round() / 10.0
    }

    #[test]
    fn share_is_that_of_those_in_the_middle_of_messages() {
        let mut inbound = inbound(Some(LINK));
        let mut senders = [Sender::default(); 48];
        for (i, sender) in senders.iter_mut().enumerate() {
            inbound.heard(at(1), sender, 8900, true, false);
            inbound.heard(at(1), sender, 8900, true, false);
            assert_eq!(inbound.share(), inbound.among(i as u32 + 1));
        }
        // They count however rarely they send, until their messages end.
        inbound.heard(at(10_000), &mut senders[0], 8900, true, false);
        assert_eq!(inbound.senders(), 48);
        inbound.heard(at(10_000), &mut senders[0], 100, false, false);
        assert_eq!(inbound.senders(), 47);
        inbound.left(&mut senders[1]);
        inbound.left(&mut senders[1]);
        assert_eq!(inbound.senders(), 46);
    }

    #[test]
    fn halving_is_noticed_once_each_time() {
        let mut inbound = inbound(Some(LINK));
        let mut senders = [Sender::default(); 48];
        assert!(!inbound.has_emptied(), "nobody sends");
        for sender in &mut senders {
            inbound.heard(at(1), sender, 8900, true, false);
            assert!(!inbound.has_emptied(), "more and more send");
            assert!(inbound.counts(*sender));
        }
        let mut noticed = Vec::new();
        for sender in &mut senders {
            inbound.left(sender);
            assert!(!inbound.counts(*sender));
            if inbound.has_emptied() {
                noticed.push(inbound.senders());
            }
        }
        assert_eq!(noticed, [24, 12, 6, 3, 1], "and there is nobody to be told at the end");
    }

    #[test]
    fn nobody_believes_in_a_beginning_at_more_than_twice_what_all_can_have() {
        let mut inbound = inbound(Some(LINK));
        let mut told = Vec::new();
        for n in 1..=100 {
            inbound.met();
            if inbound.has_doubled() {
                told.push(n);
            }
            assert_eq!(inbound.advice().start, inbound.among(n));
        }
        assert_eq!(told, [3, 7, 15, 31, 63]);
        // Those that are left were told of 63, or later.
        (0..90).for_each(|_| inbound.parted());
        let told: Vec<_> = (11..=50)
            .filter(|_| {
                inbound.met();
                inbound.has_doubled()
            })
            .collect();
        assert_eq!(told, [21, 43]);
        (0..50).for_each(|_| inbound.parted());
        assert_eq!(parts(inbound.advice().start), 1.0);
    }

    #[test]
    fn senders_of_short_messages_do_not_count_and_those_of_large_packets_for_a_while() {
        let mut inbound = inbound(Some(LINK));
        let (mut chatty, mut bulky) = (Sender::default(), Sender::default());
        inbound.heard(at(0), &mut chatty, 64, false, false);
        assert_eq!(inbound.senders(), 0);
        inbound.heard(at(0), &mut bulky, 8900, false, false);
        assert_eq!(inbound.senders(), 1);
        inbound.heard(at(15), &mut chatty, 64, false, false);
        assert_eq!(inbound.senders(), 1);
        inbound.heard(at(31), &mut chatty, 64, false, false);
        assert_eq!(inbound.senders(), 0, "after three periods of 10 us");
        inbound.heard(at(32), &mut bulky, 8900, false, false);
        assert_eq!(inbound.senders(), 1);
    }

    #[test]
    fn newcomers_hear_of_each_other_before_any_of_them_sends() {
        let mut inbound = inbound(Some(LINK));
        for _ in 0..10 {
            inbound.knocked(at(0));
        }
        assert_eq!(parts(inbound.newcomer_share(at(1))), 10.1);
        let mut senders = [Sender::default(); 10];
        for sender in &mut senders {
            inbound.admitted(at(8), sender);
            assert_eq!(parts(inbound.newcomer_share(at(8))), 10.1, "each counts once");
        }
        assert_eq!(inbound.senders(), 10);
        // Without a word they are forgotten.
        assert_eq!(inbound.newcomer_share(at(10_000)), inbound.among(0));
    }

    #[test]
    fn strangers_cannot_take_more_than_half_of_a_share() {
        let mut inbound = inbound(Some(LINK));
        let mut sender = Sender::default();
        inbound.heard(at(0), &mut sender, 8900, true, false);
        for _ in 0..10_000 {
            inbound.knocked(at(0));
        }
        assert_eq!(parts(inbound.share()), 2.0);
    }

    #[test]
    fn strangers_are_forgotten_as_soon_as_they_stop() {
        let mut inbound = inbound(Some(LINK));
        // A million per second, from anywhere.
        for us in 0..1_000_000 {
            inbound.knocked(at(us));
        }
        let flooded = inbound.newcomer_share(at(1_000_000)).rate().expect("advice");
        assert!(flooded > LINK as f64 / 100.0, "{flooded} B/s");
        assert_eq!(inbound.newcomer_share(at(1_000_100)), inbound.among(0));
        for _ in 0..1_000_000 {
            inbound.knocked(at(2_000_000));
        }
        assert_eq!(inbound.newcomer_share(at(2_000_000)), inbound.among(inbound.room));
    }

    #[test]
    fn no_advice_without_a_known_rate() {
        let mut inbound = inbound(None);
        let mut sender = Sender::default();
        inbound.heard(at(0), &mut sender, 8900, true, false);
        assert_eq!((inbound.share().rate(), inbound.newcomer_share(at(1)).rate()), (None, None));
    }

    /// Reads what a link at full rate brings a host that takes in `rate` of it, for `us` microseconds from `from`.
    fn overload(inbound: &mut Inbound, sender: &mut Sender, from: u64, us: u64, rate: f64) {
        let packet = 9_000.0 / LINK as f64 * 1e6;
        // A turn reads a number of packets at most, and takes as long as these need.
        let (mut now, mut arrived) = (from as f64, from as f64);
        while now < (from + us) as f64 {
            let mut read = 0.0;
            while arrived < now && read < 16.0 {
                let (t, at) = ((now * 1e3) as u64, (arrived * 1e3) as u64);
                inbound.read(Time::from_nanos(t), Time::from_nanos(at));
                inbound.heard(Time::from_nanos(t), sender, 8_934, true, false);
                (arrived, read) = (arrived + packet, read + 1.0);
            }
            // What would be more than a receive queue holds is lost.
            arrived = arrived.max(now - 200.0);
            now += f64::max(read, 1.0) * packet / rate;
        }
    }

    #[test]
    fn a_host_that_is_slower_than_its_link_gives_out_what_it_takes_in() {
        let mut inbound = inbound(Some(LINK));
        let mut sender = Sender::default();
        overload(&mut inbound, &mut sender, 0, 4_000, 0.5);
        let part = inbound.share().rate().expect("advice") / LINK as f64;
        assert!((0.2..0.55).contains(&part), "{part} of the link");
        // Once packets are read as they come it is all of it again.
        for us in 4_300..6_000 {
            inbound.read(at(us), at(us));
            inbound.heard(at(us), &mut sender, 8_934, true, false);
        }
        assert_eq!(parts(inbound.share()), 1.0);
    }

    #[test]
    fn a_pause_of_the_host_is_no_overload() {
        let mut inbound = inbound(Some(LINK));
        let mut sender = Sender::default();
        for us in 0..3_000 {
            // Every 500 us, nothing is read for 100.
            let read = if us % 500 < 100 { us - us % 500 + 100 } else { us };
            inbound.read(at(read), at(us));
            inbound.heard(at(read), &mut sender, 8_934, true, false);
            assert!(inbound.intake.capacity() > 0.9, "{} at {us} us", inbound.intake.capacity());
        }
    }

    #[test]
    fn a_host_that_looks_rarely_keeps_up_if_it_leaves_nothing() {
        for (every, packets) in [(500, 4_000), (500, 3), (5_000, 3), (50, 1)] {
            let mut inbound = inbound(Some(LINK));
            let mut sender = Sender::default();
            for turn in 1..100 {
                for i in 0..packets {
                    // They came all over the time, or in its first part.
                    let arrived = (turn - 1) * every + i * every / packets.max(100);
                    inbound.read(at(turn * every), at(arrived));
                    inbound.heard(at(turn * every), &mut sender, 8_934, true, false);
                }
                assert_eq!(inbound.intake.capacity(), 1.0, "{packets} packets every {every} us");
            }
        }
    }

    /// After a pause it takes some turns to catch up, at the speed of the host.
    #[test]
    fn a_host_that_catches_up_is_as_fast_as_it_is() {
        let mut inbound = inbound(Some(LINK));
        let mut sender = Sender::default();
        for pause in 1..100 {
            // 700 packets have come in 500 us, and are read by 30 in 10 us: at twice the rate of the link.
            for i in 0..700 {
                let now = at(pause * 1_000 + i / 30 * 10);
                inbound.read(now, at(pause * 1_000 - 500 + i * 5 / 7));
                inbound.heard(now, &mut sender, 8_934, true, false);
            }
            assert!(inbound.intake.capacity() > 0.9, "{}", inbound.intake.capacity());
        }
    }

    #[test]
    fn counts_survive_any_order_of_events() {
        let mut inbound = inbound(Some(LINK));
        let mut senders = [Sender::default(); 7];
        let mut x = 1u64;
        for step in 0..100_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let now = at(step * 3 + (x >> 60) * 7);
            let sender = &mut senders[(x >> 33) as usize % 7];
            match (x >> 40) % 5 {
                0 => inbound.heard(now, sender, 8900, true, false),
                1 => inbound.heard(now, sender, 8900, false, false),
                2 => inbound.heard(now, sender, 1, false, true),
                3 => inbound.admitted(now, sender),
                _ => inbound.left(sender),
            }
            assert!(inbound.senders() <= 7, "{} of 7 senders", inbound.senders());
        }
    }
}
