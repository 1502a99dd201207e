//! The default controller: a paced rate R with an in-flight limit W on top, steered by delay on the majority of paths, by
//! the rate at which packets are delivered ("somewhat similar to BBR", Shalev et al., IEEE Micro 40(6), 2020), and by the
//! share of its link that the receiver advises.
//!
//! Start-up: with a share, the first acknowledgement ends it, and R is the share; without, W doubles per round until the
//! queueing delay exceeds the target T or delivery stops growing, and R becomes what was *delivered*, not what was sent.
//!
//! After that a proportional-integral controller holds the queue at T/2, once per round: the *remembered* rate moves slowly
//! with the queue, and follows changes of the share at once; the rate in use departs from it in proportion to the queue,
//! which drains queues without forgetting the fair rate. A queue above T that does not fall although all give way is
//! somebody else's: then the remembered rate falls in proportion to the excess (as in Swift, SIGCOMM 2020).
//! `docs/congestion-control.md` has the reasons and the measurements.

use super::{AckSample, Controller, RoundSample};
use crate::config::{CheckedConfig, Tuning};
use crate::time::Span;

/// Rounds over which the largest delivery rate is remembered.
const BW_ROUNDS: usize = 8;
/// Start-up ends after so many rounds in which delivery grew by less than a quarter.
const FULL_ROUNDS: u32 = 3;
/// Loss share of a round that counts as congestion: far above random loss, far below what a full queue drops.
const LOSS_CONGESTION: f64 = 0.15;
/// Smallest rate: this share of a packet per base RTT (1,000 senders of jumbo frames to one link get 0.006), with the
/// receiver's advice and without. Without, the way back up is long: a round is at least the time between two packets.
const MIN_PACKETS_PER_RTT: f64 = 0.001;
const MIN_PACKETS_UNADVISED: f64 = 0.01;
/// Nor is it less than this: the base RTT of a host that stood still may be anything.
const MIN_PACKETS_PER_SECOND: f64 = 1.0;
/// Nor is a base RTT below this believed in for it: two clocks are read for a sample, and a slip of theirs must not keep the rate up.
const SHORTEST_BASE: Span = Span::from_micros(1);
/// Nor is the smallest rate more than this part of the share.
const MIN_OF_SHARE: f64 = 0.25;
/// Rounds with a queue above the target that does not fall, after which the share is no longer believed in.
const STUCK_ROUNDS: u32 = 3;
/// What a round counts, in parts of it that a round trip is, when a queue in it does not fall: all if it is no longer than
/// four.
const STUCK_WEIGHT: f64 = 4.0;
/// A queue of fewer targets than this takes no more than a part of the rate per round from a sender that has no more than
/// its share: others have the same queue, and who alone gives way much is the last to end.
const LONG_QUEUE: f64 = 4.0;
const FAIR_CUT: f64 = 0.1;
/// A rate below this part of the share is far below it.
const FAR_BELOW: f64 = 0.5;
/// A share below so much of the last one is followed at once.
const SHARE_DROP: f64 = 0.8;
/// A share of more than so many times that of the last round need not wait for the next one.
const SHARE_GROWTH: f64 = 1.5;
/// Rounds without a queue after which a sender takes more than its share.
const CALM_ROUNDS: u32 = 8;
/// The queue that is aimed at, in targets.
const SETPOINT: f64 = 0.5;
/// What a round counts as at least in which most paths were marked, in targets.
const MARKED_QUEUE: f64 = 1.0;
/// What is left of the rate during a look at the network without us.
const DRAINED: f64 = 0.1;
/// Rate limit where the link's rate is not known: 400 Gbit/s in bytes per second.
const MAX_RATE: f64 = 50e9;

#[derive(Debug)]
pub(super) struct Delay {
    tuning: Tuning,
    mtu: f64,
    max_rate: f64,
    target_floor: Span,
    initial_window: f64,
    burst_time: Span,
    max_burst: f64,
    /// The rate that is remembered, and the one in use.
    level: f64,
    rate: f64,
    window: f64,
    base: Span,
    /// What the hosts add to a round trip.
    host: Span,
    /// The share of the last round.
    share: Option<f64>,
    startup: bool,
    /// Bound of the rate in start-up.
    first_rate: f64,
    /// Queueing delay of the last round, in targets.
    last_queue: f64,
    stuck_rounds: u32,
    calm_rounds: u32,
    /// Delivery rates of the last rounds, newest first.
    bw: [f64; BW_ROUNDS],
    /// That of the round under way, so far.
    current_bw: f64,
    full_bw: f64,
    full_rounds: u32,
    /// The round under way has next to nothing of ours in queues.
    draining: bool,
    /// The last queueing delays, for the per-acknowledgement check of start-up.
    recent: [Span; 4],
    recent_len: usize,
}

