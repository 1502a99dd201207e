//! Coming, sharing and going: nothing stays behind, nobody is disturbed.

mod common;

#[path = "../src/sys/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a program of somebody else takes a part of it")]
mod sys;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Memory, Side, add, bed, meet, options, udp_at, xdp, xdp_at};
use srd_core::TxBatch;
use srd_xdp::{Attach, OpenError, XdpDriver, XdpOptions, ZeroCopy};
use testbed::{Family, Host, Pair};

fn output(command: &mut Command) -> String {
    let out = command.output().expect("the program starts");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// All that a driver could have changed at the cable's end.
fn state(host: &Host) -> String {
    let link = output(host.command("ip").args(["-d", "link", "show", "dev", "eth0"]));
    // Whether the other end is there, the kernel notices when it has the time.
    link.replace("state UNKNOWN", "state UP") + &output(host.command("ethtool").args(["-k", "eth0"]))
}

/// Waits for the end's state to be as it was. Programs that other tests start at this moment hold copies of our descriptors
/// until they run, and with them the XDP program.
fn settles(host: &Host, before: &str) {
    for _ in 0..3000 {
        if state(host) == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(state(host), before);
}

fn open(host: &Host, options: XdpOptions) -> Result<XdpDriver, OpenError> {
    let addr = SocketAddr::new(host.ip(Family::V4), 0);
    host.enter(|| XdpDriver::open(addr, options)).expect("the host is there")
}

#[test]
fn the_interface_is_left_as_it_was() {
    let Some(bed) = bed(Pair::builder()) else { return };
    let before = [state(bed.host(0)), state(bed.host(1))];
    for round in 0..20 {
        let mut a = xdp(bed.host(0), Family::V4);
        assert!(state(bed.host(0)).contains("xdp"), "attached");
        if round % 5 == 0 {
            let mut b = xdp(bed.host(1), Family::V4);
            meet(&mut a, &mut b);
        }
    }
    for (host, before) in bed.hosts().iter().zip(&before) {
        settles(host, before);
    }
}

#[test]
fn drivers_share_the_program_and_the_last_one_takes_it_along() {
    let Some(bed) = bed(Pair::builder().mtu(1500).queues(2)) else { return };
    let before = state(bed.host(1));
    let mut a = xdp(bed.host(0), Family::V4);
    assert_eq!(a.driver.info().queues, [0, 1]);
    let one = |queue| {
        let options = XdpOptions { first_queue: queue, queues: 1, ..options() };
        xdp_at(bed.host(1), (bed.host(1).addr(), 0).into(), options)
    };
    let (mut b, mut c) = (one(0), one(1));
    assert_eq!((&b.driver.info().queues[..], &c.driver.info().queues[..]), (&[0][..], &[1][..]));
    meet(&mut a, &mut b);
    meet(&mut a, &mut c);
    // The sender's queues decide by which queue a datagram arrives; what comes by the other one goes through the kernel.
    let mut exchange = |side: &mut Side<XdpDriver>| {
        let before = side.stats();
        let (mem, mut batch) = (Memory::new(8000), TxBatch::new());
        let mut count = 0;
        for port in 0..8 {
            count += add(&mut batch, &mem, side.addr(), port, 1000, 8000, 8).len();
        }
        a.send(&batch, &mem);
        side.receive(count);
        let after = side.stats();
        (after.rx_datagrams - before.rx_datagrams, after.udp.rx_datagrams - before.udp.rx_datagrams)
    };
    // A virtual cable's, that is. A NIC has reasons of its own.
    let check = |(xdp, kernel): (u64, u64)| match bed.is_virtual() {
        true => assert_eq!((xdp, kernel), (32, 32), "half by AF_XDP, half by the kernel"),
        false => assert_eq!(xdp + kernel, 64),
    };
    check(exchange(&mut b));
    check(exchange(&mut c));
    drop(b);
    assert!(state(bed.host(1)).contains("xdp"), "still attached");
    check(exchange(&mut c));
    // The free queue can be had again.
    let mut d = one(0);
    check(exchange(&mut d));
    drop((c, d));
    drop(a);
    settles(bed.host(1), &before);
}

#[test]
fn a_taken_queue_is_said_to_be_taken() {
    let Some(bed) = bed(Pair::builder()) else { return };
    let _first = xdp(bed.host(0), Family::V4);
    let e = open(bed.host(0), options()).expect_err("there is one queue only");
    assert!(matches!(e, OpenError::QueuesTaken { queues: 1, .. }), "{e:?}");
    assert!(e.to_string().contains("ethtool -L eth0"), "{e}");
}

#[test]
fn a_program_of_somebody_else_is_left_alone() {
    let Some(bed) = bed(Pair::builder()) else { return };
    let free = state(bed.host(0));
    let link = bed.host(0).enter(|| {
        let index = nix::net::if_::if_nametoindex("eth0").expect("the cable");
        // Returns XDP_PASS.
        let code = [(0xb7, 2), (0x95, 0)].map(|(code, imm)| sys::Insn { code, regs: 0, off: 0, imm });
        let program = sys::load(c"other", &code).expect("loaded");
        sys::attach(&program, index, sys::Attached::Native).expect("attached")
    });
    let before = state(bed.host(0));
    let e = open(bed.host(0), options()).expect_err("there is a program already");
    assert!(matches!(&e, OpenError::Foreign { program, .. } if program == "other"), "{e:?}");
    assert!(e.to_string().contains("stop the program that holds it") && e.to_string().contains("xdp off"), "{e}");
    assert_eq!(state(bed.host(0)), before);
    drop(link);
    settles(bed.host(0), &free);
    open(bed.host(0), options()).expect("the place is free");
}

#[test]
fn what_cannot_be_had_is_explained() {
    let Some(bed) = bed(Pair::builder()) else { return };
    let host = bed.host(0);
    let before = state(host);
    let says = |addr: &str, options: XdpOptions, text: &str| {
        let addr: SocketAddr = addr.parse().expect("an address");
        let e = host.enter(|| XdpDriver::open(addr, options)).expect("the host is there").expect_err(text);
        assert!(e.to_string().contains(text), "'{text}' is not in: {e}");
    };
    says("127.0.0.1:0", options(), "loopback");
    says("10.9.9.9:0", options(), "10.9.9.9");
    says("10.0.0.1:0", XdpOptions { interface: Some("eth9".into()), ..options() }, "there is no interface eth9");
    says("10.0.0.1:0", XdpOptions { interface: Some("lo".into()), ..options() }, "no Ethernet");
    if bed.is_virtual() {
        says("10.0.0.1:0", XdpOptions { zero_copy: ZeroCopy::Require, ..options() }, "no zero copy");
    }
    says("10.0.0.1:0", XdpOptions { queues: 0, ..options() }, "queues is 0");
    says("10.0.0.1:0", XdpOptions { first_queue: 256, ..options() }, "first_queue is 256, must be below");
    says("10.0.0.1:0", XdpOptions { frames: 1000, ..options() }, "frames is 1000");
    settles(host, &before);
}

/// Addresses and ports that the program takes.
fn ports(host: &Host) -> usize {
    let links: serde_json::Value =
        serde_json::from_str(&output(host.command("ip").args(["-j", "link", "show", "dev", "eth0"]))).expect("JSON");
    let program = links[0]["xdp"]["prog"]["id"].as_u64().expect("a program") as u32;
    let (_, maps) = sys::program_maps(program).expect("its maps");
    let ports = maps.into_iter().find(|(name, _)| name == "srd_ports").expect("the map of ports").1;
    let ports: sys::HashMap<[u8; 20], [u8; 24]> = ports.into_hash().expect("a hash map");
    let mut keys = Vec::new();
    while let Ok(key) = ports.key_after(keys.last()) {
        keys.push(key);
        assert!(keys.len() < 1000);
    }
    keys.len()
}

const HOLDER: &str = "SRD_XDP_TEST_HOLDER";

/// Not a test: what the next test starts as a process of its own, at the address in the environment.
#[test]
fn holder() {
    let Ok(addr) = std::env::var(HOLDER) else { return };
    let driver = XdpDriver::open(addr.parse().expect("an address"), XdpOptions { first_queue: 1, ..options() });
    let _driver = driver.expect("a driver");
    println!("\nholding");
    // Until it is killed, or the test is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn ports_of_the_killed_are_removed_by_the_next() {
    let Some(bed) = bed(Pair::builder().queues(2)) else { return };
    let host = bed.host(0);
    output(host.command("ip").args("addr add fe80::1/64 dev eth0 nodad".split(' ')));
    let index = host.enter(|| nix::net::if_::if_nametoindex("eth0")).expect("a host").expect("the cable");
    let addrs = [format!("{}:0", host.addr()), format!("[{}]:0", host.addr6()), format!("[fe80::1%{index}]:0")];
    addrs.iter().for_each(|addr| ports_of_a_killed_one(host, addr));
}

fn ports_of_a_killed_one(host: &Host, addr: &str) {
    let one = XdpOptions { queues: 1, ..options() };
    let first = open(host, one.clone()).expect("a driver");
    assert_eq!(ports(host), 1);
    let me = std::env::current_exe().expect("this program");
    let mut holder = host.command(me);
    holder.args(["--exact", "holder", "--nocapture"]).env(HOLDER, addr);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let said = BufReader::new(holder.stdout.take().expect("a pipe")).lines();
    assert!(said.map_while(Result::ok).any(|line| line == "holding"), "the other process has a driver");
    assert_eq!(ports(host), 2);
    holder.kill().expect("it runs");
    holder.wait().expect("its end");
    assert_eq!(ports(host), 2, "nobody has looked yet");
    let next = open(host, XdpOptions { first_queue: 1, ..one }).expect("the queue is free again");
    assert_eq!(ports(host), 2, "those of the two that live");
    drop(next);
    assert_eq!(ports(host), 1);
    drop(first);
}

const REOPENER: &str = "SRD_XDP_TEST_REOPENER";

/// Not a test: what the next test starts with little memory that it may lock, at the address in the environment.
#[test]
fn reopener() {
    let Ok(addr) = std::env::var(REOPENER) else { return };
    let addr = addr.parse().expect("an address");
    for round in 0..5 {
        let driver = XdpDriver::open(addr, XdpOptions { queues: 1, ..options() });
        let info = driver.unwrap_or_else(|e| panic!("round {round}: {e}")).info().clone();
        assert!(!info.zero_copy && info.frame_size == 2048, "{info:?}");
    }
}

/// The kernel counts the memory of closed sockets for a moment longer, and that of an attempt at zero copy.
#[test]
fn locked_memory_for_one_driver_is_enough() {
    let Some(bed) = bed(Pair::builder().mtu(1500)) else { return };
    if !bed.is_virtual() {
        return;
    }
    let host = bed.host(0);
    let me = std::env::current_exe().expect("this program");
    let reopen = |addr: &str, mebibytes: u32| {
        let mut limited = host.command("setpriv");
        limited.args(["--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "prlimit"]);
        limited.arg(format!("--memlock={}", mebibytes << 20)).arg(&me).args(["--exact", "reopener"]);
        output(limited.env(REOPENER, addr));
    };
    reopen(&format!("{}:0", host.addr()), 5);
    // Programs in its driver, but no zero copy, which can only be found out.
    let made = host.command("ip").args("tuntap add dev t0 mode tap".split(' ')).output().expect("ip starts");
    if !made.status.success() {
        eprintln!("skipped: this kernel has no tap devices (CONFIG_TUN)");
        return;
    }
    for words in ["addr add 10.8.0.1/24 dev t0", "link set t0 mtu 1500 up"] {
        output(host.command("ip").args(words.split(' ')));
    }
    for mebibytes in [5, 8] {
        reopen("10.8.0.1:0", mebibytes);
    }
}

const STARVED: &str = "SRD_XDP_TEST_STARVED";

/// Not a test: what the next test starts, at the address in the environment.
#[test]
fn starved() {
    let Ok(addr) = std::env::var(STARVED) else { return };
    let addr = addr.parse().expect("an address");
    let limit = |descriptors: usize| {
        let limit = libc::rlimit { rlim_cur: descriptors as u64, rlim_max: 1024 };
        // SAFETY: the pointer comes from a reference that outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    let taken = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    limit(1024);
    let before = taken();
    let opens = (0..100).any(|more| {
        limit(before - 1 + more);
        let opened = XdpDriver::open(addr, options());
        limit(1024);
        if let Err(e) = &opened {
            assert!(e.to_string().contains("no file descriptor is free"), "{more} descriptors: {e}: {e:?}");
        }
        let is_open = opened.is_ok();
        drop(opened);
        assert_eq!(taken(), before, "after {more}");
        is_open
    });
    assert!(opens, "a hundred suffice");
}

#[test]
fn descriptors_that_run_out_are_told_and_none_is_lost() {
    let Some(bed) = bed(Pair::builder().queues(2)) else { return };
    let host = bed.host(0);
    let before = state(host);
    let me = std::env::current_exe().expect("this program");
    let mut starved = host.command(me);
    output(starved.args(["--exact", "starved"]).env(STARVED, format!("{}:0", host.addr())));
    settles(host, &before);
}

const GREEDY: &str = "SRD_XDP_TEST_GREEDY";

/// Not a test: what the next test starts with memory for one queue, at the address in the environment.
#[test]
fn greedy() {
    let Ok(addr) = std::env::var(GREEDY) else { return };
    let e = XdpDriver::open(addr.parse().expect("an address"), options()).expect_err("there are two queues");
    assert!(matches!(e, OpenError::Memory { bytes } if bytes == 8 << 20), "{e:?}");
}

#[test]
fn locked_memory_that_is_too_little_is_told_for_all_queues() {
    let Some(bed) = bed(Pair::builder().mtu(1500).queues(2)) else { return };
    if !bed.is_virtual() {
        return;
    }
    let host = bed.host(0);
    let mut limited = host.command("setpriv");
    limited.args(["--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "prlimit", "--memlock=6291456"]);
    limited.arg(std::env::current_exe().expect("this program")).args(["--exact", "greedy"]);
    output(limited.env(GREEDY, format!("{}:0", host.addr())));
}

#[test]
fn a_device_without_native_programs_has_a_generic_one() {
    let Some(bed) = bed(Pair::builder().mtu(1500).offload(false)) else { return };
    let host = bed.host(0);
    for words in ["link add link eth0 name m0 type macvlan", "addr add 10.8.0.1/24 dev m0", "link set m0 up"] {
        output(host.command("ip").args(words.split(' ')));
    }
    works_with_a_generic_program(&bed, "m0");
}

/// A native program of a bond runs in the drivers of its members, where it cannot reach a socket of the bond.
#[test]
fn a_bond_has_a_generic_program() {
    let Some(bed) = bed(Pair::builder().mtu(1500).offload(false)) else { return };
    let host = bed.host(0);
    let made = host.command("ip").args("link add b0 type bond mode active-backup miimon 10".split(' ')).output();
    if !made.expect("ip starts").status.success() {
        eprintln!("skipped: this kernel has no bonds (CONFIG_BONDING)");
        return;
    }
    for words in ["link set eth0 down", "link set eth0 master b0", "link set b0 up", "addr add 10.8.0.1/24 dev b0"] {
        output(host.command("ip").args(words.split(' ')));
    }
    works_with_a_generic_program(&bed, "b0");
    let addr: SocketAddr = "10.8.0.1:0".parse().expect("an address");
    let native = XdpOptions { attach: Attach::Native, ..options() };
    host.enter(|| XdpDriver::open(addr, native)).expect("the host is there").expect_err("it would receive nothing");
}

/// A driver at a device of the first host with the address 10.8.0.1.
fn works_with_a_generic_program(bed: &Pair, device: &str) {
    let host = bed.host(0);
    output(bed.host(1).command("ip").args("addr add 10.8.0.2/24 dev eth0".split(' ')));
    let mut a = xdp_at(host, "10.8.0.1:0".parse().expect("an address"), options());
    let link = output(host.command("ip").args(["link", "show", "dev", device]));
    assert!(link.contains("xdpgeneric") && !a.driver.info().zero_copy, "{link}");
    let mut b = xdp_at(bed.host(1), "10.8.0.2:0".parse().expect("an address"), options());
    meet(&mut a, &mut b);
    // What lies below would coalesce datagrams if a socket wanted it, before the program sees them.
    output(host.command("ethtool").args(["-K", "eth0", "gro", "on"]));
    let mut c = udp_at(bed.host(1), "10.8.0.2:0".parse().expect("an address"));
    let (mem, mut batch) = (Memory::new(1600), TxBatch::new());
    let sent = add(&mut batch, &mem, a.addr(), 0, 100, 1600, 8);
    c.send(&batch, &mem);
    let got: Vec<_> = a.receive(sent.len()).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(got, sent);
    let (to_a, to_b, before) = (a.addr(), b.addr(), a.stats());
    for round in 0..20 {
        a.say(to_b, &format!("question {round}"));
        assert_eq!(b.receive(1)[0].1, format!("question {round}").as_bytes());
        b.say(to_a, &format!("answer {round}"));
        assert_eq!(a.receive(1)[0].1, format!("answer {round}").as_bytes());
    }
    let after = a.stats();
    let moved = (after.tx_datagrams - before.tx_datagrams, after.rx_datagrams - before.rx_datagrams);
    assert_eq!(moved, (20, 20), "all by AF_XDP: {after:?}");
    drop(a);
    settles_without_program(host, device);
}

fn settles_without_program(host: &Host, device: &str) {
    for _ in 0..3000 {
        if !output(host.command("ip").args(["link", "show", "dev", device])).contains("xdp") {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("a program stays at {device}");
}
