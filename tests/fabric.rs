//! The whole transport over a real fabric: namespaces, routers that choose among spines by a hash, links with rates and
//! queues, and links that die without a word.
//!
//! Needs root, and is skipped without. Every experiment prints what it measured. Figures of time have two bounds, see
//! [`support::bound`], and are judged only by runs in which this machine let threads run on time.

mod support;

use std::process::Command;
use std::sync::MutexGuard;
use std::thread;
use std::time::{Duration, Instant};

use srd::xdp::DriverChoice::{self, Udp, Xdp};
use srd::{Failure, Span};
use support::hole::{self, SPINE_PAYLOAD, SPINES, Way, carried_down, fabric, setup};
use support::{
    Arrival, Delays, Load, Node, Setup, Snapshot, Timeline, Watch, attempt, bound, lateness, mbit, miss, turn,
};
use testbed::{Clos, ClosBuilder, Direction, Rate, Traffic};

/// Drivers of sender and receiver.
const DRIVERS: [[DriverChoice; 2]; 4] = [[Udp, Udp], [Xdp, Xdp], [Xdp, Udp], [Udp, Xdp]];
const PATIENCE: Duration = Duration::from_secs(120);

/// A bed for one experiment, which has the machine for itself; `None` where there are no test beds.
fn stage(settings: ClosBuilder) -> Option<(MutexGuard<'static, ()>, Clos)> {
    let turn = turn();
    Some((turn, settings.for_test()?))
}

/// Set-ups of sender and receiver.
fn both(drivers: [DriverChoice; 2]) -> [Setup; 2] {
    let [from, to] = drivers;
    [Setup { driver: from, ..setup(1) }, Setup { driver: to, ..setup(2) }]
}

#[test]
fn spread_uses_all_spines_alike() {
    spreads([Udp, Udp]);
}

#[test]
fn spread_over_xdp() {
    spreads([Xdp, Xdp]);
}

#[test]
fn spread_between_drivers() {
    spreads([Udp, Xdp]);
}

fn spreads(drivers: [DriverChoice; 2]) {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    attempt(|| {
        let watch = Watch::start();
        let [from, to] = both(drivers);
        let (from, to) = (Node::start(bed.host(0), from), Node::start(bed.host(1), to));
        from.send(to.addr(), Load { size: 8192, depth: 64, count: u64::MAX });
        thread::sleep(Duration::from_millis(500));
        let start = Instant::now();
        let (goodput, shares) = measure(&bed, &to, Duration::from_secs(2));
        let end = Instant::now();
        let late = lateness(&watch, [&from, &to], start, end);
        let seen = from.snapshot();
        assert!(from.drain(PATIENCE), "the transfer ends");
        to.assert_sound();
        let capacity = SPINE_PAYLOAD * SPINES as f64;
        eprintln!(
            "spread {drivers:?}: {:.0} of {:.0} Mbit/s, shares {shares:.2?}, late {late:?}",
            mbit(goodput),
            mbit(capacity)
        );
        eprintln!("spread: {}", Delays::of(&from.take_departures(), start, end));
        eprintln!("spread: {}", counters(&seen));
        let mut missed = Vec::new();
        let even = bound(0.8..=1.2, 0.5..=1.5);
        miss(&mut missed, shares.iter().all(|s| even.contains(s)), || format!("shares are {shares:.2?}"));
        // A path alone carries a quarter.
        miss(&mut missed, goodput >= bound(0.9, 0.5) * capacity, || format!("goodput is {:.0} Mbit/s", mbit(goodput)));
        (late, missed)
    });
}

fn counters(seen: &Snapshot) -> String {
    let (s, peer) = (&seen.stats, &seen.peer);
    format!(
        "srtt {:.0} us, rate {:.0} Mbit/s, window {}; lost {}, spurious {}, timeouts {}, probes {}, replaced {}, stalls {}",
        peer.srtt.as_micros_f64(),
        mbit(peer.rate as f64),
        peer.window,
        s.lost_packets,
        s.spurious_retransmits,
        s.timeouts,
        s.tail_probes,
        s.paths_replaced,
        s.stalls,
    )
}

