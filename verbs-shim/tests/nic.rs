//! Two cards in one process, over loopback.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::Side;
use srd_core::card::Profile;
use srd_core::card::{CardEvent, CardOptions};
use srd_core::{Config, Driver, Gather, RxMeta, Span, Time, TxBatch};
use srd_udp::UdpDriver;
use verbs_shim::{Completion, Nic, NicConfig, NicSink, Opcode, SendData, SendOp, Sge, Status};

fn config() -> NicConfig {
    let profile = Profile::generation(0xefa3).expect("a generation");
    let card = CardOptions { profile, ..CardOptions::default() };
    NicConfig { name: "test".into(), card, ..NicConfig::at("127.0.0.1:0".parse().expect("an address")) }
}

/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is in memory at first.
fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn side(sink: Box<dyn NicSink>) -> Side {
    side_of(Nic::open(config(), sink).expect("a card on loopback"))
}

fn side_of(nic: Nic) -> Side {
    Side::new(nic, 1, (0..1 << 20).map(byte).collect())
}

impl Side {
    /// Asserts that so many bytes that were at one place first are at another one now.
    fn assert_moved(&self, from: usize, to: usize, len: usize) {
        // Takes the card's lock: what its thread wrote is ordered before a completion elsewhere by the network, of which
        // sanitizers know nothing.
        self.nic.counters();
        assert!(self.memory[to..][..len].iter().copied().eq((from..from + len).map(byte)), "{from} {to} {len}");
    }

    /// Sends a few bytes.
    fn hello(&self, ah: u16, to: &Side, wr_id: u64, imm: Option<u32>) {
        self.post(self.qpn(), ah, to.qpn(), wr_id, SendOp::Send { imm }, SendData::Inline(b"hello"));
    }

    fn wait(&self) -> Completion {
        let mut out = [Completion::EMPTY; 1];
        let end = Instant::now() + PATIENCE;
        while self.nic.poll_cq(self.cq, &mut out) == 0 {
            assert!(Instant::now() < end, "no completion");
        }
        out[0]
    }
}

#[test]
fn a_card_says_no_more_than_it_can_do() {
    let mut config = config();
    let profile = &mut config.card.profile;
    (profile.max_sq_sge, profile.max_rq_sge, profile.max_inline, profile.max_qp) = (9, 9, 900, 9000);
    let nic = Nic::open(config, Box::new(())).expect("a card on loopback");
    let p = nic.profile();
    assert_eq!((p.max_sq_sge, p.max_rq_sge, p.max_inline, p.max_qp), (2, 3, 80, 4096));
}

#[test]
fn sends_writes_and_reads_between_two_cards_and_within_one() {
    for own in [false, true] {
        let a = side(Box::new(()));
        let other = if own { None } else { Some(side(Box::new(()))) };
        let b = other.as_ref().unwrap_or(&a);
        let ah = a.ah(b);
        b.ah(&a);
        let post = |wr_id, op, sge: Sge| a.post(a.qpn(), ah, b.qpn(), wr_id, op, SendData::Sges(&[sge]));
        b.nic.post_recv(b.qpn(), 7, &[b.sge(20_000, 8928)]).unwrap();
        post(1, SendOp::Send { imm: Some(0xabcd) }, a.sge(0, 8000));
        let mut done = [b.wait(), a.wait()];
        done.sort_by_key(|c| c.opcode.is_recv());
        assert_eq!((done[0].wr_id, done[0].status), (1, Status::Ok));
        assert_eq!((done[1].wr_id, done[1].byte_len, done[1].imm), (7, 8000, Some(0xabcd)));
        assert_eq!((done[1].sgid, done[1].ah), (a.nic.gid(), 0));
        b.assert_moved(0, 20_000, 8000);
        b.assert_moved(28_000, 28_000, 928);

        let addr = b.memory.as_ptr() as u64 + 65536;
        post(2, SendOp::Write { addr, rkey: b.keys.rkey, imm: None }, a.sge(600_000, 300_000));
        let done = a.wait();
        assert_eq!((done.wr_id, done.status, done.opcode), (2, Status::Ok, Opcode::RdmaWrite));
        b.assert_moved(600_000, 65536, 300_000);
        post(3, SendOp::Read { addr, rkey: b.keys.rkey }, a.sge(500_000, 300_000));
        let done = a.wait();
        assert_eq!((done.wr_id, done.status, done.opcode), (3, Status::Ok, Opcode::RdmaRead));
        a.assert_moved(600_000, 500_000, 300_000);
    }
}

struct Count(Arc<AtomicU32>);

