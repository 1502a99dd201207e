//! What the driver says about the network, and how it bears trouble there.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use common::{Memory, add, driver, loopbacks, pair, receive};
use srd_core::{Driver, Ecn, SourcePort, Span, TxBatch};
use srd_udp::UdpDriver;
use testbed::{Family, Host, Pair};

/// Sends one datagram of `len` bytes from source port `port` of `a`.
fn send_one(a: &mut UdpDriver, to: SocketAddr, port: u16, len: usize) {
    let (mem, mut batch) = (Memory::new(len), TxBatch::new());
    add(&mut batch, &mem, to, port, len, len, 16);
    a.send(&batch, &mem).unwrap();
}

#[test]
fn ecn_is_set_and_read() {
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        let mut batch = TxBatch::new();
        for (ect, len) in [(true, 10), (false, 11), (true, 5000), (false, 5001)] {
            let mut burst = batch.burst(b.local_addr(), SourcePort(0), 1000).ect(ect);
            burst.inline(&vec![0; len]);
            burst.finish();
        }
        a.send(&batch, &Memory::new(0)).unwrap();
        let got: Vec<Ecn> = receive(&mut b, 1 + 1 + 5 + 6).into_iter().map(|(meta, _)| meta.ecn).collect();
        let (ect, not) = (Ecn::Ect, Ecn::NotEct);
        assert_eq!(got, [ect, not, ect, ect, ect, ect, ect, not, not, not, not, not, not]);

        let marked = socket2::Socket::from(UdpSocket::bind(addr).unwrap());
        if addr.is_ipv4() { marked.set_tos_v4(3) } else { marked.set_tclass_v6(3) }.unwrap();
        marked.send_to(b"marked", &b.local_addr().into()).unwrap();
        assert_eq!(receive(&mut b, 1)[0].0.ecn, Ecn::Ce);
    }
}

#[test]
fn source_ports_are_distinct_and_stay() {
    for addr in loopbacks() {
        let (mut a, mut b) = (driver(addr, |o| o.source_ports = 8), driver(addr, |_| {}));
        assert_eq!(a.source_ports(), 8);
        assert_eq!(a.port_number(SourcePort(0)), None, "not opened before use");
        for _ in 0..2 {
            for port in 0..8 {
                send_one(&mut a, b.local_addr(), port, 20);
            }
        }
        let got: Vec<u16> = receive(&mut b, 16).iter().map(|(meta, _)| meta.from.port()).collect();
        assert_eq!(got[..8], got[8..]);
        let numbers: Vec<u16> = (0..8).filter_map(|port| a.port_number(SourcePort(port))).collect();
        assert_eq!(got[..8], numbers);
        let mut distinct = numbers;
        distinct.push(a.local_addr().port());
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 9);
        assert_eq!(a.stats().sockets_open, 8);
    }
}

#[test]
fn source_ports_from_a_range() {
    let [addr, _] = loopbacks();
    let range = 20_000..=29_999;
    let mut a = driver(addr, |o| o.source_port_range = Some(range.clone()));
    let mut b = driver(addr, |_| {});
    for port in 0..64 {
        send_one(&mut a, b.local_addr(), port, 20);
    }
    let got = receive(&mut b, 64);
    assert!(got.iter().all(|(meta, _)| range.contains(&meta.from.port())), "{got:?}");
}

#[test]
#[should_panic(expected = "source port 4 of a pool of 4")]
fn source_ports_beyond_the_pool() {
    let [addr, _] = loopbacks();
    send_one(&mut driver(addr, |o| o.source_ports = 4), addr, 4, 20);
}

#[test]
fn arrival_is_stamped_by_the_kernel() {
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        assert!(b.info().timestamps);
        let mut attempt = || {
            let before = b.now();
            send_one(&mut a, b.local_addr(), 0, 100);
            let sent = b.now();
            // The loop is busy elsewhere for a while.
            let late = sent + Span::from_millis(5);
            while b.now() < late {}
            let at = receive(&mut b, 1)[0].0.at;
            // The two clocks are read one after the other, so allow for an interruption between them.
            let slack = Span::from_millis(2);
            before - slack <= at && at <= sent + slack
        };
        // The kernel begins to stamp when it has the time, after the first socket of the host has asked for it.
        assert!((0..100).any(|_| attempt()), "{addr}: the time of reading is not the time of arrival");
    }
}