/// One of the spines swallows packets: goodput is back soon, and no message notices much.
fn survives(way: Way, drivers: [DriverChoice; 2]) {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    let [from, to] = both(drivers);
    attempt(|| {
        let (seen, detail) = hole::srd(&bed, way, [&from, &to], Load { size: 8192, depth: 32, count: u64::MAX });
        let limit = bound(10 * seen.rtt + Duration::from_millis(5), Duration::from_millis(50));
        let normal = detail.delays_after.quantile(0.5);
        let extra = seen.worst.saturating_sub(normal);
        eprintln!(
            "{drivers:?}, {way:?}: lost {:?}, limit {limit:?} (RTT {:?}); goodput {:.0} -> {:.0} Mbit/s; late {:?}",
            seen.lag,
            seen.rtt,
            mbit(seen.before),
            mbit(seen.after),
            seen.late
        );
        eprintln!("{drivers:?}, {way:?}: before {}", detail.delays_before);
        eprintln!(
            "{drivers:?}, {way:?}: after {}; worst over the median {extra:?}; healed spine used after {:?}",
            detail.delays_after, detail.used_again
        );
        eprintln!("{drivers:?}, {way:?}: each ms {:.0?}", seen.timeline.each(seen.hole - Duration::from_millis(5), 40));
        eprintln!("{drivers:?}, {way:?}: at hole {}", counters(&detail.at_hole));
        eprintln!("{drivers:?}, {way:?}: at heal {}", counters(&detail.at_heal));
        assert_eq!((detail.failed, detail.arrived), (0, detail.sent), "messages failed, and arrived");
        assert!(detail.used_again.is_some_and(|t| t < Duration::from_secs(10)), "the healed spine is used again");
        let mut missed = Vec::new();
        miss(&mut missed, seen.lag <= limit, || format!("lost {:?} of goodput, not {limit:?}", seen.lag));
        // Less than the shortest timeout of TCP.
        miss(&mut missed, extra <= Duration::from_millis(bound(25, 150)), || {
            format!("a message was delayed by {extra:?}")
        });
        (seen.late, missed)
    });
}

#[test]
fn black_hole_both_ways() {
    survives(Way::Both, [Udp, Udp]);
}

#[test]
fn black_hole_over_xdp() {
    survives(Way::Both, [Xdp, Xdp]);
}

#[test]
fn black_hole_between_drivers() {
    survives(Way::Both, [Xdp, Udp]);
}

#[test]
fn black_hole_of_acknowledgements() {
    survives(Way::Acks, [Udp, Udp]);
}

#[test]
fn black_hole_of_acknowledgements_over_xdp() {
    survives(Way::Acks, [Xdp, Xdp]);
}

#[test]
fn tcp_beside_it() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    for way in [Way::Both, Way::Acks] {
        let load = Load { size: 8192, depth: 32, count: u64::MAX };
        let srd = |drivers| {
            let [from, to] = both(drivers);
            (format!("SRD {drivers:?}"), hole::srd(&bed, way, [&from, &to], load).0)
        };
        // Of so many, some take the dead spine.
        let tcp = ("TCP".to_owned(), hole::tcp(&bed, way, 32));
        let srd = [[Udp, Udp], [Xdp, Xdp], [Xdp, Udp]].map(srd);
        assert!(srd.iter().all(|(_, seen)| seen.worst < tcp.1.worst), "a message waited longer than TCP's flows did");
        for (name, seen) in srd.into_iter().chain([tcp]) {
            eprintln!(
                "hole {way:?}, {name}: {:.0} -> {:.0} Mbit/s, lost {:?} of goodput, longest stall of all {:?}, of one {:?}",
                mbit(seen.before),
                mbit(seen.after),
                seen.lag,
                seen.stall,
                seen.worst,
            );
        }
    }
}

/// What arrives between two moments of a long transfer, in bytes per second, and each spine's share of what was sent.
fn measure(bed: &Clos, to: &Node, time: Duration) -> (f64, Vec<f64>) {
    let (start, before) = (Instant::now(), carried_down(bed, 1));
    thread::sleep(time);
    let (end, after) = (Instant::now(), carried_down(bed, 1));
    let carried: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a - b) as f64).collect();
    let fair = carried.iter().sum::<f64>() / SPINES as f64;
    let goodput = Timeline::new(start, &to.take_arrivals()).rate(start, end);
    (goodput, carried.iter().map(|c| c / fair).collect())
}

#[test]
fn random_loss() {
    loses([Udp, Udp]);
}