impl NicSink for Count {
    fn event(&self, event: CardEvent) {
        if matches!(event, CardEvent::Completion(_)) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_sleeping_program_is_told_of_completions() {
    let told = Arc::new(AtomicU32::new(0));
    let a = side(Box::new(()));
    let b = side(Box::new(Count(told.clone())));
    let ah = a.ah(&b);
    b.nic.post_recv(b.qpn(), 1, &[b.sge(0, 100)]).unwrap();
    b.nic.arm_cq(b.cq).unwrap();
    a.hello(ah, &b, 1, None);
    let end = Instant::now() + PATIENCE;
    while told.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < end, "nobody told");
        std::thread::yield_now();
    }
    assert_eq!(b.wait().byte_len, 5);
    assert_eq!(&b.memory[..5], b"hello");
}

/// Over kernel UDP, but one batch of datagrams is lost when it is told to.
struct Lossy {
    driver: UdpDriver,
    loses: Arc<AtomicBool>,
}

impl Driver for Lossy {
    fn now(&mut self) -> Time {
        self.driver.now()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> std::io::Result<usize> {
        self.driver.recv(sink)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> std::io::Result<()> {
        if self.loses.swap(false, Ordering::SeqCst) { Ok(()) } else { self.driver.send(batch, mem) }
    }

    fn wait(&mut self, until: Option<Time>) -> std::io::Result<()> {
        self.driver.wait(until)
    }

    fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    fn source_ports(&self) -> u16 {
        self.driver.source_ports()
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        self.driver.max_datagram(to)
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}

/// Whether the thread of this process with this name waits for something.
fn sleeps(name: &str) -> bool {
    let all = std::fs::read_dir("/proc/self/task").expect("a directory of the kernel");
    // Others may end meanwhile.
    let stats = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats.into_iter().any(|stat| stat.contains(&format!("({name}) S ")))
}

/// A program posts and sleeps, and the datagram is lost: all that follows is up to the thread.
#[test]
fn a_program_that_sleeps_is_told_of_what_was_lost_at_first() {
    // Nothing else makes it look.
    let long = Span::from_secs(3600);
    let transport = Config { keepalive: long, peer_timeout: long, idle_timeout: long, ..Config::default() };
    let config = NicConfig { name: "lossy".into(), transport: transport.check().expect("it is valid"), ..config() };
    let driver = UdpDriver::bind(config.addr, config.udp.clone()).expect("a socket");
    let (readiness, told) = (driver.readiness().expect("a descriptor"), Arc::new(AtomicU32::new(0)));
    let loses = Arc::new(AtomicBool::new(false));
    let driver = Box::new(Lossy { driver, loses: loses.clone() });
    let b = side_of(Nic::open(NicConfig { name: "other".into(), ..config.clone() }, Box::new(())).expect("a card"));
    let a = side_of(Nic::over(config, driver, vec![readiness], Box::new(Count(told.clone()))).expect("a card"));
    let ah = a.ah(&b);
    let hello = || {
        b.nic.post_recv(b.qpn(), 1, &[b.sge(0, 100)]).unwrap();
        a.hello(ah, &b, 2, None);
    };
    hello();
    let _ = (a.wait(), b.wait());
    for round in 1..=5 {
        a.nic.arm_cq(a.cq).unwrap();
        wait_until("sleep", || sleeps("srd-lossy"));
        loses.store(true, Ordering::SeqCst);
        hello();
        wait_until("an event", || told.load(Ordering::SeqCst) == round);
        assert!(!loses.load(Ordering::SeqCst), "nothing was lost");
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (2, 1));
    }
}

/// In the way of libfabric: one queue for sends and receives, and a poll in vain before the answer.
#[test]
fn an_answer_takes_the_acknowledgement_along() {
    const ROUNDS: usize = 400;
    let sides = [side(Box::new(())), side(Box::new(()))];
    let ahs = [0, 1].map(|i: usize| sides[i].ah(&sides[1 - i]));
    let packets = || sides.iter().map(|s| s.nic.counters().transport.tx_packets).sum::<u64>();
    let mut sent = Vec::new();
    for round in 0..2 * ROUNDS {
        let before = packets();
        for (i, from) in sides.iter().enumerate() {
            let to = &sides[1 - i];
            to.nic.post_recv(to.qpn(), 1, &[to.sge(0, 100)]).unwrap();
            from.hello(ahs[i], to, 2, None);
            let mut out = [Completion::EMPTY; 4];
            let end = Instant::now() + PATIENCE;
            let mut n = 0;
            while !out[..n].iter().any(|c| c.opcode.is_recv()) {
                assert!(Instant::now() < end, "no message in round {round}");
                n = to.nic.poll_cq(to.cq, &mut out);
            }
            to.nic.poll_cq(to.cq, &mut out);
        }
        sent.push(packets() - before);
    }
    // One for each message; but whoever is held up by other programs for a while is helped out by its thread.
    let sent = &mut sent[ROUNDS..];
    sent.sort_unstable();
    assert_eq!(sent[ROUNDS / 2], 2, "packets of a round: {sent:?}");
}

/// Whoever posts and computes counts on a device that works meanwhile.
#[test]
fn nothing_waits_for_a_program_that_posts_and_stays_away() {
    const BUSY: Duration = Duration::from_millis(1);
    let (a, b) = (side(Box::new(())), side(Box::new(())));
    let ah = a.ah(&b);
    let post = || a.hello(ah, &b, 1, None);
    let sent = || a.nic.counters().transport.tx_packets;
    let complete = |count| {
        (0..count).for_each(|_| b.nic.post_recv(b.qpn(), 1, &[b.sge(0, 100)]).unwrap());
        (0..count).for_each(|_| _ = (b.wait(), a.wait()));
    };
    // Where its thread happened to look after the card just then, there was nothing to be learned.
    for _ in 0..100 {
        post();
        complete(1);
        // Without a receive the first is under way until there is one, so that the second waits for company.
        post();
        post();
        std::thread::sleep(BUSY);
        complete(2);
        let before = sent();
        (0..10).for_each(|_| post());
        let left = sent() - before;
        complete(10);
        if left >= 10 {
            return;
        }
    }
    panic!("what it posts waits for it to come back");
}

/// A device answers whatever its program does: between two polls of it, many reads of its memory. Where cores are scarce that
/// takes longer, so only what happened while they were not is a verdict.
#[test]
fn peers_do_not_wait_for_a_program_that_polls_now_and_then() {
    const BUSY: Duration = Duration::from_millis(3);
    const READS: u64 = 100;
    let (a, b) = (side(Box::new(())), side(Box::new(())));
    let ah = a.ah(&b);
    b.ah(&a);
    let read = |wr_id| {
        let op = SendOp::Read { addr: b.memory.as_ptr() as u64, rkey: b.keys.rkey };
        a.post(a.qpn(), ah, b.qpn(), wr_id, op, SendData::Sges(&[a.sge(0, 64)]));
        assert_eq!(a.wait().status, Status::Ok);
    };
    let mut slow = Vec::new();
    for _ in 0..40 {
        let over = AtomicBool::new(false);
        let (polls, busy) = std::thread::scope(|scope| {
            let polls = scope.spawn(|| {
                let (mut polls, mut busy) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(b.nic.poll_cq(b.cq, &mut [Completion::EMPTY; 1]), 0);
                    std::thread::sleep(BUSY);
                    (polls, busy) = (polls + 1, busy + u64::from(cores_are_scarce()));
                }
                (polls, busy)
            });
            (0..READS).for_each(read);
            over.store(true, Ordering::Relaxed);
            polls.join().expect("no panic")
        });
        if polls * 2 < READS {
            return;
        }
        slow.extend((busy * 4 < polls).then_some(polls));
    }
    assert!(slow.len() < 5, "{READS} reads took so many polls: {slow:?}");
}

/// Whether others than the caller want more cores than there are.
fn cores_are_scarce() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").expect("a file of the kernel");
    let running = load.split(' ').nth(3).and_then(|field| field.split('/').next()?.parse::<usize>().ok());
    running.expect("a number") > std::thread::available_parallelism().expect("a number").get() + 1
}

