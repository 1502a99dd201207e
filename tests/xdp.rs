//! The command over AF_XDP, on hosts of a test bed: alone and mixed with kernel UDP, beside other traffic, killed at any time,
//! and seen from the wire.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::{Clos, Direction, Family, Host, Pair};

const SRD: &str = env!("CARGO_BIN_EXE_srd");

/// No program here takes as long as this to say something, or to end, not even over an emulated NIC that loses its link for
/// seconds whenever a program comes or goes.
const PATIENCE: Duration = Duration::from_secs(180);

/// A program that runs until it is dropped. What it says is read as it comes, so that it never waits for us.
struct Running {
    child: Child,
    command: String,
    stderr: Receiver<String>,
    stdout: Receiver<String>,
    /// Lines of standard error so far.
    said: String,
}

/// Lines of a stream, from a thread that ends with it.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            if tell.send(text).is_err() {
                break;
            }
        }
    });
    lines
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = lines(child.stderr.take().expect("a pipe"));
        let stdout = lines(child.stdout.take().expect("a pipe"));
        Running { child, command: format!("{command:?}"), stderr, stdout, said: String::new() }
    }

    /// Reads standard error up to a line that contains `text`.
    ///
    /// # Panics
    /// If there is none in time.
    fn says(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.stderr.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => self.said += &line,
                Err(why) => panic!("'{text}' is not said ({why}) by {}: {}", self.command, self.said),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    /// Waits for its end; its exit code and standard output.
    ///
    /// # Panics
    /// If it does not end in time.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let mut out = String::new();
        loop {
            // Standard output is closed by its end.
            match self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => out += &line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.said.extend(self.stderr.try_iter());
                    panic!("{} does not end: {out}{}", self.command, self.said);
                }
            }
        }
        // The kernel is still tidying up.
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return (status.code(), out);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} has closed its output and does not end: {out}", self.command)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server, and where it listens.
fn server(host: &Host, family: Family, args: &[&str]) -> (Running, SocketAddr) {
    server_at(host, &host.ip(family).to_string(), args)
}

fn server_at(host: &Host, bind: &str, args: &[&str]) -> (Running, SocketAddr) {
    let fixed = ["perf", "server", "--port", "0", "--json", "--mode", "sleep", "--bind", bind];
    let mut running = Running::start(host.command(SRD).args(fixed).args(args));
    let line = running.says("listening on");
    let addr = line.trim_end().rsplit(' ').next().expect("the last word").parse().expect("an address");
    (running, addr)
}

fn client(host: &Host, test: &str, server: SocketAddr, args: &[&str]) -> Command {
    let mut command = host.command(SRD);
    command.args(["perf", test, &server.to_string(), "--json", "--mode", "sleep", "--warmup", "0.05"]).args(args);
    command
}

/// Runs it to its end, which comes in time, or is made to.
fn finish(command: &mut Command) -> Output {
    let patience = PATIENCE.as_secs().to_string();
    let mut bounded = Command::new("timeout");
    bounded.arg("--signal=KILL").arg(patience).arg(command.get_program()).args(command.get_args());
    bounded.output().expect("it starts")
}

/// Runs it to its end, which is good, and returns its report.
fn report(command: &mut Command) -> Value {
    let out = finish(command);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {stderr}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"))
}

fn output(command: &mut Command) -> String {
    let out = finish(command);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {stdout}{stderr}");
    stdout.into_owned()
}

fn has_program(host: &Host) -> bool {
    output(host.command("ip").args(["link", "show", "dev", "eth0"])).contains("xdp")
}

#[test]
fn every_pair_of_drivers_gets_along() {
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        for (here, there) in [("xdp", "xdp"), ("xdp", "udp"), ("udp", "xdp")] {
            let Some(bed) = Pair::builder().mtu(mtu).for_test() else { return };
            let (server, addr) = server(bed.host(1), family, &["--driver", there]);
            // Counts, not times, in which a busy machine may get little done.
            for (test, args) in [
                ("lat", &["--size", "64", "--iters", "200"][..]),
                ("rate", &["--size", "64", "--depth", "256", "--iters", "20k"]),
                ("bw", &["--size", "64k", "--depth", "32", "--bidir", "--iters", "500"]),
            ] {
                let fixed = ["--driver", here];
                let report = report(client(bed.host(0), test, addr, &fixed).args(args));
                assert_eq!((&report["complete"], report["driver"].as_str()), (&Value::Bool(true), Some(here)));
                assert!(report["messages"].as_u64() >= Some(200), "{here} to {there}, {test}: {report:#}");
            }
            assert_eq!([has_program(bed.host(0)), has_program(bed.host(1))], [false, there == "xdp"]);
            server.signal(Signal::SIGINT);
            let (code, out) = server.end();
            assert_eq!(code, Some(130), "{out}");
            assert!(!has_program(bed.host(1)), "detached by an interrupt");
        }
    }
}

