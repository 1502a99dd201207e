//! Datagrams arrive as they were sent, between drivers of both kinds.

mod common;

use common::{Memory, Side, add, bed, meet, options, udp, xdp, xdp_at};
use srd_core::{Driver, Ecn, SourcePort, TxBatch};
use srd_xdp::{Attach, XdpDriver, XdpOptions};
use testbed::{Family, Pair};

/// Segment, length, bytes of each datagram in the batch itself.
type Shape = (usize, usize, usize);

const SMALL: [Shape; 8] = [
    (1, 1, 0),
    (64, 64, 64),
    (64, 64 * 64 + 1, 32),
    (33, 33 * 20, 7),
    (1400, 1400, 20),
    (1400, 64_400, 48),
    (1400, 4201, 48),
    (1452, 14_520, 1452),
];
const JUMBO: [Shape; 6] = [
    (3400, 34_000, 64),
    (3700, 37_000, 64),
    (4050, 40_500, 0),
    (8100, 64_800, 33),
    (8952, 62_664, 64),
    (8952, 60_000, 8952),
];

/// Sends bursts of all shapes from `a` to `b` and compares bytes and boundaries. Returns the number of datagrams.
fn exchange<A: Driver + Send, B: Driver + Send>(a: &mut Side<A>, b: &mut Side<B>, shapes: &[Shape]) -> u64 {
    let mut count = 0;
    for piece in [65_000, 111] {
        let mem = Memory { piece, ..Memory::new(65_000) };
        let mut batch = TxBatch::new();
        for (i, &(segment, len, header)) in shapes.iter().enumerate() {
            batch.clear();
            let sent = add(&mut batch, &mem, b.addr(), i as u16, segment, len, header);
            a.send(&batch, &mem);
            let mut got: Vec<Vec<u8>> = Vec::new();
            for _ in 0..3000 {
                let more = b.receive_until(sent.len() - got.len(), srd_core::Span::from_millis(20));
                got.extend(more.into_iter().map(|(_, bytes)| bytes));
                if got.len() == sent.len() {
                    break;
                }
                // What the device had no room for goes in the sender's next turn.
                assert!(a.receive_until(1, srd_core::Span::from_millis(1)).is_empty());
            }
            assert!(
                got == sent,
                "{} of a burst of {len} bytes in datagrams of {segment}, pieces of {piece}",
                got.len()
            );
            count += sent.len() as u64;
        }
    }
    count
}

#[test]
fn both_by_af_xdp() {
    for family in [Family::V4, Family::V6] {
        let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
        let (mut a, mut b) = (xdp(bed.host(0), family), xdp(bed.host(1), family));
        meet(&mut a, &mut b);
        let (before_a, before_b) = (a.stats(), b.stats());
        let sent = exchange(&mut a, &mut b, &SMALL);
        assert_eq!(a.stats().tx_fallbacks, before_a.tx_fallbacks, "all by AF_XDP");
        assert_eq!(a.stats().tx_datagrams - before_a.tx_datagrams, sent);
        assert_eq!(b.stats().rx_datagrams - before_b.rx_datagrams, sent);
        assert_eq!(b.stats().udp.rx_datagrams, before_b.udp.rx_datagrams);
    }
}

#[test]
fn jumbo_datagrams_span_frames() {
    for family in [Family::V4, Family::V6] {
        let Some(bed) = bed(Pair::builder().mtu(9000)) else { return };
        let (mut a, mut b) = (xdp(bed.host(0), family), xdp(bed.host(1), family));
        assert_eq!(a.driver.info().multi_buffer, kernel() >= (6, 6), "{:?}", a.driver.info());
        if !a.driver.info().multi_buffer {
            continue;
        }
        let max =
            |side: &mut Side<XdpDriver>, to| side.host.clone().enter(|| side.driver.max_datagram(to)).expect("a host");
        assert_eq!(max(&mut a, b.addr()), if family == Family::V4 { 8972 } else { 8952 });
        meet(&mut a, &mut b);
        let before = a.stats();
        let sent = exchange(&mut a, &mut b, &JUMBO) + exchange(&mut a, &mut b, &SMALL);
        assert_eq!(a.stats().tx_datagrams - before.tx_datagrams, sent, "{:?}", a.stats());
    }
}