#[test]
fn random_loss_over_xdp() {
    loses([Xdp, Xdp]);
}

#[test]
fn random_loss_between_drivers() {
    loses([Xdp, Udp]);
}

fn loses(drivers: [DriverChoice; 2]) {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    attempt(|| {
        let watch = Watch::start();
        let start = Instant::now();
        let [from, to] = both(drivers);
        let (from, to) = (Node::start(bed.host(0), from), Node::start(bed.host(1), to));
        from.send(to.addr(), Load { size: 8192, depth: 64, count: u64::MAX });
        let settle = Duration::from_millis(500);
        let time = Duration::from_millis(1500);
        thread::sleep(settle);
        let (clean, _) = measure(&bed, &to, time);

        bed.loss(2, 1, Direction::Down, 5.0).unwrap();
        thread::sleep(settle);
        let before = from.snapshot();
        let (one, shares) = measure(&bed, &to, time);
        let after = from.snapshot();
        eprintln!(
            "{drivers:?}, 5 % loss on spine 2: {:.0} of {:.0} Mbit/s, shares {shares:.2?}, {} lost, {} paths replaced",
            mbit(one),
            mbit(clean),
            after.stats.lost_packets - before.stats.lost_packets,
            after.stats.paths_replaced - before.stats.paths_replaced,
        );

        for spine in 0..SPINES {
            bed.loss(spine, 1, Direction::Down, 1.0).unwrap();
        }
        thread::sleep(settle);
        let (all, _) = measure(&bed, &to, time);
        eprintln!(
            "{drivers:?}, 1 % loss on all spines: {:.0} of {:.0} Mbit/s, {}",
            mbit(all),
            mbit(clean),
            counters(&from.snapshot())
        );
        bed.heal().unwrap();
        let late = lateness(&watch, [&from, &to], start, Instant::now());
        assert!(from.drain(PATIENCE));
        to.assert_sound();
        assert!(from.take_departures().iter().all(|d| d.outcome.is_ok()), "messages failed");
        let mut missed = Vec::new();
        // Whether to take a spine that loses 5 % at its word or to leave it is a matter of taste, and of chance; but its
        // loss must not cost more than the spine.
        let sound = bound(0.75 * 0.95, 0.5) * clean;
        miss(&mut missed, one >= sound, || format!("loss on one spine leaves {:.0} Mbit/s", mbit(one)));
        miss(&mut missed, shares[2] < bound(1.0, 1.2), || {
            format!("the lossy spine carries {:.2} of its share", shares[2])
        });
        miss(&mut missed, all >= bound(0.85, 0.5) * clean, || {
            format!("loss on all spines leaves {:.0} Mbit/s", mbit(all))
        });
        (late, missed)
    });
}

#[test]
fn large_datagrams_vanish() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    let load = Load { size: 8192, depth: 64, count: 2000 };
    for (spines, drivers) in [(1, [Udp, Udp]), (1, [Xdp, Xdp]), (SPINES, [Udp, Udp]), (SPINES, [Xdp, Xdp])] {
        for spine in 0..spines {
            bed.impair(spine, 1, Direction::Down, Traffic::LongerThan(1400), 100.0).unwrap();
        }
        let [from, to] = both(drivers);
        let (from, to) = (Node::start(bed.host(0), from), Node::start(bed.host(1), to));
        let start = Instant::now();
        from.send(to.addr(), load);
        assert!(from.finish(PATIENCE), "the transfer ends: {}", counters(&from.snapshot()));
        let (took, seen) = (start.elapsed(), from.snapshot());
        let departures = from.take_departures();
        let delays = Delays::of(&departures, start, start + took);
        eprintln!(
            "nothing over 1400 bytes on {spines} spines: took {took:?}, datagrams of {} bytes, {delays}",
            seen.peer.datagram
        );
        eprintln!("{}", counters(&seen));
        assert_eq!(departures.iter().filter(|d| d.outcome.is_ok()).count() as u64, load.count);
        assert_eq!(to.take_arrivals().len() as u64, load.count);
        to.assert_sound();
        if spines == SPINES {
            assert!(seen.peer.datagram <= 1372, "datagrams still have {} bytes", seen.peer.datagram);
        }
    }
}

