//! Property tests that say how to repeat a failure, and leave nothing behind that changes later runs.
#![allow(unreachable_pub, reason = "shared by unit tests and integration tests, also of other crates")]

use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config, RngSeed};

/// The configuration of a property test. Its seed stands in the output of a test that fails; with `PROPTEST_RNG_SEED` set to
/// it, the same cases come again.
pub fn repeatable() -> Config {
    let config = Config::default();
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    println!("to repeat: PROPTEST_RNG_SEED={seed}");
    Config { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..config }
}
