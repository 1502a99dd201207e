//! Paths, one event after the other.

use rand::SeedableRng;

use super::ports::REVIVAL_PAUSE;
use super::*;
use crate::config::Config;
use crate::sent::SentInfo;

const NOW: Time = Time::from_nanos(1_000_000_000);

fn paths(config: Config) -> (PathSet, CheckedConfig) {
    let config = config.check().expect("valid");
    (PathSet::new(&config, Xoshiro256PlusPlus::seed_from_u64(1)), config)
}

/// A packet that the first path sent.
fn packet(paths: &mut PathSet, pn: u32) -> Sent {
    packet_on(paths, 0, pn)
}

fn packet_on(paths: &mut PathSet, path: u8, pn: u32) -> Sent {
    let mut sent = SentPackets::new(Seq(pn), 64);
    let path_seq = paths.on_sent(path, Seq(pn), 1_000);
    let path_life = paths.get(path).life;
    let info = SentInfo { at: Time::ZERO, bytes: 1_000, path, path_life, probe: false, path_seq };
    let pn = sent.push(info, 0);
    *sent.get(pn).expect("just sent")
}

#[test]
fn what_a_path_swallowed_is_told_once_it_works_again() {
    let (mut paths, _) = paths(Config::default());
    let sent: Vec<Sent> = (0..6).map(|pn| packet(&mut paths, pn)).collect();
    assert_eq!(paths.on_acked(&sent[0]), 0);
    paths.on_lost(&sent[1], false);
    paths.on_lost(&sent[2], true);
    paths.on_lost(&sent[3], true);
    paths.on_spurious(&sent[3]);
    assert_eq!(paths.on_acked(&sent[4]), 1, "one overtaken, one silent, one late");
    assert_eq!(paths.on_acked(&sent[5]), 0);
}

#[test]
fn a_path_whose_packet_was_only_late_is_not_probed() {
    let (mut paths, config) = paths(Config::default());
    let sent: Vec<Sent> = (0..3).map(|pn| packet(&mut paths, pn)).collect();
    paths.on_acked(&sent[0]);
    for late in [false, true] {
        paths.on_lost(&sent[1], true);
        paths.on_silence(0, Time::ZERO, &config, &mut Vec::new());
        if late {
            paths.on_spurious(&sent[1]);
        }
        assert_eq!(paths.take_probe(Time::ZERO), (!late).then_some(0));
        paths.on_acked(&sent[2]);
    }
}

#[test]
fn a_suspect_path_is_probed_until_its_fate_is_known() {
    let (mut paths, config) = paths(Config::default());
    let first = packet(&mut paths, 0);
    paths.on_acked(&first);
    paths.on_silence(0, Time::ZERO, &config, &mut Vec::new());
    for pn in 1..10 {
        assert_eq!(paths.take_probe(paths.next_probe()), Some(0));
        assert_eq!(paths.next_probe(), Time::NEVER, "one at a time");
        let probe = packet(&mut paths, pn);
        paths.on_lost(&probe, true);
        paths.probe_again(&probe, Time::ZERO);
    }
    paths.replace(0, Time::ZERO, &config, &mut Vec::new());
    paths.take_probe(Time::NEVER);
    paths.probe_again(&first, Time::ZERO);
    assert_eq!(paths.next_probe(), Time::NEVER, "its probe was another port's");
}

#[test]
fn a_replaced_path_takes_what_it_swallowed_with_it() {
    let (mut paths, config) = paths(Config::default());
    let sent = packet(&mut paths, 0);
    paths.on_lost(&sent, true);
    paths.replace(0, Time::ZERO, &config, &mut Vec::new());
    let sent = packet(&mut paths, 1);
    assert_eq!(paths.on_acked(&sent), 0);
}

