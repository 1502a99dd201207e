//! Beds come, work, and go, whatever happens to their creator. Needs root.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::{Clos, Family, Host, Pair, runs_here};

fn exists(id: &str, node: &str) -> bool {
    Path::new(&format!("/run/netns/srdbed-{id}-{node}")).exists()
}

/// A wait with a time limit may end early when the kernel stops the thread for
/// a moment; then it is begun again.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        match socket.recv_from(buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other.unwrap(),
        }
    }
}

/// One datagram there and back, echoed by a thread on the other host.
fn echo(from: &Host, to: &Host, family: Family) {
    let limit = Some(Duration::from_secs(60));
    let server = to.enter(|| UdpSocket::bind((to.ip(family), 0))).unwrap().unwrap();
    server.set_read_timeout(limit).unwrap();
    let target = server.local_addr().unwrap();
    let serving = to.spawn(move || {
        let mut buffer = [0; 64];
        let (length, peer) = receive(&server, &mut buffer);
        server.send_to(&buffer[..length], peer).unwrap();
    });
    let client = from.enter(|| UdpSocket::bind((from.ip(family), 0))).unwrap().unwrap();
    client.set_read_timeout(limit).unwrap();
    client.send_to(b"ping", target).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(receive(&client, &mut buffer), (4, target));
    serving.unwrap().join().unwrap();
}

#[test]
fn clos_reaches_all_hosts_and_vanishes() {
    let Some(bed) = Clos::builder().for_test() else { return };
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        for family in [Family::V4, Family::V6] {
            echo(bed.host(from), bed.host(to), family);
        }
    }
    let (id, host) = (bed.id().to_owned(), bed.host(0).clone());
    assert!(exists(&id, "h3") && exists(&id, "l1") && exists(&id, "s3"));
    drop(bed);
    assert!(!exists(&id, "h0") && !exists(&id, "l1") && !exists(&id, "s3"));
    let text = host.enter(|| ()).unwrap_err().to_string();
    assert!(text.starts_with("could not open the namespace"), "{text}");
}

#[test]
fn pair_reaches_both_and_carries_its_mtu() {
    for offload in [true, false] {
        let Some(pair) = Pair::builder().mtu(9_000).offload(offload).for_test() else { return };
        for family in [Family::V4, Family::V6] {
            echo(pair.host(0), pair.host(1), family);
        }
        let show = pair.host(1).command("ip").args(["-o", "link", "show", "eth0"]).output().unwrap();
        assert!(String::from_utf8_lossy(&show.stdout).contains("mtu 9000"), "{show:?}");
        let (bytes, packets) = pair.sent(0).unwrap();
        assert!(packets >= 2 && bytes >= 92, "{packets} packets, {bytes} bytes");
    }
}

#[test]
fn two_beds_do_not_meet() {
    if !runs_here() {
        return;
    }
    let (first, second) = (Clos::builder().build().unwrap(), Clos::builder().build().unwrap());
    assert_ne!(first.id(), second.id());
    for bed in [&first, &second] {
        echo(bed.host(0), bed.host(3), Family::V4);
    }
    let address = (first.host(0).addr(), 7_000);
    let bind = |host: &Host| host.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    let _both = (bind(first.host(0)), bind(second.host(0)));
    drop(first);
    echo(second.host(0), second.host(3), Family::V4);
}

#[test]
fn panic_removes_bed_and_programs() {
    if !runs_here() {
        return;
    }
    let mut id = String::new();
    let mut program = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let pair = Pair::builder().build().unwrap();
        pair.id().clone_into(&mut id);
        program = pair.host(0).command("sleep").arg("1000").spawn().ok();
        // until `ip` has become the program, it is not inside yet
        let inside = pair.host(0).command("true").status().unwrap();
        panic!("as planned, with {inside}");
    }));
    assert!(panicked.is_err());
    assert!(!exists(&id, "h0") && !exists(&id, "h1"));
    program.unwrap().kill().unwrap();
}

