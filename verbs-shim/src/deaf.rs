//! Threads that hear no signals: those are the program's.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread that blocks all signals.
///
/// # Errors
/// The system permits no more threads.
pub fn spawn(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The thread inherits the mask.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let thread = Builder::new().name(name.into()).spawn(run);
    if let Ok(before) = before {
        // It was in force before, so it can be set.
        let _ = before.thread_set_mask();
    }
    thread
}
