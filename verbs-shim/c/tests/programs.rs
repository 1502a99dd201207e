//! C programs that use the library as any program would; `tests/c` has them.

mod common;

use common::Bench;

/// Compiles and runs a program, on one device of a generation.
fn run(name: &str, profile: &str) {
    let bench = Bench::new();
    let program = bench.compile(name);
    bench.run(bench.command(program).env("SRD_PROFILE", profile));
    assert_eq!(bench.trees(), Vec::<std::path::PathBuf>::new(), "left behind");
}

#[test]
fn objects_are_made_and_refused() {
    for profile in ["efa0", "efa1", "efa2"] {
        run("control", profile);
    }
}
