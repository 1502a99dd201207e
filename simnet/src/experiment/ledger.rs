//! What all stations of an experiment share: which flows are to start, how far they are, and which depend on which.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use srd_core::{Span, Time};

use super::faults::Trouble;
use super::verbs::Door;
use crate::host::Io;
use crate::net::Net;
use crate::packet::{HostId, LinkId};

/// Which moment of a flow another one waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Its sender knows that everything has arrived.
    Completed,
    /// Its last byte has arrived.
    Arrived,
}

/// How far a flow is. Times are the world's.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Progress {
    /// When it started.
    pub started: Option<Time>,
    /// Payload bytes that have arrived.
    pub delivered: u64,
    /// When its last byte arrived.
    pub arrived: Option<Time>,
    /// When its sender knew that.
    pub completed: Option<Time>,
}

/// A flow as its stations see it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) from: HostId,
    pub(super) to: HostId,
    /// Its size; `None` if it sends for ever.
    pub(super) bytes: Option<u64>,
    /// Payload of a full packet, for models that count packets.
    pub(super) segment: u32,
    /// Round trip of a full packet through an idle network, for TCP.
    pub(super) rtt: Span,
    /// Bits per second at which its application makes data; `None` for all at once.
    pub(super) rate: Option<u64>,
    /// Whether the experiment is over without it.
    pub(super) background: bool,
    /// Whether its receiver acknowledges nothing, so that it ends with its arrival.
    pub(super) silent: bool,
    /// Start, counted from the start of the experiment or from when the last flow that it waits for got there.
    pub(super) start: Span,
    /// How many flows it still waits for.
    pub(super) waits: u32,
    /// Who waits for it.
    pub(super) dependents: Vec<(usize, Moment)>,
    pub(super) progress: Progress,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) flows: Vec<Entry>,
    /// Per host, flows that it starts, and when.
    due: Vec<BTreeSet<(Time, usize)>>,
    /// Flows to wait for.
    pub(super) open: usize,
    /// Per host, hosts that it greets before the experiment, and when.
    pub(super) greetings: Vec<VecDeque<(Time, HostId)>>,
    /// Greetings that have not been answered.
    pub(super) greeting: usize,
    /// Per host, how others reach the memory of its verbs card, if it runs one.
    pub(super) doors: Vec<Option<Door>>,
    /// Cables that routing knows to be dead, and how many faults say so.
    pub(super) dead: BTreeMap<usize, u32>,
    /// Faults that are going on, per link.
    pub(super) troubles: BTreeMap<LinkId, Vec<Trouble>>,
}

impl Ledger {
    pub(super) fn new(flows: Vec<Entry>, hosts: usize) -> Ledger {
        let open = flows.iter().filter(|f| !f.background).count();
        let (due, greetings) = (vec![BTreeSet::new(); hosts], vec![VecDeque::new(); hosts]);
        let doors = vec![None; hosts];
        Ledger { flows, due, open, greetings, doors, ..Ledger::default() }
    }

    /// Starts the experiment at `at`: flows that wait for nothing are due.
    pub(super) fn begin(&mut self, at: Time, net: &mut Net) {
        for flow in 0..self.flows.len() {
            if self.flows[flow].waits == 0 {
                self.schedule(flow, at, net);
            }
        }
    }

    fn schedule(&mut self, flow: usize, at: Time, net: &mut Net) {
        let entry = &self.flows[flow];
        let at = at + entry.start;
        self.due[entry.from.0 as usize].insert((at, flow));
        net.nudge(at, entry.from);
    }

    /// The next flow that `host` is to start.
    pub(super) fn take_due(&mut self, host: HostId, now: Time) -> Option<usize> {
        let due = self.due.get_mut(host.0 as usize)?;
        // A host that had no time for it then makes it slow, and does not move its start.
        let (at, flow) = due.pop_first_if(|(at, _)| *at <= now)?;
        self.flows[flow].progress.started = Some(at);
        Some(flow)
    }

    /// Payload of a full packet of a flow.
    pub(super) fn segment(&self, flow: usize) -> u32 {
        self.flows[flow].segment
    }

    /// Payload of a flow arrived.
    pub(super) fn delivered(&mut self, flow: usize, bytes: u64, io: &mut Io<'_>) {
        let entry = &mut self.flows[flow];
        entry.progress.delivered += bytes;
        let entry_is_silent = entry.silent;
        if entry.bytes.is_some_and(|all| entry.progress.delivered >= all) && entry.progress.arrived.is_none() {
            entry.progress.arrived = Some(io.world_now());
            self.reached(flow, Moment::Arrived, io);
            // Nobody tells the sender of such a flow.
            if entry_is_silent {
                self.completed(flow, io);
            }
        }
    }

    /// The sender of a flow knows that all of it has arrived.
    pub(super) fn completed(&mut self, flow: usize, io: &mut Io<'_>) {
        let entry = &mut self.flows[flow];
        if entry.progress.completed.is_none() {
            entry.progress.completed = Some(io.world_now());
            self.open -= usize::from(!entry.background);
            self.reached(flow, Moment::Completed, io);
        }
    }

    fn reached(&mut self, flow: usize, moment: Moment, io: &mut Io<'_>) {
        let dependents = std::mem::take(&mut self.flows[flow].dependents);
        for (other, wanted) in &dependents {
            if *wanted == moment {
                let entry = &mut self.flows[*other];
                entry.waits -= 1;
                if entry.waits == 0 {
                    self.schedule(*other, io.world_now(), io.net);
                }
            }
        }
        // Those that wait for the other moment.
        self.flows[flow].dependents = dependents.into_iter().filter(|(_, wanted)| *wanted != moment).collect();
    }
}

/// `BTreeSet::pop_first` under a condition.
trait PopFirstIf<T> {
    fn pop_first_if(&mut self, f: impl FnOnce(&T) -> bool) -> Option<T>;
}

impl<T: Ord> PopFirstIf<T> for BTreeSet<T> {
    fn pop_first_if(&mut self, f: impl FnOnce(&T) -> bool) -> Option<T> {
        if f(self.first()?) { self.pop_first() } else { None }
    }
}
