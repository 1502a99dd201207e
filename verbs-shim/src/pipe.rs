//! SIGPIPE for the program that a command becomes: as whoever started the command left it.
//!
//! Rust's runtime ignores this signal from the beginning of `main` on, so that is seen before. systemd starts services with it
//! ignored, and shells do on request; other programs count on being ended by it.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Whether it was ignored when the process began.
static IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is valid for the call, which changes nothing.
    if unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), found.as_mut_ptr()) } == 0 {
        // SAFETY: the system filled it.
        let found = unsafe { found.assume_init() };
        IGNORED.store(found.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Handles the signal again as at the beginning of the process. For what comes right before `exec`.
pub fn restore() {
    let before = if IGNORED.load(Ordering::Relaxed) { SigHandler::SigIgn } else { SigHandler::SigDfl };
    // SAFETY: no handler is installed, and Rust's runtime needs none.
    let outcome = unsafe { signal(Signal::SIGPIPE, before) };
    outcome.expect("this signal can be ignored");
}
