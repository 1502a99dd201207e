//! A station that runs the unchanged transport: an [`Endpoint`] and what posts the messages of flows to it.

use std::collections::BTreeMap;

use srd_core::{Burst, CheckedConfig, Ecn, Endpoint, Part, PeerId, PeerStats, Stats, Time, TxBatch};

use super::ledger::Ledger;
use super::storey::{Storey, Target};
use super::tally::{GREETING, HEADER, Tally};
use super::verbs::Verbs;
use crate::host::Io;
use crate::packet::{Addr, HostId, IP_UDP_OVERHEAD, MAIN_PORT};

/// How flows become messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Messages {
    /// Bytes of a message; the last one of a flow may be shorter.
    pub bytes: u32,
    /// Messages of a flow that are under way at once.
    pub depth: u32,
    /// Whether they are RDMA writes of the verbs card, from a queue pair per flow.
    pub verbs: bool,
}

/// A flow that this station sends.
#[derive(Debug)]
struct Sending {
    flow: usize,
    to: HostId,
    /// Bytes that have not been posted; `None` for no end.
    left: Option<u64>,
    outstanding: u32,
    /// A message failed: nobody sends it again, so the flow does not complete.
    broken: bool,
    /// Bytes posted so far, and since when, for applications that make data at a rate.
    posted: u64,
    since: Time,
}

/// See the module documentation.
pub(super) struct SrdStation {
    config: CheckedConfig,
    messages: Messages,
    endpoint: Endpoint,
    upper: Storey,
    batch: TxBatch,
    peers: BTreeMap<HostId, PeerId>,
    /// Flows under way, by number; those of no flow left are gone.
    sending: BTreeMap<usize, Sending>,
    /// When an application will have made enough data for the next message of a flow.
    paced: BTreeMap<(Time, usize), ()>,
    /// Counters at the start of the experiment.
    pub(super) before: Stats,
    /// Messages that failed.
    pub(super) failed: u64,
}

impl SrdStation {
    pub(super) fn new(config: CheckedConfig, messages: Messages) -> SrdStation {
        let endpoint = Endpoint::new(config.clone(), Addr::of(HostId(0), MAIN_PORT).to_socket(), [0; 32], Time::ZERO);
        SrdStation {
            config,
            messages,
            endpoint,
            upper: Storey::Plain(Tally::default()),
            batch: TxBatch::new(),
            peers: BTreeMap::new(),
            sending: BTreeMap::new(),
            paced: BTreeMap::new(),
            before: Stats::default(),
            failed: 0,
        }
    }

    pub(super) fn start(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        let local = Addr::of(io.host().id(), MAIN_PORT).to_socket();
        let seed = io.rng().seed32();
        self.endpoint = Endpoint::new(self.config.clone(), local, seed, io.now());
        if self.messages.verbs {
            match Verbs::new(local, self.messages.depth, &mut self.endpoint) {
                Ok(verbs) => {
                    ledger.doors[io.host().id().0 as usize] = Some(verbs.door());
                    self.upper = Storey::Verbs(Box::new(verbs));
                }
                Err(what) => io.net.violate(format!("station {} got no card: {what}", io.host().id().0)),
            }
        }
    }

    pub(super) fn stats(&self) -> &Stats {
        self.endpoint.stats()
    }

    pub(super) fn peer_stats(&self, to: HostId) -> PeerStats {
        self.peers.get(&to).map(|p| self.endpoint.peer_stats(*p)).unwrap_or_default()
    }

    fn peer(&mut self, to: HostId, io: &mut Io<'_>) -> Option<PeerId> {
        if let Some(peer) = self.peers.get(&to) {
            return Some(*peer);
        }
        let max = (io.host().spec().mtu - IP_UDP_OVERHEAD) as u16;
        let peer = self.endpoint.peer(Addr::of(to, MAIN_PORT).to_socket(), max);
        match peer {
            Some(peer) => drop(self.peers.insert(to, peer)),
            None => io.net.violate(format!("station {} has more peers than its endpoint takes", io.host().id().0)),
        }
        peer
    }

    pub(super) fn turn(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        let now = io.now();
        let SrdStation { endpoint, upper, .. } = self;
        io.receive(|meta, bytes| endpoint.handle_datagram(now, meta, bytes, upper));
        if endpoint.poll_timeout().is_some_and(|t| t <= now) {
            endpoint.handle_timeout(now, upper);
        }
        upper.work(endpoint, now);
        while endpoint.poll_event().is_some() {}
        for (flow, bytes) in self.upper.arrived().drain(..) {
            if flow != GREETING {
                ledger.delivered(flow as usize, bytes, io);
            }
        }
        self.complete(ledger, io);
        self.begin(ledger, io);
        self.transmit(io);
    }