/// What a message from nowhere says about the way counts for nothing, also for connections that begin later.
#[test]
fn claims_about_the_way() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    for drivers in [[Udp, Udp], [Xdp, Xdp]] {
        let [from, to] = both(drivers);
        let (from, to) = (Node::start(bed.host(0), from), Node::start(bed.host(1), to));
        bed.host(1).claim_too_long(from.addr(), to.addr(), 600).unwrap();
        assert!(bed.host(0).learns_about(to.addr().ip()).unwrap(), "the kernel believes it");
        from.send(to.addr(), Load { size: 8192, depth: 16, count: 200 });
        assert!(from.finish(PATIENCE), "the transfer ends: {}", counters(&from.snapshot()));
        assert_eq!(from.snapshot().peer.datagram, 1472, "{drivers:?}");
        to.assert_sound();
    }
}

/// Routers whose next cable carries less say so; whether they do or not, the sender finds out.
#[test]
fn narrow_cables() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    for spine in 0..SPINES {
        let leaf = format!("srdbed-{}-l0", bed.id());
        let set = ["-n", &leaf, "link", "set", &format!("s{spine}"), "mtu", "1430"];
        assert!(Command::new("ip").args(set).status().unwrap().success());
    }
    let load = Load { size: 8192, depth: 64, count: 2000 };
    for drivers in [[Udp, Udp], [Xdp, Xdp]] {
        // The second time, the kernel has heard of it.
        for _ in 0..2 {
            let [from, to] = both(drivers);
            let (from, to) = (Node::start(bed.host(0), from), Node::start(bed.host(1), to));
            let start = Instant::now();
            from.send(to.addr(), load);
            assert!(from.finish(PATIENCE), "the transfer ends: {}", counters(&from.snapshot()));
            let seen = from.snapshot();
            eprintln!("cables for 1430 bytes, {drivers:?}: {:?}, {}", start.elapsed(), counters(&seen));
            assert_eq!(seen.peer.datagram, 1400, "{drivers:?}");
            to.assert_sound();
        }
    }
}

#[test]
fn peer_dies() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    DRIVERS.into_iter().for_each(|drivers| dies(&bed, drivers));
}

fn dies(bed: &Clos, drivers: [DriverChoice; 2]) {
    let peer_timeout = Duration::from_secs(1);
    let [mut mortal, other] = both(drivers);
    mortal.protocol.peer_timeout = Span::from_nanos(peer_timeout.as_nanos() as u64);
    let (from, to) = (Node::start(bed.host(0), mortal), Node::start(bed.host(1), other));
    from.send(to.addr(), Load { size: 8192, depth: 64, count: u64::MAX });
    thread::sleep(Duration::from_millis(300));
    let killed = Instant::now();
    to.kill();
    assert!(from.drain(PATIENCE), "messages to the dead end");
    let fates = from.take_departures();
    let failures: Vec<_> = fates.iter().filter_map(|d| Some((d.outcome.err()?, d.completed))).collect();
    let last = failures.iter().map(|(_, at)| at.saturating_duration_since(killed)).max();
    eprintln!("{drivers:?}: peer died: {} messages failed, the last after {last:?}", failures.len());
    assert!(!failures.is_empty() && failures.len() <= 64);
    for (why, at) in failures {
        assert_eq!(why, Failure::Unresponsive);
        let after = at.saturating_duration_since(killed);
        assert!(after <= bound(2, 5) * peer_timeout, "a message failed after {after:?}, the limit is {peer_timeout:?}");
    }
}

#[test]
fn peer_restarts() {
    let Some((_turn, bed)) = stage(fabric()) else { return };
    DRIVERS.into_iter().for_each(|drivers| restarts(&bed, drivers));
}