impl Delay {
    pub(super) fn new(config: &CheckedConfig, mtu: u16, first_window: u32, share: Option<f64>) -> Delay {
        let max_rate = config.link_rate.map_or(MAX_RATE, |r| r as f64);
        let mut delay = Delay {
            tuning: config.tuning,
            mtu: mtu.into(),
            max_rate,
            target_floor: config.target_delay,
            initial_window: first_window.into(),
            burst_time: config.burst_time,
            max_burst: config.max_burst.into(),
            level: max_rate,
            rate: max_rate,
            window: 0.0,
            base: config.initial_rtt,
            host: Span::ZERO,
            share,
            startup: true,
            first_rate: f64::INFINITY,
            last_queue: 0.0,
            stuck_rounds: 0,
            calm_rounds: 0,
            bw: [0.0; BW_ROUNDS],
            current_bw: 0.0,
            full_bw: 0.0,
            full_rounds: 0,
            draining: false,
            recent: [Span::ZERO; 4],
            recent_len: 0,
        };
        delay.window = delay.first_window();
        delay
    }

    /// Bytes in flight at the start: no more than the share of what the initial window is meant for.
    fn first_window(&self) -> f64 {
        let share = self.share.map_or(f64::INFINITY, |s| self.filling(s));
        self.initial_window.min(share).max(self.mtu)
    }

    /// Target queueing delay.
    fn target(&self) -> Span {
        self.target_floor.max(self.base)
    }

    /// What is in flight at this rate with a queue of the target's length.
    fn filling(&self, rate: f64) -> f64 {
        rate * (self.base + self.target() + self.host).as_secs_f64()
    }

    fn bw_max(&self) -> f64 {
        self.bw.iter().copied().fold(0.0, f64::max)
    }

    /// One packet per base RTT, in bytes per second.
    fn packet_rate(&self) -> f64 {
        self.mtu / self.base.max(SHORTEST_BASE).as_secs_f64()
    }

    /// What is added to the rate in a round where the fair rate is not known, in bytes per second.
    fn probe(&self) -> f64 {
        self.tuning.additive * self.mtu / (self.base + self.target() + self.host).as_secs_f64().max(1e-9)
    }

    /// Sets the remembered rate, and the one in use: that times `trim`.
    fn set_level(&mut self, level: f64, trim: f64) {
        let slowest = |per_rtt: f64| (self.packet_rate() * per_rtt).max(self.mtu * MIN_PACKETS_PER_SECOND);
        let min = match self.share {
            // Where the network is far quicker than the link, a fair share may be less still.
            Some(share) => slowest(MIN_PACKETS_PER_RTT).min(share * MIN_OF_SHARE),
            None => slowest(MIN_PACKETS_UNADVISED),
        };
        let min = min.min(self.max_rate);
        self.level = level.clamp(min, self.max_rate);
        self.rate = (self.level * trim).clamp(min, self.max_rate);
        let burst = (self.rate * self.burst_time.as_secs_f64()).min(self.max_burst);
        self.window = self.filling(self.rate) + 2.0 * burst;
    }

    fn leave_startup(&mut self) {
        self.startup = false;
        let delivered = self.bw[0].max(self.current_bw);
        let fallback = self.window / 2.0 / self.base.as_secs_f64().max(1e-9);
        let rate = if delivered > 0.0 { delivered } else { fallback };
        self.set_level(self.share.map_or(rate, |s| rate.min(s)), 1.0);
    }
}

