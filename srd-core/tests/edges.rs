//! Two endpoints in situations that are rare, or that somebody has made.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use srd_core::*;
use support::*;

/// A connection that has carried a message.
fn connected(config: Config) -> Pair {
    let mut pair = Pair::new(config);
    pair.send(0, pattern(0, 100));
    pair.run_until(Span::from_millis(5), |p| !p.sides[0].completed.is_empty());
    pair
}

/// Hands a datagram to a host as if it came from the other.
fn inject(pair: &mut Pair, to: usize, bytes: &[u8]) {
    let meta = RxMeta { from: pair.sides[1 - to].addr, to: None, ecn: Ecn::NotEct, at: pair.now };
    let now = pair.now;
    let side = &mut pair.sides[to];
    side.endpoint.handle_datagram(now, &meta, bytes, &mut side.mailbox);
}

/// Keeps copies of what `from` sends from now on.
fn capture(pair: &mut Pair, from: usize) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let captured: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copies = Rc::clone(&captured);
    pair.wire = Box::new(move |side, _, _, bytes| {
        if side == from {
            copies.borrow_mut().push(bytes.clone());
        }
        Deliver::Once
    });
    captured
}

#[test]
fn strangers_that_ask_without_an_end_do_not_silence_connections() {
    let mut pair = connected(Config::default());
    let captured = capture(&mut pair, 0);
    pair.send(0, pattern(1, 100));
    pair.run(Span::from_millis(1));
    // A packet of no connection, which is answered.
    let mut stray = captured.borrow()[0].clone();
    stray[4] ^= 0xff;
    pair.send(1, pattern(2, 2000));
    for _ in 0..500 {
        inject(&mut pair, 1, &stray);
    }
    let side = &mut pair.sides[1];
    let mut batch = TxBatch::new();
    assert!(side.endpoint.poll_transmit(pair.now, &mut side.mailbox, &mut batch));
    let lens: Vec<_> = batch.bursts().map(|b| b.len).collect();
    assert!(lens.len() == 2 && lens[1] > 2000, "an answer and the message: {lens:?}");
    pair.run(Span::from_millis(1));
    assert!(pair.sides[1].endpoint.stats().tx_packets > 500, "each was answered");
}

/// Which messages of the first host came to what.
fn outcomes(pair: &Pair) -> Vec<Result<(), Failure>> {
    pair.sides[0].completed.iter().map(|c| c.1).collect()
}

/// A message waits for the incarnation that was known when it was posted, wherever it waits.
#[test]
fn a_message_that_waits_through_a_good_bye_is_for_no_other_incarnation() {
    for restarts in [false, true] {
        let config = Config { idle_timeout: Span::from_millis(500), ..Config::default() };
        let mut pair = connected(config.clone());
        // The peer is gone when the idle connection says good-bye.
        pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
        pair.run(Span::from_millis(700));
        pair.send(0, pattern(1, 100));
        pair.run(Span::from_millis(100));
        if restarts {
            pair.restart(1, config, 9);
        }
        pair.wire = Box::new(|_, _, _, _| Deliver::Once);
        pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 2);
        let (outcome, received) = if restarts { (Err(Failure::PeerRestarted), 0) } else { (Ok(()), 2) };
        assert_eq!(outcomes(&pair), [Ok(()), outcome]);
        pair.send(0, pattern(2, 100));
        pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 3);
        assert_eq!(outcomes(&pair)[2], Ok(()), "the next one is for the new one");
        assert_eq!(pair.sides[1].received.len(), received + 1);
    }
}

