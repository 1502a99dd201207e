//! How a command ends: exit codes, and errors that know theirs.

use std::fmt;

/// Exit codes of `srd`; part of its interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Everything went as asked.
    Ok = 0,
    /// The command ran, and its verdict is bad.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The command could not be set up here: port in use, no permission, no route, unknown host.
    Setup = 3,
    /// The peer is not there, stopped answering, is busy, or turned the request down.
    Peer = 4,
    /// Interrupted by a signal; what was measured until then has been printed.
    Interrupted = 130,
}

/// An error and the exit code that it leads to.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The exit code.
    pub(crate) exit: Exit,
    /// One sentence and its causes.
    pub(crate) error: anyhow::Error,
}

/// Result of whatever can end a command.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Fault {
        Fault { exit, error: error.into() }
    }

    pub(crate) fn usage(text: impl fmt::Display) -> Fault {
        Fault::new(Exit::Usage, anyhow::anyhow!("{text}"))
    }

    pub(crate) fn setup(text: impl fmt::Display) -> Fault {
        Fault::new(Exit::Setup, anyhow::anyhow!("{text}"))
    }

    pub(crate) fn peer(text: impl fmt::Display) -> Fault {
        Fault::new(Exit::Peer, anyhow::anyhow!("{text}"))
    }

    pub(crate) fn interrupted() -> Fault {
        Fault::new(Exit::Interrupted, anyhow::anyhow!("interrupted before there was anything to report"))
    }

    /// The same with something to try at its end.
    pub(crate) fn with_hint(self, hint: &str) -> Fault {
        Fault::new(self.exit, anyhow::anyhow!("{self}{hint}"))
    }

    /// The driver is gone, which no remedy of the user's can change.
    pub(crate) fn driver(e: std::io::Error) -> Fault {
        Fault::new(Exit::Setup, anyhow::Error::new(e).context("the network driver failed"))
    }
}

impl fmt::Display for Fault {
    /// The whole chain in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}