#[test]
fn without_jumbo_long_datagrams_go_through_the_kernel() {
    let Some(bed) = bed(Pair::builder().mtu(9000)) else { return };
    let addr = |i: usize| (bed.host(i).addr(), 0).into();
    let mut a = xdp_at(bed.host(0), addr(0), srd_xdp::XdpOptions { jumbo: false, ..options() });
    let mut b = xdp_at(bed.host(1), addr(1), srd_xdp::XdpOptions { jumbo: false, ..options() });
    assert!(!a.driver.info().multi_buffer);
    assert!(a.driver.max_datagram(b.addr()) < 4096);
    meet(&mut a, &mut b);
    let before = b.stats();
    exchange(&mut a, &mut b, &JUMBO);
    let after = b.stats();
    assert!(after.udp.rx_datagrams > before.udp.rx_datagrams && after.rx_datagrams > before.rx_datagrams, "{after:?}");
    assert_eq!(after.rx_too_long, 0);
}

#[test]
fn mixed_with_kernel_udp() {
    for (family, offload) in [(Family::V4, true), (Family::V6, true), (Family::V4, false), (Family::V6, false)] {
        let Some(bed) = bed(Pair::builder().mtu(1500).offload(offload)) else { return };
        let (mut a, mut b) = (xdp(bed.host(0), family), udp(bed.host(1), family));
        meet(&mut a, &mut b);
        let before = a.stats();
        let there = exchange(&mut a, &mut b, &SMALL);
        let back = exchange(&mut b, &mut a, &SMALL);
        let after = a.stats();
        assert_eq!(after.tx_datagrams - before.tx_datagrams, there);
        assert_eq!(after.rx_datagrams - before.rx_datagrams, back, "{after:?}");
        // The kernel leaves checksums to the device's hardware, unless the cable carries real frames.
        let partial = after.rx_partial_checksums - before.rx_partial_checksums;
        assert_eq!(partial > 0, offload && bed.is_virtual(), "{partial} of {back} partial");
        assert_eq!(after.rx_bad_checksums, 0);
    }
}

#[test]
fn what_the_network_says_about_a_datagram() {
    for family in [Family::V4, Family::V6] {
        let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
        let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
        let any: std::net::SocketAddr = any.parse().expect("an address");
        let mut a = xdp(bed.host(0), family);
        let mut b = xdp_at(bed.host(1), any, options());
        let to = (bed.host(1).ip(family), b.addr().port()).into();
        a.say(to, "resolve");
        b.receive(1);
        a.receive_until(1, srd_core::Span::from_millis(5));
        let before = b.stats().rx_datagrams;
        for (ect, ecn) in [(true, Ecn::Ect), (false, Ecn::NotEct)] {
            let mut batch = TxBatch::new();
            let mut burst = batch.burst(to, SourcePort(3), 10).ect(ect);
            burst.inline(b"0123456789");
            burst.finish();
            a.send(&batch, &Memory::new(0));
            // However late it is read, it arrived when it did.
            b.await_arrival();
            let late = std::time::Duration::from_millis(20);
            std::thread::sleep(late);
            let (meta, bytes) = b.receive(1).remove(0);
            assert!(std::time::Duration::from(b.driver.now().since(meta.at)) >= late, "stamped by the program");
            assert_eq!((meta.ecn, &bytes[..]), (ecn, &b"0123456789"[..]));
            let port = a.driver.port_number(SourcePort(3)).expect("used");
            assert_eq!(meta.from, (bed.host(0).ip(family), port).into());
            assert_eq!(meta.to, Some(bed.host(1).ip(family)));
            assert!(meta.at <= b.driver.now());
        }
        assert_eq!(b.stats().rx_datagrams - before, 2, "both by AF_XDP");
    }
}

#[test]
fn a_spinning_loop_that_was_away_learns_when_datagrams_arrived() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let mut a = xdp(bed.host(0), Family::V4);
    let udp = srd_xdp::UdpOptions { wait: srd_xdp::WaitMode::Spin, ..common::udp_options() };
    let mut b = xdp_at(bed.host(1), (bed.host(1).addr(), 0).into(), XdpOptions { udp, ..options() });
    meet(&mut a, &mut b);
    let to = b.addr();
    let away = std::time::Duration::from_millis(20);
    for _ in 0..3 {
        // It has been prompt for long enough to need no stamps, if the machine lets it.
        assert!(b.receive_until(1, srd_core::Span::from_millis(30)).is_empty());
        std::thread::sleep(away);
        a.say(to, "it is noticed here that the loop was away");
        b.await_arrival();
        b.receive(1);
        a.say(to, "so this one is stamped");
        b.await_arrival();
        std::thread::sleep(away);
        let (meta, _) = b.receive(1).remove(0);
        assert!(std::time::Duration::from(b.driver.now().since(meta.at)) >= away, "stamped by the program");
    }
}

