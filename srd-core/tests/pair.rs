//! Two endpoints, step by step.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use srd_core::*;
use support::*;

#[test]
fn first_message_opens_the_connection_and_completes() {
    let mut pair = Pair::new(Config::default());
    let token = pair.send(0, pattern(1, 100));
    pair.run_until(Span::from_millis(5), |p| !p.sides[0].completed.is_empty());
    assert_eq!(pair.sides[0].completed, [(token, Ok(()))]);
    assert_eq!(pair.sides[1].received[0].data, pattern(1, 100));
    assert_eq!(pair.sides[1].received[0].header, [7, 7]);
    // INIT, RETRY, INIT, ACCEPT, data, acknowledgement: six one-way trips.
    assert!(pair.now < Time::from_nanos(1_000_000) + Span::from_micros(100), "{:?}", pair.now);
}

#[test]
fn messages_of_all_sizes_arrive_intact_both_ways() {
    let mut pair = Pair::new(Config::default());
    let sizes = [0, 1, 63, 64, 65, 511, 513, 8000, 8192, 8900, 8972, 9000, 20_000, 100_000, 1_000_000];
    for (i, &size) in sizes.iter().enumerate() {
        pair.send(0, pattern(i as u32, size));
        pair.send(1, pattern(1000 + i as u32, size));
    }
    pair.run_until(Span::from_secs(1), |p| p.sides.iter().all(|s| s.completed.len() == sizes.len()));
    for (side, first) in [(1, 0), (0, 1000)] {
        let mut got: Vec<_> = pair.sides[side].received.iter().map(|m| m.data.clone()).collect();
        got.sort_by_key(Vec::len);
        for (i, &size) in sizes.iter().enumerate() {
            assert_eq!(got[i], pattern(first + i as u32, size), "message of {size} bytes");
        }
        assert!(pair.sides[side].completed.iter().all(|c| c.1 == Ok(())));
    }
}

#[test]
fn packets_with_payload_are_counted_apart() {
    let mut pair = Pair::new(Config::default());
    pair.send(0, pattern(1, 1_000_000));
    pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 1);
    let [sender, receiver] = [0, 1].map(|i| *pair.sides[i].endpoint.stats());
    let needed = 1_000_000 / u64::from(Config::default().max_datagram);
    assert!((needed..needed + 20).contains(&sender.tx_data_packets), "{sender:?}");
    assert!(receiver.tx_data_packets == 0 && receiver.tx_packets > 5, "{receiver:?}");
}

/// A driver that reads its clock and is then descheduled dates what it finds back to before it was sent.
#[test]
fn an_acknowledgement_from_before_its_packet_is_no_round_trip() {
    let [honest, early] = [Span::ZERO, Span::from_millis(1)].map(|early| {
        let mut pair = Pair::new(Config::default());
        for i in 0..20 {
            pair.send(0, pattern(i, 20_000));
            pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == i as usize + 1);
            pair.early = early;
        }
        pair.peer_stats(0)
    });
    assert!(early.min_rtt >= Span::from_micros(20), "{early:?}");
    assert!(early.rate <= honest.rate, "{} beside {} B/s", early.rate, honest.rate);
}

/// Hosts that get to what arrived only 10 ms later, each time: longer than an acknowledgement can say. Asking them again
/// meanwhile would make them later still.
#[test]
fn hosts_that_are_always_late_are_not_asked_again() {
    let mut pair = Pair::new(Config::default());
    (pair.delay, pair.early) = (Span::from_micros(10_010), Span::from_millis(10));
    let mut asked = 0;
    for i in 0..100 {
        pair.send(0, pattern(i, 1000));
        pair.run_until(Span::from_secs(2), |p| p.sides[0].completed.len() == i as usize + 1);
        let stats = pair.sides[0].endpoint.stats();
        if i == 20 {
            asked = stats.tail_probes + stats.timeouts;
        }
    }
    let stats = pair.sides[0].endpoint.stats();
    assert_eq!(stats.tail_probes + stats.timeouts, asked, "{stats:?}");
}

