//! Builds the library, which cargo does not do for tests, because no Rust program can be linked with it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library in `profile`, a directory <target>/<profile> or <target>/<triple>/<profile>, built as what else is there was.
pub(crate) fn build(profile: &Path) -> PathBuf {
    let above = profile.parent().expect("a directory");
    let triple = above.file_name().and_then(|name| name.to_str()).filter(|name| name.contains("-linux-"));
    let target = if triple.is_some() { above.parent().expect("a directory") } else { above };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "srd-verbs-c", "--target-dir"]).arg(target);
    if let Some(triple) = triple {
        cargo.args(["--target", triple]);
    }
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "{cargo:?}: {status}");
    profile.join("libsrd_verbs.so")
}