/// The peer says that it has forgotten the connection, and starts again before there is another.
#[test]
fn a_message_that_waits_for_the_next_connection_is_for_no_other_incarnation() {
    for restarts in [false, true] {
        let mut pair = Pair::new(Config::default());
        let captured = capture(&mut pair, 1);
        pair.send(0, pattern(0, 100));
        pair.run_until(Span::from_millis(5), |p| p.sides[0].completed.len() == 1);
        pair.send(0, pattern(1, 100));
        let accept = captured.borrow().iter().find(|b| b[0] == 0x14).expect("an ACCEPT").clone();
        // UNKNOWN with the connection id and the incarnation of the peer's hello.
        let mut unknown = [&[0x15, 1], &accept[10..26], &4000u16.to_be_bytes()[..]].concat();
        unknown.extend(crc32c::crc32c(&unknown).to_be_bytes());
        inject(&mut pair, 0, &unknown);
        if restarts {
            pair.restart(1, Config::default(), 9);
        }
        pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 2);
        let (outcome, received) = if restarts { (Err(Failure::PeerRestarted), 0) } else { (Ok(()), 2) };
        assert_eq!(outcomes(&pair), [Ok(()), outcome]);
        assert_eq!(pair.sides[1].received.len(), received);
    }
}

/// Packets get lost everywhere for a while, at some times nearly all of them. When all paths work again, all are used again.
#[test]
fn no_path_stays_suspect() {
    for seed in 0..40 {
        let mut pair = connected(Config { paths: 8, path_pool: 32, ..Config::default() });
        let mut count = 0;
        let mut stream = |pair: &mut Pair, messages: u64, gap: u64| {
            for _ in 0..messages {
                count += 1;
                pair.send(0, pattern(count, 8_000));
                pair.run(Span::from_micros(gap));
            }
        };
        stream(&mut pair, 50, 50);
        let mut x: u32 = seed;
        pair.wire = Box::new(move |_, now, _, _| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bad = now.as_nanos() / 1_000_000 % 3 == 0;
            if x >> 16 & 0xff < if bad { 240 } else { 100 } { Deliver::Drop } else { Deliver::Once }
        });
        stream(&mut pair, 400, 20);
        pair.wire = Box::new(|_, _, _, _| Deliver::Once);
        stream(&mut pair, 100, 1_000);
        let suspect = pair.peer_stats(0).paths.iter().filter(|p| p.state == PathState::Suspect).count();
        assert_eq!(suspect, 0, "seed {seed}");
    }
}

/// Packets that were held to be lost turn up: an acknowledgement that covers nothing else must not leave them to be walked over
/// by all that follow.
#[test]
fn what_turned_up_late_is_forgotten() {
    let mut pair = connected(Config::default());
    for i in 0..20 {
        pair.send(0, pattern(i, 20_000));
        pair.run(Span::from_millis(1));
    }
    let mut left = 5;
    let spans: Rc<RefCell<Vec<u16>>> = Rc::default();
    let seen = Rc::clone(&spans);
    pair.wire = Box::new(move |from, _, _, bytes| {
        if from == 1 || bytes[0] != 0x10 {
            return Deliver::Once;
        }
        seen.borrow_mut().push(u16::from_be_bytes([bytes[2], bytes[3]]));
        if left == 0 {
            return Deliver::Once;
        }
        left -= 1;
        Deliver::Late(Span::from_millis(3))
    });
    pair.send(0, pattern(20, 90_000));
    pair.run_until(Span::from_millis(3), |p| p.sides[0].completed.len() == 22);
    pair.run(Span::from_millis(3));
    let stats = *pair.sides[0].endpoint.stats();
    assert!(stats.lost_packets >= 5 && stats.spurious_retransmits >= 5, "{stats:?}");
    pair.send(0, pattern(21, 100));
    pair.run(Span::from_micros(5));
    assert_eq!(spans.borrow().last(), Some(&0), "{:?}", spans.borrow());
}