/// Hosts that stood still for 100 ms, once: what is lost afterwards is missed as soon as ever.
#[test]
fn one_stall_makes_nobody_wait_later() {
    let mut pair = Pair::new(Config::default());
    let deliver = |pair: &mut Pair, i: u32| {
        pair.send(0, pattern(i, 1000));
        pair.run_until(Span::from_secs(6), |p| p.sides[0].completed.len() == i as usize + 1);
    };
    (0..20).for_each(|i| deliver(&mut pair, i));
    (pair.delay, pair.early) = (Span::from_millis(100), Span::from_millis(100));
    deliver(&mut pair, 20);
    // What the stall has left on the way arrives.
    (pair.delay, pair.early) = (Span::from_micros(10), Span::ZERO);
    pair.run(Span::from_secs(1));
    let start = pair.now;
    pair.wire = Box::new(move |_, at, _, _| if at == start { Deliver::Drop } else { Deliver::Once });
    deliver(&mut pair, 21);
    let took = pair.now.since(start);
    assert!(took < Span::from_millis(60), "{took:?}");
}

/// Answers that take longer than anything that is assumed, because of the way or of the host: messages get through at first, and
/// without needless packets after a while.
#[test]
fn a_round_trip_of_a_second_is_found_out() {
    for early in [Span::ZERO, Span::from_micros(499_990)] {
        let mut pair = Pair::new(Config::default());
        (pair.delay, pair.early) = (Span::from_millis(500), early);
        let mut asked = 0;
        for i in 0..12 {
            pair.send(0, pattern(i, 50_000));
            pair.run_until(Span::from_secs(20), |p| p.sides[0].completed.len() == i as usize + 1);
            if i == 2 {
                let stats = pair.sides[0].endpoint.stats();
                asked = stats.tail_probes + stats.timeouts;
            }
        }
        assert!(pair.sides[0].completed.iter().all(|c| c.1 == Ok(())), "{:?}", pair.sides[0].completed);
        let stats = pair.sides[0].endpoint.stats();
        assert_eq!(stats.tail_probes + stats.timeouts, asked, "{early}: {stats:?}");
    }
}

#[test]
fn many_small_messages_share_datagrams() {
    let mut pair = Pair::new(Config::default());
    for i in 0..10_000 {
        pair.send(0, pattern(i, 64));
    }
    pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 10_000);
    let stats = pair.sides[0].endpoint.stats();
    assert!(stats.tx_packets < 200, "{stats:?}");
    assert_eq!(stats.retransmits, 0);
}

/// No network lies between peers at one address, and they share cores: more is in flight until one of them gets to answer.
#[test]
fn a_peer_at_our_own_address_gets_more_at_once() {
    let config = Config { initial_window: 64 * 1024, local_window: 256 * 1024, ..Config::default() };
    let local = "10.0.0.1:5000".parse().unwrap();
    for (peer, window) in [(addr(1), 64 * 1024), (local, 256 * 1024)] {
        let mut pair = Pair::between(config.clone(), [addr(0), peer]);
        pair.send(0, pattern(0, 1_000_000));
        pair.run_until(Span::from_millis(5), |p| p.peer_stats(0).in_flight > 0);
        assert_eq!(pair.peer_stats(0).window, window);
    }
}

/// Who sends now and then leaves pace unused before each time: what it might have sent leaves with what is due, in one call
/// to the driver, but not all of it.
#[test]
fn what_might_have_left_before_leaves_in_one_burst() {
    let config = Config { burst_time: Span::from_micros(10), ..Config::default() };
    // At 655 MB/s: 6.5 KB in the time of a burst, 26 KB in four times that.
    for (len, bursts) in [(13_000, &[2][..]), (39_000, &[2, 2, 1])] {
        let mut pair = Pair::new(config.clone());
        pair.delay = Span::from_micros(100);
        for i in 1..=100 {
            // Until all paths are known.
            pair.send(0, pattern(0, 20_000));
            pair.run_until(Span::from_millis(5), |p| p.sides[0].completed.len() == i);
        }
        pair.run(Span::from_micros(100));
        let (began, rate) = (pair.now, pair.peer_stats(0).rate);
        pair.send(0, pattern(1, len));
        pair.run_until(Span::from_millis(5), |p| p.sides[0].completed.len() == 101);
        let at_once: Vec<_> = pair.bursts.iter().filter(|(at, _)| *at == began).map(|(_, n)| *n).collect();
        assert_eq!(at_once, bursts, "{len} bytes at {rate} B/s");
    }
}

#[test]
fn a_third_lost_everything_still_arrives_once() {
    let mut pair = Pair::new(Config::default());
    let mut x = 1u32;
    pair.wire = Box::new(move |_, _, _, _| {
        x = x.wrapping_mul(1664525).wrapping_add(1013904223);
        if x >> 16 & 0xff < 77 { Deliver::Drop } else { Deliver::Once }
    });
    for i in 0..500 {
        pair.send(0, pattern(i, 20_000));
    }
    pair.run_until(Span::from_secs(20), |p| p.sides[0].completed.len() == 500);
    assert_eq!(pair.sides[1].received.len(), 500);
}

