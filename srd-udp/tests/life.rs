//! Binding, waiting, waking.

mod common;

use std::time::{Duration, Instant};

use common::{driver, loopbacks, options};
use srd_core::{Driver, Span};
use srd_udp::{BindError, UdpDriver, UdpOptions, WaitMode};

fn error(addr: &str, options: UdpOptions) -> BindError {
    UdpDriver::bind(addr.parse().unwrap(), options).expect_err(addr)
}

#[test]
fn bind_says_what_to_do() {
    let [v4, _] = loopbacks();
    let first = driver(v4, |_| {});
    let taken = first.local_addr().to_string();
    let port = first.local_addr().port();
    assert_eq!(
        error(&taken, options()).to_string(),
        format!(
            "UDP port {port} of 127.0.0.1 is in use; stop the program that uses it (see `ss -lunp`) or choose another port"
        )
    );
    assert_eq!(
        error("192.0.2.1:0", options()).to_string(),
        "192.0.2.1 is not an address of this host; choose one that `ip addr` lists"
    );
    assert!(error("224.0.0.1:0", options()).to_string().ends_with("it is a multicast address"));
    assert!(error("255.255.255.255:0", options()).to_string().ends_with("it is the broadcast address"));
    assert!(error("[::ffff:127.0.0.1]:0", options()).to_string().contains("write the IPv4 address"));
    assert!(error("[fe80::1]:0", options()).to_string().contains("needs the number of its interface"));
}

#[test]
fn bind_says_that_the_kernel_has_no_port_left() {
    let in_a_network_of_its_own = || {
        if let Err(e) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            eprintln!("skipped: no network namespace: {e}");
            return;
        }
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000").unwrap();
        let any = "0.0.0.0:0".parse().unwrap();
        let mut first = driver(any, |_| {});
        assert_eq!(first.local_addr().port(), 40_000);
        let e = error("0.0.0.0:0", options()).to_string();
        assert!(e.starts_with("all UDP ports of 0.0.0.0 that the kernel chooses from are in use; widen"), "{e}");
        assert_eq!(first.reserve(srd_core::SourcePort(0), any), None);
    };
    std::thread::spawn(in_a_network_of_its_own).join().unwrap();
}

#[test]
fn bind_checks_options() {
    for source_ports in [0, 1025] {
        let e = error("127.0.0.1:0", UdpOptions { source_ports, ..options() });
        assert_eq!(e.to_string(), format!("option source_ports is {source_ports}, must be in 1..=1024"));
    }
    let e = error("127.0.0.1:0", UdpOptions { source_port_range: Some(40_000..=40_062), ..options() });
    assert_eq!(
        e.to_string(),
        "option source_port_range is 40000..=40062, must leave 64 ports above 0 beside the main port"
    );
    let e = error("127.0.0.1:0", UdpOptions { mtu: Some(500), ..options() });
    assert_eq!(e.to_string(), "option mtu is 500, must be at least 560");
}

#[test]
fn bind_frees_the_port_when_dropped() {
    // Where nobody else is, who might take it meanwhile.
    let addr = driver("127.0.0.77:0".parse().unwrap(), |_| {}).local_addr();
    assert_eq!(driver(addr, |_| {}).local_addr(), addr);
}

#[test]
fn waker_ends_the_present_and_the_next_sleep() {
    let [v4, _] = loopbacks();
    let mut a = driver(v4, |_| {});
    let waker = a.waker();
    waker.wake();
    waker.wake();
    a.wait(None).unwrap();
    for _ in 0..100 {
        let thread = std::thread::spawn({
            let waker = waker.clone();
            move || waker.wake()
        });
        a.wait(None).unwrap();
        thread.join().unwrap();
    }
}

#[test]
fn wait_ends_at_the_deadline() {
    let [v4, _] = loopbacks();
    for wait in [WaitMode::Sleep, WaitMode::Adaptive { spin: Duration::from_micros(200) }] {
        let mut a = driver(v4, |o| o.wait = wait);
        let until = a.now() + Span::from_millis(3);
        let mut waits = 0u64;
        while a.now() < until {
            a.wait(Some(until)).unwrap();
            waits += 1;
        }
        assert!(waits < 100_000, "{waits} turns in 3 ms: it never slept");
        a.wait(Some(until)).unwrap();
    }
}

#[test]
fn wait_ends_when_something_arrives() {
    let [v4, _] = loopbacks();
    let mut a = driver(v4, |_| {});
    let plain = std::net::UdpSocket::bind(v4).unwrap();
    plain.send_to(b"x", a.local_addr()).unwrap();
    a.wait(None).unwrap();
    assert_eq!(a.recv(&mut |_, _| {}).unwrap(), 1);
}

/// The spinning part may have fetched it already.
#[test]
fn a_wait_ends_by_what_the_one_before_has_seen() {
    let [v4, _] = loopbacks();
    let spin = Duration::from_millis(50);
    let mut a = driver(v4, |o| o.wait = WaitMode::Adaptive { spin });
    a.note_moved();
    let spun = a.now() + spin.into();
    std::net::UdpSocket::bind(v4).unwrap().send_to(b"x", a.local_addr()).unwrap();
    while a.now() < spun {
        a.wait(Some(spun)).unwrap();
    }
    let until = a.now() + Span::from_secs(60);
    a.wait(Some(until)).unwrap();
    assert!(a.now() < until, "it is there");
    assert_eq!(a.recv(&mut |_, _| {}).unwrap(), 1);
}

#[test]
fn wait_returns_at_once_when_spinning() {
    let [v4, _] = loopbacks();
    let mut a = driver(v4, |o| o.wait = WaitMode::Spin);
    let start = Instant::now();
    for _ in 0..1000 {
        a.wait(None).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}
