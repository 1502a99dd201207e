//! The run loop that joins an endpoint, a driver and an upper storey. It does no I/O of its own.
//!
//! ```text
//! receive -> feed -> timers -> work -> transmit -> (wait)
//! ```

use std::io;
use std::net::SocketAddr;

use crate::batch::TxBatch;
use crate::driver::Driver;
use crate::endpoint::{Endpoint, Outbound, PeerId, SendError};
use crate::time::{Span, Time};
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
    /// When the last turn began. A spinning loop is as fast as it is short: what can do with this time need not read the
    /// clock.
    pub now: Time,
    batch: TxBatch,
}

/// Batches sent per turn before receiving again, so that neither direction starves the other.
const SENDS_PER_TURN: usize = 4;

/// Receive calls of a turn that comes late, as long as more arrives.
const LATE_RECEIVES: usize = 16;

/// A timer that is so late was held up by our own host.
const LATE: Span = Span::from_millis(1);

impl<D: Driver, U: Upper> Engine<D, U> {
    /// Joins the three.
    pub fn new(endpoint: Endpoint, driver: D, upper: U) -> Engine<D, U> {
        Engine { endpoint, driver, upper, now: Time::ZERO, batch: TxBatch::new() }
    }

    /// One turn without blocking: receives a bounded batch, runs due timers, sends a bounded number of batches. Returns
    /// whether anything moved.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.turn_with(|_, _, _, _| ())
    }

    /// A [`turn`](Self::turn) with `work` between receiving and sending: what it sends in answer to what has just arrived
    /// leaves at once, and the acknowledgement travels with it. `work` gets the time of the turn's beginning.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn turn_with(&mut self, work: impl FnOnce(&mut Endpoint, &mut U, &mut D, Time)) -> io::Result<bool> {
        let received = self.receive_with(work)?;
        Ok(self.transmit()? || received)
    }

    /// The first half of a turn: receives, runs timers, does `work`. For those who answer outside of the loop; a
    /// [`transmit`](Self::transmit) must follow soon, since acknowledgements wait for it.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn receive_with(&mut self, work: impl FnOnce(&mut Endpoint, &mut U, &mut D, Time)) -> io::Result<bool> {
        let Engine { endpoint, driver, upper, now: began, .. } = self;
        let now = driver.now();
        *began = now;
        let mut receive =
            |endpoint: &mut Endpoint| driver.recv(&mut |meta, bytes| endpoint.handle_datagram(now, meta, bytes, upper));
        let moved = receive(endpoint)? > 0;
        if let Some(due) = endpoint.poll_timeout()
            && due <= now
        {
            // When we are late, acknowledgements may wait in the socket: hear them before a timer judges their packets.
            let mut more = moved && due != Time::ZERO && due + LATE <= now;
            for _ in 0..LATE_RECEIVES {
                more = more && receive(endpoint)? > 0;
            }
            endpoint.handle_timeout(now, upper);
        }
        while let Some(peer) = endpoint.poll_new_peer() {
            if let Some(addr) = endpoint.peer_addr(peer) {
                let max = driver.max_datagram(addr);
                endpoint.set_link_datagram(peer, max);
            }
        }
        work(endpoint, upper, driver, now);
        Ok(moved)
    }

    /// The second half of a turn: sends a bounded number of batches, the first as of [`now`](Self::now). Returns whether
    /// there was anything to send.
    ///
    /// # Errors
    /// What the driver reports as fatal.
    pub fn transmit(&mut self) -> io::Result<bool> {
        let Engine { endpoint, driver, upper, now, batch } = self;
        let mut now = *now;
        for i in 0..SENDS_PER_TURN {
            if i > 0 {
                now = driver.now();
            }
            if !endpoint.poll_transmit(now, upper, batch) {
                return Ok(i > 0);
            }
            driver.send(batch, upper)?;
            batch.clear();
        }
        Ok(true)
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
