//! The engine thread.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use srd_core::{CheckedConfig, Driver, Engine, Mailbox, Outbound, PeerId, RnrRetry, Span};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::{Command, Done, EndpointStats, Message, SendError, Shared, cost};
use crate::driver::UdpDriver;

/// Commands per turn, so that a busy application does not keep the engine from the network.
const COMMANDS_PER_TURN: usize = 64;
/// How long to try to send good-byes after an abort.
const FAREWELL: Span = Span::from_millis(5);

/// Dropped in this order.
struct Runner {
    engine: Engine<UdpDriver, Mailbox>,
    commands: mpsc::UnboundedReceiver<Command>,
    arrived: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
    budget: usize,
    /// Handles of peers that were sent to, which saves asking the routing table again.
    peers: HashMap<SocketAddr, PeerId>,
    /// Who sent what waits in the mailbox, in order.
    senders: VecDeque<SocketAddr>,
    /// Who waits for a message's outcome, by token.
    pending: Vec<Option<Done>>,
    /// Who waits for the end.
    closing: Vec<oneshot::Sender<()>>,
}

/// Where the loop stands.
#[derive(PartialEq, Eq)]
enum Phase {
    /// Runs; there may be more commands.
    Busy,
    /// Runs; no command waits.
    Idle,
    /// Nobody is left to serve.
    Abandoned,
}

/// Starts the thread.
pub(super) fn start(
    mut driver: UdpDriver,
    config: CheckedConfig,
    budget: usize,
    commands: mpsc::UnboundedReceiver<Command>,
    arrived: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
) -> io::Result<()> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    let endpoint = srd_core::Endpoint::new(config, driver.local_addr(), seed, driver.now());
    let engine = Engine::new(endpoint, driver, Mailbox::new(budget));
    let (peers, senders, pending, closing) = (HashMap::new(), VecDeque::new(), Vec::new(), Vec::new());
    let runner = Runner { engine, commands, arrived, shared, budget, peers, senders, pending, closing };
    std::thread::Builder::new().name("srd".into()).spawn(move || runner.run())?;
    Ok(())
}

impl Runner {
    fn run(mut self) {
        // Code of the application runs here, too: its wakers, and owners of `Bytes` that are dropped.
        let panicked = |_| Err(io::Error::other("the engine thread panicked"));
        if let Err(e) = catch_unwind(AssertUnwindSafe(|| self.serve())).unwrap_or_else(panicked) {
            let _ = self.shared.failure.set(e);
        }
        // Everything that arrived was acknowledged, so it must reach the application, if there is one.
        while self.deliver_one() {}
        // Dropping the rest tells everyone who waits, the sockets first: then the port is free.
    }