#[test]
fn restart_fails_what_was_outstanding_and_reconnects() {
    let mut pair = Pair::new(Config::default());
    pair.send(0, pattern(1, 100));
    pair.run_until(Span::from_millis(5), |p| !p.sides[0].completed.is_empty());
    pair.restart(1, Config::default(), 9);
    pair.send(0, pattern(2, 100));
    let start = pair.now;
    pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == 2);
    assert_eq!(pair.sides[0].completed[1].1, Err(Failure::PeerRestarted));
    assert!(pair.now.since(start) < Span::from_micros(50), "within a round trip of hearing from it");
    pair.send(0, pattern(3, 100));
    pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == 3);
    assert_eq!(pair.sides[0].completed[2].1, Ok(()));
    assert_eq!(pair.sides[1].received.len(), 1);
}

/// The peer opened a connection and forgot it before we knew that it had it; then there is a message for it.
#[test]
fn a_message_after_an_attempt_that_the_peer_forgot_opens_a_connection() {
    let mut pair = Pair::new(Config::default());
    // Its cookie is right, and our ACCEPT does not get through.
    pair.wire = Box::new(|from, _, _, bytes| if from == 0 && bytes.len() > 30 { Deliver::Drop } else { Deliver::Once });
    pair.send(1, pattern(1, 100));
    pair.run_until(Span::from_millis(5), |p| p.peer_stats(0).established);
    pair.restart(1, Config::default(), 9);
    pair.run(Span::from_millis(5));
    pair.wire = Box::new(|_, _, _, _| Deliver::Once);
    pair.send(0, pattern(2, 100));
    pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == 1);
    assert_eq!(pair.sides[0].completed[0].1, Ok(()));
    assert_eq!(pair.sides[1].received.len(), 1);
}

#[test]
fn receiver_without_buffers_holds_back_and_goes_on() {
    let mut pair = Pair::new(Config::default());
    pair.sides[1].mailbox = Mailbox::new(10_000);
    pair.sides[1].reading = false;
    for i in 0..20 {
        pair.send(0, pattern(i, 3000));
    }
    pair.run(Span::from_millis(100));
    assert!(pair.sides[0].completed.len() < 4);
    assert!(pair.sides[0].endpoint.stats().rnr > 0);
    pair.sides[1].reading = true;
    pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 20);
    assert_eq!(pair.sides[1].received.len(), 20);
}

#[test]
fn idle_closes_and_opens_again() {
    let mut pair = Pair::new(Config::default());
    pair.send(0, pattern(1, 100));
    pair.run(Span::from_secs(30));
    let before = pair.sides[0].endpoint.stats().tx_packets + pair.sides[1].endpoint.stats().tx_packets;
    pair.run(Span::from_secs(10));
    let after = pair.sides[0].endpoint.stats().tx_packets + pair.sides[1].endpoint.stats().tx_packets;
    assert!(after - before <= 40, "quiet connections send keepalives only: {}", after - before);
    pair.run(Span::from_secs(300));
    assert!(!pair.peer_stats(0).established);
    let before = pair.sides[0].endpoint.stats().tx_packets + pair.sides[1].endpoint.stats().tx_packets;
    pair.run(Span::from_secs(3600));
    let after = pair.sides[0].endpoint.stats().tx_packets + pair.sides[1].endpoint.stats().tx_packets;
    assert_eq!(before, after);
    pair.send(1, pattern(2, 100));
    pair.run_until(Span::from_millis(5), |p| p.sides[1].completed.len() == 1);
    assert_eq!(pair.sides[1].completed[0].1, Ok(()));
}

#[test]
fn dead_peer_is_found_in_the_configured_time() {
    let mut pair = Pair::new(Config::default());
    pair.send(0, pattern(1, 100));
    pair.run_until(Span::from_millis(5), |p| !p.sides[0].completed.is_empty());
    pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
    pair.send(0, pattern(2, 100));
    let start = pair.now;
    pair.run_until(Span::from_secs(10), |p| p.sides[0].completed.len() == 2);
    assert_eq!(pair.sides[0].completed[1].1, Err(Failure::Unresponsive));
    let took = pair.now.since(start);
    assert!(took >= Span::from_secs(5) && took < Span::from_millis(5500), "{took}");
    pair.send(0, pattern(3, 100));
    pair.run_until(Span::from_secs(10), |p| p.sides[0].completed.len() == 3);
    assert_eq!(pair.sides[0].completed[2].1, Err(Failure::Unreachable));
}

