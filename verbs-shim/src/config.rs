//! What a card is made of, and why it cannot be opened.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;

use nix::libc;
use srd_core::card::{CardOptions, GidError, Profile};
use srd_core::{CheckedConfig, Config, FaultPlan};
use srd_udp::{BindError, UdpOptions};
use srd_xdp::{DriverChoice, XdpOptions};

/// What a card is made of.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Name of the device, for logs.
    pub name: String,
    /// Address and port that peers reach it at; port 0 lets the kernel choose, and so does a port that is taken.
    pub addr: SocketAddr,
    /// Processing units, a power of two in 1..=16: each has a port (they follow each other), a lock, a thread, and its share of
    /// the queue pairs. Over IPv6 there is one.
    pub units: u16,
    /// The transport.
    pub transport: CheckedConfig,
    /// What moves the packets.
    pub driver: DriverChoice,
    /// Receive queues of the interface to take for AF_XDP, 1..=16, as far as they are free.
    pub xdp_queues: u32,
    /// The driver, as far as it uses kernel UDP.
    pub udp: UdpOptions,
    /// The card.
    pub card: CardOptions,
    /// What goes wrong in the network on request, and the seed of it.
    pub faults: Option<(FaultPlan, u64)>,
    /// The directory that counters are published in, for `srd stat`; `None` for nowhere.
    pub counters: Option<PathBuf>,
    /// Seed of keys, numbers and connection ids; `None` for one that nobody can guess.
    pub seed: Option<u64>,
}

impl NicConfig {
    /// A card of the newest generation that peers reach at `addr`, and defaults otherwise.
    pub fn at(addr: SocketAddr) -> NicConfig {
        let profile = Profile::GENERATIONS.into_iter().rev().find_map(Profile::generation).unwrap_or_default();
        let plain = Config::default();
        // One for each handle.
        let transport = Config { max_peers: plain.max_peers.max(profile.max_ah), ..plain };
        NicConfig {
            name: "srd_0".into(),
            addr,
            units: 1,
            transport: transport.check().expect("the defaults are valid"),
            driver: DriverChoice::Udp,
            xdp_queues: XdpOptions::default().queues,
            udp: UdpOptions::default(),
            card: CardOptions { profile, ..CardOptions::default() },
            faults: None,
            counters: None,
            seed: None,
        }
    }
}

/// Why a card could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address cannot be a card's.
    #[error(transparent)]
    Address(#[from] GidError),
    /// The sockets could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// AF_XDP cannot be used.
    #[error(transparent)]
    Xdp(srd_xdp::OpenError),
    /// The system permits no more threads.
    #[error("cannot start the thread of a card; raise the limit (`ulimit -u`) or end processes")]
    Thread(#[source] std::io::Error),
    /// The system has no more of something.
    #[error("the system refuses what a card needs")]
    System(#[source] std::io::Error),
}

impl From<std::io::Error> for OpenError {
    fn from(error: std::io::Error) -> OpenError {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => BindError::Descriptors.into(),
            _ => OpenError::System(error),
        }
    }
}

impl OpenError {
    /// Whether all descriptors that the process may have are taken.
    pub fn lacks_descriptors(&self) -> bool {
        matches!(self, OpenError::Bind(BindError::Descriptors))
    }

    /// The error and its causes in one line, for where nobody follows [`source`](Error::source).
    pub fn whole(&self) -> String {
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}

impl From<srd_xdp::OpenError> for OpenError {
    fn from(error: srd_xdp::OpenError) -> OpenError {
        match error {
            srd_xdp::OpenError::Udp(error) => error.into(),
            srd_xdp::OpenError::Descriptors => BindError::Descriptors.into(),
            error => OpenError::Xdp(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_everything_once() {
        let error = OpenError::Thread(std::io::ErrorKind::WouldBlock.into());
        let cause = error.source().expect("a cause").to_string();
        assert!(!error.to_string().contains(&cause), "who follows the causes hears it twice: {error}");
        assert_eq!(error.whole(), format!("{error}: {cause}"));
        let none = OpenError::from(GidError::NoPort);
        assert_eq!(none.whole(), none.to_string());
    }
}