    /// Runs until closed or abandoned.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let phase = self.obey();
            if phase == Phase::Abandoned {
                return self.abort();
            }
            let moved = self.engine.turn()?;
            while self.engine.endpoint.poll_event().is_some() {}
            self.complete();
            self.note_senders();
            self.deliver();
            if !self.closing.is_empty() && self.engine.endpoint.is_closed() {
                return Ok(());
            }
            if !moved && phase == Phase::Idle {
                self.engine.wait(None)?;
            }
        }
    }

    /// Carries out waiting commands.
    fn obey(&mut self) -> Phase {
        for _ in 0..COMMANDS_PER_TURN {
            match self.commands.try_recv() {
                Ok(Command::Send { to, data, done }) => self.send(to, data, done),
                Ok(Command::Stats(ask)) => {
                    let _ = ask.send(self.stats());
                }
                Ok(Command::Close(ask)) => {
                    if self.closing.is_empty() {
                        let now = self.engine.driver.now();
                        self.engine.endpoint.close(now);
                    }
                    self.closing.push(ask);
                }
                Err(TryRecvError::Empty) => return Phase::Idle,
                Ok(Command::Abort) | Err(TryRecvError::Disconnected) => return Phase::Abandoned,
            }
        }
        Phase::Busy
    }

    fn send(&mut self, to: SocketAddr, data: Bytes, done: Done) {
        let Some(peer) = self.peer(to) else {
            let _ = done.outcome.send(Err(SendError::TooManyPeers));
            return;
        };
        let len = data.len() as u32;
        let token = self.engine.upper.post(&[], data);
        match self.engine.send(peer, Outbound { token, flow: 0, header_len: 0, len, rnr: RnrRetry::Forever }) {
            Ok(()) => {
                let slot = token.0 as usize;
                if self.pending.len() <= slot {
                    self.pending.resize_with(slot + 1, || None);
                }
                self.pending[slot] = Some(done);
            }
            Err(e) => {
                self.engine.upper.unpost(token);
                let _ = done.outcome.send(Err(e.into()));
            }
        }
    }

    fn peer(&mut self, to: SocketAddr) -> Option<PeerId> {
        if let Some(&peer) = self.peers.get(&to) {
            return Some(peer);
        }
        let peer = match self.engine.peer(to) {
            Some(peer) => peer,
            None => {
                // Whoever has nothing under way makes room; the others will be asked for again.
                self.peers.drain().for_each(|(_, peer)| self.engine.endpoint.release(peer));
                self.engine.peer(to)?
            }
        };
        self.peers.insert(to, peer);
        Some(peer)
    }

    /// Reports outcomes.
    fn complete(&mut self) {
        while let Some((token, outcome)) = self.engine.upper.poll_completed() {
            if let Some(done) = self.pending[token.0 as usize].take() {
                let _ = done.outcome.send(outcome.map_err(SendError::from));
            }
        }
    }

    /// Hands arrivals to the application as long as it reads them; then they stay in the mailbox until its budget is used
    /// up, and senders are told to wait.
    fn deliver(&mut self) {
        while self.engine.upper.unread() > 0 {
            if self.shared.unread.load(Ordering::SeqCst) >= self.budget {
                self.shared.held_back.store(true, Ordering::SeqCst);
                // The reader may have taken the last message before it could see the flag.
                if self.shared.unread.load(Ordering::SeqCst) >= self.budget {
                    return;
                }
            }
            self.deliver_one();
        }
    }

    /// Notes who has sent what has arrived: a peer that came by itself and went is forgotten when its place is needed; its last
    /// words are not.
    fn note_senders(&mut self) {
        let Engine { endpoint, upper, .. } = &self.engine;
        while let Some(received) = upper.peek(self.senders.len()) {
            let nobody = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
            self.senders.push_back(endpoint.peer_addr(received.peer).unwrap_or(nobody));
        }
    }

    /// Hands over one message, if there is one.
    fn deliver_one(&mut self) -> bool {
        self.note_senders();
        let Some(received) = self.engine.upper.poll_received() else { return false };
        let from = self.senders.pop_front().expect("noted before");
        self.shared.unread.fetch_add(cost(received.data.len()), Ordering::SeqCst);
        // Fails only if the endpoint was dropped.
        let _ = self.arrived.send(Message { from, data: received.data.into() });
        true
    }

    /// Fails what is under way and tells the peers, as far as that is possible without delay.
    fn abort(&mut self) -> io::Result<()> {
        let Engine { endpoint, driver, upper, .. } = &mut self.engine;
        let now = driver.now();
        endpoint.abort(now, upper);
        let end = now + FAREWELL;
        while !self.engine.endpoint.is_closed() && self.engine.driver.now() < end {
            if !self.engine.turn()? {
                self.engine.wait(Some(end))?;
            }
        }
        Ok(())
    }

    fn stats(&self) -> EndpointStats {
        let Engine { endpoint, driver, .. } = &self.engine;
        EndpointStats {
            protocol: *endpoint.stats(),
            driver: driver.stats(),
            peers: endpoint
                .peers()
                .filter_map(|peer| Some((endpoint.peer_addr(peer)?, endpoint.peer_stats(peer))))
                .collect(),
        }
    }
}