/// The peer asked for a connection, got it and was not heard of again: a message that comes late has as much time as any other.
#[test]
fn a_message_on_an_unconfirmed_connection_waits_for_the_peer_timeout() {
    for back in [false, true] {
        let mut pair = Pair::new(Config::default());
        // Its cookie is right; the ACCEPT does not get through, nor anything after.
        pair.wire = Box::new(|from, _, _, b| if from == 0 && b.len() > 30 { Deliver::Drop } else { Deliver::Once });
        pair.send(1, pattern(1, 100));
        pair.run_until(Span::from_millis(5), |p| p.peer_stats(0).established);
        pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
        pair.run(Span::from_millis(4_900));
        assert!(pair.peer_stats(0).established);
        pair.send(0, pattern(2, 100));
        let start = pair.now;
        if back {
            pair.run(Span::from_millis(300));
            assert_eq!(outcomes(&pair), []);
            pair.wire = Box::new(|_, _, _, _| Deliver::Once);
        }
        pair.run_until(Span::from_secs(6), |p| p.sides[0].completed.len() == 1);
        let took = pair.now.since(start);
        if back {
            assert_eq!(outcomes(&pair), [Ok(())]);
        } else {
            assert_eq!(outcomes(&pair), [Err(Failure::Unreachable)]);
            assert!(took >= Span::from_secs(5) && took < Span::from_millis(5_200), "{took}");
        }
    }
}

/// An unconfirmed connection that nobody wants goes.
#[test]
fn an_unconfirmed_connection_is_forgotten_in_time() {
    let mut pair = Pair::new(Config::default());
    pair.wire = Box::new(|from, _, _, b| if from == 0 && b.len() > 30 { Deliver::Drop } else { Deliver::Once });
    pair.send(1, pattern(1, 100));
    pair.run_until(Span::from_millis(5), |p| p.peer_stats(0).established);
    pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
    let start = pair.now;
    pair.run_until(Span::from_secs(6), |p| !p.peer_stats(0).established);
    assert!(pair.now.since(start) >= Span::from_secs(5));
}

/// The peer sends half of a message and keeps answering.
#[test]
fn a_half_delivered_message_does_not_keep_a_close_from_its_end() {
    let mut pair = connected(Config::default());
    // Only packets without data get through to us after the first one.
    let mut first = true;
    pair.wire = Box::new(move |from, _, _, bytes| {
        let data = from == 1 && bytes.len() > 200;
        if data && !std::mem::take(&mut first) { Deliver::Drop } else { Deliver::Once }
    });
    pair.send(1, pattern(1, 100_000));
    pair.run(Span::from_millis(100));
    assert!(pair.sides[0].mailbox.held() > 0, "half is here");
    let now = pair.now;
    pair.sides[0].endpoint.close(now);
    pair.run_until(Span::from_millis(10), |p| p.sides[0].endpoint.is_closed());
    assert_eq!(pair.sides[0].mailbox.held(), 0);
    pair.run_until(Span::from_millis(10), |p| !p.sides[1].completed.is_empty());
    assert_eq!(pair.sides[1].completed[0].1, Err(Failure::PeerClosed));
}

/// Strangers can have a place in the table of peers taken over and over again.
#[test]
fn the_id_of_a_peer_that_was_forgotten_never_comes_again() {
    let mut pair = Pair::new(Config { max_peers: 1, ..Config::default() });
    let endpoint = &mut pair.sides[0].endpoint;
    let mut peer = |n: u32| {
        let at = std::net::SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 1000));
        let id = endpoint.peer(at, 1400).expect("there is room");
        endpoint.release(id);
        id
    };
    let first = peer(0);
    for n in 1..10_000 {
        assert_ne!(peer(n), first, "{n} later");
    }
}

/// The network is without fault, so nothing of this may look like one: not the answers to bursts of messages of which each is
/// turned away, which are more than one datagram holds, and not those to bursts of which some is taken.
#[test]
fn messages_that_are_turned_away_are_not_taken_for_lost() {
    for (max_datagram, taken) in [8972, 1472, 512].into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let mut pair = connected(Config { max_datagram, ..Config::default() });
        pair.sides[1].mailbox = Mailbox::new(if taken { 20_000 } else { 200 });
        pair.sides[1].reading = taken;
        for i in 0..5_000 {
            pair.send(0, pattern(i, if taken && i % 5 == 0 { 800 } else { 20 }));
        }
        pair.run(Span::from_millis(50));
        let stats = *pair.sides[0].endpoint.stats();
        assert!(stats.rnr > if taken { 1_000 } else { 20_000 }, "{stats:?}");
        assert_eq!((stats.lost_packets, stats.paths_replaced, stats.mtu_reductions), (0, 0, 0), "{stats:?}");
    }
}

