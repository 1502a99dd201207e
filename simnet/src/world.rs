//! The world: hosts, the network between them, a schedule, and the loop that lets time pass.

use std::collections::VecDeque;
use std::fmt;

use srd_core::{Span, Time};

use crate::host::{Host, HostSpec, Io, Node, Processing};
use crate::log::LogEvent;
use crate::net::{Event, Net, Violation};
use crate::packet::{HostId, LinkId};
use crate::part::{Part, PartKind};

/// What an [`Action::Call`] does.
pub type Call<N> = Box<dyn FnOnce(&mut World<N>)>;

/// Something that happens at a set time.
pub enum Action<N: Node> {
    /// Adds a part to links, or replaces those of its kind.
    Set(Vec<LinkId>, Part),
    /// Removes a kind of part from links.
    Clear(Vec<LinkId>, PartKind),
    /// Gives all switches new hash seeds.
    Rehash(u64),
    /// Keeps packets of the first set of hosts from the second.
    Partition(Vec<HostId>, Vec<HostId>),
    /// Ends all partitions.
    Heal,
    /// The host does nothing for this long; arrivals wait in its receive queue.
    Stall(HostId, Span),
    /// Changes when the host handles what arrives.
    Processing(HostId, Processing),
    /// The host dies.
    Crash(HostId),
    /// The host starts again (after dying, if it is alive) at the same address and knows nothing.
    Restart(HostId),
    /// The node is told something.
    Node(HostId, N::Command),
    /// Anything else, with a name for the log.
    Call(&'static str, Call<N>),
}

impl<N: Node> fmt::Debug for Action<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |f: &mut fmt::Formatter<'_>, links: &[LinkId]| -> fmt::Result {
            links.iter().try_for_each(|l| write!(f, " {}", l.0))
        };
        match self {
            Action::Set(links, part) => {
                write!(f, "set {part:?} on links")?;
                ids(f, links)
            }
            Action::Clear(links, kind) => {
                write!(f, "clear {kind:?} on links")?;
                ids(f, links)
            }
            Action::Rehash(seed) => write!(f, "rehash with {seed:#x}"),
            Action::Partition(from, to) => write!(f, "partition {from:?} -> {to:?}"),
            Action::Heal => f.write_str("heal partitions"),
            Action::Stall(host, span) => write!(f, "stall h{} for {span}", host.0),
            Action::Processing(host, how) => write!(f, "h{} processes {how:?}", host.0),
            Action::Crash(host) => write!(f, "crash h{}", host.0),
            Action::Restart(host) => write!(f, "restart h{}", host.0),
            Action::Node(host, command) => write!(f, "h{}: {command:?}", host.0),
            Action::Call(name, _) => f.write_str(name),
        }
    }
}

/// Totals of a world.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Events executed.
    pub events: u64,
    /// Datagrams that hosts sent.
    pub packets: u64,
    /// Bytes of UDP payload that hosts sent.
    pub bytes: u64,
}

/// A network with a node on every host, in virtual time. The same seed and the same calls give the same run.
pub struct World<N: Node> {
    net: Net,
    hosts: Vec<Host>,
    nodes: Vec<N>,
    /// Commands for hosts that are stalled or down, done when they run again.
    deferred: Vec<VecDeque<N::Command>>,
    /// Actions to come, by the index that their events have, and indices whose actions have happened.
    actions: Vec<Option<Action<N>>>,
    spare: Vec<u32>,
    shared: N::Shared,
    seed: u64,
    executed: u64,
    /// Hosts before this one have been started.
    started: usize,
}

/// A node whose deadline lies in the past after its turn gets the next one this much later, as a real loop would.
const TURN: Span = Span::from_nanos(100);

impl<N: Node> World<N> {
    /// An empty world.
    pub fn new(seed: u64, shared: N::Shared) -> World<N> {
        World {
            net: Net::new(seed),
            hosts: Vec::new(),
            nodes: Vec::new(),
            deferred: Vec::new(),
            actions: Vec::new(),
            spare: Vec::new(),
            shared,
            seed,
            executed: 0,
            started: 0,
        }
    }

