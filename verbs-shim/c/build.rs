//! Gives the library its soname and its symbol versions.

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
}
