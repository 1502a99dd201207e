//! Thousands of random worlds in which everything goes wrong.
//!
//! `SRD_SIM_SEEDS` says how many (10,000 by default), `SRD_SIM_SEED` with which seed to begin, `SRD_SIM_TAIL` how many events a
//! failure shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use simnet::adversary::{Failure, Summary, replay_command, run_seed, run_seed_with};

/// The first seed when none is given.
const BASE: u64 = 0x5bd0_0000;
/// Failures after which a run stops.
const ENOUGH: usize = 10;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text:?} is not a number: {e}")))
}

#[test]
fn random_worlds_hold_all_rules() {
    let base = number("SRD_SIM_SEED").unwrap_or(BASE);
    let count = number("SRD_SIM_SEEDS").unwrap_or(10_000);
    let tail = number("SRD_SIM_TAIL").unwrap_or(100) as usize;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(count as usize).max(1);
    let next = AtomicU64::new(0);
    let (results, collected) = mpsc::channel::<Result<Summary, Box<Failure>>>();
    let mut failures: Vec<Box<Failure>> = Vec::new();
    let (mut runs, mut events, mut messages, mut ok) = (0u64, 0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let results = results.clone();
            let next = &next;
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count || results.send(run_seed_with(base.wrapping_add(i), tail)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for result in &collected {
            runs += 1;
            match result {
                Ok(summary) => {
                    events += summary.events;
                    messages += summary.totals.posted;
                    ok += summary.totals.ok;
                }
                Err(failure) => failures.push(failure),
            }
            if failures.len() >= ENOUGH {
                next.store(count, Ordering::Relaxed);
            }
        }
    });
    println!("{runs} worlds, {events} events, {messages} messages, {ok} of them delivered and confirmed");
    failures.sort_by_key(|f| f.seed);
    if let Some(first) = failures.first() {
        println!("{first}");
        for other in &failures[1..] {
            println!("also seed {} at {}: {}\n    {}", other.seed, other.at, other.what, replay_command(other.seed));
        }
        panic!("{} of {runs} worlds broke a rule, first seed {}: {}", failures.len(), first.seed, first.what);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in BASE..BASE + 20 {
        match (run_seed(seed), run_seed(seed)) {
            (Ok(a), Ok(b)) => assert_eq!(a, b),
            (Err(a), Err(b)) => assert_eq!((a.at, a.what, a.tail), (b.at, b.what, b.tail)),
            _ => panic!("seed {seed} fails only sometimes"),
        }
    }
}
