//! Messages to whoever runs the program.

use std::fmt::Arguments;
use std::io::Write as _;

/// Something is wrong and the program cannot be told.
#[cold]
pub(crate) fn error(message: Arguments<'_>) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{message}");
    } else {
        // Before there is a log. Nothing can be done if standard error is closed.
        let _ = writeln!(std::io::stderr(), "srd: {message}");
    }
}
