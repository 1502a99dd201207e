//! Debian 13 in a directory, for clients that are newer than the system's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed there, besides the least: clients, and what fabtests is built with and wants.
const PACKAGES: &str = "ibverbs-utils,iproute2,libfabric-bin,mount,openmpi-bin,perftest,python3-pyverbs,rdma-core,ucx-utils,\
    autoconf,automake,gcc,libc6-dev,libfabric-dev,libtool,make,python3-pytest,python3-retrying,python3-yaml";
/// Says what is installed.
const LABEL: &str = "etc/srd-clients";
/// Its signatures are verified.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Its place among the other clients.
pub(crate) fn root(clients: &Path) -> PathBuf {
    clients.join("debian13")
}

/// Makes it, if it is not there or has other packages. It has its name only once it is complete.
pub(crate) fn prepare(root: &Path) -> Result<(), String> {
    if fs::read_to_string(root.join(LABEL)).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(());
    }
    let broken = |what: &str, why: &dyn std::fmt::Display| format!("no Debian 13 in {}: {what}: {why}", root.display());
    let fresh = root.with_extension("new");
    for old in [root, &fresh] {
        match fs::remove_dir_all(old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(broken("remove what is there", &e)),
            _ => {}
        }
    }
    fs::create_dir_all(&fresh).map_err(|e| broken("create", &e))?;
    // Not without us: the next run removes what it has made so far.
    let mut make = Command::new("setpriv");
    make.args([
        "--pdeathsig=TERM",
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=essential",
        "--include",
        PACKAGES,
        "--keyring",
        KEYRING,
    ]);
    println!("installing Debian 13 in {}, once: this takes some minutes", root.display());
    let made = make.arg("trixie").arg(&fresh).output();
    let made = made.map_err(|e| broken("start setpriv", &e))?;
    if !made.status.success() {
        let what = "mmdebstrap ('./x clients' installs it), which needs Debian's archive";
        return Err(broken(what, &String::from_utf8_lossy(&made.stderr)));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/scripts/build-fabtests.sh");
    let built = Command::new("sh").arg(script).arg(&fresh).output().map_err(|e| broken("start sh", &e))?;
    if !built.status.success() {
        return Err(broken("build fabtests", &String::from_utf8_lossy(&built.stderr)));
    }
    fs::write(fresh.join(LABEL), PACKAGES).map_err(|e| broken("label", &e))?;
    fs::rename(&fresh, root).map_err(|e| broken("rename", &e))
}
