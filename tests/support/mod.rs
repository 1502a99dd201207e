//! Whole systems on a test bed: engines on hosts, what they carry, and what to make of it.

#![allow(dead_code, unused_imports, reason = "each program uses a part of it")]

pub(crate) mod hole;
mod node;
mod parcels;
mod timeline;
mod watch;

pub(crate) use node::{Node, Setup, Snapshot};
pub(crate) use parcels::{Arrival, Load};
pub(crate) use timeline::{Delays, Timeline, mbit};
pub(crate) use watch::Watch;

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late threads ran between two points in time, those of nodes and others.
pub(crate) fn lateness(watch: &Watch, nodes: [&Node; 2], from: Instant, to: Instant) -> Duration {
    nodes.iter().fold(watch.lateness(from, to), |late, node| late.max(node.lateness(from, to)))
}

/// Experiments share the cores, so they take turns. The calling thread, and all that it starts (hosts, loads of TCP), run
/// before the machine's other work, as far as the machine permits: a real host has cores of its own. Not at
/// a real-time priority: ksoftirqd would starve beside it, and with it the network, and the kernel would take a core from
/// threads that do not sleep for 50 ms of each second (sched(7), `sched_rt_runtime_us`).
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let thread = nix::unistd::gettid().to_string();
    let asked = Command::new("renice").args(["-n", "-20", "-p", &thread]).stdout(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        eprintln!("threads run at normal priority, as `renice` is missing or may not change it");
    }
    turn
}
