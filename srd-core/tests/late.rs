//! Hosts that run only now and then.

mod support;

use srd_core::*;
use support::*;

/// The next packet with data is lost.
fn lose_one(pair: &mut Pair) {
    let mut left = 1;
    pair.wire = Box::new(move |_, _, _, bytes| {
        if left == 0 || bytes.len() < 500 {
            return Deliver::Once;
        }
        left -= 1;
        Deliver::Drop
    });
}

/// A connection of two hosts, of which the first runs every so many milliseconds, and the second has much patience.
fn coarse(ms: u64) -> Pair {
    let mut pair = Pair::new(Config::default());
    pair.restart(1, Config { peer_timeout: Span::from_secs(1000), ..Config::default() }, 9);
    pair.every[0] = Span::from_millis(ms);
    for i in 0..20 {
        pair.send(0, pattern(i, 1000));
        pair.run_until(Span::from_secs(60), |p| p.sides[0].completed.len() == i as usize + 1);
    }
    pair
}

#[test]
fn a_host_that_is_always_late_sends_again_what_was_lost() {
    for ms in [1, 3, 10, 30, 50, 200] {
        let mut pair = coarse(ms);
        let start = pair.now;
        lose_one(&mut pair);
        pair.send(0, pattern(20, 1000));
        pair.run_until(Span::from_secs(60), |p| p.sides[0].completed.len() == 21);
        let took = pair.now.since(start);
        assert!(took <= Span::from_millis(8 * ms + 10), "every {ms} ms: {took}");
    }
}

#[test]
fn a_host_that_is_always_late_finds_a_dead_peer() {
    for (ms, bound) in [(10, 5_500), (50, 5_500), (500, 6_000), (3_000, 40_000)] {
        let mut pair = coarse(ms);
        let start = pair.now;
        pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
        pair.send(0, pattern(20, 1000));
        pair.run_until(Span::from_secs(2_000), |p| p.sides[0].completed.len() == 21);
        assert_eq!(pair.sides[0].completed[20].1, Err(Failure::Unresponsive));
        let took = pair.now.since(start);
        assert!(took >= Span::from_millis(4_500) && took <= Span::from_millis(bound), "every {ms} ms: {took}");
    }
}

/// Whoever stood still for longer than the peer timeout with something lost on its way has to ask first.
#[test]
fn a_host_that_stood_still_once_blames_nobody() {
    let mut pair = coarse(0);
    pair.every[0] = Span::from_secs(60);
    lose_one(&mut pair);
    pair.send(0, pattern(20, 1000));
    // It runs once to send, and then not for a minute.
    pair.run_until(Span::from_secs(61), |p| p.sides[0].endpoint.stats().stalls > 0);
    pair.every[0] = Span::ZERO;
    pair.run_until(Span::from_millis(100), |p| p.sides[0].completed.len() == 21);
    assert_eq!(pair.sides[0].completed[20].1, Ok(()));
}

/// A receiver that looks rarely and takes all that is there is as fast as its link.
#[test]
fn a_receiver_that_is_always_late_gives_out_all_of_its_link() {
    for (ms, len, count) in [(2, 65_536, 100), (5, 65_536, 100), (5, 8_000_000, 10)] {
        let mut pair = Pair::new(Config { link_rate: Some(1_250_000_000), ..Config::default() });
        pair.every[1] = Span::from_millis(ms);
        for i in 0..count {
            pair.send(0, pattern(i, len));
            pair.run_until(Span::from_secs(2), |p| p.sides[0].completed.len() == i as usize + 1);
            pair.run(Span::from_millis(10));
        }
        let rate = pair.peer_stats(0).rate;
        assert!(rate > 600_000_000, "{rate} B/s with {len} bytes, every {ms} ms");
    }
}
