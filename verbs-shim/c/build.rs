//! Gives the library its soname and its symbol versions.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/exports.map");
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rerun-if-changed=build.rs");
    for arg in [
        // Programs ask for libibverbs.so.1 and libefa.so.1; both names are links to this file.
        "-soname,libibverbs.so.1".to_string(),
        // A thread of ours may still run when a plug-in that needed us is unloaded.
        "-z,nodelete".to_string(),
        format!("--version-script={map}"),
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{arg}");
    }
    // The GNU linker does not join versions with rustc's own list of symbols, which has none ("anonymous version tag cannot be
    // combined with other version tags"). LLD does, which rustc takes by itself on x86-64 only.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    if let Some(dir) = bundled_lld() {
        println!("cargo:rustc-cdylib-link-arg=-B{}", dir.display());
    }
}

/// Where toolchains of rustup bring LLD. Without it the system's is taken (Debian's package `lld`).
fn bundled_lld() -> Option<PathBuf> {
    let out = Command::new(env::var_os("RUSTC")?).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    let dir = sysroot.join("lib/rustlib").join(env::var_os("HOST")?).join("bin/gcc-ld");
    dir.join("ld.lld").exists().then_some(dir)
}
