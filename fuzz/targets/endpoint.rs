//! Fuzz target: a pair of endpoints under operations that the input chooses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| srd_fuzz::endpoint(data));