#[test]
fn killed_at_any_time_it_leaves_nothing() {
    let Some(bed) = Pair::builder().for_test() else { return };
    for round in 0..10 {
        let (server, addr) = server(bed.host(1), Family::V4, &["--driver", "xdp"]);
        let args = ["--driver", "xdp", "--time", "1000"];
        let client = (round % 2 == 0).then(|| Running::start(&mut client(bed.host(0), "bw", addr, &args)));
        assert!(has_program(bed.host(1)));
        for running in client.into_iter().chain([server]) {
            running.signal(Signal::SIGKILL);
            running.end();
        }
        assert!(!has_program(bed.host(0)) && !has_program(bed.host(1)), "detached by SIGKILL");
    }
    output(bed.host(0).command("ping").args(["-c", "3", "-i", "0.05", "-W", "2", &bed.host(1).addr().to_string()]));
}

#[test]
fn ping_and_iperf3_get_through_meanwhile() {
    let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
    let to = bed.host(1).addr().to_string();
    let (_server, addr) = server(bed.host(1), Family::V4, &["--driver", "xdp"]);
    let mut transfer = client(bed.host(0), "bw", addr, &["--driver", "xdp", "--time", "2", "--size", "64k"]);
    let transfer = Running::start(&mut transfer);
    let mut iperf =
        Running::start(bed.host(1).command("iperf3").args(["-s", "-1", "--forceflush", "--logfile", "/dev/stderr"]));
    iperf.says("listening on");
    // More than buffers hold: at the end, what has left them is taken for sent.
    let text = output(bed.host(0).command("iperf3").args(["-c", &to, "-n", "20M", "-J"]));
    let tcp: Value = serde_json::from_str(&text).expect("a report");
    assert!(tcp["end"]["sum_received"]["bytes"].as_u64() > Some(1_000_000), "{tcp:#}");
    // The cable drops what its other end, which has no core, does not take, so some may be lost: it fails if all are.
    output(bed.host(0).command("ping").args(["-c", "20", "-i", "0.02", "-W", "2", &to]));
    let (code, out) = transfer.end();
    let report: Value = serde_json::from_str(&out).expect("a report");
    assert_eq!((code, &report["complete"]), (Some(0), &Value::Bool(true)), "{report:#}");
}

#[test]
fn a_spine_that_swallows_packets_costs_paths_and_no_messages() {
    for (here, there) in [("xdp", "xdp"), ("udp", "xdp")] {
        let Some(bed) = Clos::builder().spines(4).mtu(1500).for_test() else { return };
        let (_server, addr) = server(bed.host(2), Family::V4, &["--driver", there]);
        // Two seconds.
        let args = ["--driver", here, "--iters", "3000", "--size", "16k", "--depth", "16", "--cc", "fixed:200M"];
        let transfer = Running::start(&mut client(bed.host(0), "bw", addr, &args));
        // Once a part of the packets has crossed the spines, the one that most of them took goes silent, and until it is, nothing
        // more is sent. A spine may have none of the paths.
        let links = || bed.link_stats().expect("counters");
        let crossed = || links().iter().map(|link| link.packets).sum::<u64>();
        let deadline = Instant::now() + PATIENCE;
        while crossed() < 4000 {
            assert!(Instant::now() < deadline, "{} packets have crossed the spines", crossed());
            std::thread::sleep(Duration::from_millis(1));
        }
        transfer.signal(Signal::SIGSTOP);
        let up = links().into_iter().filter(|link| (link.leaf, link.direction) == (0, Direction::Up));
        let busiest = up.max_by_key(|link| link.packets).expect("four spines");
        bed.hole_spine(busiest.spine).expect("a hole");
        transfer.signal(Signal::SIGCONT);
        let (code, out) = transfer.end();
        let report: Value = serde_json::from_str(&out).expect("a report");
        assert_eq!((code, &report["complete"]), (Some(0), &Value::Bool(true)), "{report:#}");
        assert!(report["counters"]["client"]["paths_replaced"].as_u64() > Some(0), "{report:#}");
    }
}