#[test]
fn wildcard_answers_from_the_address_that_was_addressed() {
    for [near, wildcard, addressed] in [["127.0.0.1", "0.0.0.0", "127.0.0.2"], ["::1", "::", "::1"]] {
        let [near, wildcard, addressed] = [near, wildcard, addressed].map(|ip| ip.parse::<IpAddr>().unwrap());
        let mut a = driver(SocketAddr::new(near, 0), |_| {});
        let mut b = driver(SocketAddr::new(wildcard, 0), |_| {});
        send_one(&mut a, SocketAddr::new(addressed, b.local_addr().port()), 0, 50);
        assert_eq!(receive(&mut b, 1)[0].0.to, Some(addressed));
        let mut batch = TxBatch::new();
        let mut burst = batch.burst(a.local_addr(), SourcePort(0), 30).from(addressed);
        burst.inline(&[7; 90]);
        burst.finish();
        b.send(&batch, &Memory::new(0)).unwrap();
        assert!(receive(&mut a, 3).iter().all(|(meta, _)| meta.from.ip() == addressed && meta.to.is_none()));
    }
}

#[test]
fn oversize_is_lost_and_counted() {
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        send_one(&mut a, b.local_addr(), 0, 65_530);
        send_one(&mut a, b.local_addr(), 0, 100);
        assert_eq!(receive(&mut b, 1)[0].1.len(), 100);
        let stats = a.stats();
        assert_eq!((stats.dropped_too_big, stats.singles), (1, 1), "{stats:?}");

        // Two at once do not fit a segmentation call, which is no reason to give that up.
        let (mem, mut batch) = (Memory::new(80_000), TxBatch::new());
        add(&mut batch, &mem, b.local_addr(), 0, 40_000, 80_000, 16);
        a.send(&batch, &mem).unwrap();
        assert_eq!(receive(&mut b, 2).len(), 2);
        assert_eq!(a.stats().gso_fallbacks, 0);
        assert!(a.info().gso_segments.is_some());
    }
}

#[test]
fn refusal_is_counted_and_harmless() {
    for addr in loopbacks() {
        let (mut a, mut b) = pair(addr);
        // A socket that talks to somebody else takes none of it, and nobody else gets its port.
        let closed = UdpSocket::bind(addr).unwrap();
        closed.connect(closed.local_addr().unwrap()).unwrap();
        let (mut sent, start) = (0, a.now());
        while sent < 4 || a.stats().refused == 0 {
            send_one(&mut a, closed.local_addr().unwrap(), 0, 100);
            sent += 1;
            assert!(a.now().since(start) < Span::from_secs(60), "nothing is reported: {:?}", a.stats());
        }
        send_one(&mut a, b.local_addr(), 0, 100);
        receive(&mut b, 1);
        let stats = a.stats();
        assert_eq!((stats.singles, stats.dropped_other), (sent + 1, 0), "a report costs no datagram: {stats:?}");
    }
}

/// As `ss -K` does, and what takes the servers behind an address away.
#[test]
fn sockets_that_are_destroyed() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    // Destroys the sockets of the first host that the filter means, and tells how many that were.
    let destroy = |filter: String| {
        let out = a.command("ss").args(["-K", "-H", "-u", "-a", "-n", &filter]).output().unwrap();
        assert!(out.status.success(), "{filter}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count()
    };
    for family in [Family::V4, Family::V6] {
        let open = |host: &Host| host.enter(|| driver(SocketAddr::new(host.ip(family), 0), |_| {})).unwrap();
        let (mut x, mut y) = (open(a), open(b));
        let to = y.local_addr();
        let say = |x: &mut UdpDriver| a.enter(|| send_one(x, to, 0, 100)).unwrap();
        say(&mut x);
        receive(&mut y, 1);
        let number = x.port_number(SourcePort(0)).unwrap();
        if destroy(format!("sport = :{number}")) == 0 {
            eprintln!("skipped: this kernel does not destroy sockets (CONFIG_INET_DIAG_DESTROY)");
            return;
        }
        // What finds out may be lost.
        (0..2).for_each(|_| say(&mut x));
        receive(&mut y, 1);
        assert_eq!(x.stats().sockets_open, 1);
        assert_eq!(destroy(format!("sport = :{}", x.local_addr().port())), 1);
        let e = x.recv(&mut |_, _| {}).expect_err("nothing arrives any more");
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionAborted);
    }
}

