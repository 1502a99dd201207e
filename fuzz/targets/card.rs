//! Fuzz target: a card and a peer that breaks the rules of the card's messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| srd_fuzz::card(data));
