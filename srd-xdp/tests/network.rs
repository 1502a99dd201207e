//! What the kernel knew for us: VLANs, gateways, neighbours, addresses, and their changes.

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Side, bed, meet, options, udp, xdp, xdp_at};
use srd_core::{Driver, Span};
use srd_xdp::XdpDriver;
use testbed::{Clos, Family, Host, Pair};

fn ip(host: &Host, args: &str) {
    let out = host.command("ip").args(args.split(' ')).output().expect("ip starts");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Sends until it goes by AF_XDP and arrives, within bounds: news from the kernel take a moment. What is late arrives in a later
/// attempt, and what of earlier calls does is not counted.
fn reaches(a: &mut Side<XdpDriver>, b: &mut Side<impl Driver + Send>, to: SocketAddr) {
    static PINGS: AtomicU32 = AtomicU32::new(0);
    let mut by_xdp = Vec::new();
    for _ in 0..3000 {
        a.receive_until(1, Span::from_millis(2));
        let before = a.stats().tx_datagrams;
        let ping = format!("ping {}", PINGS.fetch_add(1, Ordering::Relaxed));
        a.say(to, &ping);
        if a.stats().tx_datagrams == before + 1 {
            by_xdp.push(ping.into_bytes());
        }
        if b.receive_until(1, Span::from_millis(20)).iter().any(|(_, bytes)| by_xdp.contains(bytes)) {
            return;
        }
    }
    panic!("nothing arrives at {to} by AF_XDP: {:?}", a.stats());
}

#[test]
fn vlans_are_tagged_and_untagged() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let probe = bed.host(0).command("ip").args("link add link eth0 name eth0.6 type vlan id 6".split(' ')).output();
    if String::from_utf8_lossy(&probe.expect("ip starts").stderr).contains("Unknown device type") {
        eprintln!("skipped: this kernel has no VLAN devices (CONFIG_VLAN_8021Q)");
        return;
    }
    for (i, host) in bed.hosts().iter().enumerate() {
        ip(host, "link add link eth0 name eth0.7 type vlan id 7");
        ip(host, "link set eth0.7 up");
        ip(host, &format!("addr add 10.7.0.{}/24 dev eth0.7", i + 1));
    }
    let at = |i: u8| SocketAddr::from((Ipv4Addr::new(10, 7, 0, i + 1), 0));
    let mut a = xdp_at(bed.host(0), at(0), options());
    {
        let mut b = xdp_at(bed.host(1), at(1), options());
        assert_eq!(b.driver.info().interface, "eth0", "the interface below");
        let to = b.addr();
        reaches(&mut a, &mut b, to);
        let to = a.addr();
        reaches(&mut b, &mut a, to);
        assert!(b.stats().rx_datagrams > 0, "{:?}", b.stats());
    }
    let driver = bed.host(1).enter(|| srd_udp::UdpDriver::bind(at(1), common::udp_options())).expect("a host");
    let mut b = Side { host: bed.host(1).clone(), driver: driver.expect("bind") };
    let to = b.addr();
    reaches(&mut a, &mut b, to);
    let before = a.stats().rx_datagrams;
    b.say(a.addr(), "by the kernel");
    assert_eq!(a.receive(1)[0].1, b"by the kernel");
    assert_eq!(a.stats().rx_datagrams, before + 1, "taken from the tagged frame");
}

#[test]
fn through_gateways() {
    for family in [Family::V4, Family::V6] {
        let Some(bed) = Clos::builder().spines(2).for_test() else { return };
        let (mut a, mut b) = (xdp(bed.host(0), family), xdp(bed.host(2), family));
        let (to_a, to_b) = (a.addr(), b.addr());
        reaches(&mut a, &mut b, to_b);
        reaches(&mut b, &mut a, to_a);
    }
}