    fn complete(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        while let Some((flow, ok)) = self.upper.completed() {
            self.failed += u64::from(!ok);
            if flow == GREETING {
                ledger.greeting -= 1;
                continue;
            }
            let Some(sending) = self.sending.get_mut(&(flow as usize)) else { continue };
            sending.outstanding -= 1;
            sending.broken |= !ok;
            let broken = sending.broken;
            if sending.left == Some(0) && sending.outstanding == 0 {
                self.sending.remove(&(flow as usize));
                if let Err(what) = self.upper.end(&mut self.endpoint, flow) {
                    io.net.violate(format!("flow {flow} could not be ended: {what}"));
                }
                if !broken {
                    ledger.completed(flow as usize, io);
                }
            } else {
                self.post(flow as usize, ledger, io);
            }
        }
    }

    /// Starts what is due.
    fn begin(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        let (host, now) = (io.host().id(), io.world_now());
        while let Some(&(_, to)) = ledger.greetings[host.0 as usize].front().filter(|g| g.0 <= now) {
            ledger.greetings[host.0 as usize].pop_front();
            self.send(to, GREETING, HEADER as u32, ledger, io);
        }
        while let Some(flow) = ledger.take_due(host, now) {
            let (to, left) = (ledger.flows[flow].to, ledger.flows[flow].bytes);
            self.sending.insert(flow, Sending { flow, to, left, outstanding: 0, broken: false, posted: 0, since: now });
            self.post(flow, ledger, io);
        }
        while let Some((&(at, flow), ())) = self.paced.first_key_value()
            && at <= now
        {
            self.paced.pop_first();
            self.post(flow, ledger, io);
        }
    }

    /// Posts as many messages of a flow as may be under way.
    fn post(&mut self, flow: usize, ledger: &Ledger, io: &mut Io<'_>) {
        let Messages { bytes, depth, .. } = self.messages;
        let rate = ledger.flows[flow].rate;
        while let Some(sending) = self.sending.get_mut(&flow)
            && sending.outstanding < depth
            && sending.left != Some(0)
        {
            let size = sending.left.map_or(bytes, |left| left.min(bytes.into()) as u32);
            if let Some(rate) = rate {
                let made = u128::from(sending.posted + u64::from(size)) * 8_000_000_000 / u128::from(rate);
                let at = sending.since + srd_core::Span::from_nanos(made as u64);
                if at > io.world_now() {
                    self.paced.insert((at, sending.flow), ());
                    return;
                }
            }
            sending.left = sending.left.map(|left| left - u64::from(size));
            sending.posted += u64::from(size);
            sending.outstanding += 1;
            let to = sending.to;
            self.send(to, flow as u32, size, ledger, io);
        }
    }

    fn send(&mut self, to: HostId, flow: u32, len: u32, ledger: &Ledger, io: &mut Io<'_>) {
        let Some(peer) = self.peer(to, io) else { return };
        let target = Target {
            peer,
            addr: Addr::of(to, MAIN_PORT).to_socket(),
            door: ledger.doors[to.0 as usize],
            max_datagram: (io.host().spec().mtu - IP_UDP_OVERHEAD) as u16,
        };
        if let Err(what) = self.upper.post(&mut self.endpoint, io.now(), &target, flow, len) {
            let advice = "give a smaller messages.depth, or flows cards of their own";
            io.net.violate(format!("station {} could not send: {what} ({advice})", io.host().id().0));
        }
    }

    fn transmit(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        while self.endpoint.poll_transmit(now, &mut self.upper, &mut self.batch) {
            for burst in self.batch.bursts() {
                send_burst(&burst, io);
            }
            self.batch.clear();
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let paced = self.paced.first_key_value().map(|((at, _), ())| *at);
        [self.endpoint.poll_timeout(), paced, self.upper.deadline()].into_iter().flatten().min()
    }
}

/// Sends the datagrams of a burst: headers by their bytes, payload by its length.
fn send_burst(burst: &Burst<'_>, io: &mut Io<'_>) {
    let Some(dst) = Addr::from_socket(burst.to) else { return };
    let ecn = if burst.ect { Ecn::Ect } else { Ecn::NotEct };
    let mut parts = burst.parts.iter();
    // What is left of the part that a datagram ends in.
    let mut rest: Option<Part> = None;
    for _ in 0..burst.datagrams() {
        io.send(burst.port.0, dst, ecn, |packet| {
            let mut room = burst.segment as u32;
            while room > 0
                && let Some(part) = rest.take().or_else(|| parts.next().copied())
            {
                match part {
                    Part::Inline { start, len } => {
                        let now = len.min(room);
                        packet.put(burst.inline(start, now));
                        rest = (now < len).then_some(Part::Inline { start: start + now, len: len - now });
                        room -= now;
                    }
                    Part::Payload { token, offset, len } => {
                        let now = len.min(room);
                        packet.put_zeros(now);
                        rest = (now < len).then_some(Part::Payload { token, offset: offset + now, len: len - now });
                        room -= now;
                    }
                }
            }
        });
    }
}
