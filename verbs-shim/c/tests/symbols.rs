//! Symbols and their versions are those of Debian's libraries, and programs find what they need.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the libraries of the system are.
fn system(name: &str) -> PathBuf {
    let dir = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let path = dir.join(name);
    assert!(path.exists(), "{} is not there; it is in Debian's packages libibverbs1 and librdmacm1", path.display());
    path
}

/// Symbols that a library defines, as `name@version` or `name@@version` (the default).
fn symbols(library: &Path) -> BTreeSet<String> {
    let out = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output().expect("readelf runs");
    let text = String::from_utf8(out.stdout).expect("text");
    let fields = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|f| f.len() == 8 && f[6] != "UND" && f[6] != "ABS" && f[7].contains('@'))
        .map(|f| f[7].to_owned())
        .collect()
}

#[test]
fn every_symbol_of_debians_libraries_is_there() {
    let ours = symbols(&common::library());
    for name in ["libibverbs.so.1", "libefa.so.1"] {
        let theirs = symbols(&system(name));
        assert!(!theirs.is_empty());
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

#[test]
fn newer_programs_find_their_symbols_too() {
    let ours = symbols(&common::library());
    for symbol in [
        "ibv_query_port_speed@@IBVERBS_1.16",
        "ibv_create_comp_cntr@@IBVERBS_1.18",
        "verbs_register_driver_64@@IBVERBS_PRIVATE_64",
        "ibv_cmd_create_qp@IBVERBS_PRIVATE_65",
        // What libmlx5 asks for in rdma-core 56 and 65; UCX and Open MPI load it whether there is such a device or not.
        "ibv_cmd_create_cq_ex2@@IBVERBS_PRIVATE_34",
        "ibv_cmd_query_port_speed@IBVERBS_PRIVATE_65",
        "ibv_dmabuf_heap_cc_shared_init@IBVERBS_PRIVATE_65",
        "efadv_query_mr@@EFA_1.3",
        "efadv_query_cq@@EFA_1.4",
        "efadv_get_max_sq_depth@@EFA_1.5",
        "efadv_qp_from_ibv_qp_ex@@EFA_1.6",
        "efadv_create_comp_cntr@@EFA_1.7",
    ] {
        assert!(ours.contains(symbol), "{symbol}");
    }
}

#[test]
fn nothing_of_ours_is_versioned_otherwise() {
    for symbol in symbols(&common::library()) {
        let version = symbol.rsplit('@').next().expect("a version");
        assert!(version.starts_with("IBVERBS_") || version.starts_with("EFA_"), "{symbol}");
    }
}

#[test]
fn it_has_the_name_of_the_library_and_stays_loaded() {
    let out = Command::new("readelf").args(["-W", "-d"]).arg(common::library()).output().expect("readelf runs");
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(text.contains("Library soname: [libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

#[test]
fn libraries_of_the_system_find_all_they_need() {
    let bench = common::Bench::new();
    let mut plugins: Vec<PathBuf> = vec![system("librdmacm.so.1"), system("libmlx5.so.1"), system("libmlx4.so.1")];
    let dir = system("libibverbs");
    plugins.extend(std::fs::read_dir(dir).expect("plug-ins").flatten().map(|e| e.path()));
    for plugin in plugins {
        // Provider of the device that we are; nobody loads it.
        if plugin.to_string_lossy().contains("libefa-") {
            continue;
        }
        let out = bench.run(bench.command("ldd").arg("-r").arg(&plugin));
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(said.contains(&bench.path().display().to_string()), "{}: not ours: {said}", plugin.display());
        assert!(!said.contains("undefined") && !said.contains("not found"), "{}: {said}", plugin.display());
        assert!(!said.contains("no version information"), "{}: {said}", plugin.display());
    }
}
