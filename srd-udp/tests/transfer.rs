//! Datagrams arrive as they were sent, however the kernel carries them.

mod common;

use common::{Memory, add, driver, loopbacks, pair, receive, sorted};
use srd_core::{Driver, TxBatch};
use srd_udp::{Offload, UdpDriver, UdpStats, WaitMode};

/// Sends bursts of all shapes from `a` to `b` and compares bytes and boundaries. Returns the sender's counters.
fn exchange(a: &mut UdpDriver, b: &mut UdpDriver) -> UdpStats {
    let mem = Memory::new(65_000);
    let shapes = [
        (1, 1, 0),
        (64, 64, 64),
        (64, 64 * 64, 32),
        (64, 64 * 64 + 1, 32),
        (1400, 1400, 20),
        (1400, 64_400, 48),
        (1400, 4201, 48),
        (8972, 62_804, 64),
        (8972, 60_000, 8972),
        (65_000, 65_000, 40),
        (100, 40_000, 0),
    ];
    let mut batch = TxBatch::new();
    for (i, (segment, len, header)) in shapes.into_iter().enumerate() {
        batch.clear();
        let sent = add(&mut batch, &mem, b.local_addr(), i as u16, segment, len, header);
        a.send(&batch, &mem).unwrap();
        let got = receive(b, sent.len()).into_iter().map(|(_, bytes)| bytes);
        assert!(got.eq(sent), "burst of {len} bytes in datagrams of {segment}");
    }
    a.stats()
}

/// Number of datagrams that `exchange` sends, and how many of them stand alone.
const DATAGRAMS: u64 = 1 + 1 + 64 + 65 + 1 + 46 + 4 + 7 + 7 + 1 + 400;
const ALONE: u64 = 5;

#[test]
fn offload_keeps_bytes_and_boundaries() {
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        let stats = exchange(&mut a, &mut b);
        // The last of 65 segments may go alone, if the kernel takes 64.
        assert!(
            (ALONE..=ALONE + 1).contains(&(stats.singles + stats.gso_datagrams - (DATAGRAMS - ALONE))),
            "{stats:?}"
        );
        assert_eq!(stats.gso_datagrams + stats.singles, DATAGRAMS, "{stats:?}");
        assert!(stats.gso_bursts >= 6, "{stats:?}");
        assert_eq!(stats.gso_fallbacks, 0);
        assert!(b.stats().rx_buffers < DATAGRAMS / 4, "GRO coalesces: {:?}", b.stats());
        assert_eq!(b.stats().rx_datagrams, DATAGRAMS);
    }
}

#[test]
fn what_is_short_leaves_with_a_burst_that_has_no_room_for_more() {
    const SEGMENT: usize = 8940;
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        let (mem, mut batch) = (Memory::new(65_000), TxBatch::new());
        // An acknowledgement after as many full datagrams as a call takes.
        let sent = add(&mut batch, &mem, b.local_addr(), 0, SEGMENT, 7 * SEGMENT + 36, 36);
        a.send(&batch, &mem).unwrap();
        assert!(receive(&mut b, sent.len()).into_iter().map(|(_, bytes)| bytes).eq(sent));
        let stats = a.stats();
        assert_eq!((stats.gso_bursts, stats.gso_datagrams, stats.singles), (1, 8, 0), "{stats:?}");
    }
}

#[test]
fn coalescing_stops_for_lone_datagrams_and_comes_back_for_crowds() {
    for addr in loopbacks() {
        let (mut a, mut b) = (driver(addr, |_| {}), driver(addr, |o| o.wait = WaitMode::Spin));
        let mem = Memory::new(8000);
        // Returns the number of buffers that it took.
        let mut send = |len: usize| {
            let before = b.stats().rx_buffers;
            let mut batch = TxBatch::new();
            let sent = add(&mut batch, &mem, b.local_addr(), 0, 1000, len, 8);
            a.send(&batch, &mem).unwrap();
            let got: Vec<_> = receive(&mut b, sent.len()).into_iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(got, sent);
            // The driver notices that nothing follows.
            assert_eq!(b.recv(&mut |_, _| panic!("only what was sent")).unwrap(), 0);
            b.stats().rx_buffers - before
        };
        assert_eq!(send(8000), 1);
        for _ in 0..100 {
            assert_eq!(send(1000), 1);
        }
        assert_eq!([send(8000), send(8000)], [8, 1], "one by one, then coalesced again");
    }
}