/// Stamps are made by the host's clock, from which that of a time namespace differs.
#[test]
fn and_so_it_does_in_a_time_namespace() {
    if !testbed::runs_here() {
        return;
    }
    let inside = |program: &std::ffi::OsStr| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--time", "--monotonic", "100000", "--fork"]).arg(program);
        command.args(["--exact", "a_spinning_loop_that_was_away_learns_when_datagrams_arrived"]);
        command.output().expect("unshare starts")
    };
    if !inside("true".as_ref()).status.success() {
        eprintln!("skipped: this kernel has no time namespaces (CONFIG_TIME_NS)");
        return;
    }
    let out = inside(std::env::current_exe().expect("this program").as_os_str());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn nothing_arrives_before_it_was_sent() {
    for wait in [srd_xdp::WaitMode::Sleep, srd_xdp::WaitMode::Spin] {
        let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
        let mut a = xdp(bed.host(0), Family::V4);
        let udp = srd_xdp::UdpOptions { wait, ..common::udp_options() };
        let mut b = xdp_at(bed.host(1), (bed.host(1).addr(), 0).into(), XdpOptions { udp, ..options() });
        meet(&mut a, &mut b);
        let to = b.addr();
        for _ in 0..20 {
            // As an engine that reads the clock, and then is kept from reading what has arrived.
            let began = b.driver.now();
            let away = std::time::Duration::from_millis(2);
            std::thread::sleep(away);
            a.say(to, "sent after a while");
            let mut arrived = None;
            b.driver.recv(&mut |meta, _| arrived = Some(meta.at)).expect("receive");
            let at = arrived.unwrap_or_else(|| b.receive(1)[0].0.at);
            assert!(
                std::time::Duration::from(at.since(began)) >= away,
                "{wait:?}: arrived {:?} later",
                at.since(began)
            );
        }
    }
}

#[test]
fn loopback_goes_through_the_kernel() {
    let Some(bed) = bed(Pair::builder()) else { return };
    let mut a = xdp(bed.host(0), Family::V4);
    let me = a.addr();
    a.say(me, "to myself");
    assert_eq!(a.receive(1)[0].1, b"to myself");
    assert_eq!((a.stats().tx_datagrams, a.stats().tx_fallbacks), (0, 1));
}

#[test]
fn bursts_longer_than_the_ring() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let few = |host: usize, frames| {
        let options = srd_xdp::XdpOptions { frames, ..options() };
        xdp_at(bed.host(host), (bed.host(host).addr(), 0).into(), options)
    };
    let (mut a, mut b) = (few(0, 64), few(1, 4096));
    meet(&mut a, &mut b);
    let mem = Memory::new(65_000);
    let mut batch = TxBatch::new();
    let mut sent = Vec::new();
    for port in 0..30 {
        sent.extend(add(&mut batch, &mem, b.addr(), port, 1000, 65_000, 24));
    }
    a.send(&batch, &mem);
    let got = b.receive_until(sent.len(), common::PATIENCE);
    let got: Vec<_> = got.into_iter().map(|(_, bytes)| bytes).collect();
    assert!(got == sent, "{} of {}: {:?} {:?}", got.len(), sent.len(), a.stats(), b.stats());
    let stats = a.stats();
    assert!(stats.tx_datagrams >= sent.len() as u64 && stats.tx_dropped == 0, "{stats:?}");
}

/// The kernel counts what finds no frame among what is too long, too.
#[test]
fn what_is_dropped_is_counted_once() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let mut a = xdp(bed.host(0), Family::V4);
    let mut b = xdp_at(bed.host(1), (bed.host(1).addr(), 0).into(), XdpOptions { frames: 64, ..options() });
    meet(&mut a, &mut b);
    let (mem, mut batch) = (Memory::new(20_000), TxBatch::new());
    let sent = add(&mut batch, &mem, b.addr(), 0, 100, 20_000, 8).len();
    a.send(&batch, &mem);
    // Nobody has read meanwhile.
    let mut got = 0;
    for _ in 0..6000 {
        got += b.receive_until(sent, srd_core::Span::from_millis(10)).len();
        if got as u64 + b.stats().rx_queue_drops >= sent as u64 {
            break;
        }
    }
    let stats = b.stats();
    assert_eq!(got as u64 + stats.rx_queue_drops, sent as u64, "{stats:?}");
    assert_eq!(stats.rx_too_long, 0, "{stats:?}");
    // Devices with zero copy wait for a frame.
    assert!(stats.rx_queue_drops > 0 || !bed.is_virtual(), "{stats:?}");
}

