//! The async front end: reliable, unordered messages for programs that do not want to drive an engine themselves.
//!
//! An engine thread runs the protocol over a [`UdpDriver`], so acknowledgements and retransmissions never wait for the
//! application. Commands go to it through a queue and a [`Waker`]; what comes back is awaited with nothing
//! but tokio's channels, which work under every executor.

mod runner;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use srd_core::{Config, ConfigError, Driver, Failure, PeerStats, Stats};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::driver::{UdpDriver, UdpInfo};
use crate::error::{BindError, unusable};
use crate::options::{UdpOptions, WaitMode};
use crate::stats::UdpStats;
use crate::waker::Waker;

/// Options of an [`Endpoint`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The protocol. Its `path_pool` sets the driver's number of source ports.
    pub protocol: Config,
    /// The driver. [`WaitMode::Spin`] is refused, since the engine thread would never let go of its core.
    pub driver: UdpOptions,
    /// Messages that may be on their way at once to all peers together, 1..=`protocol.send_queue`. Default 4096. Beyond it,
    /// [`send_to`](Endpoint::send_to) waits.
    pub max_outstanding: u32,
    /// Bytes of messages that arrived and were not read, and of those half arrived, plus 128 for each: the limit for each
    /// of the two. Default 64 MiB. Beyond it, senders are told that the receiver is not ready; a longer message is refused.
    pub receive_budget: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            protocol: Config::default(),
            driver: UdpOptions::default(),
            max_outstanding: 4096,
            receive_budget: 64 << 20,
        }
    }
}

/// Why an endpoint could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The protocol's configuration.
    #[error("protocol option {0}")]
    Config(ConfigError),
    /// An option of the endpoint.
    #[error("option {option} {problem}")]
    Option {
        /// Name of the field of [`Options`].
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No thread, or no random numbers.
    #[error("cannot start the engine thread")]
    Os(#[source] io::Error),
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> StartError {
        StartError::Config(error)
    }
}

/// Why a message was not delivered, or is not known to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Not accepted for sending.
    #[error(transparent)]
    NotAccepted(srd_core::SendError),
    /// Sent, without success.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// No peer can have this address.
    #[error("cannot send to {to}: {why}")]
    BadAddress {
        /// The address.
        to: SocketAddr,
        /// What is wrong with it.
        why: &'static str,
    },
    /// As many peers as `protocol.max_peers` allows are in use.
    #[error("the table of peers is full; raise max_peers")]
    TooManyPeers,
    /// The endpoint was closed, or its engine has failed (see [`Endpoint::close`]).
    #[error("the endpoint is closed")]
    Closed,
}

impl From<srd_core::SendError> for SendError {
    fn from(e: srd_core::SendError) -> SendError {
        match e {
            srd_core::SendError::Closed => SendError::Closed,
            e => SendError::NotAccepted(e),
        }
    }
}

/// A message that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The sender's address, to which an answer can be sent. (`[::]:0` if it went, and others needed its place in the table of
    /// peers, in the moment in which the message arrived.)
    pub from: SocketAddr,
    /// The bytes.
    pub data: Bytes,
}

/// A snapshot of an endpoint's counters.
#[derive(Clone, Debug, Default)]
pub struct EndpointStats {
    /// The protocol's.
    pub protocol: Stats,
    /// The driver's.
    pub driver: UdpStats,
    /// Of every peer with a connection.
    pub peers: Vec<(SocketAddr, PeerStats)>,
}

/// Sends and receives reliable, unordered messages of any length up to `protocol.max_message`. Share it by reference or
/// in an `Arc`; dropped, it gives up at once on what was not delivered, and its port is free some milliseconds later, see
/// [`close`](Self::close).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use srd_udp::{Endpoint, Options};
///
/// let endpoint = Endpoint::bind("127.0.0.1:0".parse()?, Options::default())?;
/// println!("peers send to {}", endpoint.local_addr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Endpoint {
    local: SocketAddr,
    info: UdpInfo,
    max_message: u32,
    commands: mpsc::UnboundedSender<Command>,
    outstanding: Arc<Semaphore>,
    arrivals: Mutex<mpsc::UnboundedReceiver<Message>>,
    shared: Arc<Shared>,
    waker: Waker,
}

/// What the engine thread is asked to do. The queue is bounded by the permits that sends carry; the other commands are
/// few.
#[derive(Debug)]
enum Command {
    Send { to: SocketAddr, data: Bytes, done: Done },
    Stats(oneshot::Sender<EndpointStats>),
    Close(oneshot::Sender<()>),
    Abort,
}

/// Where the outcome of a send goes.
#[derive(Debug)]
struct Done {
    outcome: oneshot::Sender<Result<(), SendError>>,
    /// Returned when the message is done.
    _permit: OwnedSemaphorePermit,
}

/// What both sides look at.
#[derive(Debug, Default)]
struct Shared {
    /// Cost of the messages that wait in the channel of arrivals.
    unread: AtomicUsize,
    /// The engine holds arrivals back until some are read.
    held_back: AtomicBool,
    /// Why the engine ended, if it was not asked to.
    failure: OnceLock<io::Error>,
}

