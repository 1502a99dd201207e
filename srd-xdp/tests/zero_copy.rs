//! Zero copy, where two NICs have it: the device reads and writes packets in our memory, at its own pace.

mod common;

use std::net::SocketAddr;

use common::{Memory, PATIENCE, Side, add, bed, meet, options, udp_options, xdp_at};
use srd_core::{Driver as _, Span, TxBatch};
use srd_xdp::{AnyDriver, DriverChoice, OpenError, WaitMode, XdpDriver, XdpOptions, ZeroCopy};
use testbed::{Family, Pair};

/// A pair of hosts with NICs.
fn nics(mtu: u32) -> Option<Pair> {
    let bed = bed(Pair::builder().mtu(mtu))?;
    if bed.is_virtual() {
        eprintln!("skipped: virtual cables have no zero copy; SRD_TESTBED_NICS names no NICs (see './x vm')");
    }
    Some(bed).filter(|bed| !bed.is_virtual())
}

fn required() -> XdpOptions {
    XdpOptions { zero_copy: ZeroCopy::Require, ..options() }
}

fn at(bed: &Pair, host: usize, options: XdpOptions) -> Side<XdpDriver> {
    xdp_at(bed.host(host), (bed.host(host).addr(), 0).into(), options)
}

/// Sends `count` datagrams of 1,000 bytes, and returns them.
fn flood(from: &mut Side<XdpDriver>, to: SocketAddr, count: usize) -> Vec<Vec<u8>> {
    let mem = Memory::new(50_000);
    let mut sent = Vec::new();
    while sent.len() < count {
        let mut batch = TxBatch::new();
        let more = 50.min(count - sent.len());
        sent.extend(add(&mut batch, &mem, to, 0, 1000, 1000 * more, 16));
        from.send(&batch, &mem);
    }
    sent
}

fn exchange(from: &mut Side<XdpDriver>, by: &mut Side<XdpDriver>, to: SocketAddr) {
    let sent = flood(from, to, 100);
    let got: Vec<_> = by.receive_until(100, PATIENCE).into_iter().map(|(_, bytes)| bytes).collect();
    assert!(got == sent, "{} arrive: {:?} {:?}", got.len(), from.stats(), by.stats());
}

#[test]
fn datagrams_arrive_as_they_were_sent() {
    let Some(bed) = nics(1500) else { return };
    for family in [Family::V4, Family::V6] {
        let side = |host: usize| xdp_at(bed.host(host), SocketAddr::new(bed.host(host).ip(family), 0), required());
        let (mut a, mut b) = (side(0), side(1));
        for info in [a.driver.info(), b.driver.info()] {
            assert!(info.zero_copy && !info.checksum_offload && info.to_string().contains(", zero copy, "), "{info}");
        }
        meet(&mut a, &mut b);
        let (to_a, to_b, before) = (a.addr(), b.addr(), b.stats());
        for _ in 0..20 {
            exchange(&mut a, &mut b, to_b);
            exchange(&mut b, &mut a, to_a);
        }
        let after = b.stats();
        let moved = (after.tx_datagrams - before.tx_datagrams, after.rx_datagrams - before.rx_datagrams);
        assert_eq!((moved, after.tx_dropped, after.rx_bad_checksums), ((2000, 2000), 0, 0), "{after:?}");
    }
}

#[test]
fn auto_takes_it() {
    let Some(bed) = nics(1500) else { return };
    let addr = (bed.host(0).addr(), 0).into();
    let opened = bed.host(0).enter(|| AnyDriver::open(DriverChoice::Auto, addr, options())).expect("a host");
    let (driver, why) = opened.expect("a driver");
    assert!(driver.name() == "xdp" && why.is_none(), "{why:?}");
}

#[test]
fn a_reader_that_was_away_goes_on() {
    let Some(bed) = nics(1500) else { return };
    for wait in [WaitMode::Sleep, WaitMode::Spin] {
        let udp = srd_xdp::UdpOptions { wait, ..udp_options() };
        let (mut a, mut b) = (at(&bed, 0, required()), at(&bed, 1, XdpOptions { frames: 256, udp, ..required() }));
        meet(&mut a, &mut b);
        for round in 0..3 {
            // More than it has frames for: the device has none left to receive into.
            flood(&mut a, b.addr(), 2000);
            while !b.receive_until(64, Span::from_millis(50)).is_empty() {}
            for _ in 0..50 {
                a.say(b.addr(), "are you there");
                assert_eq!(b.receive(1)[0].1, b"are you there", "{wait:?}, round {round}: {:?}", b.stats());
            }
        }
    }
}

#[test]
fn closed_while_the_device_has_frames() {
    let Some(bed) = nics(1500) else { return };
    for round in 0..8 {
        let (mut a, mut b) = (at(&bed, 0, required()), at(&bed, 1, required()));
        meet(&mut a, &mut b);
        flood(&mut a, b.addr(), 500);
        // While some are to be sent, and some are on their way in.
        if round % 2 == 0 {
            drop(a);
            b.receive_until(100, Span::from_millis(5));
        } else {
            drop(b);
            a.receive_until(1, Span::from_millis(5));
        }
    }
}

#[test]
fn with_an_mtu_above_a_frame_long_datagrams_take_another_way() {
    let Some(bed) = nics(9000) else { return };
    let addr = |host: usize| (bed.host(host).addr(), 0).into();
    let a = bed.host(0).enter(|| XdpDriver::open(addr(0), required())).expect("a host");
    match a {
        // Its driver, or the kernel, has it for datagrams that fit a frame only.
        Err(e) => assert!(matches!(e, OpenError::NoZeroCopy { .. }), "{e:?}"),
        Ok(driver) => {
            assert!(driver.info().zero_copy, "{}", driver.info());
            drop(driver);
            let (mut a, mut b) = (at(&bed, 0, required()), at(&bed, 1, required()));
            meet(&mut a, &mut b);
            let to = b.addr();
            let limit = usize::from(bed.host(0).enter(|| a.driver.max_datagram(to)).expect("a host"));
            let mem = Memory::new(40_000);
            for segment in [500, limit, 8900] {
                let mut batch = TxBatch::new();
                let sent = add(&mut batch, &mem, to, 0, segment, 4 * segment, 16);
                a.send(&batch, &mem);
                let got: Vec<_> = b.receive(sent.len()).into_iter().map(|(_, bytes)| bytes).collect();
                assert!(got == sent, "datagrams of {segment} bytes: {:?}", b.stats());
            }
        }
    }
}