#[test]
fn a_neighbour_with_a_new_card() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), udp(bed.host(1), Family::V4));
    meet(&mut a, &mut b);
    let to = b.addr();
    reaches(&mut a, &mut b, to);
    ip(bed.host(1), "link set eth0 address 02:00:00:00:00:99");
    // As if it had announced itself.
    ip(bed.host(0), "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud reachable");
    reaches(&mut a, &mut b, to);
    // Nobody knows the way any more: the kernel finds it.
    ip(bed.host(0), "neigh flush dev eth0");
    reaches(&mut a, &mut b, to);
}

/// Whoever uses a neighbour that nobody has confirmed for long makes the kernel ask for it.
#[test]
fn a_neighbour_that_moved_in_silence() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    // Stale neighbours are asked at once, and given up after a moment.
    for (name, value) in [("delay_first_probe_time", "0"), ("ucast_solicit", "1"), ("retrans_time_ms", "20")] {
        let path = format!("/proc/sys/net/ipv4/neigh/eth0/{name}");
        bed.host(0).enter(|| std::fs::write(path, value)).expect("a host").expect("a setting");
    }
    let wrong =
        |nud: &str| ip(bed.host(0), &format!("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:98 dev eth0 nud {nud}"));
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), udp(bed.host(1), Family::V4));
    let to = b.addr();
    wrong("stale");
    // It is stale when it is first looked up.
    reaches(&mut a, &mut b, to);
    // It becomes stale while nothing is sent, and again.
    for nud in ["reachable", "stale", "reachable", "stale"] {
        wrong(nud);
        a.receive_until(1, Span::from_millis(5));
    }
    reaches(&mut a, &mut b, to);
    // Without privileges the kernel cannot be told; then it finds out by itself.
    wrong("stale");
    let driver = &mut a.driver;
    let unprivileged = || {
        // SAFETY: takes numbers only. It changes the calling thread, which is one of its own, not the process.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        driver.recv(&mut |_, _| ()).expect("receive");
        let mut batch = srd_core::TxBatch::new();
        let mut burst = batch.burst(to, srd_core::SourcePort(0), 4);
        burst.inline(b"ping");
        burst.finish();
        driver.send(&batch, &common::Memory::new(0)).expect("send");
    };
    bed.host(0).enter(unprivileged).expect("a host");
    reaches(&mut a, &mut b, to);
}

#[test]
fn rules_that_change() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    ip(bed.host(1), "addr add 10.6.0.1/32 dev eth0");
    let probe = bed.host(0).command("ip").args("rule add to 10.9.0.0/16 table 100".split(' ')).output();
    if !probe.expect("ip starts").status.success() {
        eprintln!("skipped: this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES)");
        return;
    }
    ip(bed.host(0), "route add 10.6.0.0/16 via 10.0.0.2 table 100");
    let mut a = xdp(bed.host(0), Family::V4);
    let mut b = xdp_at(bed.host(1), "0.0.0.0:0".parse().expect("an address"), options());
    let to = (Ipv4Addr::new(10, 6, 0, 1), b.addr().port()).into();
    a.say(to, "no route");
    assert!(b.receive_until(1, Span::from_millis(20)).is_empty());
    ip(bed.host(0), "rule add to 10.6.0.0/16 table 100");
    reaches(&mut a, &mut b, to);
    // Without the rule there is no route any more.
    ip(bed.host(0), "rule del to 10.6.0.0/16 table 100");
    a.receive_until(1, Span::from_millis(5));
    let before = a.stats().tx_datagrams;
    a.say(to, "no route");
    assert_eq!(a.stats().tx_datagrams, before, "not by AF_XDP");
}

