//! Fuzz target: one endpoint fed with raw datagrams.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| srd_fuzz::garbage(data));
