//! What can go wrong with a bed, each as one sentence that says what to do.

use std::io;

/// Why a bed could not be built, changed or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The effective user is not root.
    #[error("test beds need root to create network namespaces: run the command again with sudo")]
    NotRoot,
    /// The effective user is root, but of a user namespace or a container that may not do it.
    #[error(
        "this root may not create network namespaces, as that of a user namespace or container: run the command as root of the host"
    )]
    NotHost,
    /// A program of iproute2, nftables or ethtool is not installed.
    #[error("`{tool}` was not found: install it with `apt-get install {package}`")]
    MissingTool {
        /// The program looked for.
        tool: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// The running kernel cannot do what the bed needs.
    #[error("this kernel has no {feature} ({config}): load it with `modprobe {module}` or {otherwise}")]
    Kernel {
        /// What is missing.
        feature: &'static str,
        /// The kernel's configuration symbol.
        config: &'static str,
        /// The module that may bring it.
        module: &'static str,
        /// What else helps.
        otherwise: &'static str,
    },
    /// A number given to a builder or to a bed is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// A kept bed of this name does not exist.
    #[error("there is no test bed named `{0}`: `testbed up --name {0}` builds one")]
    NoSuchBed(String),
    /// A kept bed of this name exists already.
    #[error("a test bed named `{0}` exists already: `testbed down --name {0}` removes it")]
    Exists(String),
    /// The command that was to build a kept bed was killed before its end.
    #[error("the test bed `{0}` was not built to its end: `testbed down --name {0}` removes what there is")]
    Unfinished(String),
    /// `ip`, `tc`, `nft` or `ethtool` refused a command.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// The command as a person would type it.
        command: String,
        /// The first lines of its standard error.
        message: String,
    },
    /// The operating system refused something.
    #[error("could not {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// For `map_err`: puts what was tried before the system's answer.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// So that socket code inside [`crate::Host::enter`] can use `?` at the call.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self::Io { what: "use a socket of the test bed".into(), source }
    }
}
