//! Messages to whoever runs the program.

use std::fmt::Arguments;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;

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
        let _ = writeln!(std::io::stderr(), "srd: {message}");
    }
}