fn restarts(bed: &Clos, drivers: [DriverChoice; 2]) {
    let [here, there] = both(drivers);
    let (from, to) = (Node::start(bed.host(0), here), Node::start(bed.host(1), there.clone()));
    let addr = to.addr();
    from.send(addr, Load { size: 8192, depth: 64, count: u64::MAX });
    thread::sleep(Duration::from_millis(300));
    to.kill();
    from.stop();
    let to = Node::start(bed.host(1), Setup { port: addr.port(), ..there });
    let restarted = Instant::now();
    assert!(from.finish(PATIENCE), "messages to the dead end");
    let fates = from.take_departures();
    let failures: Vec<_> = fates.iter().filter_map(|d| Some((d.outcome.err()?, d.completed))).collect();
    let last = failures.iter().map(|(_, at)| at.saturating_duration_since(restarted)).max();
    eprintln!("{drivers:?}: peer restarted: {} messages failed, the last after {last:?}", failures.len());
    assert!(!failures.is_empty() && failures.len() <= 64);
    assert!(failures.iter().all(|(why, _)| *why == Failure::PeerRestarted), "{failures:?}");
    // It answers the next probe, and these are at most `rto_max` apart.
    let limit = Duration::from(setup(1).protocol.rto_max) + Duration::from_millis(bound(100, 1_000));
    assert!(last.is_some_and(|t| t <= limit), "the last message failed after {last:?}, not {limit:?}");

    from.send(addr, Load { size: 8192, depth: 64, count: 500 });
    assert!(from.finish(PATIENCE), "messages to the restarted peer arrive");
    assert!(from.take_departures().iter().all(|d| d.outcome.is_ok()));
    assert_eq!(to.take_arrivals().len(), 500, "nothing of the former life arrives");
    to.assert_sound();
}

#[test]
fn incast() {
    gather(Udp, |_| Udp);
}

#[test]
fn incast_over_xdp() {
    gather(Xdp, |_| Xdp);
}

#[test]
fn incast_between_drivers() {
    gather(Xdp, |sender| if sender % 2 == 0 { Udp } else { Xdp });
}

/// Several senders to one receiver: its driver, and theirs.
fn gather(receiver: DriverChoice, driver: impl Fn(usize) -> DriverChoice) {
    const SENDERS: usize = 4;
    let settings = Clos::builder().hosts_per_leaf(SENDERS).host_rate(Rate::mbit(200)).queue_bytes(64 << 10);
    let Some((_turn, bed)) = stage(settings) else { return };
    attempt(|| {
        let watch = Watch::start();
        let to = Node::start(bed.host(SENDERS), Setup { driver: receiver, ..setup(100) });
        let start = |h| Node::start(bed.host(h), Setup { driver: driver(h), ..setup(h as u16) });
        let senders: Vec<Node> = (0..SENDERS).map(start).collect();
        let drops = bed.host_stats(SENDERS, Direction::Down).unwrap();
        for sender in &senders {
            sender.send(to.addr(), Load { size: 8192, depth: 32, count: u64::MAX });
        }
        thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        thread::sleep(Duration::from_secs(3));
        let end = Instant::now();
        let late = lateness(&watch, senders.iter().chain([&to]), start, end);
        for sender in &senders {
            assert!(sender.drain(PATIENCE), "messages end");
        }
        let after = bed.host_stats(SENDERS, Direction::Down).unwrap();
        to.assert_sound();
        let arrivals = to.take_arrivals();
        let share = |name: usize| -> f64 {
            let its: Vec<Arrival> = arrivals.iter().filter(|a| usize::from(a.from) == name).copied().collect();
            Timeline::new(start, &its).rate(start, end)
        };
        let shares: Vec<f64> = (0..SENDERS).map(share).collect();
        let total: f64 = shares.iter().sum();
        let jain = total * total / (SENDERS as f64 * shares.iter().map(|s| s * s).sum::<f64>());
        let (packets, overflow) = (after.packets - drops.packets, after.overflow - drops.overflow);
        let mbits: Vec<f64> = shares.iter().map(|s| mbit(*s)).collect();
        eprintln!(
            "incast to {receiver:?}: {mbits:.0?} Mbit/s, Jain {jain:.3}, {overflow} of {packets} packets dropped, late {late:?}"
        );
        let mut missed = Vec::new();
        let mut timeouts = 0;
        for sender in &senders {
            let seen = sender.snapshot();
            let departures = sender.take_departures();
            eprintln!("incast: {} {}", counters(&seen), Delays::of(&departures, start, end));
            timeouts += seen.stats.timeouts;
            assert!(departures.iter().all(|d| d.outcome.is_ok()), "messages failed");
        }
        miss(&mut missed, jain >= bound(0.95, 0.8), || format!("Jain's index is {jain:.3}"));
        miss(&mut missed, timeouts <= bound(50, 500), || format!("{timeouts} timeouts"));
        miss(&mut missed, overflow as f64 <= bound(0.02, 0.2) * packets as f64, || {
            format!("{overflow} of {packets} packets dropped")
        });
        (late, missed)
    });
}
