//! Our own link, and who waits for it: an endpoint hands its link no more than the link carries.
//!
//! Connections know nothing of each other. Together they may send more than the link takes, for a moment or for long, and
//! then a queue stands in our own host, where it looks like one of the network and holds up acknowledgements. Packets wait
//! in the endpoint instead, unwritten, and connections take turns.

use std::collections::VecDeque;

use crate::config::CheckedConfig;
use crate::time::{Span, Time};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Line {
    /// Seconds per byte, if known; otherwise nobody waits.
    per_byte: Option<f64>,
    /// Bytes that a datagram costs beside itself.
    overhead: u64,
    /// When what was handed to the link has left.
    free_at: Time,
    /// Peers that wait, each at most once.
    waiting: VecDeque<usize>,
    is_waiting: Vec<bool>,
}

impl Line {
    pub(crate) fn new(config: &CheckedConfig) -> Line {
        let per_byte = config.link_rate.map(|rate| 1.0 / rate as f64);
        let overhead = config.wire_overhead.into();
        Line { per_byte, overhead, free_at: Time::ZERO, waiting: VecDeque::new(), is_waiting: Vec::new() }
    }

    /// Whether data may be sent now.
    pub(crate) fn is_free(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// A datagram of `bytes` leaves. Time up to `credit` for which the link was not used is made up for, so that late
    /// wake-ups do not cost throughput.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64, credit: Span) {
        if let Some(per_byte) = self.per_byte {
            let takes = Span::from_secs_f64((bytes + self.overhead) as f64 * per_byte);
            self.free_at = self.free_at.max(now - credit) + takes;
        }
    }

    /// The peer in this slot has data to send that only the link holds up.
    pub(crate) fn wait(&mut self, slot: usize) {
        if slot >= self.is_waiting.len() {
            self.is_waiting.resize(slot + 1, false);
        }
        if !std::mem::replace(&mut self.is_waiting[slot], true) {
            self.waiting.push_back(slot);
        }
    }

    /// The peer whose turn it is, if the link is free.
    pub(crate) fn take(&mut self, now: Time) -> Option<usize> {
        if !self.is_free(now) {
            return None;
        }
        let slot = self.waiting.pop_front()?;
        self.is_waiting[slot] = false;
        Some(slot)
    }

    /// When [`take`](Self::take) has something.
    pub(crate) fn next(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn line(link_rate: Option<u64>) -> Line {
        Line::new(&Config { link_rate, ..Config::fabric() }.check().expect("valid"))
    }

    #[test]
    fn takes_turns_and_carries_the_link_rate_whatever_the_credit() {
        let mut line = line(Some(1_000_000_000));
        let (credit, mut now, mut sent) = (Span::from_micros(5), Time::from_nanos(1_000_000), [0u64; 3]);
        let end = now + Span::from_millis(10);
        (0..3).for_each(|slot| line.wait(slot));
        line.wait(1);
        while now < end {
            while let Some(slot) = line.take(now) {
                line.on_sent(now, 934, credit);
                sent[slot] += 1;
                line.wait(slot);
            }
            assert!(line.next().is_some_and(|at| at > now), "those who wait are not forgotten");
            // Late by up to 4 us, which the credit makes up for.
            now = line.next().expect("somebody waits") + Span::from_nanos(now.as_nanos() * 7 % 4_000);
        }
        let all: u64 = sent.iter().sum();
        assert!((10_000..=10_010).contains(&all), "{all} datagrams of 1 us each in 10 ms");
        assert!(sent.iter().all(|&n| n.abs_diff(all / 3) <= 1), "{sent:?}");
    }

    #[test]
    fn a_link_of_unknown_rate_holds_nobody_up() {
        let mut line = line(None);
        line.on_sent(Time::ZERO, u64::MAX / 2, Span::ZERO);
        line.wait(7);
        assert_eq!((line.take(Time::ZERO), line.take(Time::ZERO), line.next()), (Some(7), None, None));
    }
}
