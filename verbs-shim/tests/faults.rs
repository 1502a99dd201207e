//! Fault specifications against real cards on loopback: what was asked for happens, and nothing else.

mod common;

use std::time::{Duration, Instant};

use common::Side;
use srd_core::Span;
use verbs_shim::options::{self, Source};
use verbs_shim::{Completion, Nic, NicConfig, Opcode, Options, SendData, SendOp, Sge, Status};

/// Messages under way at once.
const DEPTH: usize = 64;
/// Bytes of a message.
const SIZE: usize = 4000;
/// Whatever takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The first device that these options make.
fn device(values: &[(&str, &str)]) -> NicConfig {
    let fixed = [("addr", "127.0.0.1"), ("profile", "efa3")];
    let get = |option: &'static options::Opt| {
        let value = values.iter().chain(&fixed).find(|v| v.0 == option.name);
        Ok(value.map(|v| (Source::Flag, v.1.to_owned())))
    };
    Options::parse(get).and_then(|o| o.devices()).expect("valid options").remove(0)
}

fn side(values: &[(&str, &str)]) -> Side {
    Side::new(Nic::open(device(values), Box::new(())).expect("a card on loopback"), 1, vec![0; DEPTH * SIZE])
}

impl Side {
    fn slot(&self, k: usize) -> Sge {
        self.sge(k * SIZE, SIZE as u32)
    }

    fn poll(&self) -> Option<Completion> {
        let mut out = [Completion::EMPTY; 1];
        (self.nic.poll_cq(self.cq, &mut out) == 1).then(|| out[0])
    }
}

/// What became of messages that were sent and received.
#[derive(Default)]
struct Outcome {
    /// Ids of sends in the order of their completions, with their status.
    sent: Vec<(u64, Status)>,
    /// Contents of messages received, in the order of their completions.
    received: Vec<u64>,
}

/// Sends `count` messages from a card with these options to one with others.
fn transfer(sender: &[(&str, &str)], receiver: &[(&str, &str)], count: u64) -> Outcome {
    let (mut a, b) = (side(sender), side(receiver));
    let ah = a.ah(&b);
    for k in 0..DEPTH {
        b.nic.post_recv(b.qpn(), k as u64, &[b.slot(k)]).unwrap();
    }
    let mut outcome = Outcome::default();
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let mut owner = vec![0; count as usize];
    let mut next = 0;
    let failed = |outcome: &Outcome| outcome.sent.iter().filter(|s| s.1 != Status::Ok).count();
    let began = Instant::now();
    while outcome.sent.len() < count as usize || outcome.received.len() + failed(&outcome) < count as usize {
        assert!(began.elapsed() < LIMIT, "{} sent, {} received", outcome.sent.len(), outcome.received.len());
        while next < count
            && let Some(slot) = free.pop()
        {
            // Every message is full of its number.
            let bytes = &mut a.memory[slot * SIZE..][..SIZE];
            bytes.chunks_mut(8).for_each(|c| c.copy_from_slice(&next.to_le_bytes()));
            owner[next as usize] = slot;
            let data = [a.slot(slot)];
            a.post(a.qpn(), ah, b.qpn(), next, SendOp::Send { imm: None }, SendData::Sges(&data));
            next += 1;
        }
        if let Some(done) = a.poll() {
            outcome.sent.push((done.wr_id, done.status));
            free.push(owner[done.wr_id as usize]);
        }
        while let Some(got) = b.poll() {
            assert_eq!((got.status, got.opcode, got.byte_len as usize), (Status::Ok, Opcode::Recv, SIZE));
            let slot = got.wr_id as usize;
            let bytes = &b.memory[slot * SIZE..][..SIZE];
            let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
            assert!(bytes.chunks(8).all(|c| c == number.to_le_bytes()), "message {number} is damaged");
            outcome.received.push(number);
            b.nic.post_recv(b.qpn(), got.wr_id, &[b.slot(slot)]).unwrap();
        }
    }
    outcome
}

/// All messages arrived, each once, and all sends succeeded.
fn is_complete(outcome: &Outcome, count: u64) {
    let mut numbers = outcome.received.clone();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    assert!(outcome.sent.iter().all(|s| s.1 == Status::Ok));
}

#[test]
fn everything_that_the_network_does_wrong_is_repaired() {
    for fault in [
        "loss=5%",
        "recv-loss=5%",
        "duplicate=20%",
        "corrupt=5%",
        "delay=20%:100us-3ms",
        "loss=2%,duplicate=5%,corrupt=2%,delay=10%",
        "dead=path:0+1@5ms",
        "dead=all@5ms-50ms",
        "loss=50%@5ms-30ms\nrecv-loss=20%@20ms-",
    ] {
        let both = [("fault", fault), ("seed", "7")];
        is_complete(&transfer(&both, &both, 1000), 1000);
    }
}

#[test]
fn damage_goes_through_only_without_checksums() {
    let caught = std::panic::catch_unwind(|| {
        let values = [("fault", "corrupt=20%"), ("checksum", "off"), ("seed", "1")];
        transfer(&values, &[("checksum", "off")], 1000)
    });
    // Headers are damaged, too, which costs retransmissions; of 1,000 payloads some must arrive altered.
    let panic = caught.err().expect("no damage in a thousand messages");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("is damaged"), "{text}");
}

#[test]
fn receivers_that_are_not_ready_only_cost_time() {
    is_complete(&transfer(&[], &[("fault", "rnr=20%")], 500), 500);
}

#[test]
fn every_nth_send_is_forced_to_fail() {
    let outcome = transfer(&[("fault", "force=unresp-remote/10")], &[], 1000);
    let failed: Vec<u64> = outcome.sent.iter().filter(|s| s.1 != Status::Ok).map(|s| s.0).collect();
    assert_eq!(failed.len(), 100);
    assert!(outcome.sent.iter().all(|s| [Status::Ok, Status::UnrespRemote].contains(&s.1)));
    assert!(outcome.received.iter().all(|n| !failed.contains(n)), "what failed was not sent");
}

#[test]
fn completions_are_shuffled() {
    // Held back for so long that many are there to be shuffled, however far apart they come.
    let outcome = transfer(&[("fault", "shuffle=32:10ms")], &[("fault", "shuffle=32:10ms")], 1000);
    is_complete(&outcome, 1000);
    let turned = |order: &[u64]| order.windows(2).filter(|w| w[0] > w[1]).count();
    let sent: Vec<u64> = outcome.sent.iter().map(|s| s.0).collect();
    assert!(turned(&sent) > 200 && turned(&outcome.received) > 200, "{} {}", turned(&sent), turned(&outcome.received));
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let began = Instant::now();
    // Messages have gone there and back long before.
    let values = [("fault", "dead=peer:127.0.0.1@2s"), ("peer-timeout", "1s")];
    let (a, b) = (side(&values), side(&[]));
    let ah = a.ah(&b);
    let mut posted = 0;
    loop {
        assert!(began.elapsed() < LIMIT, "no error");
        if posted < 8 {
            b.nic.post_recv(b.qpn(), 0, &[b.slot(0)]).unwrap();
            let data = [a.slot(0)];
            a.post(a.qpn(), ah, b.qpn(), 0, SendOp::Send { imm: None }, SendData::Sges(&data));
            posted += 1;
        }
        while b.poll().is_some() {}
        match a.poll() {
            Some(done) if done.status == Status::Ok => posted -= 1,
            Some(done) => {
                assert_eq!(done.status, Status::UnrespRemote);
                break;
            }
            None => {}
        }
    }
    let span = Span::from(began.elapsed());
    assert!(span >= Span::from_millis(2500), "too early: {span}");
}