impl Controller for Delay {
    fn on_ack(&mut self, ack: &AckSample) {
        self.base = ack.min_rtt;
        self.host = ack.host_delay;
        self.current_bw = ack.delivery_rate.unwrap_or(0.0);
        if let Some(q) = ack.queue_delay {
            self.recent.rotate_right(1);
            self.recent[0] = q;
            self.recent_len = (self.recent_len + 1).min(4);
        }
        if let (false, Some(old), Some(new)) = (self.startup, self.share, ack.share)
            && new < old * SHARE_DROP
        {
            // Others have come: they are here already.
            self.share = ack.share;
            self.set_level(self.level.min(self.level * new / old), 1.0);
        }
        if !self.startup {
            return;
        }
        self.share = ack.share;
        if let Some(share) = self.share {
            self.startup = false;
            self.set_level(share, 1.0);
            return;
        }
        let queue = self.recent[..self.recent_len].iter().min().copied().unwrap_or(Span::ZERO);
        if self.recent_len == 4 && queue > self.target() {
            self.leave_startup();
        } else if ack.limited {
            let cap = self.filling(self.max_rate);
            self.window = (self.window + ack.acked as f64).min(cap.max(self.mtu));
        }
    }

    fn on_share(&mut self, share: Option<f64>) -> bool {
        let (Some(old), Some(new)) = (self.share, share) else { return false };
        let fast = (new * FAR_BELOW).min(self.max_rate);
        let sooner = !self.startup && new > old * SHARE_GROWTH && self.rate < fast;
        if sooner {
            // Others have left. What is known of queues may be old when packets are rare: the window stays, so that the
            // next packet comes sooner, finds out, and ends the round.
            self.rate = fast;
        }
        sooner
    }

    fn on_round(&mut self, round: &RoundSample) {
        if std::mem::take(&mut self.draining) {
            // Nothing follows from what was hardly sent.
            self.set_level(self.level, 1.0);
            return;
        }
        self.host = round.host_delay;
        self.current_bw = 0.0;
        // A round in which there was little to send shows only what could be delivered at least.
        let bw = if round.limited { round.delivery_rate } else { round.delivery_rate.max(self.bw[0]) };
        self.bw.rotate_right(1);
        self.bw[0] = bw;
        let bw_max = self.bw_max();
        if self.startup {
            if round.loss > LOSS_CONGESTION || round.marked {
                self.leave_startup();
            } else if round.limited {
                if bw > self.full_bw * 1.25 {
                    self.full_bw = bw;
                    self.full_rounds = 0;
                } else {
                    self.full_rounds += 1;
                    if self.full_rounds >= FULL_ROUNDS {
                        self.leave_startup();
                        self.set_level(self.level * 1.25, 1.0);
                    }
                }
            }
            return;
        }
        let t = self.tuning;
        let target = self.target().as_secs_f64();
        let seen = round.queue_delay.map_or(0.0, Span::as_secs_f64) / target;
        // A switch marks where it wants no longer queue, whatever of it was seen.
        let queue = if round.marked { seen.max(MARKED_QUEUE) } else { seen };
        // A round may last many round trips when the rate is below a packet per round trip; then what is done in it
        // counts for all of them.
        let step = ((self.base.as_secs_f64() + target) / round.length.as_secs_f64().max(1e-9)).min(1.0);
        let mut level = self.level;
        let before = level;

        // The receiver's advice: follow its changes at once, and approach it.
        if let (Some(old), Some(new)) = (self.share, round.share) {
            level *= (new / old).min(1.25);
        }
        self.share = round.share;
        if let Some(share) = self.share {
            let off = (share - level) / (share + level);
            if level < share * FAR_BELOW && queue < SETPOINT {
                // Others have left, and there is room: half of the way at once, since short flows have few rounds.
                level += (share - level) / 2.0;
            } else if (off < 0.0 && queue > SETPOINT / 2.0) || (off > 0.0 && queue < SETPOINT * 1.5) {
                level *= 1.0 + 2.0 * t.pull * off;
            }
        }
        let congested_loss = round.loss > LOSS_CONGESTION;
        let stuck = queue > 1.0 && queue > self.last_queue * 0.95;
        self.stuck_rounds = if stuck { self.stuck_rounds + 1 } else { 0 };
        if queue > SETPOINT || congested_loss {
            // Who has no more than its share leaves the draining of a queue to the rate in use.
            let fair = self.share.is_some_and(|s| level <= s);
            let mut factor = if fair { 1.0 } else { 1.0 - t.integral * step * (queue - SETPOINT).clamp(0.0, 1.0) };
            // A queue that was seen in few of a round's round trips is no reason to give way as if it had stood in all.
            if self.stuck_rounds >= if fair { STUCK_ROUNDS } else { 1 } {
                let most = if fair && queue < LONG_QUEUE { FAIR_CUT } else { 0.5 };
                factor = factor.min(1.0 - (STUCK_WEIGHT * step).min(1.0) * (0.8 * (1.0 - 1.0 / queue)).min(most));
            }
            if congested_loss {
                factor = factor.min(0.7);
            }
            // Never below what was delivered just now, less a little to drain: that much the network carries.
            let floor = if congested_loss { bw * 0.5 } else { bw * 0.85 };
            level = (level * factor).max(floor.min(level));
        }
        // Beyond the share there is room only if others leave theirs, which no queue for a while shows.
        self.calm_rounds = if queue < SETPOINT / 4.0 { self.calm_rounds + 1 } else { 0 };
        let full = self.share.is_some_and(|s| level >= s);
        if round.limited && queue < 1.0 && (!full || self.calm_rounds > CALM_ROUNDS) {
            if !full {
                level *= 1.0 + t.integral * step * (SETPOINT - queue).max(0.0) / SETPOINT;
            }
            if self.share.is_some() {
                let additive = t.additive * self.mtu / round.length.as_secs_f64().max(1e-9);
                level += additive.min(level * 0.02) * (1.0 - queue);
            } else {
                // Nobody says what the fair rate is. Adding the same for all makes rates alike, and where there is no
                // queue a rate that fell far (many losses in a row) must find back soon.
                level += self.probe() * (2.0 * (1.0 - queue)).min(1.0);
                if queue < SETPOINT / 2.0 {
                    level += before / 8.0;
                }
            }
        }
        if level > before {
            // Nothing grows far beyond what is delivered, unless the receiver says so.
            let cap = if bw_max > 0.0 { bw_max * 1.25 } else { level };
            level = level.min(cap.max(before).max(self.share.unwrap_or(self.probe())));
        }
        self.last_queue = queue;
        // Nor is there a queue to be built up where the share is what limits.
        let off = (queue - SETPOINT).max(if full { 0.0 } else { -SETPOINT });
        let trim = (1.0 - t.proportional * step * off).max(0.5);
        self.set_level(level, trim);
    }