#[test]
fn offload_off_on_either_side() {
    for addr in loopbacks() {
        let mut a = driver(addr, |o| o.gso = Offload::Off);
        let mut b = driver(addr, |o| o.gro = Offload::Off);
        let stats = exchange(&mut a, &mut b);
        assert_eq!((stats.gso_bursts, stats.singles), (0, DATAGRAMS), "{stats:?}");
        assert_eq!(a.info().gso_segments, None);
        assert_eq!(b.stats().rx_buffers, DATAGRAMS);
        let (mut a, mut b) = (driver(addr, |_| {}), driver(addr, |o| o.gro = Offload::Off));
        exchange(&mut a, &mut b);
    }
}

#[test]
fn offload_refused_by_the_device() {
    for addr in loopbacks() {
        let (mut a, mut b) = (driver(addr, |o| o.pretend_gso_eio = true), driver(addr, |_| {}));
        assert!(a.info().gso_segments.is_some());
        let stats = exchange(&mut a, &mut b);
        assert_eq!(stats.gso_fallbacks, 1, "refused once, then remembered: {stats:?}");
        assert_eq!((stats.gso_bursts, stats.singles), (0, DATAGRAMS), "{stats:?}");
        assert_eq!(a.info().gso_segments, None);
    }
}

#[test]
fn batch_of_many_bursts_and_ports() {
    let [addr, _] = loopbacks();
    let (mut a, mut b) = pair(addr);
    let mem = Memory::new(20_000);
    let mut batch = TxBatch::new();
    let mut sent = Vec::new();
    for port in 0..20 {
        sent.extend(add(&mut batch, &mem, b.local_addr(), port, 1000 + usize::from(port), 20_000, 24));
    }
    a.send(&batch, &mem).unwrap();
    let got = receive(&mut b, sent.len());
    assert_eq!(sorted(got.into_iter().map(|(_, bytes)| bytes)), sorted(sent));
}

#[test]
fn burst_in_more_pieces_than_the_kernel_takes() {
    for (gso, piece) in [(Offload::Auto, 7), (Offload::Auto, 1), (Offload::Off, 7)] {
        let [addr, _] = loopbacks();
        let (mut a, mut b) = (driver(addr, |o| o.gso = gso), driver(addr, |_| {}));
        let mem = Memory { piece, ..Memory::new(16_000) };
        let mut batch = TxBatch::new();
        let mut sent = add(&mut batch, &mem, b.local_addr(), 0, 1000, 16_000, 30);
        sent.extend(add(&mut batch, &mem, b.local_addr(), 0, 9000, 9000, 0));
        a.send(&batch, &mem).unwrap();
        let got: Vec<_> = receive(&mut b, sent.len()).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(got, sent, "pieces of {piece}");
        assert_eq!(a.stats().copied_bursts, 1, "single datagrams do not count");
    }
}

#[test]
fn datagram_of_no_bytes() {
    let [addr, _] = loopbacks();
    let mut b = driver(addr, |_| {});
    let plain = std::net::UdpSocket::bind(addr).unwrap();
    plain.send_to(&[], b.local_addr()).unwrap();
    let (meta, bytes) = receive(&mut b, 1).remove(0);
    assert_eq!((meta.from, bytes), (plain.local_addr().unwrap(), vec![]));
}

#[test]
fn steady_state_allocates_nothing() {
    let [addr, _] = loopbacks();
    let (mut a, mut b) = pair(addr);
    let mem = Memory::new(60_000);
    let (mut bulk, mut small) = (TxBatch::new(), TxBatch::new());
    add(&mut bulk, &mem, b.local_addr(), 0, 1400, 60_000, 40);
    add(&mut small, &mem, b.local_addr(), 1, 64, 640, 40);
    let mut round = || {
        let mut count = 0;
        for (batch, datagrams) in [(&bulk, 43), (&small, 10)] {
            a.send(batch, &mem).unwrap();
            count += datagrams;
            while count > 0 {
                count -= b.recv(&mut |_, _| {}).unwrap();
            }
        }
    };
    round();
    let info = allocation_counter::measure(|| (0..100).for_each(|_| round()));
    assert_eq!(info.count_total, 0, "{info:?}");
}
