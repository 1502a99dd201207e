//! The built command, run as users run it: reports, exit codes, one-sentence errors, and nothing that hangs.

#[path = "support/command.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use support::{LIMIT, command, fails, finish, is_documented, names, run, signal};

/// A server on a free port of the loopback interface.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    addr: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let fixed = ["perf", "server", "--bind", "127.0.0.1", "--port", "0"];
        Server::of(command(&[&fixed, args].concat()).stderr(Stdio::inherit()).spawn().expect("start the server"))
    }

    /// What was started, once it says where it listens.
    fn of(mut child: Child) -> Server {
        let mut out = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("read the first line");
        let addr = line.trim_end().strip_prefix("srd perf server: listening on ").expect("the first line says where");
        let addr = addr.parse::<SocketAddr>().expect("an address").to_string();
        Server { child, out, addr }
    }

    /// Reads until a line contains `text`.
    fn says(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let n = self.out.read_line(&mut line).expect("read a line");
            assert!(n > 0, "the server ended without saying '{text}'");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Waits for its end; its exit status, and what it has still said.
    fn end(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("read the rest");
        (self.child.wait().expect("wait for the server"), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("'{name}' is no number in {value:#}"))
}

const PERCENTILES: [&str; 6] = ["p50", "p90", "p99", "p999", "p9999", "max"];

fn latency_is_sane(report: &Value) {
    names(&report["latency_us"], &PERCENTILES);
    let values = PERCENTILES.map(|p| number(&report["latency_us"], p));
    assert!(values[0] > 0.0 && values.is_sorted(), "{values:?}");
}

#[test]
fn demo_delivers_everything_exactly_once() {
    let output = run(&["demo", "--messages", "2000", "--size", "4k", "--paths", "4", "--loss", "2", "--json"]);
    is_documented(&output.json());
    assert_eq!(output.code, Some(0), "{output:?}");
    let report = output.json();
    names(
        &report,
        &[
            "ok",
            "messages_sent",
            "messages_delivered",
            "duplicates",
            "lost",
            "out_of_order_share",
            "goodput_gbps",
            "paths",
            "latency_us",
            "seed",
        ],
    );
    assert_eq!(report["ok"], Value::Bool(true));
    assert_eq!((number(&report, "messages_sent"), number(&report, "messages_delivered")), (2000.0, 2000.0));
    assert_eq!((number(&report, "duplicates"), number(&report, "lost")), (0.0, 0.0));
    assert!(number(&report, "goodput_gbps") > 0.0);
    assert!(number(&report["faults"], "lost_forward") > 0.0);
    assert_eq!(report["paths"].as_array().map(Vec::len), Some(4));
    latency_is_sane(&report);
}

#[test]
fn demo_takes_its_seed_and_says_which() {
    let run = |seed: &str| run(&["demo", "-n", "50", "--size", "100", "--seed", seed, "--json"]).json();
    let (a, b, c) = (run("7"), run("7"), run("10"));
    assert_eq!((&a["seed"], &b["seed"], &c["seed"]), (&Value::from(7), &Value::from(7), &Value::from(10)));
    assert_eq!(a["killed"]["path"], b["killed"]["path"]);
    assert_ne!(a["killed"]["path"], c["killed"]["path"]);
}

#[test]
fn demo_speaks_to_people() {
    let output = run(&["demo", "--messages", "200", "--no-kill", "--loss", "0", "--seed", "1"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    assert!(output.stdout.contains("verdict: ok"), "{}", output.stdout);
    assert!(output.stdout.contains("seed 1"), "{}", output.stdout);
}

#[test]
fn demo_interrupted() {
    let child = command(&["demo", "--messages", "1000M", "--json"]).spawn().expect("start the demo");
    // Its handler is in place once it has bound its sockets, which take part in the process's open files.
    let sockets = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).expect("the demo runs");
        files
            .flatten()
            .filter(|f| std::fs::read_link(f.path()).is_ok_and(|l| l.to_string_lossy().starts_with("socket:")))
            .count()
    };
    while sockets() < 3 {
        std::thread::yield_now();
    }
    signal(child.id(), Signal::SIGINT);
    let output = finish(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert_eq!(output.json()["ok"], Value::Bool(false));
    assert!(output.stderr.starts_with("srd: interrupted"), "{output:?}");
}

#[test]
fn perf_reports_what_it_documents() {
    let server = Server::start(&[]);
    for test in ["lat", "bw", "rate"] {
        let output = run(&["perf", test, &server.addr, "--time", "0.3", "--warmup", "0.05", "--paths", "3", "--json"]);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{test}: {output:?}");
        let report = output.json();
        is_documented(&report);
        names(
            &report,
            &[
                "test",
                "size",
                "depth",
                "duration_s",
                "bandwidth_gbps",
                "messages_per_s",
                "latency_us",
                "retransmits",
                "cpu_cores",
                "counters",
                "paths",
            ],
        );
        names(&report["cpu_cores"], &["client", "server"]);
        names(&report["counters"], &["client", "server"]);
        assert_eq!(report["test"], Value::from(test));
        assert_eq!((&report["ok"], &report["complete"]), (&Value::Bool(true), &Value::Bool(true)));
        assert!(number(&report, "bandwidth_gbps") > 0.0 && number(&report, "messages_per_s") > 0.0, "{report:#}");
        assert!(number(&report, "duration_s") >= 0.3);
        latency_is_sane(&report);
        let paths = report["paths"].as_array().expect("a list of paths");
        assert_eq!(paths.len(), 3);
        names(&paths[0], &["path", "source_port", "state", "srtt_us", "packets", "bytes", "lost", "replaced"]);
    }
}

#[test]
fn as_many_are_measured_as_asked_for() {
    let server = Server::start(&[]);
    // With a warm-up, of which nothing counts.
    let output = run(&["perf", "lat", &server.addr, "--iters", "100", "--warmup", "0.05", "--json"]);
    let report = output.json();
    assert_eq!((number(&report, "messages"), number(&report["latency_us"], "samples")), (100.0, 100.0), "{report:#}");
    let output = run(&["perf", "bw", &server.addr, "--iters", "1000", "--warmup", "0.05", "--json"]);
    assert!(number(&output.json(), "messages") >= 1000.0, "{output:?}");
}

#[test]
fn what_turned_up_again_had_been_counted_as_lost() {
    let server = Server::start(&[]);
    // It takes the server a while to get so much memory, in which it answers nothing.
    let output = run(&["perf", "bw", &server.addr, "--size", "1M", "--depth", "64", "--iters", "10", "--json"]);
    let client = &output.json()["counters"]["client"];
    let count = |name: &str| client[name].as_u64().unwrap_or_else(|| panic!("{name} is no count in {client}"));
    assert!(count("spurious_retransmits") <= count("lost_packets"), "{client}");
}

#[test]
fn perf_takes_its_options() {
    let mut server = Server::start(&["--checksum", "--mode", "sleep", "--paths", "2"]);
    let common = ["--time", "1", "--warmup", "0", "--json"];
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("ask for the permitted CPUs");
    let cpu = (0..CpuSet::count()).find(|&k| allowed.is_set(k) == Ok(true)).expect("a CPU").to_string();
    for options in [
        &["bw", "--bidir", "--size", "20k", "--depth", "4"][..],
        &["bw", "--cc", "fixed:100M", "--size", "1k", "--mtu", "1500"],
        &["rate", "--size", "1", "--depth", "7", "--checksum", "--mode", "sleep"],
        &["lat", "--size", "64k", "--cpu", &cpu],
        &["lat", "--iters", "100", "--mode", "spin"],
    ] {
        let output = run(&[&["perf"], &options[..1], &[server.addr.as_str()], &options[1..], &common].concat());
        assert_eq!(output.code, Some(0), "{options:?}: {output:?}");
        let report = output.json();
        assert!(number(&report, "messages") > 0.0, "{options:?}: {report:#}");
        if options.contains(&"--bidir") {
            assert!(number(&report, "forward_gbps") > 0.0 && number(&report, "reverse_gbps") > 0.0, "{report:#}");
        }
        if options.contains(&"fixed:100M") {
            assert!(number(&report, "bandwidth_gbps") < 0.2, "{report:#}");
        }
        server.says("done");
    }
}

#[test]
fn perf_speaks_to_people() {
    let server = Server::start(&[]);
    let output = run(&["perf", "lat", &server.addr, "--time", "0.1", "--warmup", "0"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    for text in ["half round trip", "p99.99", "Gbit/s", "cores", "path"] {
        assert!(output.stdout.contains(text), "'{text}' is not in {}", output.stdout);
    }
}

#[test]
fn server_one_off_ends_with_its_client() {
    let mut server = Server::start(&["--one-off"]);
    let output = run(&["perf", "rate", &server.addr, "--iters", "1000", "--warmup", "0"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let (status, rest) = server.end();
    assert_eq!(status.code(), Some(0), "{rest}");
    assert!(rest.contains("done"), "{rest}");
}

/// A server that keeps standard output for its report, where it listens, and what else it says.
fn json_server(args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
    let fixed = ["perf", "server", "--bind", "127.0.0.1:0", "--json"];
    let mut child = command(&[&fixed, args].concat()).spawn().expect("start the server");
    let mut err = BufReader::new(child.stderr.take().expect("standard error is a pipe"));
    let mut line = String::new();
    err.read_line(&mut line).expect("read the first line");
    let addr = line.trim_end().rsplit(' ').next().expect("an address").to_owned();
    (child, addr, err)
}

#[test]
fn server_reports_sessions_as_json() {
    let (child, addr, _err) = json_server(&["--one-off"]);
    let client = run(&["perf", "bw", &addr, "--time", "0.1", "--json"]);
    assert_eq!(client.code, Some(0), "{client:?}");
    let output = finish(child);
    assert_eq!(output.code, Some(0), "{output:?}");
    let report = output.json();
    is_documented(&report);
    assert_eq!((&report["ok"], &report["listening"]), (&Value::Bool(true), &Value::from(addr)));
    let session = &report["sessions"][0];
    names(
        session,
        &["client", "test", "size", "depth", "bandwidth_gbps", "cpu_cores", "messages_received", "duration_s"],
    );
    assert_eq!((&session["test"], &session["complete"]), (&Value::from("bw"), &Value::Bool(true)));
}

#[test]
fn server_reports_the_session_that_its_end_breaks_off() {
    let (child, addr, mut err) = json_server(&[]);
    let client = command(&["perf", "lat", &addr, "--time", "1000"]).spawn().expect("start a client");
    err.read_line(&mut String::new()).expect("it says that a session began");
    signal(child.id(), Signal::SIGINT);
    let output = finish(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    let session = &output.json()["sessions"][0];
    assert_eq!((&session["test"], &session["complete"]), (&Value::from("lat"), &Value::Bool(false)));
    assert_eq!(session["error"], Value::from("the server was stopped"));
    finish(client).fails(4, &["has given the test up"]);
}

#[test]
fn server_serves_one_after_the_other() {
    let mut server = Server::start(&[]);
    let first = command(&["perf", "bw", &server.addr, "--time", "1000", "--warmup", "0", "--json"]).spawn();
    let first = first.expect("start the first client");
    server.says("bw 8k x 256");
    fails(&["perf", "lat", &server.addr], 4, &["busy", "try again later"]);
    server.says("turned away");
    signal(first.id(), Signal::SIGINT);
    let output = finish(first);
    assert_eq!(output.code, Some(130), "{output:?}");
    output.json();
    assert!(output.stderr.starts_with("srd: interrupted"), "{output:?}");
    server.says("done");
    let output = run(&["perf", "lat", &server.addr, "--iters", "10", "--warmup", "0"]);
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn server_survives_clients_that_vanish_and_garbage() {
    let mut server = Server::start(&["--client-timeout", "1"]);
    for test in ["lat", "bw"] {
        let args = ["perf", test, &server.addr, "--time", "1000", "--bidir"];
        let args = if test == "lat" { &args[..5] } else { &args[..] };
        let mut client = command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start a client");
        server.says(test);
        client.kill().expect("kill the client");
        client.wait().expect("wait for the client");
        server.says("broken off");
    }
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    for k in 0..500_usize {
        let garbage: Vec<u8> = (0..k * 3).map(|j| (j * 7 + k) as u8).collect();
        stranger.send_to(&garbage, &server.addr).expect("send garbage");
    }
    let output = run(&["perf", "rate", &server.addr, "--iters", "1000", "--warmup", "0"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    signal(server.child.id(), Signal::SIGTERM);
    let (status, _) = server.end();
    assert_eq!(status.code(), Some(130));
}

#[test]
fn server_that_shall_outlive_its_terminal_does() {
    // As nohup(1) starts it.
    let script = "trap '' HUP; exec \"$@\"";
    let srd = env!("CARGO_BIN_EXE_srd");
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", srd, "perf", "server", "--bind", "127.0.0.1", "--port", "0"]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Server::of(shell.spawn().expect("start the server"));
    signal(server.child.id(), Signal::SIGHUP);
    let output = run(&["perf", "lat", &server.addr, "--iters", "10", "--warmup", "0"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    signal(server.child.id(), Signal::SIGTERM);
    assert_eq!(server.end().0.code(), Some(130));
}

#[test]
fn client_notices_that_the_server_died() {
    for test in ["lat", "bw"] {
        let mut server = Server::start(&[]);
        let args = ["perf", test, &server.addr, "--time", "1000", "--warmup", "0", "--connect-timeout", "1", "--json"];
        let client = command(&args).spawn().expect("start a client");
        server.says(test);
        server.child.kill().expect("kill the server");
        let output = finish(client);
        assert_eq!(output.code, Some(4), "{output:?}");
        output.json();
        assert!(output.stderr.contains("stopped answering") || output.stderr.contains("no server"), "{output:?}");
    }
}

#[test]
fn client_is_told_that_the_server_ends() {
    for test in ["lat", "bw"] {
        let mut server = Server::start(&[]);
        // Longer than the limit of a command: silence would not end it.
        let args =
            ["perf", test, &server.addr, "--time", "1000", "--warmup", "0", "--connect-timeout", "1000", "--json"];
        let client = command(&args).spawn().expect("start a client");
        server.says(test);
        signal(server.child.id(), Signal::SIGINT);
        let output = finish(client);
        output.fails(4, &["has given the test up"]);
        output.json();
    }
}

/// A message of 2.6 s, and a server that counts as gone after 2 s of silence: one second, and one of grace.
const LONG: [&str; 8] = ["--size", "4M", "--warmup", "0", "--connect-timeout", "1", "--mode", "sleep"];
const SLOW: [&str; 2] = ["--cc", "fixed:13M"];

#[test]
fn long_messages_on_slow_links_are_no_silence() {
    let server = Server::start(&[]);
    for options in [&["perf", "lat"][..], &["perf", "bw", "--depth", "1"]] {
        let output = run(&[options, &[&server.addr, "--iters", "1"], &LONG, &SLOW].concat());
        assert_eq!(output.code, Some(0), "{output:?}");
    }
    // Nor are those that the server has still to deliver when the test is over.
    let server = Server::start(&SLOW);
    let output = run(&[&["perf", "bw", &server.addr, "--depth", "1", "--bidir", "--time", "0.2"][..], &LONG].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn nothing_measured_is_no_result() {
    let server = Server::start(&[]);
    let few = run(&["perf", "bw", &server.addr, "--iters", "1", "--depth", "1", "--warmup", "0"]);
    assert_eq!(few.code, Some(0), "{few:?}");
    assert!(few.stdout.contains("not measured, too few messages"), "no latency of 0 us: {few:?}");
    for test in ["lat", "bw"] {
        let depth: &[&str] = if test == "bw" { &["--depth", "1"] } else { &[] };
        let args = [&["perf", test, &server.addr, "--time", "0.1", "--json"], depth, &LONG, &SLOW].concat();
        fails(&args, 1, &["4M ended within 0.1", "measure longer (--time)"]);
    }
}

#[test]
fn peer_that_is_not_there() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let addr = silent.local_addr().expect("local address").to_string();
    let args = ["perf", "lat", &addr, "--connect-timeout", "0.3"];
    fails(&args, 4, &[&addr, "no server answers", "within 0.3 s", "srd perf server"]);
    fails(&[&args[..], &["--json"]].concat(), 4, &["no server answers"]);
    // It keeps its port from others, and takes nothing from anybody any more.
    silent.connect(silent.local_addr().expect("local address")).expect("connect");
    fails(&args, 4, &["no server answers", "nothing listens"]);
    // Servers listen for IPv4 unless told otherwise.
    let silent = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).expect("bind a socket");
    let addr = silent.local_addr().expect("local address").to_string();
    fails(&["perf", "lat", &addr, "--connect-timeout", "0.3"], 4, &["srd perf server --bind ::"]);
}

#[test]
fn lines_of_several_processes_do_not_mix() {
    // A datagram is what was written at once.
    let (theirs, ours) = UnixDatagram::pair().expect("a pair of sockets");
    let child = command(&["perf", "nonsense"]).stderr(OwnedFd::from(theirs)).spawn().expect("start the command");
    finish(child);
    let mut text = [0; 1024];
    let length = ours.recv(&mut text).expect("a line");
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    assert!(text.starts_with("srd: ") && text.ends_with('\n'), "{text}");
}

#[test]
fn the_log_has_colours_on_a_terminal_unless_they_are_unwanted() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let addr = silent.local_addr().expect("local address");
    let srd = env!("CARGO_BIN_EXE_srd");
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: needs script (a part of util-linux)");
        return;
    }
    let logged = |no_color: &str| {
        // script(1) gives it a terminal.
        let line = format!("'{srd}' -v perf lat {addr} --connect-timeout 0.1");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", no_color).stdin(Stdio::null());
        let output = script.output().expect("run script");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let (plain, coloured) = (logged("1"), logged(""));
    assert!(plain.contains("INFO opened") && !plain.contains('\x1b'), "{plain:?}");
    assert!(coloured.contains("\x1b[32m INFO"), "{coloured:?}");
}

#[test]
fn interrupt_while_nobody_answers() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let addr = silent.local_addr().expect("local address").to_string();
    let client = command(&["perf", "bw", &addr, "--connect-timeout", "1000"]).spawn().expect("start a client");
    // The first packet shows that it has got so far.
    silent.set_read_timeout(Some(LIMIT)).expect("set a timeout");
    silent.recv(&mut [0; 2048]).expect("a handshake arrives");
    signal(client.id(), Signal::SIGINT);
    let output = finish(client);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert!(output.stderr.starts_with("srd: interrupted"), "{output:?}");
}

#[test]
fn interrupt_while_a_name_is_looked_up() {
    // A name server that does not answer, nor does anybody say that it is not there.
    let script = "ip link set lo up; ip link add va type veth peer name vb; ip link set va up; ip link set vb up
        ip addr add 10.99.1.1/24 dev va; ip neigh add 10.99.1.2 lladdr 02:00:00:00:00:02 dev va
        dir=$(mktemp -d); mount -t tmpfs none $dir; printf 'nameserver 10.99.1.2\noptions timeout:30\n' > $dir/resolv
        mount --bind $dir/resolv /etc/resolv.conf; umount -l $dir; rmdir $dir
        exec timeout --signal INT 1 \"$@\"";
    let srd = env!("CARGO_BIN_EXE_srd");
    let unshare = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-r", "-n", "-m", "sh", "-ec", script, "sh"]).args(args).stdin(Stdio::null()).output()
    };
    if !unshare(&["true"]).is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: needs unshare -r -n -m (name spaces of users, networks and mounts) and ip");
        return;
    }
    for args in
        [&["perf", "lat", "host.example"][..], &["incast", "--rank", "1", "--size", "2", "--master", "host.example"]]
    {
        let output = unshare(&[&[srd], args].concat()).expect("run unshare");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(124), ""), "{args:?} was not ended by the signal");
    }
}

#[test]
fn set_up_errors() {
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let port = taken.local_addr().expect("local address").port().to_string();
    fails(&["perf", "server", "--bind", "127.0.0.1", "--port", &port], 3, &[&port, "in use"]);
    fails(&["perf", "server", "--bind", "127.0.0.1", "--port", &port, "--json"], 3, &[&port, "in use"]);
    fails(&["perf", "server", "--bind", "192.0.2.77:0"], 3, &["192.0.2.77", "not an address of this host"]);
    fails(&["perf", "server", "--bind", "::1:5000"], 3, &["not an address of this host", "write [::1]:5000"]);
    fails(&["perf", "server", "--bind", "127.0.0.1:0", "--cpu", "1000"], 3, &["CPU 1000", "may use"]);
    fails(&["perf", "server", "--bind", "127.0.0.1:0", "--cpu", "99999999"], 3, &["CPU 99999999"]);
    fails(&["perf", "lat", "no-such-host.invalid"], 3, &["no-such-host.invalid"]);
    fails(&["perf", "lat", "255.255.255.255"], 3, &["no permission", "255.255.255.255"]);
}

#[test]
fn no_route() {
    // Needs a network namespace without routes, which unprivileged users can make where user namespaces are permitted.
    let srd = env!("CARGO_BIN_EXE_srd");
    let unshare = |args: &[&str]| Command::new("unshare").args(["-r", "-n"]).args(args).stdin(Stdio::null()).output();
    if !unshare(&["true"]).is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: needs unshare -r -n (user and network namespaces)");
        return;
    }
    let output = unshare(&[srd, "perf", "lat", "192.0.2.1"]).expect("run unshare");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("srd: no route to 192.0.2.1") && stderr.trim_end().lines().count() == 1, "{stderr}");
    // Its loopback interface is down.
    let output = unshare(&[srd, "demo", "--messages", "10"]).expect("run unshare");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("does not arrive; bring the loopback interface up"), "{stderr}");
    // Its root is not the host's.
    let output = unshare(&[srd, "incast", "--testbed"]).expect("run unshare");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("as root of the host"), "{stderr}");
}

#[test]
fn no_permission() {
    // Needs to be no root and ports below 1024 to be protected.
    let srd = env!("CARGO_BIN_EXE_srd");
    let probe = |args: &[&str]| {
        Command::new("setpriv").args(["--reuid=65534", "--clear-groups"]).args(args).stdin(Stdio::null()).output()
    };
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if first.trim().parse::<u16>().is_ok_and(|first| first <= 1)
        || !probe(&[srd, "--version"]).is_ok_and(|o| o.status.success())
    {
        eprintln!("skipped: needs root, setpriv, and net.ipv4.ip_unprivileged_port_start above 1");
        return;
    }
    let output = probe(&[srd, "perf", "server", "--bind", "127.0.0.1:1"]).expect("run setpriv");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("srd: no permission") && stderr.trim_end().lines().count() == 1, "{stderr}");
}

#[test]
fn usage_errors() {
    let cases: &[(&[&str], &str)] = &[
        (&["dance"], "dance"),
        (&["docter"], "unrecognized subcommand 'docter' (do you mean doctor?); see --help"),
        (
            &["run", "--pats", "4", "--", "true"],
            "unexpected argument '--pats' found (do you mean --paths?); see --help",
        ),
        (&["perf", "server", "--driver", "udpp"], "(do you mean udp?)"),
        (&["demo", "--size", "big"], "'big' is no size"),
        (&["demo", "--size", "2G"], "out of range"),
        (&["demo", "--messages", "0"], "no count"),
        (&["demo", "--seed", "abc"], "'abc' for '--seed <N>': a whole number without sign is wanted"),
        (&["sim", "incast", "--seed", "-1"], "a whole number without sign is wanted"),
        (&["demo", "--seed", "99999999999999999999"], "number too large"),
        (&["incast", "--testbed", "--flows", "16385"], "16385 is not in 1..=16384"),
        (&["incast", "--testbed", "--depth", "0"], "0 is not in 1..=4096"),
        (&["incast", "--testbed", "--endpoints", "0"], "0 is not in 1..=16384"),
        (&["incast", "--testbed", "--tcp", "cubic,,bbr"], "a name is missing; write for example cubic,bbr"),
        (&["demo", "--paths", "0"], "0"),
        (&["demo", "--loss", "100"], "no share"),
        (&["demo", "--paths", "4", "--kill-path", "4"], "no path 4"),
        (&["demo", "--no-kill", "--kill-path", "1"], "cannot be used with"),
        (&["perf", "lat"], "HOST"),
        (&["perf", "lat", "host:99999"], "99999"),
        (&["perf", "lat", "::1:28773"], "[::1]:5000"),
        (&["perf", "lat", "localhost", "--depth", "2"], "--depth"),
        (&["perf", "bw", "localhost", "--time", "-1"], "'-1' is no time in seconds"),
        (&["perf", "bw", "localhost", "--json", "--size", "0"], "0 is out of range, 1 byte to 1G"),
        (&["run", "-1"], "unexpected argument '-1' found"),
        (&["stat", "--json", "--bogus"], "unexpected argument '--bogus' found"),
        (&["sim", "incast", "--print", "--json"], "'--print' cannot be used with '--json'"),
        (&["sim", "incast", "--print", "--set", "seed=2"], "'--print' cannot be used with '--set"),
        (&["sim", "incast", "--sweep", "none", "--print"], "cannot be used with"),
        (&["sim", "--list", "incast"], "'--list' cannot be used with '[SCENARIO]'"),
        (&["sim", "--list", "--seed", "2"], "'--list' cannot be used with '--seed"),
        (&["perf", "bw", "localhost", "--time", "soon"], "soon"),
        (&["perf", "bw", "localhost", "--cc", "cubic"], "cubic"),
        (&["perf", "bw", "localhost", "--mode", "dream"], "dream"),
        (&["perf", "bw", "localhost", "--mtu", "100"], "100"),
        (&["perf", "bw", "localhost", "--size", "1M", "--depth", "2000"], "reduce"),
        (&["perf", "rate", "localhost", "--depth", "0"], "0 messages"),
        (&["perf", "bw", "127.0.0.1", "--bind", "::1"], "do not mix"),
        (&["perf", "server", "--bind", "here"], "here"),
        (&["perf", "bw", "127.0.0.1", "--interface", "nosuch"], "--interface is for AF_XDP"),
        (&["perf", "server", "--bind", "127.0.0.1:0", "--xdp-queues", "2"], "--xdp-queues is for AF_XDP"),
    ];
    for (args, says) in cases {
        fails(args, 2, &[says]);
    }
    // A program's own words ask nothing of us.
    let output = run(&["run", "--bogus", "--", "program", "--json"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{output:?}");
}

#[test]
fn help_is_no_error() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["demo", "--help"],
        &["perf", "bw", "--help"],
        &["help"],
        &["help", "run"],
        &["help", "perf", "bw"],
    ] {
        let output = run(args);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(output.stdout.contains("srd"), "{args:?}: {}", output.stdout);
    }
    let output = run(&[]);
    assert_eq!(output.code, Some(2));
    assert!(output.stderr.contains("Usage"), "{output:?}");
}

#[test]
fn help_names_limits_and_what_options_mean_without_value() {
    let cases: &[(&str, &[&str])] = &[
        ("demo", &["in per cent, 0 to 90"]),
        ("stat", &["every second or so many"]),
        (
            "incast",
            &[
                "bed, 1 to 63",
                "host, 1 to 16384 in all",
                "whole seconds, 2 or more",
                "flow, 1 to 4096",
                "Repetitions, 1 to 1000",
                "test bed, 1280 to 9000 bytes",
                "receiver's, 1 to 16",
            ],
        ),
    ];
    for (command, texts) in cases {
        let help = run(&[command, "--help"]).stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in *texts {
            assert!(help.contains(text), "{command}: no '{text}' in {help}");
        }
    }
}
