//! Acknowledgements, loss, and the timers that guard them.

use super::send::PROBE_NUMBERS;
use super::{Asking, Conn, Cx, Fault, TailProbe};
use crate::cc::{AckSample, RoundSample};
use crate::outbox::Outbox;
use crate::path::PathBits;
use crate::rtt::Rtt;
use crate::sent::{Fate, Sent};
use crate::seq::Seq;
use crate::time::{Span, Time};
use crate::upper::{Failure, Upper};
use crate::wire::{Ack, Refusal, Refuse};

/// Bound of what is believed of the hosts' part in the round trip.
const MAX_HOST_DELAY: Span = Span::from_millis(5);
/// Neither the network's part in a round trip counts for more than this nor that of the hosts: some machine was suspended, and
/// what gets lost later must not wait for as long as that took.
const LONGEST_TRIP: Span = Span::from_secs(1);
/// How many times what is expected of the hosts' part a sample of a peer that was held up may be.
const HOST_GROWTH: u64 = 8;
/// Probes per retransmission timeout while nothing is acknowledged.
const PROBES_PER_TIMEOUT: u32 = 2;
/// Timeouts in a row after which silence counts as congestion. The first may be a peer that was not scheduled.
pub(super) const CONGESTED_TIMEOUTS: u32 = 2;
/// Timeouts in a row after which their ceiling doubles: a pause is a small part of the silence before it. So it ends even where
/// acknowledgements take longer than packets are remembered, because of what the probes add to a queue. (The peer is heard
/// meanwhile, or it would be given up.)
const TIMEOUTS_PER_CEILING: u32 = 64;
/// Packets that are given up at once when a probe needs a number and the window is used up.
const GIVEN_UP: u32 = 8;
/// How long packets that were declared lost are remembered, in retransmission timeouts: until then a late
/// acknowledgement shows that they were not.
const LOST_MEMORY: u64 = 4;

/// What the acknowledgements of one packet newly cover.
#[derive(Debug, Default)]
pub(super) struct Covered {
    /// When it arrived.
    at: Time,
    /// Queueing delay of the newest packet that was measured.
    queue_delay: Option<Span>,
    bytes: u64,
    packets: u32,
    /// When the latest-sent of them was sent.
    newest: Option<Time>,
    /// Packets that were held to be lost are among them.
    late: bool,
    round_over: bool,
    /// When the oldest of those that were in flight was sent.
    oldest: Time,
    /// Paths that had packets covered.
    paths: PathBits,
}

impl Conn {
    /// The retransmission timeout of a path (RFC 6298, with acknowledgement delay and floor of the configuration).
    fn rto(&self, cx: &Cx<'_>) -> impl Fn(&Rtt) -> Span + use<> {
        let (min, g) = (cx.config.rto_min, cx.granularity);
        let max = cx.config.rto_max * (1 << (self.backoff / TIMEOUTS_PER_CEILING).min(16));
        let (ack_delay, shift) = (self.peer_ack_delay(), self.backoff.min(16));
        let whole = self.rtt.timeout(g);
        let gap = self.gap();
        move |rtt| {
            // Over many paths, what a path knows of itself is old news; and one sample of a peer that was stalled must not
            // let it wait for seconds.
            let own = if rtt.is_sampled() { rtt.timeout(g).clamp(whole, max.max(whole)) } else { whole };
            let first = (own + ack_delay + gap).max(min);
            (first * (1 << shift)).min(max.max(first))
        }
    }

    /// The time between two packets at the present rate. By as much the RTT may grow unseen where many share a link and each
    /// sends rarely: the others fill the queue between two of our packets.
    pub(super) fn gap(&self) -> Span {
        Span::from_secs_f64(f64::from(self.datagram.get()) / self.cc.rate())
    }

    fn peer_ack_delay(&self) -> Span {
        let promised = Span::from_micros(self.remote.max_ack_delay_us.min(100_000).into());
        promised.max(self.host.timeout(Span::ZERO))
    }

