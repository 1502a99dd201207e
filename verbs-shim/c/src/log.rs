//! Messages to whoever runs the program.

use std::fmt::Arguments;
use std::io;
use std::os::fd::AsFd as _;
use std::panic::AssertUnwindSafe;

use verbs_shim::quiet;

/// Something is wrong and the program cannot be told.
#[cold]
pub(crate) fn error(message: Arguments<'_>) {
    // The log may panic for what made its caller panic, and there is nobody above who could take it.
    let logged = || {
        tracing::dispatcher::has_been_set()
            && std::panic::catch_unwind(AssertUnwindSafe(|| tracing::error!("{message}"))).is_ok()
    };
    if !logged() {
        // Nothing can be done if standard error is closed.
        let _ = quiet::write(io::stderr().as_fd(), format!("srd: {message}\n").as_bytes());
    }
}