    /// Adds a host, which starts when time first passes. It needs an [uplink](Net::set_uplink) to send.
    pub fn add_host(&mut self, spec: HostSpec, node: N) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        self.hosts.push(Host::new(id, spec, self.seed));
        self.nodes.push(node);
        self.deferred.push(VecDeque::new());
        id
    }

    /// Schedules an action.
    pub fn at(&mut self, at: Time, action: Action<N>) {
        let index = self.spare.pop().unwrap_or_else(|| {
            self.actions.push(None);
            self.actions.len() as u32 - 1
        });
        self.actions[index as usize] = Some(action);
        self.net.events.push(at.max(self.net.now), Event::Act { index });
    }

    /// Executes an action now.
    pub fn act(&mut self, action: Action<N>) {
        match action {
            Action::Set(links, part) => links.iter().for_each(|l| self.net.link_mut(*l).set(part)),
            Action::Clear(links, kind) => links.iter().for_each(|l| self.net.link_mut(*l).clear(kind)),
            Action::Rehash(seed) => self.net.rehash(seed),
            Action::Partition(from, to) => self.net.partition(&from, &to, true),
            Action::Heal => self.net.heal_partitions(),
            Action::Stall(host, span) => {
                let until = self.net.now + span;
                let host = &mut self.hosts[host.0 as usize];
                host.stalled_until = host.stalled_until.max(until);
                // What it would have done meanwhile it does then.
                host.wake(until, &mut self.net);
            }
            Action::Processing(host, how) => self.hosts[host.0 as usize].spec.processing = how,
            Action::Crash(host) => self.crash(host),
            Action::Restart(host) => {
                self.crash(host);
                let h = &mut self.hosts[host.0 as usize];
                h.incarnation += 1;
                h.stalled_until = Time::ZERO;
                h.reseed();
                self.start(host);
            }
            Action::Node(host, command) => self.command(host, command),
            Action::Call(_, f) => f(self),
        }
    }

    /// Gives a node a command, at once or when its host runs again.
    pub fn command(&mut self, host: HostId, command: N::Command) {
        self.start_all();
        let i = host.0 as usize;
        self.deferred[i].push_back(command);
        if self.hosts[i].up && self.hosts[i].stalled_until <= self.net.now {
            self.turn(host);
        }
    }

    /// Lets time pass until `until`, or until a rule is broken.
    pub fn run_until(&mut self, until: Time) {
        self.start_all();
        while self.net.violation.is_none() && self.step(until) {}
        if self.net.violation.is_none() && until != Time::NEVER {
            self.net.now = self.net.now.max(until);
        }
    }

    /// Lets time pass for a while.
    pub fn run_for(&mut self, span: Span) {
        self.run_until(self.net.now + span);
    }

    /// Lets time pass until `done`, which is asked after every event, until nothing is left to happen, or until `limit`.
    /// Returns whether it was `done`.
    pub fn run_while(&mut self, limit: Time, mut done: impl FnMut(&mut World<N>) -> bool) -> bool {
        self.start_all();
        loop {
            if self.net.violation.is_some() {
                return false;
            }
            if done(self) {
                return true;
            }
            if !self.step(limit) {
                self.net.now = if limit == Time::NEVER { self.net.now } else { self.net.now.max(limit) };
                return false;
            }
        }
    }

    /// Lets time pass until nothing is left to happen or until `limit`. Returns whether nothing is left.
    pub fn run_until_idle(&mut self, limit: Time) -> bool {
        self.run_while(limit, |w| w.net.events.is_empty())
    }

    /// The world's time.
    pub fn now(&self) -> Time {
        self.net.now
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The network, to be built or changed.
    pub fn net_mut(&mut self) -> &mut Net {
        &mut self.net
    }

    /// The first rule that was broken, if one was. Time stands still from then on.
    pub fn violation(&self) -> Option<&Violation> {
        self.net.violation.as_ref()
    }

    /// A host.
    pub fn host(&self, host: HostId) -> &Host {
        &self.hosts[host.0 as usize]
    }

    /// All hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = HostId> + use<N> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// What runs on a host.
    pub fn node(&self, host: HostId) -> &N {
        &self.nodes[host.0 as usize]
    }

    /// What runs on a host, to be changed.
    pub fn node_mut(&mut self, host: HostId) -> &mut N {
        &mut self.nodes[host.0 as usize]
    }

    /// What all nodes share.
    pub fn shared(&self) -> &N::Shared {
        &self.shared
    }

    /// What all nodes share, to be changed.
    pub fn shared_mut(&mut self) -> &mut N::Shared {
        &mut self.shared
    }

    /// What all nodes share and the network, to be changed together.
    pub fn with_shared_and_net<T>(&mut self, f: impl FnOnce(&mut N::Shared, &mut Net) -> T) -> T {
        f(&mut self.shared, &mut self.net)
    }

    /// Totals so far.
    pub fn counters(&self) -> Counters {
        let mut total = Counters { events: self.executed, ..Counters::default() };
        for host in &self.hosts {
            total.packets += host.stats.sent;
            total.bytes += host.stats.sent_bytes;
        }
        total
    }

    /// Packets that are in the network or wait to be read.
    pub fn packets_alive(&self) -> usize {
        self.net.packets.live()
    }

    /// Executes the next event that is not later than `until`; false if there is none.
    fn step(&mut self, until: Time) -> bool {
        let Some((at, event)) = self.net.events.pop_until(until) else { return false };
        debug_assert!(at >= self.net.now, "time goes backwards");
        if at > self.net.now {
            self.net.now = at;
            self.net.look_ahead(&event);
        }
        self.executed += 1;
        match event {
            Event::Arrive { link, packet } => {
                if let Some(host) = self.net.arrive(link, packet) {
                    let h = &mut self.hosts[host.0 as usize];
                    if h.take(packet, &mut self.net) {
                        if h.spec.processing == Processing::Immediate && h.stalled_until <= at {
                            self.turn(host);
                        } else {
                            h.wake(at, &mut self.net);
                        }
                    }
                }
            }
            Event::Nudge { host } => {
                let h = &mut self.hosts[host.0 as usize];
                if h.up && h.spec.processing == Processing::Immediate && h.stalled_until <= at {
                    self.turn(host);
                } else {
                    h.wake(at, &mut self.net);
                }
            }
            Event::Wake { host } => {
                let h = &mut self.hosts[host.0 as usize];
                // An event that a later, earlier one has made obsolete.
                if h.wake_at != at {
                    return true;
                }
                h.wake_at = Time::NEVER;
                if !h.up {
                    return true;
                }
                if h.stalled_until > at {
                    h.wake(at, &mut self.net);
                } else {
                    self.turn(host);
                }
            }
            Event::Act { index } => {
                self.net.log.record(at, LogEvent::Acted { index });
                let action = self.actions[index as usize].take().expect("an action happens once");
                self.spare.push(index);
                self.act(action);
            }
        }
        true
    }

    fn start_all(&mut self) {
        self.start_some(u32::MAX);
    }

    /// Starts so many of the hosts that have not been started. Returns whether some are left.
    pub(crate) fn start_some(&mut self, count: u32) -> bool {
        for _ in 0..count {
            if self.started == self.hosts.len() {
                break;
            }
            self.started += 1;
            self.start(HostId(self.started as u32 - 1));
        }
        self.started < self.hosts.len()
    }

    fn start(&mut self, host: HostId) {
        let i = host.0 as usize;
        let h = &mut self.hosts[i];
        h.up = true;
        self.net.log.record(self.net.now, LogEvent::Started { host, incarnation: h.incarnation });
        self.nodes[i].start(&mut self.shared, &mut Io { net: &mut self.net, host: h });
        self.turn(host);
    }

    fn crash(&mut self, host: HostId) {
        let h = &mut self.hosts[host.0 as usize];
        if h.up {
            h.up = false;
            h.wake_at = Time::NEVER;
            h.clear(&mut self.net);
            self.net.log.record(self.net.now, LogEvent::Crashed { host });
            self.nodes[host.0 as usize].crash(&mut self.shared, &mut Io { net: &mut self.net, host: h });
        }
    }

    fn turn(&mut self, host: HostId) {
        let i = host.0 as usize;
        let h = &mut self.hosts[i];
        let node = &mut self.nodes[i];
        h.stats.turns += 1;
        let mut io = Io { net: &mut self.net, host: h };
        while let Some(command) = self.deferred[i].pop_front() {
            node.command(command, &mut self.shared, &mut io);
        }
        let before = io.host.stats.received_bytes;
        node.turn(&mut self.shared, &mut io);
        let now = self.net.now;
        let h = &mut self.hosts[i];
        if let Some(rate) = h.spec.drain {
            let nanos = u128::from(h.stats.received_bytes - before) * 8_000_000_000 / u128::from(rate.max(1));
            h.stalled_until = h.stalled_until.max(now + Span::from_nanos(nanos as u64));
            if !h.rx.is_empty() {
                h.wake(now + TURN, &mut self.net);
            }
        }
        if let Some(deadline) = node.deadline() {
            let at = h.spec.clock.world(deadline);
            h.wake(if at <= now { now + TURN } else { at }, &mut self.net);
        }
    }
}

