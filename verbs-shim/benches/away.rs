//! What a peer waits for while the program computes: 64-byte reads, one after the other, from the memory of a card whose
//! program polls for a while and stays away for a while.
//!
//! A device answers whatever its program does. Here that is for the card's thread, which has to notice that nobody drives.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_shim::{
    Access, Completion, CqId, Nic, NicConfig, PdId, QpCap, QpInit, QpModify, QpState, QpType, RawRegion, SendData,
    SendOp, SendOps, SendWr, Sge, Status,
};

const QKEY: u32 = 1;
const LEN: u32 = 64;
const TIME: Duration = Duration::from_secs(2);

struct Side {
    nic: Nic,
    pd: PdId,
    cq: CqId,
    qpn: u16,
    memory: Vec<u8>,
    lkey: u32,
    rkey: u32,
}

fn side() -> Side {
    let nic = Nic::open(NicConfig::at("127.0.0.1:0".parse().expect("an address")), Box::new(())).expect("a card");
    let (pd, cq) = (nic.alloc_pd().expect("room"), nic.create_cq(64).expect("room"));
    let cap = QpCap { send_wr: 16, recv_wr: 16, send_sge: 1, recv_sge: 1, inline: 0 };
    let ops = SendOps { read: true, write: true };
    let init = QpInit { ty: QpType::Srd, pd, send_cq: cq, recv_cq: cq, cap, ops, unsolicited_write_recv: false };
    let qpn = nic.create_qp(init).expect("room");
    let to = |state| QpModify { state: Some(state), ..QpModify::default() };
    let init = QpModify { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..to(QpState::Init) };
    for change in [init, to(QpState::Rtr), QpModify { sq_psn: Some(0), ..to(QpState::Rts) }] {
        nic.modify_qp(qpn, &change).expect("the way up");
    }
    let mut memory = vec![0; LEN as usize];
    // SAFETY: the vector outlives the card, and only the card touches it.
    let region = unsafe { RawRegion::new(memory.as_mut_ptr(), memory.len()) };
    let access = Access { local_write: true, remote_read: true, ..Access::default() };
    let keys = nic.reg_mr(pd, region, memory.as_ptr() as u64, access).expect("a region");
    Side { nic, pd, cq, qpn, memory, lkey: keys.lkey, rkey: keys.rkey }
}

/// How long each read took, in microseconds, sorted.
fn reads(polls: Duration, away: Duration) -> Vec<f64> {
    let [a, b] = [side(), side()];
    let ah = a.nic.create_ah(a.pd, b.nic.gid()).expect("a handle");
    b.nic.create_ah(b.pd, a.nic.gid()).expect("a handle");
    let (over, mut took) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut entries = [Completion::EMPTY; 1];
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                while began.elapsed() < polls {
                    b.nic.poll_cq(b.cq, &mut entries);
                }
                let began = Instant::now();
                while began.elapsed() < away {
                    black_box(began);
                }
            }
        });
        let sge = Sge { addr: a.memory.as_ptr() as u64, len: LEN, lkey: a.lkey };
        let op = SendOp::Read { addr: b.memory.as_ptr() as u64, rkey: b.rkey };
        let wr = SendWr { wr_id: 0, op, ah, qpn: b.qpn, qkey: QKEY, data: SendData::Sges(&[sge]) };
        let (start, mut entries) = (Instant::now(), [Completion::EMPTY; 1]);
        while start.elapsed() < TIME {
            let began = Instant::now();
            a.nic.post_send_all(a.qpn, &[wr]).expect("room");
            while a.nic.poll_cq(a.cq, &mut entries) == 0 {}
            assert_eq!(entries[0].status, Status::Ok);
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
        over.store(true, Ordering::Relaxed);
    });
    took.sort_by(f64::total_cmp);
    took
}

fn main() {
    println!("polls for / away for: reads, median, 99 %, 99.9 %, longest (us)");
    for (polls, away) in [(1_000, 0), (100, 1_000), (1_000, 3_000), (1_000, 10_000), (10_000, 50_000), (0, 100_000)] {
        let took = reads(Duration::from_micros(polls), Duration::from_micros(away));
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        println!(
            "{polls:>6} / {away:>6} us: {:>7} {:>8.1} {:>8.1} {:>8.1} {:>8.1}",
            took.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
    }
}