#[test]
fn close_delivers_what_is_queued_first() {
    let mut pair = Pair::new(Config::default());
    for i in 0..50 {
        pair.send(0, pattern(i, 10_000));
    }
    let now = pair.now;
    pair.sides[0].endpoint.close(now);
    pair.run_until(Span::from_secs(1), |p| p.sides[0].endpoint.is_closed());
    assert_eq!(pair.sides[1].received.len(), 50);
    pair.run(Span::from_millis(50));
    assert!(!pair.peer_stats(1).established);
}

#[test]
fn counters_wrap() {
    let config = Config { first_number: Some(u32::MAX - 20), ..Config::default() };
    let mut pair = Pair::new(config);
    for i in 0..300 {
        pair.send(0, pattern(i, 9_000));
    }
    pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 300);
    assert_eq!(pair.sides[1].received.len(), 300);
    assert_eq!(pair.sides[0].endpoint.stats().retransmits, 0);
}

#[test]
fn small_mtu_only_is_found_and_used() {
    let mut pair = Pair::new(Config::default());
    pair.wire = Box::new(|_, _, _, d| if d.len() > 1472 { Deliver::Drop } else { Deliver::Once });
    for i in 0..20 {
        pair.send(0, pattern(i, 50_000));
    }
    pair.run_until(Span::from_secs(5), |p| p.sides[0].completed.len() == 20);
    assert_eq!(pair.peer_stats(0).datagram, 1400);
}

#[test]
fn simultaneous_open_makes_one_connection() {
    let mut pair = Pair::new(Config::default());
    pair.send(0, pattern(1, 100));
    pair.send(1, pattern(2, 100));
    pair.run_until(Span::from_millis(5), |p| p.sides.iter().all(|s| s.completed.len() == 1));
    for side in &pair.sides {
        assert_eq!(side.endpoint.stats().connections_opened, 1);
        assert_eq!(side.completed[0].1, Ok(()));
    }
}

#[test]
fn messages_are_withdrawn_wherever_they_stand() {
    for stop in [0, 15, 30, 45, 60, 90, 200, 400] {
        let mut pair = Pair::new(Config::default());
        pair.send(0, pattern(99, 10));
        pair.run(Span::from_millis(1));
        pair.sides[1].mailbox = Mailbox::new(3_000_000);
        let tokens: Vec<Token> = (0..20).map(|i| pair.send(0, pattern(i, 100_000))).collect();
        pair.run(Span::from_micros(stop));
        let Side { endpoint, mailbox, completed, .. } = &mut pair.sides[0];
        let done: Vec<Token> = completed.iter().skip(1).map(|c| c.0).collect();
        let gone = |t: Token| tokens.iter().position(|&u| u == t).is_some_and(|i| i % 2 == 0);
        let peer = endpoint.peers().next().unwrap();
        let withdrawn = endpoint.withdraw(peer, gone);
        let left = tokens.iter().filter(|&&t| gone(t) && !done.contains(&t)).count();
        assert_eq!(withdrawn as usize, left, "after {stop} us");
        // Their payload is gone at once: whoever reads it now panics.
        tokens.iter().filter(|&&t| gone(t) && !done.contains(&t)).for_each(|&t| mailbox.unpost(t));
        pair.run(Span::from_secs(1));
        assert_eq!(pair.sides[0].completed.len(), 21 - left, "after {stop} us");
        assert!(pair.sides[0].completed.iter().all(|c| c.1 == Ok(())));
        let (a, b) = (&pair.sides[0], &pair.sides[1]);
        assert!(b.received.len() >= 21 - left && b.received.len() <= 21);
        assert_eq!(b.mailbox.held(), 0, "places of what was withdrawn came back, after {stop} us");
        assert_eq!(a.endpoint.stats().messages_failed, withdrawn.into());
    }
}

#[test]
fn peers_that_are_released_make_room() {
    let config = Config { max_peers: 4, ..Config::default() };
    let mut endpoint = Side::new(&config, addr(0), 1, Time::ZERO, 0).endpoint;
    let at = |n: u16| std::net::SocketAddr::from(([10, 1, 0, 1], 1000 + n));
    let peers: Vec<PeerId> = (0..4).map(|n| endpoint.peer(at(n), 1400).unwrap()).collect();
    assert_eq!(endpoint.peer(at(4), 1400), None);
    endpoint.release(peers[2]);
    let new = endpoint.peer(at(4), 1400).unwrap();
    assert_ne!(new, peers[2], "the old id names nobody");
    assert_eq!((endpoint.peer_addr(peers[2]), endpoint.peer_addr(new)), (None, Some(at(4))));
    assert_eq!(endpoint.peer(at(2), 1400), None);
    endpoint.release(peers[2]);
    assert_eq!(endpoint.peer(at(2), 1400), None, "an old id releases nobody");
}

