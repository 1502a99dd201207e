//! Limits of this host, or of the container that we are in.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use srd::udp::WaitMode;
use verbs_shim::Options;

use super::Finding;
use crate::units::{memory, plural};

/// Descriptors of a device beside those of its source ports.
const OTHER_DESCRIPTORS: usize = 8;
/// Descriptors that a program needs for itself.
const PROGRAM_DESCRIPTORS: usize = 64;
/// Room that the runtime directory needs: counters of a few thousand processes.
const RUNTIME_ROOM: u64 = 16 << 20;

pub(super) fn check(options: &Options) -> Vec<Finding> {
    vec![runtime_dir(options), descriptors(options), processors(options), memory_lock(), huge_pages(), ucx(options)]
}

fn runtime_dir(options: &Options) -> Finding {
    let dir = match options.runtime_dir() {
        Ok(dir) => dir,
        Err(e) => {
            return Finding::fail(
                "runtime",
                e.to_string(),
                "name another directory with --runtime-dir (SRD_RUNTIME_DIR)",
            );
        }
    };
    let room = statvfs(&dir).map(|s| s.blocks_available() * s.fragment_size()).unwrap_or(u64::MAX);
    if room < RUNTIME_ROOM {
        let remedy = "make room, or name another directory with --runtime-dir (SRD_RUNTIME_DIR)";
        Finding::warn("runtime", format!("{} has only {} left", dir.display(), memory(room)), remedy)
    } else {
        Finding::ok("runtime", format!("counters and links are in {}", dir.display()))
    }
}

fn devices(options: &Options) -> usize {
    options.devices.map_or(options.addrs.len().max(1), usize::from)
}

/// Processing units of all devices.
fn units(options: &Options) -> usize {
    devices(options) * usize::from(options.pus)
}

fn descriptors(options: &Options) -> Finding {
    let need = units(options) * (usize::from(options.pool()) + OTHER_DESCRIPTORS) + PROGRAM_DESCRIPTORS;
    let (have, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    let found = format!("{have} files may be open in a process; devices may use {need} with those of the program");
    if have >= need as u64 {
        Finding::ok("files", found)
    } else if hard >= need as u64 {
        Finding::warn("files", found, format!("ulimit -n {need}, or lower --path-pool (SRD_PATH_POOL)"))
    } else {
        Finding::warn("files", found, "lower --path-pool (SRD_PATH_POOL), or have the hard limit raised (limits.conf)")
    }
}

fn processors(options: &Options) -> Finding {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // 'max 100000', or the microseconds that may be used in a period of so many.
    let quota = fs::read_to_string("/sys/fs/cgroup/cpu.max").unwrap_or_default();
    let numbers: Vec<f64> = quota.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    if let &[quota, period] = &numbers[..]
        && quota < period * cpus as f64
    {
        let found =
            format!("a quota of {:.1} CPUs: when it is used up, everything stands still for a while", quota / period);
        return Finding::warn(
            "CPUs",
            found,
            "give the container CPUs of its own instead of a quota (cpuset), or expect delays",
        );
    }
    let spinning = units(options);
    if options.wait == WaitMode::Spin && cpus <= spinning {
        let found = format!(
            "{cpus} to run on, and {} shall spin",
            plural(spinning, "thread of a device", "threads of devices")
        );
        return Finding::warn("CPUs", found, "--wait adaptive (SRD_WAIT)");
    }
    if usize::from(options.pus) > cpus {
        let found = format!("{cpus} to run on, and a device has {} processing units", options.pus);
        return Finding::warn("CPUs", found, format!("--pus {} (SRD_PUS) or fewer", 1 << cpus.ilog2()));
    }
    Finding::ok("CPUs", format!("{cpus} to run on"))
}

fn memory_lock() -> Finding {
    let text = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft < u64::MAX => format!("{} may be locked", memory(soft)),
        _ => "as much as one likes may be locked".to_owned(),
    };
    Finding::ok("memlock", format!("{text}; the card locks nothing but the packet buffers of AF_XDP"))
}

fn huge_pages() -> Finding {
    let known = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = known.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (free, size) = (value("HugePages_Free:").unwrap_or(0), value("Hugepagesize:").unwrap_or(0));
    Finding::ok(
        "hugepages",
        format!("{free} of {} are free; libfabric takes them if it can, the card needs none", memory(size << 10)),
    )
}

/// UCX asks for the kernel's character device before it asks the library for the device.
fn ucx(options: &Options) -> Finding {
    let is_there = |path: &String| {
        fs::metadata(path).is_ok_and(|file| file.file_type().is_char_device())
            && access(path.as_str(), AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
    };
    let mut wanted = (0..devices(options)).map(|index| format!("/dev/infiniband/uverbs{index}"));
    Finding::ok(
        "UCX",
        match wanted.find(|path| !is_there(path)) {
            None => "there are the character devices without which it sees no device".to_owned(),
            Some(path) => {
                format!("it sees no device without a character device {path}; 'srd run --device-files' shows it one")
            }
        },
    )
}