/// A device has sent what was posted long before a program can destroy the queue pair.
#[test]
fn what_was_posted_before_a_queue_pair_is_destroyed_is_sent() {
    const COUNT: u64 = 20;
    let (a, b) = (side(Box::new(())), side(Box::new(())));
    let ah = a.ah(&b);
    let post = |wr_id| a.hello(ah, &b, wr_id, Some(wr_id as u32));
    (0..=COUNT).for_each(|wr_id| b.nic.post_recv(b.qpn(), wr_id, &[b.sge(0, 100)]).unwrap());
    post(0);
    let _ = (b.wait(), a.wait());
    (1..=COUNT).for_each(post);
    a.nic.destroy_qp(a.qpn()).unwrap();
    let mut got: Vec<_> = (1..=COUNT).filter_map(|_| b.wait().imm).collect();
    got.sort_unstable();
    assert!(got.into_iter().map(u64::from).eq(1..=COUNT));
}

#[test]
fn counters_are_published_while_it_is_open_and_kept_afterwards() {
    use verbs_shim::counters::Registry;

    let dir = tempfile::tempdir().expect("a directory");
    let registry = Registry::new([dir.path()]);
    let nic = Nic::open(NicConfig { counters: Some(dir.path().to_owned()), ..config() }, Box::new(())).expect("a card");
    nic.alloc_pd().expect("a domain");
    let commands = || {
        let mut device = registry.devices().pop().expect("the device is there");
        (device.processes.len(), device.total.get_mut("submitted_cmds").copied())
    };
    let end = Instant::now() + PATIENCE;
    while commands() != (1, Some(1)) {
        assert!(Instant::now() < end, "not published: {:?}", commands());
        std::thread::yield_now();
    }
    nic.alloc_pd().expect("a domain");
    drop(nic);
    assert_eq!(commands(), (0, Some(2)));
}
