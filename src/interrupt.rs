//! Ctrl-C and termination signals as a flag that loops look at.
//!
//! No thread waits for them: a process with a single thread makes cheaper system calls.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Fault, Result};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first signal asks the command to come to an end, the second ends the process at once. To be called once.
pub(crate) fn install() -> Result<()> {
    let requested = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !outlives_terminal()) {
        // In this order: the first signal finds the flag down.
        flag::register_conditional_shutdown(signal, Exit::Interrupted as i32, Arc::clone(requested))
            .and_then(|_| flag::register(signal, Arc::clone(requested)))
            .map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context("cannot install the signal handler")))?;
    }
    Ok(())
}

/// Whether we were started to live on when the terminal goes, as nohup(1) does it: by ignoring SIGHUP.
fn outlives_terminal() -> bool {
    // The kernel has it for all processes; where that cannot be read, we end with the terminal.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// Whether a signal has come.
pub(crate) fn requested() -> bool {
    REQUESTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