    fn drain(&mut self) {
        if self.startup {
            self.leave_startup();
        }
        self.draining = true;
        // A packet per round trip makes no queue, and less of them would take long to end the round.
        let trim = DRAINED.max(self.packet_rate() / self.level).min(1.0);
        self.set_level(self.level, trim);
    }

    fn on_restart(&mut self) {
        self.draining = false;
        (self.startup, self.first_rate) = (true, f64::INFINITY);
        self.window = self.window.min(self.first_window());
        (self.recent_len, self.full_bw, self.full_rounds) = (0, 0.0, 0);
        self.bw = [0.0; BW_ROUNDS];
    }

    fn begin(&mut self, rate: f64) {
        self.first_rate = rate.min(self.max_rate);
        self.window = self.filling(self.first_rate).max(self.mtu);
    }

    fn on_timeout(&mut self) {
        self.startup = false;
        let rate =
            if self.bw_max() > 0.0 { self.rate.min(self.bw_max()) } else { self.window / self.filling(1.0).max(1e-9) };
        self.set_level(rate / 2.0, 1.0);
    }

    fn rate(&self) -> f64 {
        if self.startup {
            // Fast enough never to be what limits, slow enough not to send the window in one clump.
            let fast = (2.0 * self.window / self.base.as_secs_f64().max(1e-9)).min(self.max_rate);
            self.share.map_or(fast, |s| fast.min(s)).min(self.first_rate)
        } else {
            self.rate
        }
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const LINK: f64 = 12.5e9;
    const BASE: Span = Span::from_micros(12);

    /// An acknowledgement that met no queue and advises this share.
    fn ack(share: f64) -> AckSample {
        AckSample {
            acked: 8_972,
            queue_delay: None,
            delivery_rate: None,
            limited: true,
            share: Some(share),
            min_rtt: BASE,
            host_delay: Span::ZERO,
        }
    }

    /// A controller that was told this share.
    fn advised(share: f64) -> Delay {
        let config = Config { link_rate: Some(LINK as u64), ..Config::fabric() }.check().expect("valid");
        let mut delay = Delay::new(&config, 8_972, config.initial_window, None);
        // The first advice ends start-up.
        delay.on_ack(&ack(share));
        delay
    }

    #[test]
    fn a_much_larger_share_makes_the_next_packet_come_sooner_and_opens_no_window() {
        let mut delay = advised(LINK / 256.0);
        let (rate, window) = (delay.rate(), delay.window());
        assert!(!delay.on_share(Some(LINK / 200.0)), "that much can wait for the end of the round");
        assert_eq!(delay.rate(), rate);
        assert!(delay.on_share(Some(LINK / 2.0)));
        assert_eq!((delay.rate(), delay.window()), (LINK / 4.0, window));
        assert!(!delay.on_share(Some(LINK / 2.0)), "that is known");
        assert!(!delay.on_share(Some(LINK / 256.0)) && !delay.on_share(None));
        assert_eq!(delay.rate(), LINK / 4.0);
    }

    #[test]
    fn who_begins_at_a_given_rate_keeps_it_until_the_first_acknowledgement() {
        let mut delay = advised(LINK);
        delay.on_restart();
        delay.begin(LINK / 16.0);
        assert_eq!(delay.rate(), LINK / 16.0);
        let carried = LINK / 16.0 * (BASE + delay.target()).as_secs_f64();
        assert!((carried - 1.0..=carried).contains(&(delay.window() as f64)), "{}", delay.window());
        delay.on_ack(&ack(LINK / 2.0));
        assert_eq!(delay.rate(), LINK / 2.0);
        // The next pause may end without such a rate.
        delay.on_restart();
        assert!(delay.rate() > LINK / 16.0, "{}", delay.rate());
    }

    /// The receiver's link may be the faster one, or it may lie.
    #[test]
    fn no_advice_makes_a_sender_faster_than_its_link() {
        let mut delay = advised(LINK / 256.0);
        assert!(delay.on_share(Some(LINK * 100.0)));
        assert_eq!(delay.rate(), LINK);
        assert!(!delay.on_share(Some(LINK * 1000.0)), "it is as fast as it gets");
        delay.on_restart();
        delay.begin(LINK * 100.0);
        assert!(delay.rate() <= LINK && delay.window() as f64 <= delay.filling(LINK), "{}", delay.window());
    }

    #[test]
    fn each_timeout_halves_the_rate() {
        let config = Config { link_rate: None, ..Config::default() }.check().expect("valid");
        let mut delay = Delay::new(&config, 8_972, config.initial_window, None);
        delay.on_timeout();
        let rate = delay.rate();
        delay.on_timeout();
        assert!((delay.rate() / rate - 0.5).abs() < 0.05, "{} after {rate}", delay.rate());
    }

    #[test]
    fn the_rate_never_falls_below_a_packet_per_second() {
        let config = Config { link_rate: None, ..Config::default() }.check().expect("valid");
        let mut delay = Delay::new(&config, 8_972, config.initial_window, None);
        (delay.startup, delay.base) = (false, Span::from_secs(10));
        (0..100).for_each(|_| delay.on_timeout());
        assert_eq!(delay.rate(), 8_972.0);
    }

    /// Clocks of two hosts are read for a sample: what is nearly nothing is as wrong as what is less than that.
    #[test]
    fn an_rtt_of_nearly_nothing_keeps_no_rate_up() {
        for share in [None, Some(LINK)] {
            let mut delay = advised(LINK);
            delay.on_ack(&AckSample { min_rtt: Span::from_nanos(1), ..ack(LINK) });
            delay.share = share;
            (0..100).for_each(|_| delay.on_timeout());
            assert!(delay.rate() < LINK / 100.0, "{} B/s, advised {share:?}", delay.rate());
        }
    }

    /// A round in which nothing happened, advised to use the whole link.
    fn round(length: Span) -> RoundSample {
        RoundSample {
            queue_delay: Some(Span::ZERO),
            loss: 0.0,
            marked: false,
            limited: true,
            delivery_rate: 0.0,
            host_delay: Span::ZERO,
            share: Some(LINK),
            length,
        }
    }

    #[test]
    fn a_round_without_our_part_of_the_queue_changes_nothing_else() {
        let mut delay = advised(LINK);
        delay.drain();
        assert_eq!(delay.rate(), LINK * DRAINED);
        assert!(delay.window() as f64 <= LINK * DRAINED * (BASE + delay.target()).as_secs_f64());
        let queue = Some(delay.target() * 9);
        let delivery_rate = LINK / 1e3;
        delay.on_round(&RoundSample { queue_delay: queue, loss: 0.9, marked: true, delivery_rate, ..round(BASE) });
        assert_eq!(delay.rate(), LINK);
        // Who sends a packet per round trip has none in a queue.
        let packet = delay.packet_rate();
        delay.set_level(packet, 1.0);
        delay.drain();
        assert_eq!(delay.rate(), packet);
    }

    /// What is left of the rate after rounds in which a queue of so many targets stands.
    fn left_after(rounds: u32, targets: u64) -> f64 {
        let mut delay = advised(LINK);
        for _ in 0..rounds {
            let queue = delay.target() * targets;
            delay.on_round(&RoundSample { queue_delay: Some(queue), ..round(BASE + queue) });
        }
        delay.level / LINK
    }

    #[test]
    fn who_is_within_its_share_gives_way_slowly_unless_the_queue_is_long() {
        assert_eq!(left_after(STUCK_ROUNDS - 1, 2), 1.0);
        let short = left_after(STUCK_ROUNDS, 2);
        assert!((1.0 - FAIR_CUT - 1e-9..1.0).contains(&short), "{short}");
        let long = left_after(STUCK_ROUNDS, 6);
        assert!(long < 0.7, "{long}");
    }

    #[test]
    fn marks_slow_a_sender_down_where_it_sees_no_queue() {
        const LEVEL: f64 = LINK / 2.0;
        let after = |marked, share| {
            let mut delay = advised(LINK);
            delay.share = share;
            delay.set_level(LEVEL, 1.0);
            delay.on_round(&RoundSample { marked, share, ..round(BASE * 2) });
            (delay.level / LEVEL, delay.rate() / LEVEL)
        };
        let Tuning { integral, proportional, .. } = Tuning::default();
        // Nobody tells it a share: less for good, and less at once.
        let (level, rate) = after(true, None);
        assert!((level - (1.0 - integral * 0.5)).abs() < 1e-6, "{level}");
        assert!((rate - level * (1.0 - proportional * 0.5)).abs() < 1e-6, "{rate}");
        // Who has no more than its share sends less until the marks end.
        assert_eq!(after(true, Some(LEVEL)), (1.0, 1.0 - proportional * 0.5));
        assert!(after(false, None).0 > 1.0);
        assert_eq!(after(false, Some(LEVEL)), (1.0, 1.0));
    }

    /// What is left of a rate of `level` times 1 GB/s after a round of `length` with a queue of so many targets; that is
    /// the receiver's advice, too, if it gives any.
    fn after_round(level: f64, share: bool, queue: f64, loss: f64, length: Span) -> f64 {
        const SHARE: f64 = 1e9;
        let mut delay = advised(SHARE);
        delay.share = share.then_some(SHARE);
        delay.set_level(SHARE * level, 1.0);
        let queue_delay = Some(Span::from_secs_f64(delay.target().as_secs_f64() * queue));
        delay.on_round(&RoundSample { queue_delay, loss, limited: false, share: delay.share, ..round(length) });
        delay.level / SHARE
    }

    #[test]
    fn a_sender_goes_a_part_of_the_way_to_its_share() {
        let pull = Tuning::default().pull;
        let below = after_round(0.8, true, 0.5, 0.0, BASE * 2);
        assert!((below - (0.8 + 0.2 * pull)).abs() < 0.01, "{below}");
        let above = after_round(1.25, true, 0.4, 0.0, BASE * 2);
        assert!((above - (1.25 - 0.25 * pull)).abs() < 0.02, "{above}");
        // Not upwards into a queue, nor down if there is none.
        assert_eq!(after_round(0.8, true, 0.9, 0.0, BASE * 2), 0.8);
        assert_eq!(after_round(1.25, true, 0.2, 0.0, BASE * 2), 1.25);
    }

    #[test]
    fn a_queue_in_a_long_round_counts_for_the_part_of_it_that_a_round_trip_is() {
        let queued = |rounds: u64| 1.0 - after_round(1.0, false, 0.9, 0.0, (BASE + BASE) * rounds);
        let integral = Tuning::default().integral;
        assert!((queued(1) - integral * 0.4).abs() < 1e-6, "{}", queued(1));
        assert!((queued(10) - integral * 0.04).abs() < 1e-6, "{}", queued(10));
        assert_eq!(after_round(1.0, false, 0.5, 0.0, BASE * 2), 1.0, "that is the queue that is aimed at");
    }

    #[test]
    fn many_losses_slow_a_sender_down_without_any_queue() {
        assert!((after_round(1.0, true, 0.3, LOSS_CONGESTION * 1.01, BASE * 2) - 0.7).abs() < 1e-6);
        assert_eq!(after_round(1.0, true, 0.3, LOSS_CONGESTION, BASE * 2), 1.0);
    }
}
