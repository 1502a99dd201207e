//! Congestion windows of the TCP model: NewReno (RFC 6582), CUBIC (RFC 9438), DCTCP (RFC 8257).

use srd_core::{Span, Time};

/// The congestion control of a TCP flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TcpControl {
    /// Additive increase, halving.
    NewReno,
    /// Linux's default.
    #[default]
    Cubic,
    /// Reacts to the share of marked packets; its packets are ECN-capable.
    Dctcp,
}

/// A congestion window in segments.
#[derive(Clone, Debug)]
pub(super) struct Window {
    control: TcpControl,
    pub(super) cwnd: f64,
    ssthresh: f64,
    /// CUBIC: the window to come back to and that before the last reduction.
    w_max: f64,
    prior: f64,
    /// Since when it grows, seconds from then until it is back (RFC 9438's K), and the window that NewReno would have.
    epoch: Option<(Time, f64)>,
    reno: f64,
    /// DCTCP: smoothed share of marked packets; acknowledged and marked ones since the window began.
    alpha: f64,
    acked: u64,
    marked: u64,
}

/// CUBIC's constants (RFC 9438, section 5).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// DCTCP's gain (RFC 8257, section 4.2).
const G: f64 = 1.0 / 16.0;
/// Nobody halves below this.
const MIN_WINDOW: f64 = 2.0;

impl Window {
    pub(super) fn new(control: TcpControl, initial: u32) -> Window {
        Window {
            control,
            cwnd: initial.into(),
            ssthresh: f64::MAX,
            w_max: 0.0,
            prior: 0.0,
            epoch: None,
            reno: 0.0,
            alpha: 1.0,
            acked: 0,
            marked: 0,
        }
    }