#[test]
fn drop_kills_programs_inside() {
    let Some(pair) = Pair::builder().for_test() else { return };
    let mut program = pair.host(0).command("sh");
    let mut program = program.args(["-c", "echo in; exec sleep 1000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(pair);
    assert!(!program.wait().unwrap().success());
}

#[test]
fn sweep_removes_what_a_killed_creator_left() {
    if !runs_here() {
        return;
    }
    let mut creator = Command::new(std::env::current_exe().unwrap());
    creator.args(["--exact", "creator_of_a_stale_bed", "--ignored", "--nocapture"]);
    let mut creator = creator.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(creator.stdout.take().unwrap());
    let id = loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the creator ended early");
        if let Some((_, id)) = line.trim().split_once("bed ") {
            break id.to_owned();
        }
    };
    let bystander = Pair::builder().build().unwrap();
    assert!(exists(&id, "h0"), "a bed whose creator lives must stay");
    creator.kill().unwrap();
    creator.wait().unwrap();
    drop(Pair::builder().build().unwrap());
    assert!(!exists(&id, "h0") && !exists(&id, "h1"));
    echo(bystander.host(0), bystander.host(1), Family::V4);
    // the program left inside holds the pipe, so the end of it is the program's end
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
}

#[test]
#[ignore = "is started by sweep_removes_what_a_killed_creator_left"]
fn creator_of_a_stale_bed() {
    let pair = Pair::builder().build().unwrap();
    // says so once it is inside; stays until this process is killed, and would stay after that
    let script = format!("echo bed {}; exec sleep 1000", pair.id());
    pair.host(0).command("sh").args(["-c", &script]).status().unwrap();
}

/// Removes a kept bed also when its test fails.
struct Removed<'a>(&'a str);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // it is gone when all went well
        let _ = testbed::remove_kept(self.0);
    }
}

#[test]
fn kept_bed_is_worked_by_the_command() {
    if !runs_here() {
        return;
    }
    let name = format!("t{}", std::process::id());
    let _removed = Removed(&name);
    let run = |args: &[&str]| {
        let (verb, rest) = args.split_first().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
        command.args([verb, "--name", &name]).args(rest).output().unwrap()
    };
    let text = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let complaint = |args: &[&str]| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(complaint(&["stat"]).contains(&format!("testbed up --name {name}")));
    assert!(text(&["up", "--spines", "2", "--spine-rate", "100mbit"]).contains("host 3 10.1.1.2"));
    assert!(complaint(&["up"]).contains(&format!("testbed down --name {name}")));
    assert_eq!(text(&["exec", "1", "echo", "-n", "in"]), "in");
    assert!(complaint(&["exec", "9", "true"]).contains("numbered 0 to 3"));
    text(&["hole", "0", "0", "up"]);
    text(&["hole", "1"]);
    text(&["loss", "0", "1", "both", "12.5", "--traffic", "udp"]);
    text(&["heal"]);
    assert!(Clos::open(&name).is_ok() && Pair::open(&name).is_err());
    text(&["tcp", "0", "2", "--seconds", "0.05"]);
    assert_eq!(text(&["stat"]).lines().count(), 1 + 2 * 2 * 2 + 4 * 2);
    let nobody = std::io::pipe().unwrap().1;
    let mut unread = Command::new(env!("CARGO_BIN_EXE_testbed"));
    assert!(unread.args(["stat", "--name", &name]).stdout(nobody).status().unwrap().success());
    assert!(complaint(&["loss", "0", "1", "up", "-5"]).contains("choose 0 to 100"));
    assert!(complaint(&["tcp", "0", "2", "--seconds", "0"]).contains("above 0"));
    // as if `up` had been killed
    let middle = ["h0", "s1"].map(|node| format!("srdbed-keep.{name}-{node}"));
    assert!(middle.iter().all(|node| Command::new("ip").args(["netns", "del", node]).status().unwrap().success()));
    assert!(complaint(&["stat"]).contains(&format!("testbed down --name {name}")));
    text(&["down"]);
    assert!(!exists(&format!("keep.{name}"), "h1"));
}

#[test]
fn errors_say_what_to_do() {
    let says = |error: testbed::Error, words: &str| assert!(error.to_string().contains(words), "{error}");
    says(Clos::builder().mtu(100).build().unwrap_err(), "choose 1280 to 65535");
    says(Clos::builder().spine_rate(testbed::Rate::bits(1)).build().unwrap_err(), "choose at least 8kbit");
    says(Pair::builder().rate(testbed::Rate::gbit(20_000)).build().unwrap_err(), "choose at most 10000gbit");
    let small = Pair::builder().rate(testbed::Rate::mbit(1)).queue_bytes(100);
    says(small.build().unwrap_err(), "choose at least 9014");
    if !runs_here() {
        return;
    }
    says(Clos::open("no_such_bed").unwrap_err(), "testbed up --name no_such_bed");
    says(Pair::builder().keep("not-a-name").build().unwrap_err(), "use 1 to 32 of");
    let bed = Clos::builder().leaves(1).spines(2).hosts_per_leaf(1).build().unwrap();
    says(bed.hole(2, 0, testbed::Direction::Up).unwrap_err(), "there is no spine 2: they are numbered 0 to 1");
    says(bed.loss(0, 1, testbed::Direction::Up, 1.0).unwrap_err(), "there is no leaf 1");
    says(bed.loss(0, 0, testbed::Direction::Up, 101.0).unwrap_err(), "choose 0 to 100");
    let load = testbed::tcp::Load { congestion: Some("nonesuch".into()), ..Default::default() };
    says(load.run(bed.host(0), bed.host(0)).unwrap_err(), "modprobe tcp_nonesuch");
}
