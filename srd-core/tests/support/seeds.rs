//! Tests by seed: which seeds, and how a run that failed is repeated.
#![allow(unreachable_pub, reason = "shared by integration tests")]

use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind};

/// Runs `run` with each of the seeds. `NAME_SEED` replays one, `NAME_SEEDS` asks for another number of them, from there or from
/// the first on. If a run panics, the command that replays it is printed.
pub fn each_seed(name: &str, test: &str, seeds: Range<u64>, run: fn(u64)) {
    let number = |what| {
        let text = std::env::var(format!("{name}_{what}")).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|e| panic!("{name}_{what}={text:?} is not a number: {e}")))
    };
    let (first, count) = (number("SEED"), number("SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { seeds.end - seeds.start });
    let first = first.unwrap_or(seeds.start);
    for seed in first..first + count {
        if let Err(panic) = catch_unwind(|| run(seed)) {
            eprintln!("replay: {name}_SEED={seed} cargo test -p srd-core --test {test}");
            resume_unwind(panic);
        }
    }
}