/// What tshark says of all packets of a transfer, seen by the switch next to the client.
fn seen_on_the_wire(family: Family, driver: &str) -> BTreeSet<String> {
    let bed = Clos::builder().spines(1).mtu(1500).offload(false).build().expect("a test bed");
    let (_server, addr) = server(bed.host(2), family, &["--driver", driver]);
    let file = std::env::temp_dir().join(format!("{}-{driver}-{family:?}.pcap", bed.id()));
    let path = file.to_str().expect("a name of letters");
    let namespace = bed.host(0).namespace().replace("-h0", "-l0");
    // It ends by itself with this packet, which is not the last, and so has written all before.
    let capture = ["netns", "exec", &namespace, "dumpcap", "-q", "-i", "h0", "-f", "udp", "-c", "101", "-w", path];
    let mut capture = Running::start(Command::new("ip").args(capture));
    capture.says("File:");
    let args = ["--driver", driver, "--iters", "50", "--size", "3000", "--depth", "4"];
    report(&mut client(bed.host(0), "bw", addr, &args));
    capture.end();
    let fields = [
        "eth.type",
        "ip.version",
        "ip.hdr_len",
        "ip.dsfield",
        "ip.flags",
        "ip.frag_offset",
        "ip.ttl",
        "ip.checksum.status",
        "ipv6.version",
        "ipv6.tclass",
        "ipv6.hlim",
        "ipv6.nxt",
        "udp.checksum.status",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "_ws.malformed",
        "_ws.expert.message",
    ];
    let mut tshark = Command::new("tshark");
    // Headers only: the ports are chosen at random, and some are other protocols' to tshark.
    tshark.args(["-d", "udp.port==1-65535,data"]);
    tshark.args(["-r", path, "-T", "fields", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let seen = output(&mut tshark);
    let _ = std::fs::remove_file(&file);
    assert_eq!(seen.lines().count(), 101, "{seen}");
    // Some of the ports that may be drawn are those of traceroute, and tshark says so.
    let fields =
        |line: &str| line.split("Possible traceroute").next().expect("split gives one part at least").to_owned();
    seen.lines().map(fields).collect()
}

#[test]
fn the_wire_looks_alike_with_both_drivers() {
    if !testbed::runs_here() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let [udp, xdp] = ["udp", "xdp"].map(|driver| seen_on_the_wire(family, driver));
        assert_eq!(udp, xdp);
        // Good checksums, as tshark counts.
        assert!(xdp.iter().all(|packet| packet.split('\t').nth(12) == Some("1")), "{xdp:?}");
    }
}

#[test]
fn auto_takes_af_xdp_where_the_kernel_would_not_copy() {
    let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
    let (_server, addr) = server(bed.host(1), Family::V4, &["--driver", "udp"]);
    let out = finish(&mut client(bed.host(0), "lat", addr, &["--driver", "auto", "--iters", "10"]));
    let stderr = String::from_utf8_lossy(&out.stderr);
    let report: Value = serde_json::from_slice(&out.stdout).expect("a report");
    if bed.is_virtual() {
        assert!(stderr.contains("using kernel UDP: eth0 has no zero copy") && stderr.lines().count() == 1, "{stderr}");
        assert_eq!(report["driver"], "udp");
    } else {
        assert_eq!((report["driver"].as_str(), &stderr[..]), (Some("xdp"), ""));
    }
}

#[test]
fn verbose_tells_what_the_kernel_granted() {
    let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
    let (_server, addr) = server(bed.host(1), Family::V4, &["--driver", "xdp"]);
    for (verbose, lines) in [(&[][..], 0), (&["-v"], 1)] {
        let out = finish(client(bed.host(0), "lat", addr, &["--driver", "xdp", "--iters", "10"]).args(verbose));
        let stderr = String::from_utf8_lossy(&out.stderr);
        let said: Vec<_> = stderr.lines().filter(|line| line.contains("AF_XDP at eth0: queues [0] of 1")).collect();
        assert_eq!(said.len(), lines, "{stderr}");
        assert!(said.iter().all(|line| line.contains("on huge pages") || line.contains("on normal pages")), "{stderr}");
    }
}

/// The command on a host, with these capabilities and no others.
fn with_capabilities(host: &Host, capabilities: &[&str]) -> Command {
    let set = capabilities.iter().fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
    let mut command = host.command("setpriv");
    command.args(["--bounding-set", &set, "--inh-caps", &set, SRD]);
    command
}

#[test]
fn without_privilege_it_says_what_is_missing() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let to = bed.host(1).addr().to_string();
    for capabilities in [&[][..], &["net_raw", "bpf"], &["net_admin", "bpf"], &["net_admin", "net_raw"]] {
        let mut command = with_capabilities(bed.host(0), capabilities);
        let out = finish(command.args(["perf", "lat", &to, "--driver", "xdp"]));
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("CAP_NET_ADMIN") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn a_few_capabilities_are_enough() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let (_server, addr) = server(bed.host(1), Family::V4, &["--driver", "xdp"]);
    let mut command = with_capabilities(bed.host(0), &["net_admin", "net_raw", "bpf", "ipc_lock"]);
    let args = ["--driver", "xdp", "--iters", "100", "--mode", "sleep", "--json"];
    let report = report(command.args(["perf", "lat", &addr.to_string()]).args(args));
    assert_eq!((&report["complete"], report["driver"].as_str()), (&Value::Bool(true), Some("xdp")));
}

#[test]
fn processes_share_an_interface_by_its_queues() {
    let Some(bed) = Pair::builder().mtu(1500).queues(2).for_test() else { return };
    let one_queue = ["--driver", "xdp", "--xdp-queues", "1"];
    let servers = [0, 1].map(|_| server(bed.host(1), Family::V4, &one_queue));
    let third = finish(&mut client(bed.host(1), "lat", servers[0].1, &one_queue));
    let stderr = String::from_utf8_lossy(&third.stderr);
    assert_eq!(third.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("no free receive queue at eth0") && stderr.contains("--xdp-queues"), "{stderr}");
    let clients = [&one_queue[..], &["--driver", "udp"]].into_iter().zip(&servers).map(|(driver, (_, addr))| {
        let args = [driver, &["--time", "0.5", "--size", "16k", "--bidir"]].concat();
        Running::start(&mut client(bed.host(0), "bw", *addr, &args))
    });
    for (code, out) in clients.collect::<Vec<_>>().into_iter().map(Running::end) {
        let report: Value = serde_json::from_str(&out).expect("a report");
        assert_eq!((code, &report["complete"]), (Some(0), &Value::Bool(true)), "{report:#}");
    }
}

#[test]
fn link_local_addresses_have_an_interface() {
    let Some(bed) = Pair::builder().for_test() else { return };
    for (i, host) in bed.hosts().iter().enumerate() {
        let args = format!("addr add fe80::{}/64 dev eth0 nodad", i + 1);
        assert!(host.command("ip").args(args.split(' ')).status().expect("ip starts").success());
    }
    for driver in ["udp", "xdp"] {
        let driver = ["--driver", driver];
        let (_server, addr) = server_at(bed.host(1), "fe80::2%eth0", &driver);
        let to = format!("[fe80::2%eth0]:{}", addr.port());
        let mut command = bed.host(0).command(SRD);
        command.args(["perf", "lat", &to, "--json", "--mode", "sleep", "--iters", "20", "--warmup", "0"]).args(driver);
        for bind in [&[][..], &["--bind", "fe80::1%eth0"]] {
            let out = finish(command.args(bind));
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }
}

#[test]
fn doctor_says_whether_it_would_work() {
    let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
    let addr = bed.host(0).addr().to_string();
    let finding = |mut command: Command, driver: &str| {
        command.args(["doctor", "--json", "--addr", &addr, "--driver", driver]);
        let out = finish(&mut command);
        let report: Value = serde_json::from_slice(&out.stdout).expect("a report");
        let findings = report["findings"].as_array().expect("findings").clone();
        let found = findings.into_iter().find(|f| f["check"] == "AF_XDP").expect("a finding about AF_XDP");
        (found["state"].as_str().expect("a state").to_owned(), found["found"].as_str().expect("words").to_owned())
    };
    let (state, found) = finding(bed.host(0).command(SRD), "xdp");
    assert!(state == "ok" && found.contains("works at eth0"), "{found}");
    assert!(!has_program(bed.host(0)), "it is only looked at");
    let (state, found) = finding(with_capabilities(bed.host(0), &[]), "xdp");
    assert!(state == "fail" && found.contains("CAP_NET_ADMIN"), "{found}");
    let (state, _) = finding(with_capabilities(bed.host(0), &[]), "udp");
    assert_eq!(state, "ok", "it is not asked for");
    // Frames are larger where the NIC may fill them itself.
    let needed = if bed.is_virtual() { 4096 } else { 8192 };
    for (kibibytes, want) in [(needed, "ok"), (needed - 1, "warn")] {
        let mut command = bed.host(0).command("prlimit");
        let set = "-all,+net_admin,+net_raw,+bpf";
        command.arg(format!("--memlock={}", kibibytes << 10));
        command.args(["setpriv", "--bounding-set", set, "--inh-caps", set, SRD]);
        let (state, found) = finding(command, "xdp");
        assert!(state == want && (want == "ok" || found.contains("packet buffers take up to")), "{found}");
    }
}

#[test]
fn doctor_warns_of_policies_that_are_bypassed() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let host = bed.host(0);
    let warns = |driver: &str| {
        let addr = host.addr().to_string();
        let out = finish(host.command(SRD).args(["doctor", "--json", "--addr", &addr, "--driver", driver]));
        let report: Value = serde_json::from_slice(&out.stdout).expect("a report");
        report["findings"].as_array().expect("findings").iter().any(|f| f["check"] == "IPsec")
    };
    assert!(!warns("xdp"));
    let made = host.command("ip").args("xfrm policy add dst 10.0.0.2 dir out action block".split(' ')).output();
    if !made.expect("ip starts").status.success() {
        eprintln!("skipped: this kernel has no IPsec (CONFIG_XFRM_USER)");
        return;
    }
    assert_eq!((warns("xdp"), warns("udp")), (true, false));
}