/// Kinds of packets, as in the low four bits of the first byte.
const TRACKED: u8 = 0;
const UNTRACKED: u8 = 1;
const CLOSE: u8 = 6;

fn kind(datagram: &[u8]) -> u8 {
    datagram[0] & 15
}

/// Two hosts, of which the first has sent a message and will say good-bye when it has been idle for so long. The other
/// waits for a minute, unless `idle` says otherwise.
fn about_to_close(idle: Span, other: Option<Span>) -> Pair {
    let config = |idle_timeout| Config { idle_timeout, ..Config::default() };
    let mut pair = Pair::new(config(idle));
    pair.restart(1, config(other.unwrap_or(Span::from_secs(60))), 2);
    pair.send(0, pattern(0, 100));
    pair.run_until(Span::from_millis(5), |p| p.sides[0].completed.len() == 1);
    pair
}

/// Side 0 says good-bye while the network holds up what it sends but bare acknowledgements, then hears from side 1 and
/// has something to say, too.
#[test]
fn a_good_bye_that_arrives_after_it_was_taken_back_ends_nothing() {
    let mut pair = about_to_close(Span::from_millis(100), None);
    let closing = Rc::new(Cell::new(false));
    let said = Rc::clone(&closing);
    pair.wire = Box::new(move |from, _, _, bytes| {
        said.set(said.get() || kind(bytes) == CLOSE);
        let held_up = from == 0 && said.get() && kind(bytes) != UNTRACKED;
        if held_up { Deliver::Late(Span::from_millis(2)) } else { Deliver::Once }
    });
    pair.run_until(Span::from_millis(200), |_| closing.get());
    pair.send(1, pattern(1, 100));
    pair.run(Span::from_micros(25));
    pair.send(0, pattern(2, 100));
    pair.run_until(Span::from_millis(100), |p| p.sides[0].completed.len() == 2 && p.sides[1].completed.len() == 1);
    assert!(pair.sides.iter().all(|s| s.completed.iter().all(|c| c.1 == Ok(()))));
    assert!(pair.sides.iter().all(|s| s.endpoint.stats().connections_opened == 1));
}

/// Side 0 takes its good-bye back for a packet that side 1 had given up: that one does not wait for an acknowledgement,
/// and agrees when the good-bye arrives.
#[test]
fn what_follows_a_good_bye_that_the_peer_agrees_to_after_all_goes_into_a_new_connection() {
    let mut pair = about_to_close(Span::from_millis(100), None);
    let (closing, newest) = (Rc::new(Cell::new(false)), Rc::new(Cell::new([0; 24])));
    let (said, last) = (Rc::clone(&closing), Rc::clone(&newest));
    pair.wire = Box::new(move |from, _, _, bytes| {
        said.set(said.get() || kind(bytes) == CLOSE);
        if from == 1 && kind(bytes) == TRACKED {
            last.set(*bytes.first_chunk().unwrap());
        }
        if from == 0 && said.get() { Deliver::Late(Span::from_millis(2)) } else { Deliver::Once }
    });
    pair.send(1, pattern(1, 100));
    pair.run_until(Span::from_millis(200), |_| closing.get());
    // A PING with the next number.
    let mut ping = newest.get();
    (ping[15], ping[23]) = (ping[15] + 1, 3);
    let meta = RxMeta { from: addr(1), to: None, ecn: Ecn::Ect, at: pair.now };
    let Side { endpoint, mailbox, .. } = &mut pair.sides[0];
    endpoint.handle_datagram(pair.now, &meta, &ping, mailbox);
    pair.send(0, pattern(2, 100));
    pair.run_until(Span::from_millis(100), |p| p.sides[0].completed.len() == 2);
    assert_eq!(pair.sides[0].completed[1].1, Ok(()));
    assert_eq!(pair.sides[1].received.len(), 2);
    assert_eq!(pair.sides[0].endpoint.stats().connections_opened, 2, "the peer had agreed");
}