    pub(super) fn handle_ack<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        ack: &Ack<'_>,
        at: Time,
        first: bool,
        outbox: &mut Outbox,
        upper: &mut U,
    ) -> Result<(), Fault> {
        let next = self.sent.next();
        // [ACK-5]
        if next.is_before(ack.cumulative) || !ack.newest.is_before(next) {
            return Err(Fault::Violation);
        }
        let mut covered = self.begin_cover(cx, at, first, outbox);
        (self.share, self.start) = (ack.advice.share.rate(), ack.advice.start.rate());
        if self.cc.on_share(self.share) {
            self.repace(cx);
        }
        for entry in ack.paths() {
            if usize::from(entry.path) >= self.paths.len() {
                continue;
            }
            self.paths.on_ce(entry.path, entry.ce);
            // A packet whose fate is known already was sampled by an earlier acknowledgement.
            let news = |s: &&Sent| s.fate != Fate::Acked && s.path == entry.path;
            let Some(&s) = self.sent.get(entry.pn).filter(news) else { continue };
            // [ACK-7]
            let Some(residence) = entry.residence else {
                self.held_up(cx, s.at);
                continue;
            };
            if at.since(s.at) > residence {
                let rtt = at.since(s.at) - residence;
                let large = u32::from(s.bytes) * 2 >= u32::from(self.datagram.get());
                let longer = cx.config.target_delay;
                self.host.sample(cx.now, (cx.now.since(s.at) - rtt).min(LONGEST_TRIP), false, Span::ZERO);
                let rtt = rtt.min(LONGEST_TRIP);
                self.rtt.sample(cx.now, rtt, large, longer);
                let queue = self.paths.on_rtt(cx.now, &s, rtt, large, longer, &self.rtt);
                self.round.recent_queue.rotate_right(1);
                self.round.recent_queue[0] = queue;
                self.round.samples += 1;
                covered.queue_delay = Some(queue);
            }
        }
        let mut pn = self.sent.base();
        while pn.is_before(ack.cumulative) {
            // [ACK-6]
            // The receiver's base passes packets that it received, and those that we told it to give up: those before ours.
            self.cover(cx, pn, &mut covered, outbox, upper);
            pn = pn.plus(1);
        }
        for (i, word) in ack.words().enumerate() {
            let first = ack.cumulative.plus(64 * i as u32);
            let mut word = word & !self.sent.acked_word(first);
            while word != 0 {
                let pn = first.plus(word.trailing_zeros());
                word &= word - 1;
                self.cover(cx, pn, &mut covered, outbox, upper);
            }
        }
        self.unsettled = Some(covered);
        Ok(())
    }

    /// What a frame covers adds to what others of its packet did, if it is not the `first` that acknowledges: they name
    /// packets in any order, and conclusions between two of them would take for lost what the next one names.
    fn begin_cover(&mut self, cx: &mut Cx<'_>, at: Time, first: bool, outbox: &mut Outbox) -> Covered {
        if first {
            self.settle(cx, outbox);
        } else {
            // Not to be walked over by each of them.
            self.sent.forget_acked();
        }
        self.unsettled.take().unwrap_or(Covered { at, oldest: Time::NEVER, ..Covered::default() })
    }

    /// The peer held a packet that was sent at `sent` for longer than it can say: all of the time but the network's part was
    /// the hosts'. A peer that is always late must be known to be, or it is asked again and again, which makes it later.
    /// One stall is no habit, however many packets it held up: it counts once, and not for more than several times of what
    /// is usual.
    #[cold]
    fn held_up(&mut self, cx: &Cx<'_>, sent: Time) {
        if sent >= self.held_up_at {
            self.held_up_at = cx.now;
            let most = (self.host.timeout(cx.granularity) * HOST_GROWTH).min(LONGEST_TRIP);
            self.host.sample(cx.now, (cx.now.since(sent) - self.rtt.srtt()).min(most), false, Span::ZERO);
        }
    }

    pub(super) fn handle_refuse<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        refuse: &Refuse<'_>,
        at: Time,
        first: bool,
        outbox: &mut Outbox,
        upper: &mut U,
    ) -> Result<(), Fault> {
        // [RNR-5]
        if !refuse.pn.is_before(self.sent.next()) {
            return Err(Fault::Violation);
        }
        let mut covered = self.begin_cover(cx, at, first, outbox);
        for (message, refusal) in refuse.entries() {
            // A refusal of an earlier packet may have settled the message already.
            let failed = match refusal {
                Refusal::Refused(status) => outbox.refused(message).map(|t| (t, Failure::Refused(status))),
                Refusal::NotReady => {
                    cx.stats.rnr += 1;
                    let (min, max, srtt, now) = (cx.config.rnr_min, cx.config.rnr_max, self.rtt.srtt(), cx.now);
                    let resume = |attempt: u8| {
                        let pause = (min.max(srtt * 4).min(max) * (1 << attempt.min(20))).min(max);
                        // Between half and all of it, by message, so that those turned away together come back apart.
                        let half = pause.as_nanos() / 2;
                        let spread = u64::from(message.0.wrapping_mul(0x9E37_79B1) >> 16);
                        now + Span::from_nanos(half + half * spread / 0x1_0000)
                    };
                    outbox.not_ready(message, |token| upper.waits_for(token), resume).map(|t| (t, Failure::NotReady))
                }
            };
            if let Some((token, failure)) = failed {
                cx.stats.messages_failed += 1;
                upper.completed(token, Err(failure));
            }
        }
        self.cover(cx, refuse.pn, &mut covered, outbox, upper);
        self.unsettled = Some(covered);
        Ok(())
    }

    /// The receiver has packet `pn`.
    fn cover<U: Upper>(&mut self, cx: &mut Cx<'_>, pn: Seq, covered: &mut Covered, outbox: &mut Outbox, upper: &mut U) {
        let Some(&s) = self.sent.get(pn) else { return };
        match s.fate {
            Fate::Acked => return,
            Fate::Lost(_) => {
                cx.stats.spurious_retransmits += 1;
                self.paths.on_spurious(&s);
                covered.late = true;
            }
            Fate::InFlight => {
                self.in_flight -= u64::from(s.bytes);
                self.round.lost += self.paths.on_acked(&s);
                covered.packets += 1;
                covered.bytes += u64::from(s.bytes);
                covered.oldest = covered.oldest.min(s.at);
                covered.paths.insert(s.path);
                covered.round_over |= !pn.is_before(self.round.end);
                covered.newest = covered.newest.max(Some(s.at));
            }
        }
        self.datagram.on_arrived(&s);
        self.sent.set_fate(pn, Fate::Acked);
        for piece in self.sent.pieces(&s) {
            if let Some((token, len)) = outbox.acked(&piece) {
                self.last_used = cx.now;
                cx.stats.messages_sent += 1;
                cx.stats.message_bytes_sent += u64::from(len);
                upper.completed(token, Ok(()));
            }
        }
    }

    /// Draws the conclusions from the last acknowledgement. They wait until what may be sent anyway has left, so that an
    /// answer does not; at most until the next acknowledgement.
    pub(super) fn settle(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) {
        let Some(covered) = self.unsettled.take() else { return };
        let (covered, at, queue_delay) = (&covered, covered.at, covered.queue_delay);
        if covered.newest.is_some() || covered.late {
            self.heard(cx);
            if self.backoff > 0 {
                // Now it can be told which packets were lost.
                self.backoff = 0;
                self.loss_at = cx.now;
            }
            self.tail_probe = TailProbe::Idle;
            self.pardoned = None;
        }
        let Some(newest) = covered.newest else {
            // What it covered was held to be lost. Not to be walked over by each acknowledgement that follows.
            self.sent.forget_acked();
            return;
        };
        if self.datagram.adapt(cx.now, self.paths.len(), self.rtt.srtt()) {
            cx.stats.mtu_reductions += 1;
        }

        self.newest_acked_at = self.newest_acked_at.max(newest);
        self.round.on_acked(covered.packets, covered.bytes, covered.oldest, newest);
        let elapsed = at.since(self.round.start);
        self.cc.on_ack(&AckSample {
            acked: covered.bytes,
            queue_delay,
            delivery_rate: self.round.delivery_rate(at, self.rtt.min()),
            limited: self.round.limited || self.round.was_limited,
            share: self.share,
            min_rtt: self.paths.base(self.rtt.min()),
            host_delay: self.host_delay(),
        });

        self.repace(cx);
        if std::mem::replace(&mut self.asking, Asking::No) == Asking::Waiting {
            self.spread(cx);
        }
        for path in covered.paths.iter() {
            let due = self.paths.detect_lost(path, cx.now, &self.sent, &mut self.lost_scratch);
            self.reorder_at = self.reorder_at.min(due);
        }
        self.declare_lost(cx, LossCause::Overtaken, outbox);
        if cx.now >= self.next_scan {
            self.next_scan = cx.now + self.rtt.srtt() / 4;
            self.find_overdue(cx, outbox);
        }
        self.forget(cx);
        if covered.round_over && elapsed >= self.rtt.srtt().max(cx.config.target_delay) {
            self.end_round(cx, at);
        }
        self.repace(cx);
    }

    /// The rate may be another one: then the wait for the next burst is, too. Without advice only a wait that has become
    /// absurd, since rates that are guessed jump, and together would overflow what a slower pace does not.
    pub(super) fn repace(&mut self, cx: &Cx<'_>) {
        if self.share.is_some() {
            self.pacer.adapt(cx.now, self.cc.rate());
        }
        self.limit_wait(cx);
    }

    /// Whether anything is known of how long an acknowledgement takes. If not, no packet is forgotten for being lost: where all
    /// acknowledgements are of packets that are forgotten, nobody would ever know.
    pub(super) fn knows_trips(&self) -> bool {
        self.rtt.is_sampled() || self.newest_acked_at != Time::ZERO
    }

    /// Forgets packets whose fate is settled, lost ones only when an acknowledgement of them has become unlikely or the
    /// window fills up.
    fn forget(&mut self, cx: &Cx<'_>) {
        let used = self.sent.len();
        if !self.sent.forget_acked() || !self.knows_trips() {
            return;
        }
        let crowded = used > self.remote.packet_window / 2 || used + PROBE_NUMBERS >= self.remote.packet_window;
        let memory = if crowded { Span::ZERO } else { self.rto(cx)(&self.rtt) * LOST_MEMORY };
        self.sent.forget(cx.now - memory);
    }

    /// Makes sure that a probe can have a packet number: when the window is used up, the oldest packets are given up.
    pub(super) fn make_number(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) {
        if self.sent.len() + 1 < self.remote.packet_window {
            return;
        }
        let first = self.sent.base();
        self.lost_scratch.clear();
        self.lost_scratch.extend((0..GIVEN_UP).map(|i| first.plus(i)));
        self.declare_lost(cx, LossCause::DeadPath, outbox);
        self.sent.forget(cx.now);
    }

    /// How long a packet is in flight beyond what the network takes: the peer's host sits on it, and ours on the
    /// acknowledgement. Bounded, so that a host that stalls does not open the window for ever.
    fn host_delay(&self) -> Span {
        (self.host.srtt() + self.host.var() * 2).min(MAX_HOST_DELAY)
    }

    /// Packets whose acknowledgement is overdue by the clock of acknowledgements: something sent so much later on another
    /// path has arrived that they should have, too. Faster than the timeout, and deaf to stalls of either host.
    fn find_overdue(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) {
        if self.sent.oldest_at().is_none_or(|at| at >= self.newest_acked_at) {
            // Nothing that was sent before it is in flight.
            return;
        }
        let slack = cx.config.reorder_time;
        self.paths.overdue(self.newest_acked_at, &self.rtt, slack, &self.sent, &mut self.lost_scratch);
        if !self.lost_scratch.is_empty() {
            self.blame(cx);
            self.declare_lost(cx, LossCause::DeadPath, outbox);
        }
    }

    fn end_round(&mut self, cx: &Cx<'_>, at: Time) {
        let host_delay = self.host_delay();
        let signal = self.paths.end_round();
        let round = &mut self.round;
        // A round of few samples says little: take the least of the last two, so that noise does not pass for a queue.
        let queue_delay =
            if round.samples < 4 { round.recent_queue[..2].iter().min().copied() } else { signal.queue_delay };
        self.cc.on_round(&RoundSample {
            queue_delay,
            // What dead paths swallow is no congestion, unless most of what was sent is gone: then it is no path.
            loss: round.loss_share(if round.is_disaster() { round.dead } else { 0 }),
            marked: signal.marked,
            limited: round.limited,
            delivery_rate: round.delivery_rate(at, self.rtt.min()).unwrap_or(0.0),
            host_delay,
            share: self.share,
            length: at.since(round.start),
        });
        let (loss, limited) = (round.loss_share(0), round.limited);
        *round = round.next(at, self.sent.next());
        self.doubt_base(cx, queue_delay.unwrap_or(Span::ZERO), loss, limited);
    }

    fn declare_lost(&mut self, cx: &mut Cx<'_>, cause: LossCause, outbox: &mut Outbox) {
        let mut lost = std::mem::take(&mut self.lost_scratch);
        for pn in lost.drain(..) {
            let Some(&s) = self.sent.get(pn) else { continue };
            if s.fate != Fate::InFlight {
                continue;
            }
            self.sent.set_fate(pn, Fate::Lost(cx.now));
            self.in_flight -= u64::from(s.bytes);
            self.paths.on_lost(&s, cause == LossCause::DeadPath);
            self.paths.probe_again(&s, cx.now);
            self.lost_on = Some(s.path);
            cx.stats.lost_packets += 1;
            match cause {
                LossCause::Overtaken => self.round.lost += 1,
                LossCause::DeadPath => self.round.dead += 1,
            }
            self.datagram.on_lost(&s);
            if !s.probe {
                self.sent.pieces(&s).for_each(|piece| outbox.lost(piece));
            }
        }
        self.lost_scratch = lost;
        self.ping |= self.datagram.take_question() || (self.may_be_forgotten() && self.in_flight == 0);
    }

    /// Runs what is due.
    pub(crate) fn on_timer(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) {
        self.settle(cx, outbox);
        outbox.resume(cx.now);
        if self.reorder_at <= cx.now {
            self.reorder_at = Time::NEVER;
            for path in 0..self.paths.len() as u16 {
                let due = self.paths.detect_lost(path as u8, cx.now, &self.sent, &mut self.lost_scratch);
                self.reorder_at = self.reorder_at.min(due);
            }
            self.declare_lost(cx, LossCause::Overtaken, outbox);
            self.forget(cx);
        }
        if self.in_flight == 0 {
            self.loss_at = Time::NEVER;
            return;
        }
        // What arrived while we were stalled comes first, and its senders get a round trip to catch up.
        let patience = self.pardon(cx) + self.rtt.srtt() * 2;
        if self.loss_at <= cx.now {
            let rto = self.rto(cx);
            if self.backoff == 0 {
                // The oldest packet may have been acknowledged since the timer was set.
                self.loss_at = self.paths.next_timeout(&self.sent, &rto);
            }
            if self.loss_at <= cx.now && cx.stall_end != Time::ZERO && cx.now < patience {
                self.pardoned = Some(cx.stall_end);
                self.loss_at = patience;
            } else if self.loss_at <= cx.now {
                self.on_timeout(cx, rto, outbox);
            }
        }
        if self.tail_probe == TailProbe::Idle && self.tail_probe_at(cx) <= cx.now {
            self.tail_probe = TailProbe::Due(1);
        }
    }

    fn on_timeout(&mut self, cx: &mut Cx<'_>, rto: impl Fn(&Rtt) -> Span, outbox: &mut Outbox) {
        self.paths.expired(cx.now, &self.sent, &rto, &mut self.lost_scratch);
        self.blame(cx);
        let again = self.asked_at + rto(&self.rtt);
        if self.lost_scratch.is_empty() && self.backoff == 0 && cx.now < again {
            // What was heard since the last question was news of older packets: this one takes longer than is believed. To ask
            // again with each acknowledgement would be a storm, since each question brings one.
            self.loss_at = again;
        } else if self.lost_scratch.is_empty() {
            // The peer is silent altogether. That proves no loss: it may not have been scheduled. Ask, with what is
            // oldest, and ask less and less often; the answer will tell what was lost.
            cx.stats.timeouts += 1;
            self.asked_at = cx.now;
            self.backoff = self.backoff.saturating_add(1);
            self.loss_at = cx.now + self.rto(cx)(&self.rtt);
            self.tail_probe = TailProbe::Due(PROBES_PER_TIMEOUT);
            self.ping = true;
            if self.backoff >= CONGESTED_TIMEOUTS {
                self.cc.on_timeout();
                self.try_fresh_port(cx, outbox);
            }
        } else {
            self.declare_lost(cx, LossCause::DeadPath, outbox);
            let rto = self.rto(cx);
            self.loss_at = self.paths.next_timeout(&self.sent, rto).max(cx.now + cx.granularity);
        }
        self.forget(cx);
        cx.stats.paths_replaced += self.paths.take_replaced();
    }

    /// Of the packets that are collected as silent, keeps those whose path is to blame, because what was sent later on
    /// others has arrived; the path pays for it, unless most packets of this round are gone: then it is no matter of paths.
    fn blame(&mut self, cx: &mut Cx<'_>) {
        let mut lost = std::mem::take(&mut self.lost_scratch);
        let mut blamed = PathBits::default();
        for i in 0..lost.len() {
            let Some(&s) = self.sent.get(lost[i]) else { continue };
            if !blamed.contains(s.path) && self.paths.others_alive(s.path, s.at) {
                blamed.insert(s.path);
                if !self.round.is_disaster() && self.paths.get(s.path).life == s.path_life {
                    self.paths.on_silence(s.path, cx.now, cx.config, &mut lost);
                }
            }
        }
        let sent = &self.sent;
        lost.retain(|&pn| sent.get(pn).is_some_and(|s| blamed.contains(s.path)));
        self.lost_scratch = lost;
        cx.stats.paths_replaced += self.paths.take_replaced();
    }

    /// Maybe it is all our paths and not the peer: the one that has waited longest gets another source port.
    fn try_fresh_port(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) {
        let Some(path) = self.sent.oldest_in_flight().map(|(_, s)| s.path) else { return };
        self.paths.replace(path, cx.now, cx.config, &mut self.lost_scratch);
        self.declare_lost(cx, LossCause::DeadPath, outbox);
    }

    /// The end of the stall of ours that verdicts by time wait for. Once one was put off, no later stall does that again before
    /// there is news: where each run comes late, nothing would ever be found lost.
    fn pardon(&self, cx: &Cx<'_>) -> Time {
        self.pardoned.unwrap_or(cx.stall_end)
    }

    /// When the tail probe is due.
    fn tail_probe_at(&self, cx: &Cx<'_>) -> Time {
        let srtt = self.rtt.srtt();
        let after = srtt + srtt.max(self.rtt.var() * 4) + cx.granularity + self.peer_ack_delay();
        // Probes that kept no pace would double the queue.
        (self.last_sent_at + self.gap()).max(self.pardon(cx)) + after
    }

    /// When [`on_timer`](Self::on_timer) next has something to do.
    pub(super) fn timer_at(&self, cx: &Cx<'_>, outbox: &Outbox) -> Time {
        let mut at = self.reorder_at.min(outbox.next_resume().unwrap_or(Time::NEVER));
        if self.in_flight > 0 {
            at = at.min(self.loss_at);
            if self.tail_probe == TailProbe::Idle {
                at = at.min(self.tail_probe_at(cx));
            }
        }
        at
    }

    /// A tracked packet was sent: a timeout guards it.
    pub(super) fn guard(&mut self, cx: &Cx<'_>, path: u8) {
        if self.loss_at <= cx.now + cx.config.rto_min {
            // No timeout is shorter.
            return;
        }
        let rto = self.rto(cx)(&self.paths.get(path).rtt);
        self.loss_at = self.loss_at.min(cx.now + rto);
    }
}

/// Why packets are declared lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LossCause {
    /// Later packets of the same path arrived.
    Overtaken,
    /// Its path is silent while others work: not congestion.
    DeadPath,
}
