//! House rules that the compiler does not know.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files that git knows, by extension.
fn files(extension: &str) -> Vec<PathBuf> {
    let out = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(root()).output();
    let out = out.expect("git lists the files");
    assert!(out.status.success(), "git ls-files: {}", String::from_utf8_lossy(&out.stderr));
    let names = String::from_utf8(out.stdout).expect("names are UTF-8");
    names.lines().map(Path::new).filter(|p| p.extension().is_some_and(|e| e == extension)).map(PathBuf::from).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn crates_depend_downwards_only() {
    let allowed: &[(&str, &[&str])] = &[
        ("srd-core", &[]),
        ("srd-udp", &["srd-core"]),
        ("srd-xdp", &["srd-core", "srd-udp"]),
        ("simnet", &["srd-core"]),
        ("testbed", &[]),
        ("verbs-shim", &["srd-core", "srd-udp", "srd-xdp"]),
        ("verbs-shim/c", &["verbs-shim"]),
    ];
    for (name, may) in allowed {
        let manifest = read(&PathBuf::from(name).join("Cargo.toml"));
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").expect("a section of dependencies");
        let dependencies = dependencies.split("\n[").next().expect("split gives one part at least");
        for other in ["srd-core", "srd-udp", "srd-xdp", "simnet", "testbed", "verbs-shim", "srd-verbs-c", "srd"] {
            let needs = dependencies
                .lines()
                .any(|l| l.strip_prefix(other).is_some_and(|rest| rest.starts_with(['.', ' ', '='])));
            assert!(!needs || may.contains(&other), "{name} must not depend on {other}");
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for path in files("rs") {
        let text = read(&path);
        assert!(text.starts_with("//!"), "{} has no first comment", path.display());
        assert!(!text.contains(concat!("dbg", "!(")), "{} has a left-over dbg!", path.display());
        assert!(!text.contains(concat!("TO", "DO")), "{} has unfinished work", path.display());
    }
}

#[test]
fn the_core_reads_no_clock() {
    for path in files("rs") {
        let protocol = path.starts_with("srd-core/src") || path.starts_with("simnet/src");
        if !protocol || path.ends_with("tests.rs") {
            continue;
        }
        for forbidden in ["Instant::now", "SystemTime", "thread::", "std::env"] {
            assert!(!read(&path).contains(forbidden), "{} uses {forbidden}", path.display());
        }
    }
}

#[test]
fn documents_are_as_narrow_as_code() {
    for path in files("md") {
        let mut is_code = false;
        for (k, line) in read(&path).lines().enumerate() {
            is_code ^= line.starts_with("```");
            let long = !is_code && !line.starts_with('|') && line.chars().count() > 130;
            assert!(!long, "{}:{} is longer than 130 columns", path.display(), k + 1);
        }
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    for path in files("md") {
        let text = read(&path);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().expect("split gives one part at least");
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let base = path.parent().unwrap_or(Path::new(""));
            assert!(root().join(base).join(target).exists(), "{}: link to {target}", path.display());
        }
    }
}

/// Tests that documents name as `file::test`.
#[test]
fn tests_that_documents_name_exist() {
    let mut named = 0;
    for path in files("md") {
        let text = read(&path);
        // Code between back quotes is every second piece.
        for code in text.split('`').skip(1).step_by(2) {
            let Some((file, test)) = code.split_once(".rs::") else { continue };
            let source = read(&PathBuf::from(format!("{file}.rs")));
            assert!(source.contains(&format!("fn {test}()")), "{}: no test {code}", path.display());
            named += 1;
        }
    }
    assert!(named > 50, "only {named} found");
}
