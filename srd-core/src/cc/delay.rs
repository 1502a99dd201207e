//! The default controller: a paced rate R with an in-flight limit W on top, steered by delay on the majority of paths and
//! by the rate at which packets are delivered ("somewhat similar to BBR", Shalev et al., IEEE Micro 40(6), 2020).
//!
//! Start-up doubles W per round until the queueing delay exceeds the target T or delivery stops growing; it leaves with what
//! was *delivered*, not what was sent. Then, once per round: above T, R falls in proportion to the excess (as in Swift,
//! SIGCOMM 2020), at most by half; below T, R grows by a constant, and faster where there is no queue at all. W follows R.

use super::{AckSample, Controller, RoundSample};
use crate::config::CheckedConfig;
use crate::time::Span;

/// Rounds over which the largest delivery rate is remembered.
const BW_ROUNDS: usize = 8;
/// Start-up ends after so many rounds in which delivery grew by less than a quarter.
const FULL_ROUNDS: u32 = 3;
/// Loss share of a round that counts as congestion: far above random loss, far below what a full queue drops.
const LOSS_CONGESTION: f64 = 0.15;
/// Smallest rate: this share of a packet per base RTT (1,000-way incast needs less than one packet per RTT).
const MIN_PACKETS_PER_RTT: f64 = 0.01;
/// Additive increase, packets per round trip and round trip.
const ADDITIVE: f64 = 0.15;

#[derive(Debug)]
pub(super) struct Delay {
    mtu: f64,
    max_rate: f64,
    target_floor: Span,
    burst_time: Span,
    max_burst: f64,
    rate: f64,
    window: f64,
    base: Span,
    /// What the hosts add to a round trip.
    host: Span,
    startup: bool,
    /// Delivery rates of the last rounds, newest first.
    bw: [f64; BW_ROUNDS],
    /// That of the round under way, so far.
    current_bw: f64,
    full_bw: f64,
    full_rounds: u32,
    /// The last queueing delays, for the per-acknowledgement check of start-up.
    recent: [Span; 4],
    recent_len: usize,
}

impl Delay {
    pub(super) fn new(config: &CheckedConfig, mtu: u16) -> Delay {
        let base = config.initial_rtt;
        let window = f64::from(config.initial_window.max(mtu.into()));
        Delay {
            mtu: mtu.into(),
            max_rate: config.max_rate as f64,
            target_floor: config.target_delay,
            burst_time: config.burst_time,
            max_burst: config.max_burst.into(),
            rate: config.max_rate as f64,
            window,
            base,
            host: Span::ZERO,
            startup: true,
            bw: [0.0; BW_ROUNDS],
            current_bw: 0.0,
            full_bw: 0.0,
            full_rounds: 0,
            recent: [Span::ZERO; 4],
            recent_len: 0,
        }
    }

    /// Target queueing delay.
    fn target(&self) -> Span {
        self.target_floor.max(self.base * 3 / 4)
    }

    fn bw_max(&self) -> f64 {
        self.bw.iter().copied().fold(0.0, f64::max)
    }

    /// One packet per base RTT, in bytes per second.
    fn packet_rate(&self) -> f64 {
        self.mtu / self.base.as_secs_f64().max(1e-9)
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate.clamp((self.packet_rate() * MIN_PACKETS_PER_RTT).min(self.max_rate), self.max_rate);
        let burst = (self.rate * self.burst_time.as_secs_f64()).min(self.max_burst);
        self.window = self.rate * (self.base + self.target() + self.host).as_secs_f64() + 2.0 * burst;
    }

    fn leave_startup(&mut self) {
        self.startup = false;
        let delivered = self.bw[0].max(self.current_bw);
        let fallback = self.window / 2.0 / self.base.as_secs_f64().max(1e-9);
        self.set_rate(if delivered > 0.0 { delivered } else { fallback });
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
        if !self.startup {
            return;
        }
        let queue = self.recent[..self.recent_len].iter().min().copied().unwrap_or(Span::ZERO);
        if self.recent_len == 4 && queue > self.target() {
            self.leave_startup();
        } else if ack.limited {
            let cap = self.max_rate * (self.base + self.target() + self.host).as_secs_f64();
            self.window = (self.window + ack.acked as f64).min(cap.max(self.mtu));
        }
    }

    fn on_round(&mut self, round: &RoundSample) {
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
                        self.set_rate(self.rate * 1.25);
                    }
                }
            }
            return;
        }
        let target = self.target().as_secs_f64();
        let queue = round.queue_delay.map_or(0.0, Span::as_secs_f64);
        let congested_loss = round.loss > LOSS_CONGESTION;
        if queue > target || round.marked || congested_loss {
            let mut factor = (1.0 - 0.8 * (queue - target).max(0.0) / queue.max(target)).max(0.5);
            if congested_loss {
                factor = factor.min(0.7);
            }
            if round.marked {
                factor = factor.min(0.9);
            }
            // Never below what was delivered just now, less a little to drain: that much the network carries.
            let floor = if congested_loss { bw * 0.5 } else { bw * 0.85 };
            self.set_rate((self.rate * factor).max(floor.min(self.rate)));
        } else if round.limited {
            let additive = ADDITIVE * self.mtu / (self.base + self.target() + self.host).as_secs_f64();
            let scale = (2.0 * (target - queue) / target).clamp(0.0, 1.0);
            let mut rate = self.rate + additive * scale;
            if queue < target / 4.0 {
                rate += self.rate / 8.0;
            }
            let cap = if bw_max > 0.0 { (bw_max * 1.25).max(additive) } else { rate };
            self.set_rate(rate.min(cap.max(self.rate)));
        }
    }

    fn on_timeout(&mut self) {
        self.startup = false;
        let rate = if self.bw_max() > 0.0 {
            self.rate.min(self.bw_max())
        } else {
            self.window / self.base.as_secs_f64().max(1e-9)
        };
        self.set_rate(rate / 2.0);
    }

    fn rate(&self) -> f64 {
        if self.startup {
            // Fast enough never to be what limits, slow enough not to send the window in one clump.
            (2.0 * self.window / self.base.as_secs_f64().max(1e-9)).min(self.max_rate)
        } else {
            self.rate
        }
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}
