//! Two endpoints over links that are far from what the defaults were chosen for: 10 kbit/s to 800 Gbit/s, round trips of a
//! microsecond to two seconds and more with the queue, queues of one packet and without an end, holes for large packets, up to
//! 30 % of all packets lost; and by clocks that leap.
//!
//! Everything arrives, in a sane multiple of the ideal time and with a sane multiple of the payload on the wire, and nobody runs
//! much more often than something is sent.

#[path = "support/seeds.rs"]
mod seeds;
mod support;

use std::cell::Cell;
use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use seeds::each_seed;
use srd_core::*;
use support::*;

/// One direction of the way.
#[derive(Clone, Debug)]
struct Link {
    /// Bytes per second.
    rate: f64,
    /// One way.
    delay: Span,
    /// Bytes that may wait.
    queue: u64,
    /// Longest datagram that passes.
    mtu: usize,
    /// Share of datagrams that get lost.
    loss: f64,
    free_at: Time,
}

impl Link {
    fn takes(&self, bytes: usize) -> Span {
        Span::from_secs_f64(bytes as f64 / self.rate)
    }

    fn pass(&mut self, now: Time, bytes: usize, rng: &mut Xoshiro256PlusPlus) -> Deliver {
        let queued = (self.free_at.since(now).as_secs_f64() * self.rate) as u64;
        let is_full = queued > 0 && queued + bytes as u64 > self.queue;
        if bytes > self.mtu || is_full || rng.random_bool(self.loss) {
            return Deliver::Drop;
        }
        self.free_at = self.free_at.max(now) + self.takes(bytes);
        Deliver::Late(self.free_at.since(now) + self.delay)
    }
}

/// A number between the two, of each order of magnitude as likely as of any other.
fn any_size(rng: &mut Xoshiro256PlusPlus, least: f64, most: f64) -> f64 {
    rng.random_range(least.ln()..=most.ln()).exp()
}

fn draw(rng: &mut Xoshiro256PlusPlus) -> (Link, Config) {
    let rate = any_size(rng, 10e3, 800e9) / 8.0;
    let delay = Span::from_secs_f64(any_size(rng, 500e-9, 1.0));
    let fabric = rate > 1e8 && delay < Span::from_millis(1) && rng.random_bool(0.3);
    // None that takes more than half a second, if that is possible.
    let max_datagram = [512, 1472, 8972][rng.random_range(0..3)].min((rate * 0.5) as u16).max(512);
    let mtu = if rng.random_bool(0.7) { max_datagram } else { [512, 548, 1472][rng.random_range(0..3)] };
    // From one packet on; where they leave in bursts, from one of those on.
    let burst = if fabric { 0.0 } else { (rate * 100e-6).min(65e3) };
    let queue = match rng.random_range(0..5) {
        0 => u64::MAX,
        _ => any_size(rng, burst.max(max_datagram.into()), 10e6) as u64,
    };
    let loss = if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) };
    let base = if fabric { Config::fabric() } else { Config::default() };
    let paths = [1, 2, 16, 256][rng.random_range(0..4)];
    let config = Config {
        paths,
        path_pool: paths * 2,
        max_datagram,
        link_rate: rng.random_bool(0.3).then_some(rate as u64),
        packet_window: 64 << rng.random_range(0..7),
        // Who fills a queue with a first window must have the patience to see it empty.
        peer_timeout: base.peer_timeout.max(Span::from_secs_f64(f64::from(base.initial_window) * 2.0 / rate)),
        ..base
    };
    (Link { rate, delay, queue, mtu: mtu.into(), loss, free_at: Time::ZERO }, config)
}

fn run(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (link, config) = draw(&mut rng);
    let max_datagram = config.max_datagram;
    let case = format!("{link:?}, {} paths, window {}", config.paths, config.packet_window);
    let mut pair = Pair::new(config);
    pair.delay = Span::ZERO;
    let sent = Rc::new(Cell::new((0u64, 0u64)));
    let (count, mut links) = (Rc::clone(&sent), [link.clone(), link.clone()]);
    let mut chance = Xoshiro256PlusPlus::seed_from_u64(!seed);
    pair.wire = Box::new(move |side, now, _, bytes| {
        let (packets, all) = count.get();
        count.set((packets + 1, all + bytes.len() as u64));
        links[side].pass(now, bytes.len(), &mut chance)
    });

    let (begin, budget) = (pair.now, rng.random_range(1..300) * u64::from(max_datagram));
    let (mut payload, mut messages) = (0, 0);
    while payload < budget {
        let len = any_size(&mut rng, 1.0, budget as f64) as usize;
        pair.send(0, pattern(messages, len));
        (payload, messages) = (payload + len as u64, messages + 1);
    }
    let rtt = link.delay * 2 + link.takes(max_datagram.into());
    let ideal = link.takes(payload as usize) + rtt * 20;
    let (end, mut steps) = (begin + ideal * 20 + Span::from_secs(20), 0);
    while pair.sides[0].completed.len() < messages as usize {
        steps += 1;
        assert!(pair.step(end), "not done after {}, ideal {ideal}, {:?}: {case}", end.since(begin), sent.get());
    }
    assert!(
        pair.sides[0].completed.iter().all(|(_, outcome)| outcome.is_ok()),
        "{:?}: {case}",
        pair.sides[0].completed
    );
    assert_eq!(pair.sides[1].received.len(), messages as usize);
    let (packets, bytes) = sent.get();
    let least = payload.max(64 * u64::from(max_datagram));
    assert!(bytes <= 20 * least, "{bytes} bytes for {payload}: {case}");
    assert!(steps <= 5 * packets + 100, "{steps} steps for {packets} packets: {case}");
}

/// `SRD_EXTREMES_SEED` replays one pair, `SRD_EXTREMES_SEEDS` asks for more of them.
#[test]
fn everything_arrives_over_links_of_any_kind() {
    each_seed("SRD_EXTREMES", "extremes", 0..200, run);
}

/// Hosts are suspended, and wake up when nobody remembers.
#[test]
fn everything_arrives_when_clocks_leap() {
    for (i, leap) in [1, 6, 3_600, 86_400 * 365, 86_400 * 365 * 100].into_iter().enumerate() {
        for seed in 0..20 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed << 8 | i as u64);
            let mut pair = Pair::new(Config { link_rate: Some(125_000_000), ..Config::default() });
            let messages = 40;
            for i in 0..messages {
                pair.send(0, pattern(i, rng.random_range(1..200_000)));
                pair.send(1, pattern(i, rng.random_range(1..2_000)));
            }
            let mut leaps = 3;
            let mut next = rng.random_range(1..2_000);
            let mut steps = 0;
            while pair.sides.iter().any(|side| side.completed.len() < messages as usize) {
                steps += 1;
                assert!(steps < 200_000, "leaps of {leap} s, seed {seed}");
                if steps >= next && leaps > 0 {
                    leaps -= 1;
                    next = steps + rng.random_range(1..2_000);
                    pair.now += Span::from_secs(leap);
                }
                pair.step(Time::NEVER);
            }
            for side in &pair.sides {
                assert!(side.completed.iter().all(|(_, outcome)| outcome.is_ok()), "leaps of {leap} s, seed {seed}");
            }
        }
    }
}
