//! Probes a bed with UDP datagrams: what arrives, and over which spines.
//!
//! A probe sends a little at a time and waits until that has arrived or
//! nothing more comes, so that the bed's queues, not this program, decide.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::{Clos, Direction, Error, Family, Host};

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// How many source ports to send from.
    pub source_ports: u16,
    /// How many datagrams each of them sends.
    pub per_port: u32,
    /// UDP payload of each datagram in bytes, at least 8.
    pub payload: usize,
    /// IPv4 or IPv6.
    pub family: Family,
    /// The first source port; 0 lets the kernel choose all of them.
    pub first_port: u16,
    /// The port to send to; 0 lets the kernel choose. With both fixed and
    /// [`crate::ClosBuilder::ecmp_seed`], every probe takes the same spines.
    pub target_port: u16,
    /// How many datagrams to send before waiting for their arrival. Set it to
    /// the whole count to see a queue overflow.
    pub burst: usize,
    /// How long silence must last until what is missing counts as lost.
    pub patience: Duration,
}

impl Default for Probe {
    /// 64 ports, 10 datagrams of 100 bytes each, IPv4.
    fn default() -> Self {
        Self {
            source_ports: 64,
            per_port: 10,
            payload: 100,
            family: Family::V4,
            first_port: 0,
            target_port: 0,
            burst: 64,
            patience: Duration::from_millis(200),
        }
    }
}

/// What became of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that arrived, per source port in order.
    pub received: Vec<u64>,
    /// From the first sending to the last arrival.
    pub took: Duration,
}

/// A probe's way through a [`Clos`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// What arrived.
    pub delivery: Delivery,
    /// Frames that the sender's leaf sent up, per spine.
    pub up: Vec<u64>,
    /// Frames that reached the receiver's leaf's cable, per spine.
    pub down: Vec<u64>,
}

impl Delivery {
    /// Datagrams that arrived from all ports together.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.received.iter().sum()
    }

    /// Source ports from which nothing arrived.
    #[must_use]
    pub fn silent_ports(&self) -> usize {
        self.received.iter().filter(|count| **count == 0).count()
    }
}

impl Probe {
    /// Sends the probe from one host to another.
    ///
    /// # Errors
    /// If the payload is too short, or a socket cannot be opened or used.
    pub fn deliver(&self, from: &Host, to: &Host) -> Result<Delivery, Error> {
        if self.payload < 8 {
            return Err(Error::invalid("a probe needs a payload of at least 8 bytes: it carries its port's number"));
        }
        let sink = to.enter(|| sink((to.ip(self.family), self.target_port).into()))??;
        let target = sink.local_addr()?;
        let sources = from.enter(|| self.sources(from, target))??;
        let start = Instant::now();
        let mut run = Run { sink, received: vec![0; sources.len()], arrived: 0, last_arrival: start };
        let (mut payload, mut sent) = (vec![0; self.payload], 0);
        for round in 0..self.per_port {
            for (port, source) in sources.iter().enumerate() {
                payload[..8].copy_from_slice(&(port as u64).to_be_bytes());
                source.send(&payload)?;
                sent += 1;
                if sent % self.burst.max(1) as u64 == 0 && round + 1 < self.per_port {
                    run.receive(sent, BREATH)?;
                }
            }
        }
        run.receive(sent, self.patience)?;
        Ok(Delivery { sent, received: run.received, took: run.last_arrival - start })
    }

    /// Sends the probe and reads off the link counters which spines it took.
    /// Other traffic in the bed at the same time is counted, too.
    ///
    /// # Errors
    /// As [`Probe::deliver`], and if counters cannot be read.
    pub fn spread(&self, bed: &Clos, from: usize, to: usize) -> Result<Spread, Error> {
        let count = |direction, host| {
            let leaf = bed.leaf_of(host);
            let links = bed.link_stats()?.into_iter().filter(|l| l.leaf == leaf && l.direction == direction);
            Ok::<Vec<u64>, Error>(links.map(|l| l.packets).collect())
        };
        let before = (count(Direction::Up, from)?, count(Direction::Down, to)?);
        let delivery = self.deliver(bed.host(from), bed.host(to))?;
        let after = (count(Direction::Up, from)?, count(Direction::Down, to)?);
        let difference = |new: Vec<u64>, old: Vec<u64>| new.iter().zip(old).map(|(new, old)| new - old).collect();
        Ok(Spread { delivery, up: difference(after.0, before.0), down: difference(after.1, before.1) })
    }

    fn sources(&self, from: &Host, target: SocketAddr) -> Result<Vec<UdpSocket>, Error> {
        (0..self.source_ports)
            .map(|nth| {
                let port = if self.first_port == 0 { 0 } else { self.first_port.wrapping_add(nth) };
                let socket = UdpSocket::bind((from.ip(self.family), port))?;
                socket.connect(target)?;
                Ok(socket)
            })
            .collect()
    }
}

/// The receiving side of one probe.
struct Run {
    sink: UdpSocket,
    received: Vec<u64>,
    arrived: u64,
    last_arrival: Instant,
}

impl Run {
    /// Receives until all of `sent` is here or nothing has come for `patience`.
    fn receive(&mut self, sent: u64, patience: Duration) -> Result<(), Error> {
        self.sink.set_read_timeout(Some(patience))?;
        let mut buffer = vec![0; 65_536];
        while self.arrived < sent {
            let length = match self.sink.recv(&mut buffer) {
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(e) => return Err(e.into()),
            };
            let port = buffer[..length].first_chunk().map(|head| u64::from_be_bytes(*head));
            let counter = port.and_then(|port| self.received.get_mut(usize::try_from(port).ok()?));
            *counter.ok_or_else(|| Error::invalid("a datagram that no probe has sent arrived"))? += 1;
            self.arrived += 1;
            self.last_arrival = Instant::now();
        }
        Ok(())
    }
}

fn sink(address: SocketAddr) -> Result<UdpSocket, Error> {
    let socket = UdpSocket::bind(address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20)
        .map_err(|e| Error::Io { what: "enlarge a receive buffer".into(), source: e.into() })?;
    Ok(socket)
}

/// Silence after which a probe goes on with its next datagrams.
const BREATH: Duration = Duration::from_millis(5);