/// Three of four paths need 300 us, one 10.
#[test]
fn most_paths_may_be_longer_than_the_shortest() {
    let (mut paths, _) = paths(Config { paths: 4, ..Config::default() });
    let (short, long) = (Span::from_micros(10), Span::from_micros(300));
    let mut whole = Rtt::new(short);
    whole.sample(Time::ZERO, short, true, Span::ZERO);
    let round = |paths: &mut PathSet| {
        let sent = packet(paths, 0);
        for path in 0..4 {
            let rtt = if path == 0 { short } else { long };
            let mut on_path = sent;
            on_path.path = path;
            paths.on_rtt(Time::ZERO, &on_path, rtt, true, Span::ZERO, &whole);
        }
        paths.end_round().queue_delay
    };
    assert_eq!((round(&mut paths), paths.base(short)), (Some(long - short), short));
    assert!(!paths.find_detours(long));
    assert!(paths.find_detours(short + Span::from_micros(100)));
    assert_eq!((round(&mut paths), paths.base(short)), (Some(Span::ZERO), long));
    paths.doubt_detours();
    assert_eq!((round(&mut paths), paths.base(short)), (Some(long - short), short));
}

#[test]
fn path_bits_hold_every_index() {
    let mut bits = PathBits::default();
    for path in [0, 63, 64, 200, 255] {
        assert!(!bits.contains(path));
        bits.insert(path);
        assert!(bits.contains(path));
    }
    assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 64, 200, 255]);
    assert_eq!(PathBits::default().iter().next(), None);
}

/// An RTT sample of 10 us on a path, which works.
fn sampled(paths: &mut PathSet, index: u8, at: Time) {
    sampled_as(paths, index, at, Span::from_micros(10));
}

fn sampled_as(paths: &mut PathSet, index: u8, at: Time, rtt: Span) {
    let mut whole = Rtt::new(Span::from_micros(10));
    whole.sample(at, Span::from_micros(10), true, Span::ZERO);
    let sent = packet_on(paths, index, 0);
    paths.on_acked(&sent);
    paths.on_rtt(at, &sent, rtt, true, Span::ZERO, &whole);
}

#[test]
fn news_of_a_port_that_was_given_up_say_nothing_of_the_next_one() {
    let (mut paths, config) = paths(Config::default());
    let old = packet(&mut paths, 0);
    paths.replace(0, NOW, &config, &mut Vec::new());
    assert_eq!(paths.on_acked(&old), 0);
    paths.on_spurious(&old);
    paths.on_lost(&old, true);
    let whole = Rtt::new(Span::from_micros(10));
    assert_eq!(paths.on_rtt(NOW, &old, Span::from_micros(500), true, Span::ZERO, &whole), Span::ZERO);
    let path = paths.get(0);
    assert_eq!((path.state, path.acked, path.lost, path.silent), (PathState::Unproven, None, 0, 0));
    assert!(!path.rtt.is_sampled());
}

#[test]
fn the_second_silence_of_a_path_replaces_it() {
    let (mut paths, config) = paths(Config::default());
    let sent = packet(&mut paths, 0);
    paths.on_acked(&sent);
    let port = paths.get(0).port;
    let mut lost = Vec::new();
    packet(&mut paths, 1);
    paths.on_silence(0, NOW, &config, &mut lost);
    assert_eq!((paths.get(0).state, paths.get(0).port, lost.len()), (PathState::Suspect, port, 0));
    paths.on_silence(0, NOW, &config, &mut lost);
    assert_eq!((paths.get(0).state, paths.take_replaced()), (PathState::Unproven, 1));
    assert_ne!(paths.get(0).port, port);
    assert_eq!(lost.last(), Some(&Seq(1)), "what was out on it is lost");
    // Of a port that never worked nothing better is expected.
    paths.on_silence(0, NOW, &config, &mut lost);
    assert_eq!(paths.take_replaced(), 1);
}

