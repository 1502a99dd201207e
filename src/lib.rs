//! Scalable Reliable Datagram (SRD) in software: reliable, unordered, multipath messages between hosts.
//!
//! SRD delivers whole messages exactly once and in any order, spreads them over many network paths at once, and moves on
//! when a path fails. This crate is the front door; the parts are crates of their own:
//!
//! - the protocol, `srd-core`, which does no I/O: re-exported here. [`Endpoint`] holds the connections, an [`Upper`] storey
//!   owns the messages ([`Mailbox`] is the simplest), a [`Driver`] moves the packets, and [`Engine`] joins the three;
//! - [`udp`], the driver over ordinary kernel UDP sockets, and an async front end;
//! - [`xdp`], the driver over AF_XDP, past the kernel's network stack;
//! - [`verbs`], queue pairs as EFA has them.
//!
//! The command `srd` (`srd run`, `srd demo`, `srd perf` and more) belongs to the same package.
//!
//! # Two endpoints and a message
//!
//! ```
//! use srd::udp::{UdpDriver, UdpOptions};
//! use srd::{Config, Driver, Endpoint, Engine, Mailbox, Outbound, RnrRetry};
//!
//! fn engine(seed: u8) -> Result<Engine<UdpDriver, Mailbox>, Box<dyn std::error::Error>> {
//!     let mut driver = UdpDriver::bind("127.0.0.1:0".parse()?, UdpOptions::default())?;
//!     // In earnest the seed comes from the operating system; no two endpoints may have the same one.
//!     let endpoint = Endpoint::new(Config::default().check()?, driver.local_addr(), [seed; 32], driver.now());
//!     Ok(Engine::new(endpoint, driver, Mailbox::new(1 << 20)))
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut here, mut there) = (engine(1)?, engine(2)?);
//! let peer = here.peer(there.driver.local_addr()).ok_or("the table of peers is full")?;
//!
//! let (header, payload) = (b"greeting", b"hello over many paths");
//! let token = here.upper.post(header, payload.to_vec().into());
//! let (header_len, len) = (header.len() as u8, payload.len() as u32);
//! here.send(peer, Outbound { token, flow: 0, header_len, len, rnr: RnrRetry::Forever })?;
//!
//! // Usually each engine turns on a thread of its own, and waits when nothing moved.
//! let received = loop {
//!     here.turn()?;
//!     there.turn()?;
//!     if let Some(message) = there.upper.poll_received() {
//!         break message;
//!     }
//! };
//! assert_eq!((&received.header[..], &received.data[..]), (&header[..], &payload[..]));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub use srd_core::*;

/// Kernel UDP: the driver, and an async front end.
pub mod udp {
    pub use srd_udp::*;
}

/// AF_XDP: the driver that bypasses the kernel's network stack.
pub mod xdp {
    pub use srd_xdp::*;
}

/// Queue pairs with the semantics of EFA, and the card that they are on.
///
/// Its transport is tuned by a [`Config`], its driver by [`udp::UdpOptions`], and a [`FaultPlan`] lets its network fail:
///
/// ```
/// use srd::verbs::{Device, NicConfig};
/// use srd::{Config, Span};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (peer_timeout, keepalive) = (Span::from_secs(1), Span::from_millis(250));
/// let transport = Config { peer_timeout, keepalive, ..Config::default() }.check()?;
/// let device = Device::open(NicConfig { transport, ..NicConfig::at("127.0.0.1:0".parse()?) })?;
/// assert!(device.max_message() >= 8192);
/// # Ok(())
/// # }
/// ```
///
/// Programs that heed the environment, and so `srd run`, take the devices that [`Options`](verbs::Options) make of it:
///
/// ```no_run
/// use srd::verbs::{Device, Options};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::from_env()?;
/// options.start_log()?;
/// for config in options.devices()? {
///     println!("{} is at {}", config.name.clone(), Device::open(config)?.gid());
/// }
/// # Ok(())
/// # }
/// ```
pub mod verbs {
    pub use verbs_shim::api::*;
    pub use verbs_shim::{
        Access, CardError, CardEvent, Gid, NicConfig, NicCounters, Opcode, OpenError, OptionError, Options, Profile,
        QpState, QpType, Status, card, faults,
    };
}