#[test]
fn an_echo_of_a_good_bye_that_was_taken_back_is_void() {
    let mut pair = about_to_close(Span::from_millis(100), None);
    let closing = Rc::new(Cell::new(false));
    let said = Rc::clone(&closing);
    pair.wire = Box::new(move |_, _, _, bytes| match (kind(bytes), said.replace(said.get() || kind(bytes) == CLOSE)) {
        (CLOSE, false) => Deliver::Late(Span::from_millis(20)),
        (CLOSE, true) => Deliver::Drop,
        _ => Deliver::Once,
    });
    pair.run_until(Span::from_millis(200), |_| closing.get());
    pair.send(1, pattern(1, 100));
    pair.run(Span::from_millis(50));
    assert_eq!(pair.sides[1].completed.len(), 1);
    assert!((0..2).all(|i| pair.peer_stats(i).established), "both still know each other");
}

/// Side 0 takes its good-bye back and sends something that is long on its way; meanwhile side 1 says good-bye, and gets
/// the old one of side 0.
#[test]
fn an_echo_of_a_good_bye_does_not_end_what_the_peer_is_closing() {
    let mut pair = about_to_close(Span::from_millis(100), Some(Span::from_millis(150)));
    let (closing, slow) = (Rc::new(Cell::new([false; 2])), Rc::new(Cell::new(false)));
    let (said, late) = (Rc::clone(&closing), Rc::clone(&slow));
    pair.wire = Box::new(move |from, _, _, bytes| {
        if kind(bytes) == CLOSE {
            let mut before = said.get();
            let first = !std::mem::replace(&mut before[from], true);
            said.set(before);
            return if first && from == 0 { Deliver::Late(Span::from_millis(155)) } else { Deliver::Drop };
        }
        if from == 0 && late.get() { Deliver::Late(Span::from_millis(60)) } else { Deliver::Once }
    });
    pair.run_until(Span::from_millis(200), |_| closing.get()[0]);
    pair.send(1, pattern(1, 100));
    pair.run(Span::from_millis(99));
    assert_eq!(pair.sides[1].completed.len(), 1);
    slow.set(true);
    pair.send(0, pattern(2, 100));
    pair.run_until(Span::from_millis(200), |p| p.sides[0].completed.len() == 2);
    assert!(closing.get()[1], "side 1 was closing");
    assert_eq!(pair.sides[0].completed[1].1, Ok(()));
    assert!(pair.sides.iter().all(|s| s.endpoint.stats().connections_opened == 1));
}

#[test]
fn an_old_packet_does_not_take_a_good_bye_back() {
    let mut pair = about_to_close(Span::from_millis(100), None);
    let start = pair.now;
    pair.wire = Box::new(move |from, at, _, bytes| match (from, kind(bytes)) {
        (1, TRACKED) => Deliver::Again(Span::from_millis(150)),
        (0, CLOSE) if at.since(start) < Span::from_millis(180) => Deliver::Drop,
        _ => Deliver::Once,
    });
    pair.send(1, pattern(1, 100));
    pair.run(Span::from_millis(230));
    assert!((0..2).all(|i| !pair.peer_stats(i).established), "{:?}", pair.sides[0].endpoint.stats());
}

/// A packet whose flags were damaged along with the rest must not pass for one that never had a checksum.
#[test]
fn a_packet_that_says_that_it_has_no_checksum_counts_for_nothing_where_all_have() {
    for what in [TRACKED, UNTRACKED] {
        let mut pair = Pair::new(Config { checksum: Checksum::Crc32c, ..Config::default() });
        let mut done = false;
        pair.wire = Box::new(move |_, _, _, bytes| {
            if kind(bytes) == what && bytes.len() > 30 && !std::mem::replace(&mut done, true) {
                bytes[1] &= !1;
                bytes.truncate(bytes.len() - 4);
                *bytes.last_mut().unwrap() ^= 0xff;
            }
            Deliver::Once
        });
        pair.send(0, pattern(1, 100));
        pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == 1);
        let bad = [0, 1].map(|i| pair.sides[i].endpoint.stats().rx_bad_checksum);
        assert_eq!(bad, if what == TRACKED { [0, 1] } else { [1, 0] });
        assert_eq!(pair.sides[1].received.len(), 1);
        assert_eq!(pair.sides[1].received[0].data, pattern(1, 100));
    }
}

/// The last packet of each kind that a side has sent, by side.
type Seen = Rc<RefCell<[BTreeMap<u8, Vec<u8>>; 2]>>;

