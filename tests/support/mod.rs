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