#[test]
fn steady_state_allocates_nothing() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), xdp(bed.host(1), Family::V4));
    meet(&mut a, &mut b);
    let mem = Memory::new(60_000);
    let (mut bulk, mut small) = (TxBatch::new(), TxBatch::new());
    add(&mut bulk, &mem, b.addr(), 0, 1400, 60_000, 40);
    add(&mut small, &mem, b.addr(), 1, 64, 640, 40);
    // Opens the sockets behind the source ports.
    a.send(&bulk, &mem);
    a.send(&small, &mem);
    b.receive(53);
    let (a, b) = (&mut a.driver, &mut b.driver);
    let mut round = || {
        for (batch, datagrams) in [(&bulk, 43), (&small, 10)] {
            a.send(batch, &mem).expect("send");
            let mut count = 0;
            while count < datagrams {
                b.now();
                count += b.recv(&mut |_, _| {}).expect("receive");
            }
        }
    };
    round();
    // The kernel may have news of the network in some of them.
    let allocates = (0..100).filter(|_| allocation_counter::measure(&mut round).count_total > 0).count();
    assert!(allocates <= 10, "{allocates} of 100 rounds allocate");
}

/// Major and minor number of the kernel that runs.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().expect("a number"));
    (numbers.next().expect("major"), numbers.next().expect("minor"))
}

#[test]
fn checksums_are_completed_by_whom_it_may_concern() {
    for cable in [true, false] {
        let Some(bed) = bed(Pair::builder().mtu(1500).offload(cable)) else { return };
        let (mut a, mut b) = (xdp(bed.host(0), Family::V4), xdp(bed.host(1), Family::V4));
        // As old kernels refuse the metadata, and NICs may ignore them.
        let asked = kernel() >= (6, 11) && !a.driver.info().zero_copy;
        assert_eq!(a.driver.info().checksum_offload, asked, "Linux {:?}: {:?}", kernel(), a.driver.info());
        meet(&mut a, &mut b);
        let before = b.stats();
        let sent = exchange(&mut a, &mut b, &SMALL);
        let after = b.stats();
        assert_eq!(after.rx_datagrams - before.rx_datagrams, sent, "whoever did it did it right");
        // A cable with offload leaves them as they are; without, the kernel completes what the driver leaves to it.
        let partial = after.rx_partial_checksums - before.rx_partial_checksums;
        match (asked, cable && bed.is_virtual()) {
            (true, true) => assert_eq!(partial, sent, "completed by nobody, as nobody had to"),
            (true, false) => assert_eq!(partial, 0, "completed by the kernel"),
            (false, _) => assert_eq!(partial, 0, "completed by the driver"),
        }
    }
}

#[test]
fn with_a_generic_program_and_with_busy_polling() {
    let variants = [
        XdpOptions { attach: Attach::Generic, ..options() },
        XdpOptions { busy_poll_us: Some(20), ..options() },
        XdpOptions { frames: 64, ..options() },
    ];
    for options in variants {
        // Without offload the other end's kernel sends single datagrams.
        let Some(bed) = bed(Pair::builder().mtu(1500).offload(false)) else { return };
        let mut a = xdp_at(bed.host(0), (bed.host(0).addr(), 0).into(), options);
        let mut b = udp(bed.host(1), Family::V4);
        let generic = bed.host(0).command("ip").args(["link", "show", "dev", "eth0"]).output().expect("ip");
        let generic = String::from_utf8_lossy(&generic.stdout).contains("xdpgeneric");
        assert!(!(generic && a.driver.info().zero_copy), "no device writes past a program behind its driver");
        meet(&mut a, &mut b);
        let before = a.stats();
        let few: Vec<Shape> = SMALL.into_iter().filter(|(segment, len, _)| len / segment < 32).collect();
        let (sent, got) = (exchange(&mut a, &mut b, &few), exchange(&mut b, &mut a, &few));
        assert_eq!(a.stats().tx_datagrams - before.tx_datagrams, sent);
        assert_eq!(a.stats().rx_datagrams - before.rx_datagrams, got);
    }
}
