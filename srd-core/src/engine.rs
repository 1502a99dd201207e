//! The run loop that joins an endpoint, a driver and an upper storey. It does no I/O of its own.
//!
//! ```text
//! receive -> feed -> timers -> transmit -> (wait)
//! ```

use std::io;
use std::net::SocketAddr;

use crate::batch::TxBatch;
use crate::driver::Driver;
use crate::endpoint::{Endpoint, Outbound, PeerId, SendError};
use crate::time::Time;
use crate::upper::Upper;

/// An endpoint with its driver and its upper storey. One thread owns it.
#[derive(Debug)]
pub struct Engine<D, U> {
    /// The protocol.
    pub endpoint: Endpoint,
    /// What moves the packets.
    pub driver: D,
    /// What owns the messages.
    pub upper: U,
    batch: TxBatch,
}

/// Batches sent per turn before receiving again, so that neither direction starves the other.
const SENDS_PER_TURN: usize = 4;

/// Receive calls before due timers run, as long as more arrives.
const RECEIVES_BEFORE_TIMERS: usize = 16;

impl<D: Driver, U: Upper> Engine<D, U> {
    /// Joins the three.
    pub fn new(endpoint: Endpoint, driver: D, upper: U) -> Engine<D, U> {
        Engine { endpoint, driver, upper, batch: TxBatch::new() }
    }

    /// One turn without blocking: receives a bounded batch, runs due timers, sends a bounded number of batches. Returns
    /// whether anything moved.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn turn(&mut self) -> io::Result<bool> {
        let Engine { endpoint, driver, upper, batch } = self;
        let mut now = driver.now();
        let mut receive =
            |endpoint: &mut Endpoint| driver.recv(&mut |meta, bytes| endpoint.handle_datagram(now, meta, bytes, upper));
        let mut moved = receive(endpoint)? > 0;
        if endpoint.poll_timeout().is_some_and(|t| t <= now) {
            // Acknowledgements may wait in the socket; hear them before a timer declares their packets lost.
            let mut more = moved;
            for _ in 0..RECEIVES_BEFORE_TIMERS {
                more = more && receive(endpoint)? > 0;
            }
            if endpoint.poll_timeout().is_some_and(|t| t <= now) {
                endpoint.handle_timeout(now, upper);
            }
        }
        for _ in 0..SENDS_PER_TURN {
            if !endpoint.poll_transmit(now, upper, batch) {
                break;
            }
            driver.send(batch, upper)?;
            batch.clear();
            moved = true;
            now = driver.now();
        }
        Ok(moved)
    }

    /// Sleeps (or spins, as the driver does) until something arrives, the next deadline, or `limit`.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn wait(&mut self, limit: Option<Time>) -> io::Result<()> {
        let until = match (self.endpoint.poll_timeout(), limit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.driver.wait(until)
    }

    /// The handle of the peer at `addr`; `None` if the table of peers is full.
    pub fn peer(&mut self, addr: SocketAddr) -> Option<PeerId> {
        let max = self.driver.max_datagram(addr);
        self.endpoint.peer(addr, max)
    }

    /// Queues a message, see [`Endpoint::send`].
    ///
    /// # Errors
    /// The message was not accepted and will not complete.
    pub fn send(&mut self, peer: PeerId, msg: Outbound) -> Result<(), SendError> {
        let now = self.driver.now();
        self.endpoint.send(now, peer, msg)
    }
}