/// Routes may share next hops that change without them.
#[test]
fn next_hops_that_change() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    ip(bed.host(1), "addr add 10.6.0.1/32 dev eth0");
    let set = || std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0");
    bed.host(0).enter(set).expect("a host").expect("a setting");
    // A gateway that is not there.
    ip(bed.host(0), "neigh replace 10.0.0.3 lladdr 02:00:00:00:00:98 dev eth0 nud permanent");
    ip(bed.host(0), "nexthop add id 1 via 10.0.0.3 dev eth0");
    ip(bed.host(0), "route add 10.6.0.0/16 nhid 1");
    let (mut a, b) = (xdp(bed.host(0), Family::V4), SocketAddr::from((Ipv4Addr::new(10, 6, 0, 1), 0)));
    let b = bed.host(1).enter(|| srd_udp::UdpDriver::bind(b, common::udp_options())).expect("a host");
    let mut b = Side { host: bed.host(1).clone(), driver: b.expect("bind") };
    let to = b.addr();
    a.receive_until(1, Span::from_millis(5));
    a.say(to, "into the void");
    assert!(b.receive_until(1, Span::from_millis(20)).is_empty());
    assert_eq!(a.stats().tx_datagrams, 1);
    ip(bed.host(0), "nexthop replace id 1 via 10.0.0.2 dev eth0");
    reaches(&mut a, &mut b, to);
}

#[test]
fn routes_and_links_that_change() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    ip(bed.host(1), "addr add 10.5.0.1/32 dev eth0");
    let mut a = xdp(bed.host(0), Family::V4);
    let mut b = xdp_at(bed.host(1), "0.0.0.0:0".parse().expect("an address"), options());
    let port = b.addr().port();
    let to = (Ipv4Addr::new(10, 5, 0, 1), port).into();
    a.say(to, "no route");
    assert!(b.receive_until(1, Span::from_millis(20)).is_empty());
    assert_eq!(a.stats().tx_datagrams, 0);
    ip(bed.host(0), "route add 10.5.0.0/16 via 10.0.0.2");
    reaches(&mut a, &mut b, to);
    assert!(b.stats().rx_datagrams > 0, "{:?}", b.stats());
    ip(bed.host(0), "link set eth0 down");
    a.receive_until(1, Span::from_millis(5));
    a.say(to, "into the void");
    ip(bed.host(0), "link set eth0 up");
    ip(bed.host(0), "route replace 10.5.0.0/16 via 10.0.0.2");
    reaches(&mut a, &mut b, to);
    // An address that comes later is ours, too.
    ip(bed.host(1), "addr add 10.5.0.2/32 dev eth0");
    let to = (Ipv4Addr::new(10, 5, 0, 2), port).into();
    b.receive_until(1, Span::from_millis(5));
    let before = b.stats().rx_datagrams;
    reaches(&mut a, &mut b, to);
    reaches(&mut a, &mut b, to);
    assert!(b.stats().rx_datagrams > before, "{:?}", b.stats());
}

/// There is no socket of ours at another interface, whatever its name is.
#[test]
fn an_interface_that_is_removed() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    if !bed.is_virtual() {
        return;
    }
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), xdp(bed.host(1), Family::V4));
    let to = b.addr();
    reaches(&mut a, &mut b, to);
    ip(bed.host(0), "link del eth0");
    a.say(to, "into the void");
    let before = a.stats();
    assert_eq!(before.tx_down, 1, "{before:?}");
    for _ in 0..10 {
        a.receive_until(1, Span::from_millis(1));
    }
    assert_eq!(a.stats().tx_down, 1, "nobody has sent anything");
    ip(bed.host(0), &format!("link add eth0 type veth peer name eth0 netns {}", bed.host(1).namespace()));
    for (i, host) in bed.hosts().iter().enumerate() {
        ip(host, &format!("addr add 10.0.0.{}/24 dev eth0", i + 1));
        ip(host, "link set eth0 up");
    }
    for _ in 0..3000 {
        a.say(to, "by the kernel");
        if b.receive_until(1, Span::from_millis(20)).iter().any(|(_, bytes)| bytes == b"by the kernel") {
            assert_eq!(a.stats().tx_datagrams, before.tx_datagrams, "not by AF_XDP");
            return;
        }
    }
    panic!("nothing arrives: {:?} {:?}", a.stats(), b.stats());
}