/// What a message costs against the receive budget.
fn cost(len: usize) -> usize {
    len + 128
}

impl Endpoint {
    /// Opens an endpoint that peers reach at `addr`; port 0 lets the kernel choose. Does not block, and needs no runtime.
    ///
    /// # Errors
    /// The address cannot be used, an option is out of its range, or the host is out of resources.
    pub fn bind(addr: SocketAddr, options: Options) -> Result<Endpoint, StartError> {
        let bad = |option, problem: String| Err(StartError::Option { option, problem });
        let Options { protocol, driver: mut driver_options, max_outstanding, receive_budget } = options;
        if driver_options.wait == WaitMode::Spin {
            return bad("driver.wait", "is Spin; use Adaptive with a long spin time".into());
        }
        let most = protocol.send_queue;
        if !(1..=most).contains(&max_outstanding) {
            return bad("max_outstanding", format!("is {max_outstanding}, must be in 1..={most} (send_queue)"));
        }
        driver_options.source_ports = protocol.path_pool;
        let max_message = protocol.max_message;
        let config = protocol.check()?;
        let driver = UdpDriver::bind(addr, driver_options)?;
        let (local, info, waker) = (driver.local_addr(), driver.info(), driver.waker());
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        runner::start(driver, config, receive_budget, command_queue, arrived, shared.clone())
            .map_err(StartError::Os)?;
        let (outstanding, arrivals) = (Arc::new(Semaphore::new(max_outstanding as usize)), Mutex::new(arrivals));
        Ok(Endpoint { local, info, max_message, commands, outstanding, arrivals, shared, waker })
    }

    /// The address that peers send to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the kernel granted to the driver at the start.
    pub fn driver_info(&self) -> UdpInfo {
        self.info
    }

    /// Sends a message and waits until the peer has it whole. Any number of sends may be awaited at once; they may be
    /// delivered in any order. If the future is dropped before it is done, the message may still be delivered.
    ///
    /// # Errors
    /// The message was not accepted, or its delivery cannot be confirmed; the variant says whether it may have arrived.
    pub async fn send_to(&self, to: SocketAddr, data: Bytes) -> Result<(), SendError> {
        self.check(to, data.len())?;
        let permit = self.outstanding.clone().acquire_owned().await.map_err(|_| SendError::Closed)?;
        let (outcome, answer) = oneshot::channel();
        self.command(Command::Send { to, data, done: Done { outcome, _permit: permit } }).ok_or(SendError::Closed)?;
        answer.await.unwrap_or(Err(SendError::Closed))
    }

    /// The next message that arrived, from whatever peer; `None` once the endpoint is closed and everything was read.
    /// Safe to cancel: no message gets lost.
    pub async fn recv(&self) -> Option<Message> {
        let message = self.arrivals.lock().await.recv().await?;
        self.shared.unread.fetch_sub(cost(message.data.len()), Ordering::SeqCst);
        if self.shared.held_back.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
        Some(message)
    }

    /// Counters; `None` once the endpoint is closed.
    pub async fn stats(&self) -> Option<EndpointStats> {
        let (ask, answer) = oneshot::channel();
        self.command(Command::Stats(ask))?;
        answer.await.ok()
    }

    /// Stops accepting messages, waits until those under way are delivered or have failed, says good-bye to all peers, ends the
    /// engine thread and frees the port. May be called again, and while sends and receives are awaited; what has arrived can
    /// still be read afterwards. A receiver that does not read makes this wait as long; dropping the endpoint does not wait.
    ///
    /// # Errors
    /// The engine had ended before, because the kernel took its socket away, or in a panic (which may be the application's: the
    /// engine wakes its tasks, and drops the owners of its [`Bytes`]).
    pub async fn close(&self) -> io::Result<()> {
        let (ask, answer) = oneshot::channel();
        if self.command(Command::Close(ask)).is_some() {
            // Answered or dropped: the engine has ended either way.
            let _ = answer.await;
        }
        match self.shared.failure.get() {
            Some(e) => Err(io::Error::new(e.kind(), e.to_string())),
            None => Ok(()),
        }
    }

    fn check(&self, to: SocketAddr, len: usize) -> Result<(), SendError> {
        let bad = |why| Err(SendError::BadAddress { to, why });
        if to.port() == 0 {
            return bad("port 0 is nobody's port");
        }
        if to.ip().is_unspecified() {
            return bad("the unspecified address is nobody's address");
        }
        if to.is_ipv4() != self.local.is_ipv4() {
            return bad(if to.is_ipv4() { "this endpoint speaks IPv6 only" } else { "this endpoint speaks IPv4 only" });
        }
        if let Some(why) = unusable(to) {
            return bad(why);
        }
        let max = self.max_message;
        if len > max as usize {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            return Err(srd_core::SendError::TooLong { len, max }.into());
        }
        Ok(())
    }

    /// Hands a command to the engine; `None` if it has ended.
    fn command(&self, command: Command) -> Option<()> {
        self.commands.send(command).ok()?;
        self.waker.wake();
        Some(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Nobody is left to hear that the engine has ended already.
        let _ = self.command(Command::Abort);
    }
}