    /// Segments were acknowledged outside fast recovery.
    pub(super) fn on_acked(&mut self, segments: u32, now: Time, srtt: Span) {
        let acked = f64::from(segments);
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + acked).min(self.ssthresh.max(self.cwnd));
            return;
        }
        if self.control != TcpControl::Cubic {
            self.cwnd += acked / self.cwnd;
            return;
        }
        let (epoch, k) = *self.epoch.get_or_insert_with(|| {
            self.w_max = self.w_max.max(self.cwnd);
            self.reno = self.cwnd;
            (now, ((self.w_max - self.cwnd) / C).cbrt())
        });
        let t = now.since(epoch).as_secs_f64() + srtt.as_secs_f64();
        let target = (C * (t - k).powi(3) + self.w_max).clamp(self.cwnd, 1.5 * self.cwnd);
        // As fast as NewReno on average, and once the reduction is made good, as fast as it grows.
        let alpha = if self.reno < self.prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.reno += alpha * acked / self.cwnd;
        self.cwnd = (self.cwnd + (target - self.cwnd) / self.cwnd * acked).max(self.reno);
    }

    /// A loss begins fast recovery.
    pub(super) fn on_loss(&mut self) {
        let beta = if self.control == TcpControl::Cubic { BETA } else { 0.5 };
        self.w_max = if self.cwnd < self.w_max { self.cwnd * (1.0 + BETA) / 2.0 } else { self.cwnd };
        self.prior = self.cwnd;
        self.ssthresh = (self.cwnd * beta).max(MIN_WINDOW);
        self.cwnd = self.ssthresh;
        self.epoch = None;
    }

    /// The retransmission timer expired.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.cwnd = 1.0;
        // After slow start it grows from where it is then (RFC 9438, section 4.8).
        self.w_max = 0.0;
    }

    /// Segments were acknowledged, all of them marked or none; `window_over` if those of one round trip are.
    pub(super) fn on_marks(&mut self, segments: u32, marked: bool, window_over: bool) {
        if self.control != TcpControl::Dctcp {
            return;
        }
        self.acked += u64::from(segments);
        self.marked += u64::from(segments) * u64::from(marked);
        if window_over && self.acked > 0 {
            let share = self.marked as f64 / self.acked as f64;
            self.alpha += G * (share - self.alpha);
            if self.marked > 0 {
                self.ssthresh = (self.cwnd * (1.0 - self.alpha / 2.0)).max(MIN_WINDOW);
                self.cwnd = self.ssthresh;
            }
            (self.acked, self.marked) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_micros(100);

    #[test]
    fn slow_start_doubles_and_stops_at_the_threshold() {
        let mut w = Window::new(TcpControl::NewReno, 10);
        w.on_acked(10, Time::ZERO, RTT);
        assert_eq!(w.cwnd, 20.0);
        w.on_loss();
        assert_eq!(w.cwnd, 10.0);
        w.on_acked(10, Time::ZERO, RTT);
        assert_eq!(w.cwnd, 11.0);
        w.on_timeout();
        assert_eq!((w.cwnd, w.ssthresh), (1.0, 5.5));
        w.on_acked(9, Time::ZERO, RTT);
        assert_eq!(w.cwnd, 5.5);
    }

    #[test]
    fn cubic_comes_back_to_where_it_was_and_goes_on() {
        let mut w = Window::new(TcpControl::Cubic, 100);
        w.on_loss();
        assert_eq!(w.cwnd, 70.0);
        // K = cbrt(100 * 0.3 / 0.4) = 4.2 s.
        let mut now = Time::ZERO;
        let mut at = |w: &mut Window, seconds: u64| {
            while now < Time::from_nanos(seconds * 1_000_000_000) {
                now += Span::from_millis(100);
                w.on_acked(w.cwnd as u32, now, Span::from_millis(100));
            }
            w.cwnd
        };
        assert!((90.0..100.5).contains(&at(&mut w, 4)), "{}", w.cwnd);
        assert!(at(&mut w, 10) > 120.0, "{}", w.cwnd);
    }

    /// The time to come back counts from the window that is there, which is not always 70 % of the one to come back to.
    #[test]
    fn cubic_knows_how_far_it_has_to_go() {
        let mut w = Window::new(TcpControl::Cubic, 100);
        let k = |w: &mut Window| {
            w.on_acked(1, Time::ZERO, RTT);
            w.epoch.expect("it grows").1
        };
        w.on_loss();
        assert!((k(&mut w) - 75f64.cbrt()).abs() < 0.01);
        w.cwnd = 70.0;
        w.on_loss();
        // Below the last one, it aims at 0.85 of 70 from 49.
        assert!((k(&mut w) - (10.5f64 / 0.4).cbrt()).abs() < 0.01);
        w.on_timeout();
        w.cwnd = 40.0;
        assert_eq!(k(&mut w), 0.0);
    }

    #[test]
    fn cubic_is_no_slower_than_newreno() {
        let mut w = Window::new(TcpControl::Cubic, 100);
        w.on_loss();
        // Round trips so short that its own curve does not move.
        let rounds = |w: &mut Window, n: u32| {
            let from = w.cwnd;
            (0..n).for_each(|_| w.on_acked(w.cwnd as u32, Time::ZERO, Span::ZERO));
            (w.cwnd - from) / f64::from(n)
        };
        assert!((0.5..0.55).contains(&rounds(&mut w, 50)), "{w:?}");
        rounds(&mut w, 10);
        assert!((0.97..1.0).contains(&rounds(&mut w, 50)), "{w:?}");
    }

    #[test]
    fn dctcp_cuts_by_the_share_of_marks() {
        let mut w = Window::new(TcpControl::Dctcp, 100);
        for _ in 0..200 {
            w.on_marks(100, false, true);
        }
        assert!(w.alpha < 1e-4 && w.cwnd == 100.0);
        w.on_marks(50, true, false);
        w.on_marks(50, false, true);
        let expected = 100.0 * (1.0 - 0.5 / 16.0 / 2.0);
        assert!((w.cwnd - expected).abs() < 0.01, "{}", w.cwnd);
    }
}