#[test]
fn a_port_rests_twice_as_long_each_time_that_it_fails_again() {
    let (mut paths, config) = paths(Config { paths: 1, ..Config::default() });
    let port = paths.get(0).port;
    let mut now = NOW;
    for rest in [1, 2, 4, 8, 1, 2] {
        if rest == 1 {
            // It works, so that what was before is forgotten.
            sampled(&mut paths, 0, now);
        }
        paths.replace(0, now, &config, &mut Vec::new());
        assert_ne!(paths.get(0).port, port);
        // The port in its place works, and is the slowest that does.
        sampled(&mut paths, 0, now);
        paths.revive(now + Span::from_millis(rest * 1000 - 1), 1e9);
        assert_ne!(paths.get(0).port, port, "before {rest} s are over");
        now += Span::from_secs(rest);
        paths.revive(now + REVIVAL_PAUSE, 1e9);
        now += REVIVAL_PAUSE;
        assert_eq!(paths.get(0).port, port, "after {rest} s");
    }
}

#[test]
fn without_a_port_to_spare_a_silent_path_is_probed_less_and_less_often() {
    let (mut paths, config) = paths(Config { paths: 2, path_pool: 2, ..Config::default() });
    let port = paths.get(0).port;
    sampled(&mut paths, 0, NOW);
    let pauses: Vec<u64> = (0..12)
        .map(|_| {
            paths.on_silence(0, NOW, &config, &mut Vec::new());
            assert_eq!((paths.get(0).port, paths.get(0).state), (port, PathState::Suspect));
            paths.get(0).probe_at.since(NOW).as_nanos() / 1_000_000
        })
        .collect();
    assert_eq!(pauses, [0, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
}

/// How many of 1000 bursts take path 0, if before each of them `prepare` is called.
fn picked(paths: &mut PathSet, avoid: Option<u8>, mut prepare: impl FnMut(&mut PathSet)) -> usize {
    let sent = SentPackets::new(Seq(0), 64);
    let mut pick = |paths: &mut PathSet| {
        prepare(paths);
        paths.pick(NOW, 1e9, avoid, Span::from_micros(200), &sent)
    };
    (0..1000).filter(|_| pick(paths) == 0).count()
}

#[test]
fn a_path_that_was_fast_just_now_is_taken_mostly_and_a_silent_one_never() {
    let (mut paths, config) = paths(Config::default());
    for path in 0..16 {
        sampled(&mut paths, path, NOW);
    }
    let fast = |paths: &mut PathSet| paths.fresh = [(0, NOW)].into();
    let long_ago = |paths: &mut PathSet| paths.fresh = [(0, NOW - Span::from_millis(1))].into();
    assert!((700..850).contains(&picked(&mut paths, None, fast)), "three of four bursts");
    assert!((20..120).contains(&picked(&mut paths, None, long_ago)), "one of sixteen");
    assert_eq!(picked(&mut paths, Some(0), fast), 0, "it lost what is to be sent");
    paths.on_silence(0, NOW, &config, &mut Vec::new());
    assert_eq!(picked(&mut paths, None, fast), 0, "it is suspect");
}

/// As all do that have packets on their way when a machine is suspended.
#[test]
fn a_path_whose_round_trip_took_seconds_is_tried_again_soon() {
    let (mut paths, _) = paths(Config::default());
    for path in 0..16 {
        sampled(&mut paths, path, NOW);
    }
    let long_ago = |paths: &mut PathSet| paths.fresh.clear();
    for (ago, tried) in [(900, 0..1), (1000, 20..120)] {
        sampled_as(&mut paths, 0, NOW - Span::from_millis(ago), Span::from_secs(60));
        let picked = picked(&mut paths, None, long_ago);
        assert!(tried.contains(&picked), "{picked} of 1000 after {ago} ms");
    }
}

#[test]
fn marks_are_counted_across_the_wrap_and_not_backwards() {
    let (mut paths, _) = paths(Config::default());
    for (count, total) in [(0, 0), (100, 100), (200, 200), (255, 255), (44, 300), (40, 300), (255, 300), (45, 301)] {
        paths.on_ce(0, count);
        assert_eq!(paths.get(0).ce, total, "at a count of {count}");
    }
}