fn watch(pair: &mut Pair) -> Seen {
    let seen = Seen::default();
    let log = Rc::clone(&seen);
    pair.wire = Box::new(move |from, _, _, bytes| {
        log.borrow_mut()[from].insert(kind(bytes), bytes.clone());
        Deliver::Once
    });
    seen
}

/// Hands a datagram to a side, as if the other one had sent it.
fn forge(pair: &mut Pair, to: usize, bytes: &[u8]) {
    let meta = RxMeta { from: addr(1 - to), to: None, ecn: Ecn::Ect, at: pair.now };
    let Side { endpoint, mailbox, .. } = &mut pair.sides[to];
    endpoint.handle_datagram(pair.now, &meta, bytes, mailbox);
}

#[test]
fn acknowledgements_of_what_was_never_sent_change_nothing() {
    let mut pair = Pair::new(Config::default());
    let seen = watch(&mut pair);
    pair.send(0, pattern(1, 100));
    pair.run(Span::from_millis(5));
    // One message is on its way.
    pair.send(0, pattern(2, 100));
    pair.run(Span::from_micros(5));
    let (mut data, mut ack) = (seen.borrow()[0][&TRACKED].clone(), seen.borrow()[1][&UNTRACKED].clone());
    let next = u32::from_be_bytes(*data.split_off(12).first_chunk().unwrap()).wrapping_add(1);
    ack.truncate(10);
    let acknowledge = |cumulative: u32, newest: u32| {
        let advice = [0; 8];
        [&ack[..], &[4, 0, 0, 0], &cumulative.to_be_bytes(), &newest.to_be_bytes(), &advice].concat()
    };
    let refuse = [&ack[..], &[5, 0], &next.to_be_bytes()].concat();
    let last = next.wrapping_sub(1);
    let lies = [
        acknowledge(next.wrapping_add(1), last),
        acknowledge(next.wrapping_add(1 << 30), last),
        acknowledge(last, next),
        refuse,
    ];
    let before = pair.peer_stats(0).in_flight;
    for (i, lie) in (1..).zip(lies) {
        forge(&mut pair, 0, &lie);
        assert_eq!(pair.sides[0].endpoint.stats().rx_violations, i);
        assert_eq!(pair.peer_stats(0).in_flight, before);
    }
    // What is true is believed.
    forge(&mut pair, 0, &acknowledge(next, last));
    assert_eq!(pair.sides[0].endpoint.stats().rx_violations, 4);
    assert_eq!(pair.peer_stats(0).in_flight, 0);
    pair.run(Span::from_millis(5));
    assert_eq!(pair.sides[0].completed.len(), 2);
}

#[test]
fn a_packet_of_more_refused_messages_than_an_answer_holds_is_a_violation() {
    for (count, violations) in [(76, 0), (77, 1)] {
        let mut pair = Pair::new(Config::default());
        let seen = watch(&mut pair);
        // Nothing fits, so each message is refused for good.
        pair.sides[1].mailbox = Mailbox::new(0);
        pair.send(0, pattern(1, 100));
        pair.run(Span::from_millis(5));
        assert_eq!(pair.sides[0].completed[0].1, Err(Failure::Refused(0)));
        let mut packet = seen.borrow()[0][&TRACKED].clone();
        let next = |bytes: &[u8]| u32::from_be_bytes(*bytes.first_chunk().unwrap()).wrapping_add(1);
        let (pn, first) = (next(&packet[12..]), next(&packet[16..]));
        packet.truncate(23);
        packet[2..4].fill(0);
        packet[12..16].copy_from_slice(&pn.to_be_bytes());
        packet[16..20].copy_from_slice(&first.to_be_bytes());
        for id in 0..count {
            packet.extend([1, 0, 0, 0]);
            packet.extend(first.wrapping_add(id).to_be_bytes());
        }
        forge(&mut pair, 1, &packet);
        assert_eq!(pair.sides[1].endpoint.stats().rx_violations, violations, "{count} messages");
    }
}