/// Somebody who has listened says again what the peer has said, when that has gone.
#[test]
fn replays_are_no_signs_of_life() {
    let mut pair = Pair::new(Config::default());
    let captured = capture(&mut pair, 1);
    for i in 0..20 {
        pair.send(0, pattern(i, 2_000));
        pair.send(1, pattern(i, 2_000));
        pair.run(Span::from_millis(1));
    }
    pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
    pair.send(0, pattern(20, 100));
    let start = pair.now;
    let captured = captured.borrow();
    assert!([0x10, 0x11].iter().all(|kind| captured.iter().any(|packet| packet[0] == *kind)));
    while pair.sides[0].completed.len() < 21 {
        captured.iter().for_each(|packet| inject(&mut pair, 0, packet));
        pair.run(Span::from_millis(100));
        assert!(pair.now.since(start) < Span::from_millis(5_300));
    }
    assert_eq!(outcomes(&pair)[20], Err(Failure::Unresponsive));
}

/// Its flags are damaged, so that it seems to need no checksum.
#[test]
fn a_damaged_packet_takes_no_good_bye_back() {
    let idle_timeout = Span::from_millis(500);
    let mut pair = connected(Config { checksum: Checksum::Crc32c, idle_timeout, ..Config::default() });
    let captured = capture(&mut pair, 1);
    pair.send(1, pattern(1, 100));
    pair.run(Span::from_millis(1));
    let mut damaged = captured.borrow().iter().find(|b| b[0] == 0x10).expect("a tracked packet").clone();
    let sent: Rc<RefCell<Vec<u8>>> = Rc::default();
    let kinds = Rc::clone(&sent);
    pair.wire = Box::new(move |from, _, _, bytes| {
        if from == 0 {
            kinds.borrow_mut().push(bytes[0]);
        }
        Deliver::Drop
    });
    pair.run(Span::from_millis(700));
    assert_eq!(sent.borrow().last(), Some(&0x16), "a CLOSE");
    sent.borrow_mut().clear();
    damaged[1] = 0;
    let next = u32::from_be_bytes(*damaged[12..].first_chunk().unwrap()).wrapping_add(10);
    damaged[12..16].copy_from_slice(&next.to_be_bytes());
    inject(&mut pair, 0, &damaged);
    assert_eq!(pair.sides[0].endpoint.stats().rx_bad_checksum, 1);
    pair.run(Span::from_millis(300));
    assert!(!sent.borrow().is_empty() && sent.borrow().iter().all(|&kind| kind == 0x16), "{:x?}", sent.borrow());
}

/// [SEC-3] A network that copies everything, signs of life included, is no reason to talk.
#[test]
fn copies_that_the_network_makes_keep_nobody_busy() {
    for gap in [Span::ZERO, Span::from_millis(2), Span::from_millis(20)] {
        let mut pair = connected(Config::default());
        pair.wire = Box::new(move |_, _, _, _| Deliver::Again(gap));
        pair.send(0, pattern(1, 100));
        pair.run(Span::from_millis(100));
        let sent = |pair: &Pair| pair.sides.each_ref().map(|side| side.endpoint.stats().tx_packets);
        let before = sent(&pair);
        pair.run(Span::from_secs(10));
        let more = sent(&pair).iter().sum::<u64>() - before.iter().sum::<u64>();
        // Each second a sign of life from one of them, and what acknowledges it and its copy.
        assert!((1..=40).contains(&more), "{more} packets in 10 s, with copies after {gap:?}");
        assert_eq!(pair.sides[1].received.len(), 2);
    }
}
