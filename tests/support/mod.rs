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

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late threads ran between two points in time, those of nodes and others.
pub(crate) fn lateness<'a>(
    watch: &Watch,
    nodes: impl IntoIterator<Item = &'a Node>,
    from: Instant,
    to: Instant,
) -> Duration {
    nodes.into_iter().fold(watch.lateness(from, to), |late, node| late.max(node.lateness(from, to)))
}

/// Experiments share the cores, so they take turns. They run at normal priority: at a higher one, ksoftirqd would starve beside
/// them, and with it the network, which no lateness of threads shows.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bound of a figure of time: `strict` is what the product is for, and holds on a quiet machine; no noise of a machine exceeds
/// `lax` short of one that lets nothing run, only a transport that is broken. `./x figures` judges strictly, tests that must pass
/// do not.
pub(crate) fn bound<T>(strict: T, lax: T) -> T {
    if is_strict() { strict } else { lax }
}

fn is_strict() -> bool {
    std::env::var_os("SRD_STRICT_FIGURES").is_some()
}

/// Runs of an experiment that miss its figures on a machine that was too busy to tell.
const ATTEMPTS: u32 = 5;
/// A run counts as disturbed if threads had to wait for a core as long as this.
const DISTURBED: Duration = Duration::from_millis(3);
/// If they had to in every run for longer than this, the machine is too busy for any figure of time.
const HOPELESS: Duration = Duration::from_millis(10);

/// Repeats an experiment that missed its figures while threads ran late; it says how late, and what it missed.
pub(crate) fn attempt(mut run: impl FnMut() -> (Duration, Vec<String>)) {
    let mut least = Duration::MAX;
    for nth in 1..=ATTEMPTS {
        let (late, missed) = run();
        if missed.is_empty() {
            return;
        }
        let missed = missed.join("; ");
        least = least.min(late);
        let is_last = nth == ATTEMPTS && (least <= HOPELESS || is_strict());
        assert!(late > DISTURBED && !is_last, "{missed} (threads ran up to {late:?} late)");
        eprintln!("attempt {nth} does not count, threads ran up to {late:?} late: {missed}");
    }
    eprintln!("figures are not judged: threads never ran less than {least:?} late");
}

/// Notes what an experiment missed.
pub(crate) fn miss(missed: &mut Vec<String>, holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        missed.push(what());
    }
}
