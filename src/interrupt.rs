//! Ctrl-C and termination signals as a flag that loops look at.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::{Exit, Fault, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on the first signal asks the command to come to an end, the second ends the process at once.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    })
    .map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context("cannot install the signal handler")))
}

/// Whether a signal has come.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
