//! What a peer waits for while the program computes: 64-byte reads, one after the other, from the memory of a card whose
//! program polls for a while and stays away for a while.
//!
//! A device answers whatever its program does. Here that is for the card's thread, which has to notice that nobody drives.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_shim::api::{Completion, CompletionQueue, Device};

const LEN: usize = 64;
const TIME: Duration = Duration::from_secs(2);

/// How long each read took, in microseconds, sorted.
fn reads(polls: Duration, away: Duration) -> Vec<f64> {
    let [a, b] = [(); 2].map(|()| Device::loopback().expect("a card"));
    let (pd_a, pd_b) = (a.pd().expect("room"), b.pd().expect("room"));
    let (cq_a, cq_b) = (a.cq(64).expect("room"), b.cq(64).expect("room"));
    let (qp_a, qp_b) = (pd_a.srd(&cq_a).build().expect("room"), pd_b.srd(&cq_b).build().expect("room"));
    let to_b = pd_a.target(qp_b.address()).expect("a handle");
    let _to_a = pd_b.target(qp_a.address()).expect("a handle");
    let (window, buf) = (pd_b.window(LEN, true, false).expect("room"), pd_a.buf(LEN).expect("room"));
    let (over, mut took) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                while began.elapsed() < polls {
                    cq_b.poll();
                }
                let began = Instant::now();
                while began.elapsed() < away {
                    black_box(began);
                }
            }
        });
        let (start, mut buf) = (Instant::now(), Some(buf));
        while start.elapsed() < TIME {
            let began = Instant::now();
            qp_a.read(&to_b, buf.take().expect("it came back"), window.remote()).expect("room");
            buf = poll(&cq_a).buf;
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
        over.store(true, Ordering::Relaxed);
    });
    took.sort_by(f64::total_cmp);
    took
}

/// The next completion, for which it spins.
fn poll(cq: &CompletionQueue) -> Completion {
    loop {
        if let Some(done) = cq.poll() {
            return done.ok().expect("a read that is permitted");
        }
    }
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