/// What does not fit the frames of before comes through the kernel.
#[test]
fn an_mtu_that_grows() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let (mut a, mut b) = (udp(bed.host(0), Family::V4), xdp(bed.host(1), Family::V4));
    meet(&mut a, &mut b);
    bed.hosts().iter().for_each(|host| ip(host, "link set eth0 mtu 9000"));
    let to = b.addr();
    // With zero copy, devices have limits of their own.
    let longest = if bed.is_virtual() { 8000 } else { 3500 };
    for len in [1400, 1740, 1760, 3480, longest] {
        a.say(to, &"x".repeat(len));
        assert_eq!(b.receive(1)[0].1.len(), len);
    }
    assert_eq!((b.stats().rx_too_long, b.stats().udp.rx_datagrams), (0, 3), "{:?}", b.stats());
}

/// What somebody may have made the kernel believe about a way does not send large datagrams on a slower one.
#[test]
fn claims_about_the_way_are_not_believed() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), udp(bed.host(1), Family::V4));
    meet(&mut a, &mut b);
    bed.host(1).claim_too_long(a.addr(), b.addr(), 600).expect("a host");
    assert!(bed.host(0).learns_about(b.addr().ip()).expect("a host"));
    // Everything is asked for anew.
    ip(bed.host(0), "route add 10.5.0.0/16 via 10.0.0.2");
    a.receive_until(1, Span::from_millis(5));
    let before = a.stats();
    a.say(b.addr(), &"x".repeat(1472));
    assert_eq!(b.receive(1)[0].1.len(), 1472);
    let after = a.stats();
    assert_eq!((after.tx_datagrams, after.tx_fallbacks), (before.tx_datagrams + 1, before.tx_fallbacks), "{after:?}");
}

#[test]
fn other_ports_and_addresses_are_the_kernels() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    ip(bed.host(1), "addr add 10.0.0.77/24 dev eth0");
    let (mut a, mut b) = (xdp(bed.host(0), Family::V4), xdp(bed.host(1), Family::V4));
    meet(&mut a, &mut b);
    let plain = |at: SocketAddr| {
        let socket = bed.host(1).enter(|| UdpSocket::bind(at)).expect("a host").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        socket
    };
    // Another port, and the same port at another address of the same interface.
    for at in ["10.0.0.2:0".parse().expect("an address"), ([10, 0, 0, 77], b.addr().port()).into()] {
        let socket = plain(at);
        a.say(socket.local_addr().expect("bound"), "for somebody else");
        let mut buffer = [0; 64];
        let (n, _) = socket.recv_from(&mut buffer).expect("it arrives");
        assert_eq!(&buffer[..n], b"for somebody else");
    }
    assert!(b.receive_until(1, Span::from_millis(5)).is_empty());
}

#[test]
fn link_local_addresses() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    for (i, host) in bed.hosts().iter().enumerate() {
        ip(host, &format!("addr add fe80::{}/64 dev eth0 nodad", i + 1));
    }
    let index = |i: usize| bed.host(i).enter(|| nix::net::if_::if_nametoindex("eth0")).expect("a host").expect("eth0");
    let at = |i: usize| format!("[fe80::{}%{}]:0", i + 1, index(i)).parse::<SocketAddr>().expect("an address");
    let (mut a, mut b) = (xdp_at(bed.host(0), at(0), options()), xdp_at(bed.host(1), at(1), options()));
    let mut to = at(1);
    let SocketAddr::V6(inner) = &mut to else { unreachable!("an IPv6 address") };
    inner.set_scope_id(index(0));
    inner.set_port(b.addr().port());
    reaches(&mut a, &mut b, to);
    a.say(to, "who");
    let (meta, _) = b.receive(1).remove(0);
    let SocketAddr::V6(from) = meta.from else { unreachable!("an IPv6 address") };
    assert_eq!((from.scope_id(), from.ip().to_string()), (index(1), "fe80::1".into()));
}