#[test]
fn impossible_destination_is_counted_and_harmless() {
    let [v4, v6] = loopbacks();
    let (mut a, mut b) = pair(v4);
    send_one(&mut a, SocketAddr::new(v6.ip(), 9), 0, 100);
    send_one(&mut a, b.local_addr(), 0, 100);
    receive(&mut b, 1);
    let stats = a.stats();
    assert_eq!((stats.dropped_other, stats.other_errors, stats.singles), (1, 1, 1), "{stats:?}");
}

#[test]
fn overflow_is_counted() {
    let [addr, _] = loopbacks();
    let (mut a, mut b) = (driver(addr, |_| {}), driver(addr, |o| o.recv_buffer = 8192));
    for _ in 0..1000 {
        send_one(&mut a, b.local_addr(), 0, 1000);
    }
    // The kernel delivers when it has the time.
    let (mut got, end) = (0, b.now() + Span::from_secs(60));
    while got + b.stats().rx_queue_drops < 1000 {
        assert!(b.now() < end, "{got} received, {} dropped", b.stats().rx_queue_drops);
        got += b.recv(&mut |_, _| {}).unwrap() as u64;
    }
    assert!(b.stats().rx_queue_drops > 0);
    assert_eq!(got + b.stats().rx_queue_drops, 1000);
}

#[test]
fn max_datagram_of_the_first_hop() {
    for addr in loopbacks() {
        let (mut a, b) = pair(addr);
        assert_eq!(a.max_datagram(b.local_addr()), 9216, "loopback carries more than the protocol uses");
        let headers = if addr.is_ipv4() { 28 } else { 48 };
        for (mtu, max) in [(1500, 1500 - headers), (560, 560 - headers), (65_535, 9216)] {
            let mut a = driver(addr, |o| o.mtu = Some(mtu));
            assert_eq!(a.max_datagram(b.local_addr()), max);
        }
    }
}

/// A connection begins with what the routing table says, not with what somebody may have made the kernel believe.
#[test]
fn claims_about_the_way_are_not_believed() {
    let Some(bed) = Pair::builder().mtu(9000).for_test() else { return };
    let host = bed.host(0);
    let ip = |args: String| {
        let out = host.command("ip").args(args.split(' ')).output().unwrap();
        assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    };
    for (family, headers, bits) in [(Family::V4, 28, 32), (Family::V6, 48, 128)] {
        let to = SocketAddr::new(bed.host(1).ip(family), 4000);
        let mut unbound = SocketAddr::new(host.ip(family), 0);
        for wildcard in [false, true] {
            if wildcard {
                unbound.set_ip(if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) });
            }
            let mut a = host.enter(|| driver(unbound, |_| {})).unwrap();
            let from = SocketAddr::new(host.ip(family), a.local_addr().port());
            let mut max = || host.enter(|| a.max_datagram(to)).unwrap();
            assert_eq!(max(), 9000 - headers);
            bed.host(1).claim_too_long(from, to, 1300).unwrap();
            assert!(host.learns_about(to.ip()).unwrap());
            assert_eq!(max(), 9000 - headers, "of the interface");
            // What the administrator says holds, be it locked (then the kernel learns nothing) or not.
            ip(format!("route add {}/{bits} dev eth0 mtu 4000", to.ip()));
            assert_eq!(max(), 4000 - headers);
            bed.host(1).claim_too_long(from, to, 1300).unwrap();
            assert!(host.learns_about(to.ip()).unwrap());
            assert_eq!(max(), 4000 - headers, "of the route");
            ip(format!("route replace {}/{bits} dev eth0 mtu lock 1400", to.ip()));
            assert_eq!(max(), 1400 - headers, "of the route, locked");
            ip(format!("route del {}/{bits} dev eth0", to.ip()));
        }
    }
    // A router on the cable may have said what IPv6 is to do with.
    let set = || std::fs::write("/proc/sys/net/ipv6/conf/eth0/mtu", "6000");
    host.enter(set).unwrap().unwrap();
    let to = SocketAddr::new(bed.host(1).ip(Family::V6), 4000);
    let mut a = host.enter(|| driver(SocketAddr::new(host.ip(Family::V6), 0), |_| {})).unwrap();
    bed.host(1).claim_too_long(a.local_addr(), to, 1300).unwrap();
    assert!(host.learns_about(to.ip()).unwrap());
    assert_eq!(host.enter(|| a.max_datagram(to)).unwrap(), 6000 - 48);
}
