//! Fuzz target: decoder and dissector.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| srd_fuzz::decode(data));