#[test]
fn a_sender_heeds_what_the_hello_says_of_the_receiver() {
    let mut pair = Pair::new(Config::default());
    pair.restart(1, Config { max_partial_messages: 2, max_message: 10_000, ..Config::default() }, 2);
    // What is lost leaves messages half delivered.
    let mut sent = 0;
    pair.wire = Box::new(move |from, _, _, bytes| {
        sent += u32::from(from == 0 && kind(bytes) == TRACKED);
        if from == 0 && kind(bytes) == TRACKED && sent % 3 == 2 { Deliver::Drop } else { Deliver::Once }
    });
    pair.send(0, pattern(1, 10_001));
    for i in 0..100 {
        pair.send(0, pattern(2 + i, 10_000));
    }
    pair.run_until(Span::from_secs(1), |p| p.sides[0].completed.len() == 101);
    let failed: Vec<_> = pair.sides[0].completed.iter().filter_map(|c| c.1.err()).collect();
    assert_eq!(failed, [Failure::TooLong { max: 10_000 }]);
    assert_eq!(pair.sides[1].received.len(), 100);
    assert_eq!(pair.sides[0].endpoint.stats().rnr, 0, "no more than two were half delivered at a time");
    // Now the limit is known beforehand.
    let endpoint = &mut pair.sides[0].endpoint;
    let peer = endpoint.peers().next().unwrap();
    let message = |len| Outbound { token: Token(1000), flow: 0, header_len: 2, len, rnr: RnrRetry::Forever };
    assert_eq!(endpoint.send(pair.now, peer, message(10_001)), Err(SendError::TooLong { len: 10_001, max: 10_000 }));
}

#[test]
fn each_lost_tail_is_probed_for() {
    let mut pair = Pair::new(Config::default());
    for i in 0..20 {
        pair.send(0, pattern(i, 100));
        pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == i as usize + 1);
    }
    let before = *pair.sides[0].endpoint.stats();
    for i in 20..22 {
        let start = pair.now;
        pair.wire =
            Box::new(move |from, at, _, _| if from == 0 && at == start { Deliver::Drop } else { Deliver::Once });
        pair.send(0, pattern(i, 100));
        pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == i as usize + 1);
        let took = pair.now.since(start);
        assert!(took < Span::from_millis(1), "sooner than any timeout: {took}");
    }
    let stats = pair.sides[0].endpoint.stats();
    assert!(stats.tail_probes >= before.tail_probes + 2 && stats.timeouts == before.timeouts, "{stats:?}");
}

/// Two packets are lost, a later one of the same path arrives, too few to prove anything at once, and then there is
/// silence: both are sent again after a round trip and an eighth, long before a tail probe.
#[test]
fn what_was_overtaken_by_little_is_lost_once_it_is_late() {
    let config = Config { paths: 1, initial_rtt: Span::from_millis(10), ..Config::default() };
    let mut pair = Pair::new(config);
    pair.delay = Span::from_millis(5);
    // Few, so that the variation of the RTT is believed to be large: timeouts come later.
    for i in 0..3 {
        pair.send(0, pattern(i, 8000));
        pair.run_until(Span::from_millis(100), |p| p.sides[0].completed.len() == i as usize + 1);
    }
    let (gap, before) = (Span::from_micros(300), *pair.sides[0].endpoint.stats());
    let lost = pair.now + gap;
    pair.wire = Box::new(move |from, at, _, _| if from == 0 && at <= lost { Deliver::Drop } else { Deliver::Once });
    for i in 0..3 {
        pair.send(0, pattern(3 + i, 8000));
        pair.run(gap);
    }
    pair.run_until(Span::from_millis(100), |p| p.sides[0].completed.len() == 6);
    // The second is sent again 11.25 ms after it was lost, and acknowledged 10 ms later.
    let took = pair.now.since(lost);
    assert!(took >= Span::from_millis(21) && took < Span::from_millis(23), "{took}");
    let stats = pair.sides[0].endpoint.stats();
    assert_eq!((stats.tail_probes, stats.retransmits), (before.tail_probes, before.retransmits + 2), "{stats:?}");
}

#[test]
fn silence_is_congestion_from_the_second_timeout_on() {
    let mut pair = Pair::new(Config::default());
    for i in 0..20 {
        pair.send(0, pattern(i, 100_000));
        pair.run_until(Span::from_millis(50), |p| p.sides[0].completed.len() == i as usize + 1);
    }
    pair.send(0, pattern(20, 1000));
    pair.run(Span::ZERO);
    let rate = pair.peer_stats(0).rate;
    pair.wire = Box::new(|_, _, _, _| Deliver::Drop);
    for timeouts in 1..=3 {
        pair.run_until(Span::from_secs(1), |p| p.sides[0].endpoint.stats().timeouts == timeouts);
        let now = pair.peer_stats(0).rate;
        if timeouts == 1 {
            assert_eq!(now, rate, "the peer may not have been scheduled");
        } else {
            assert!(now <= rate >> (timeouts - 1), "{now} B/s after {timeouts} timeouts, {rate} before");
        }
    }
}