impl<N: Node + fmt::Debug> fmt::Debug for World<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.seed).field("now", &self.net.now).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that does nothing.
    struct Idle;

    impl Node for Idle {
        type Shared = u32;
        type Command = ();
        fn start(&mut self, _shared: &mut u32, _io: &mut Io<'_>) {}
        fn turn(&mut self, _shared: &mut u32, _io: &mut Io<'_>) {}
        fn command(&mut self, (): (), _shared: &mut u32, _io: &mut Io<'_>) {}
        fn deadline(&self) -> Option<Time> {
            None
        }
        fn crash(&mut self, _shared: &mut u32, _io: &mut Io<'_>) {}
    }

    /// Each of them schedules the next one.
    fn tick(world: &mut World<Idle>) {
        *world.shared_mut() += 1;
        world.at(world.now() + Span::from_micros(1), Action::Call("tick", Box::new(tick)));
    }

    #[test]
    fn actions_that_have_happened_take_no_memory() {
        let mut world: World<Idle> = World::new(1, 0);
        tick(&mut world);
        tick(&mut world);
        world.run_for(Span::from_millis(1));
        assert_eq!(*world.shared(), 2 + 2 * 1_000);
        assert!(world.actions.len() <= 3, "{} actions are kept", world.actions.len());
    }
}
