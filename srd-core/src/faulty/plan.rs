//! What goes wrong when: faults that change with time, and black holes.

use std::net::{IpAddr, SocketAddr};

use super::Faults;
use crate::driver::SourcePort;
use crate::time::{Span, Time};

/// What a black hole swallows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Where {
    /// Everything.
    All,
    /// What is sent from one of these source ports. Nothing that is received: that comes from the peer's ports.
    Ports(Vec<SourcePort>),
    /// The same by number: 0 is the source port that was used first, 1 the one that was used next, and so on. What replaces
    /// a dead path is a port that was not used before, with a number of its own.
    Paths(Vec<u16>),
    /// What is exchanged with this host, at any port.
    Host(IpAddr),
    /// What is exchanged with this host; of what is sent, only what goes to this port. What a peer sends comes from source
    /// ports of its choice, so that in this direction a port says nothing.
    Peer(SocketAddr),
}

/// The directions that a black hole swallows, as seen from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// What is sent.
    Out,
    /// What is received.
    In,
    /// Both.
    Both,
}

/// A place where datagrams vanish silently, for a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlackHole {
    /// What it swallows.
    pub what: Where,
    /// In which direction.
    pub way: Way,
    /// From when on, inclusive.
    pub from: Time,
    /// Until when, exclusive; [`Time::NEVER`] for good.
    pub until: Time,
}

impl BlackHole {
    /// A dead path: swallows what is sent from `port`, from `from` on, for good.
    pub fn path(port: SourcePort, from: Time) -> BlackHole {
        BlackHole { what: Where::Ports(vec![port]), way: Way::Out, from, until: Time::NEVER }
    }

    fn is_open(&self, now: Time, other: Way) -> bool {
        self.way != other && self.from <= now && now < self.until
    }

    pub(super) fn takes_sent(&self, now: Time, port: SourcePort, number: u16, to: SocketAddr) -> bool {
        let here = match &self.what {
            Where::All => true,
            Where::Ports(ports) => ports.contains(&port),
            Where::Paths(numbers) => numbers.contains(&number),
            Where::Host(ip) => *ip == to.ip(),
            Where::Peer(peer) => *peer == to,
        };
        here && self.is_open(now, Way::In)
    }

    pub(super) fn takes_received(&self, now: Time, from: SocketAddr) -> bool {
        let here = match &self.what {
            Where::All => true,
            Where::Ports(_) | Where::Paths(_) => false,
            Where::Host(ip) => *ip == from.ip(),
            Where::Peer(peer) => peer.ip() == from.ip(),
        };
        here && self.is_open(now, Way::Out)
    }
}

/// Numbers source ports in the order in which they are first used.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// By port: one more than its number, or 0.
    of: Vec<u16>,
    used: u16,
}

impl Numbers {
    pub(super) fn number(&mut self, port: SourcePort) -> u16 {
        let k = usize::from(port.0);
        if self.of.len() <= k {
            self.of.resize(k + 1, 0);
        }
        if self.of[k] == 0 {
            self.used += 1;
            self.of[k] = self.used;
        }
        self.of[k] - 1
    }
}

/// Faults that change with time. Its times count from the moment when the driver is wrapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// What goes wrong at first.
    pub first: Faults,
    /// What goes wrong from these times on, in any order.
    pub changes: Vec<(Time, Faults)>,
    /// Black holes.
    pub holes: Vec<BlackHole>,
}

impl From<Faults> for FaultPlan {
    /// The same all the time.
    fn from(first: Faults) -> FaultPlan {
        FaultPlan { first, ..FaultPlan::default() }
    }
}

impl FaultPlan {
    /// Its parts, with times on a clock that shows `now`; the changes in reverse order.
    pub(super) fn starting(self, now: Time) -> (Faults, Vec<(Time, Faults)>, Vec<BlackHole>) {
        let FaultPlan { first, mut changes, mut holes } = self;
        let origin = now.since(Time::ZERO);
        let shift = |time: &mut Time| *time += Span::from_nanos(origin.as_nanos());
        // Stable, so that of two changes at one time the later one in the list counts.
        changes.sort_by_key(|c| c.0);
        changes.reverse();
        changes.iter_mut().for_each(|c| shift(&mut c.0));
        for hole in &mut holes {
            shift(&mut hole.from);
            shift(&mut hole.until);
        }
        (first, changes, holes)
    }
}
