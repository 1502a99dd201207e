//! Replays the committed corpus of the fuzz targets, so that what fuzzing found stays found without a fuzzer.

#[path = "support/fuzzing.rs"]
mod fuzzing;

#[path = "support/card_fuzzing.rs"]
mod card_fuzzing;

use std::path::PathBuf;

fn replay(target: &str, run: fn(&[u8])) {
    let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "fuzz", "corpus", target].iter().collect();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("a readable entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{} inputs in {}", files.len(), dir.display());
    for file in files {
        // The name of the input is the last line printed when one fails.
        println!("{}", file.display());
        run(&std::fs::read(&file).expect("a readable input"));
    }
}

#[test]
fn card() {
    replay("card", card_fuzzing::card);
}

#[test]
fn decode() {
    replay("decode", fuzzing::decode);
}

#[test]
fn endpoint() {
    replay("endpoint", fuzzing::endpoint);
}

#[test]
fn garbage() {
    replay("garbage", fuzzing::garbage);
}
