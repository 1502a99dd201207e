//! One host of a bed: its addresses, and ways to run things on it.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::thread::JoinHandle;

use crate::{Error, netns};

/// Which of a host's two addresses to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

/// A host of a [`crate::Clos`] or a [`crate::Pair`]. Clones are cheap and name
/// the same host; once the bed is gone everything on it fails with an error.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) index: usize,
    pub(crate) namespace: String,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

impl Host {
    /// The host's number in its bed.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name of the host's network namespace, for `ip netns exec`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The host's IPv4 address.
    #[must_use]
    pub fn addr(&self) -> Ipv4Addr {
        self.v4
    }

    /// The host's IPv6 address (unique local, `fd00::/8`).
    #[must_use]
    pub fn addr6(&self) -> Ipv6Addr {
        self.v6
    }

    /// The address of the given family.
    #[must_use]
    pub fn ip(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// A command that will run on this host, through `ip netns exec`: add
    /// arguments, environment and pipes as usual. The process id is that of
    /// the program itself. Programs still running when the bed is dropped are
    /// killed with it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // building a bed has found `ip`; if it went since, starting fails and says so
        let mut command = crate::tools::command("ip").unwrap_or_else(|_| Command::new("ip"));
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }

    /// Runs a closure on this host, on a thread of its own, and returns its
    /// value. A socket belongs for good to the host on which it was opened, so
    /// it may be returned and used from any thread.
    ///
    /// `/proc/thread-self/net` and `/proc/sys/net` show the host;
    /// `/sys/class/net` and `/proc/net` do not, as these follow the process.
    ///
    /// # Errors
    /// [`Error::Io`] if the bed is gone.
    ///
    /// # Panics
    /// With the closure's panic.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        netns::enter(&self.namespace, work)
    }

    /// Starts a closure on a thread that lives on this host, and so do the
    /// threads and processes it starts in turn. The namespace, though no longer
    /// its name, lives until the thread ends.
    ///
    /// # Errors
    /// [`Error::Io`] if the bed is gone or no thread can be started.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>, Error> {
        netns::spawn(&self.namespace, work)
    }
}
