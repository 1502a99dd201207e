//! A peer process that is killed in the middle of each operation: the documented status, in bounded time, and nobody else
//! notices. The peer is this test binary, run again.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use srd_core::{Config, Span};
use verbs_shim::NicConfig;
use verbs_shim::api::*;
use verbs_shim::card::{Opcode, Status};

const PEER: &str = "SRD_TEST_IS_PEER";
const TIMEOUT: Duration = Duration::from_secs(2);
const WINDOW: usize = 32 << 20;

fn device() -> Device {
    device_with(TIMEOUT)
}

fn device_with(peer_timeout: Duration) -> Device {
    let peer_timeout = Span::from(peer_timeout);
    let transport = Config { peer_timeout, keepalive: Span::from_millis(200), ..Config::default() };
    let mut config = NicConfig::at("127.0.0.1:0".parse().unwrap());
    config.transport = transport.check().unwrap();
    Device::open(config).unwrap()
}

/// The peer: tells its address on standard output, hears ours on standard input, and takes whatever comes until it dies
/// or standard input ends.
#[test]
fn peer_process() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let device = device();
    let (pd, cq) = (device.pd().unwrap(), device.cq(1024).unwrap());
    let qp = pd.srd(&cq).depth(16, 256).build().unwrap();
    let window = pd.window(WINDOW, true, true).unwrap();
    let RemoteMemory { addr, len, rkey } = window.remote();
    println!("\nPEER {} {addr} {len} {rkey}", qp.address());
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let _to = pd.target(line.parse().unwrap()).unwrap();
    for buf in pd.bufs(256, 8928).unwrap() {
        qp.recv(buf).unwrap();
    }
    println!("READY");
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        if let Some(done) = cq.wait(None).unwrap()
            && let Some(buf) = done.buf
        {
            qp.recv(buf).unwrap();
        }
    }
}

struct Peer {
    process: Child,
    target: Target,
    memory: RemoteMemory,
}

impl Peer {
    /// Returns when the process does not run any more.
    fn stop(&self) {
        let pid = Pid::from_raw(self.process.id() as i32);
        kill(pid, Signal::SIGSTOP).expect("it is our child");
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it is our child");
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    }

    fn start(pd: &Pd, us: QpAddress) -> Peer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["peer_process", "--exact", "--nocapture"])
            .env(PEER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = out.find(|l| l.starts_with("PEER ")).expect("the peer's address");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |n: usize| words[n].parse::<u64>().unwrap();
        let memory = RemoteMemory { addr: number(2), len: number(3), rkey: number(4) as u32 };
        writeln!(process.stdin.as_mut().unwrap(), "{us}").unwrap();
        out.find(|l| l == "READY").expect("that it knows us");
        let target = pd.target(words[1].parse().unwrap()).unwrap();
        Peer { process, target, memory }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn post(qp: &QueuePair<Srd>, peer: &Peer, kind: usize, mut buf: Buf) {
    let to = &peer.target;
    match kind {
        0 => {
            buf.set_len(8928);
            qp.send(to, buf)
        }
        1 => qp.write(to, buf, peer.memory, None),
        2 => qp.write(to, buf, peer.memory, Some(1)),
        _ => qp.read(to, buf, peer.memory),
    }
    .expect("room in the queue");
}

#[test]
fn killed_in_the_middle_of_each_operation() {
    let device = device();
    let (pd, cq, cq_2) = (device.pd().unwrap(), device.cq(64).unwrap(), device.cq(64).unwrap());
    let (qp, qp_2) = (pd.srd(&cq).depth(16, 16).build().unwrap(), pd.srd(&cq_2).build().unwrap());
    let healthy = Peer::start(&pd, qp_2.address());
    for (kind, name) in ["send", "write", "write with immediate", "read"].into_iter().enumerate() {
        let mut peer = Peer::start(&pd, qp.address());
        for buf in pd.bufs(8, if kind == 0 { 8928 } else { WINDOW }).unwrap() {
            post(&qp, &peer, kind, buf);
        }
        // Some have completed, the rest is under way.
        let rounds = if kind == 0 { 200 } else { 3 };
        let mut stopped = Instant::now();
        for round in 1..=rounds {
            let done = cq.wait(Some(Duration::from_secs(120))).unwrap().expect("progress").ok().unwrap();
            if round == rounds {
                // However fast it is, it cannot have the last one before it dies.
                stopped = Instant::now();
                peer.stop();
            }
            post(&qp, &peer, kind, done.buf.unwrap());
        }
        peer.process.kill().unwrap();
        peer.process.wait().unwrap();
        let killed = Instant::now();
        let mut failed = 0;
        for _ in 0..8 {
            let left = (TIMEOUT * 30).saturating_sub(killed.elapsed());
            let done = cq.wait(Some(left)).unwrap().unwrap_or_else(|| panic!("{name}: no completion in {left:?}"));
            assert!(done.buf.is_some(), "the buffer comes back");
            assert_eq!(done.kind, [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaWrite, Opcode::RdmaRead][kind]);
            // What was acknowledged before it died is a success.
            assert!([Status::Ok, Status::UnrespRemote].contains(&done.status), "{name}: {}", done.status);
            failed += u32::from(done.status == Status::UnrespRemote);
        }
        assert!(failed > 0, "{name}: it was not in the middle");
        assert!(stopped.elapsed() > TIMEOUT / 2, "{name}: too early to be sure");
        assert!(cq.poll().is_none());
        // The other peer, by another queue pair, is there as before; and this queue pair works with it, too.
        for (qp, cq) in [(&qp_2, &cq_2), (&qp, &cq)] {
            qp.send(&healthy.target, pd.buf(100).unwrap()).unwrap();
            cq.wait(Some(Duration::from_secs(120))).unwrap().expect("in time").ok().unwrap();
        }
    }
    // One that is dead already has never answered, as far as a new connection can tell.
    let mut peer = Peer::start(&pd, qp.address());
    peer.process.kill().unwrap();
    peer.process.wait().unwrap();
    post(&qp, &peer, 0, pd.buf(8928).unwrap());
    let done = cq.wait(Some(Duration::from_secs(120))).unwrap().expect("in time");
    assert_eq!(done.status, Status::UnreachRemote);
}

#[test]
fn a_peer_that_closes_its_device_says_so() {
    // Of whoever is only missed, nobody hears in the time of this test.
    let long = Duration::from_secs(3600);
    let device = device_with(long);
    let (pd, cq) = (device.pd().unwrap(), device.cq(64).unwrap());
    let qp = pd.srd(&cq).build().unwrap();
    let other = device_with(long);
    let pd_2 = other.pd().unwrap();
    let cq_2 = other.cq(64).unwrap();
    let qp_2 = pd_2.srd(&cq_2).build().unwrap();
    let to = pd.target(qp_2.address()).unwrap();
    // It has no receive, so this waits until the device is gone.
    for _ in 0..4 {
        qp.send(&to, pd.buf(10).unwrap()).unwrap();
    }
    while other.counters().transport.rx_packets < 5 {
        std::thread::yield_now();
    }
    drop((qp_2, cq_2, pd_2, other));
    for _ in 0..4 {
        let done = cq.wait(Some(Duration::from_secs(120))).unwrap().expect("in time");
        assert_eq!(done.status, Status::BadDestQpn);
    }
}
