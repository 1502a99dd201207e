//! What the processing units of a card have in common: who hears of their events and counters, and which of them a completion
//! queue belongs to. Where data is moved, a little of it is read and none written.
//!
//! A completion queue is one queue in each unit; [`Nic`](crate::Nic) polls those that have queue pairs in turn.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use srd_core::card::{CardEvent, CqId, QpInit};

use crate::counters::Publisher;
use crate::lock::Mutex;
use crate::nic::{NicCounters, NicSink};
use crate::poller::Poller;

/// See the module documentation.
pub(crate) struct Common {
    sink: Box<dyn NicSink>,
    /// Who polls.
    pub(crate) poller: Poller,
    /// Of completion queues that may be in several units, by number; none if there is one unit.
    queues: Box<[Queue]>,
    counters: Mutex<Counters>,
}

/// A completion queue of several processing units, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Queue {
    /// The units that have queue pairs with it, one bit each.
    units: AtomicU32,
    /// The unit that is polled first.
    next: AtomicU32,
    /// The program wants to hear of the next completion, and has not yet. The queues in the units are armed in addition; the
    /// first of them that has one takes this.
    armed: AtomicBool,
    /// The program has heard that entries were lost.
    overrun: AtomicBool,
}

#[derive(Debug)]
struct Counters {
    /// As each unit last told them.
    units: Vec<NicCounters>,
    publisher: Option<Publisher>,
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common").field("queues", &self.queues).field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Common {
    /// For a card of so many processing units that has at most so many completion queues.
    pub(crate) fn new(sink: Box<dyn NicSink>, publisher: Option<Publisher>, units: u16, max_cq: u32) -> Common {
        let queues = if units == 1 { 0 } else { max_cq };
        let counters = Counters { units: vec![NicCounters::default(); units.into()], publisher };
        Common {
            sink,
            poller: Poller::default(),
            queues: (0..queues).map(|_| Queue::default()).collect(),
            counters: Mutex::new(counters),
        }
    }

    fn queue(&self, cq: CqId) -> Option<&Queue> {
        self.queues.get(cq.0 as usize)
    }

    /// A completion queue was made.
    pub(crate) fn begin(&self, cq: CqId) {
        if let Some(queue) = self.queue(cq) {
            queue.units.store(0, Ordering::SeqCst);
            queue.armed.store(false, Ordering::SeqCst);
            queue.overrun.store(false, Ordering::SeqCst);
        }
    }

    /// The processing units that have queue pairs with a completion queue, one bit each; the first one if there are none.
    #[inline]
    pub(crate) fn units_of(&self, cq: CqId) -> u32 {
        // In one order with `armed`, see `join`.
        self.queue(cq).map_or(1, |queue| queue.units.load(Ordering::SeqCst).max(1))
    }

    /// A processing unit has its first or another queue pair with a completion queue. Says whether its part of the queue must be
    /// armed because the queue is: whoever arms it at the same moment sees this unit, or we see that it is armed.
    pub(crate) fn join(&self, cq: CqId, unit: usize) -> bool {
        self.queue(cq).is_some_and(|queue| {
            queue.units.fetch_or(1 << unit, Ordering::SeqCst);
            queue.armed.load(Ordering::SeqCst)
        })
    }

    /// A processing unit has no queue pair with a completion queue any more, and so no entries in it.
    pub(crate) fn part(&self, cq: CqId, unit: usize) {
        if let Some(queue) = self.queue(cq) {
            queue.units.fetch_and(!(1 << unit), Ordering::SeqCst);
        }
    }

    /// The program wants to hear of the next completion. The queues in the units are armed after this.
    pub(crate) fn arm(&self, cq: CqId) {
        if let Some(queue) = self.queue(cq) {
            queue.armed.store(true, Ordering::SeqCst);
        }
    }

    /// The processing unit to poll first.
    pub(crate) fn next_unit(&self, cq: CqId) -> usize {
        self.queue(cq).map_or(0, |queue| queue.next.load(Ordering::Relaxed) as usize)
    }

    /// See [`next_unit`](Self::next_unit).
    pub(crate) fn set_next_unit(&self, cq: CqId, unit: usize) {
        if let Some(queue) = self.queue(cq) {
            queue.next.store(unit as u32, Ordering::Relaxed);
        }
    }

    /// Something happened in a processing unit, whose lock is held. The program hears once of what happens to a queue in
    /// several of them.
    pub(crate) fn event(&self, event: CardEvent) {
        let news = match event {
            CardEvent::Completion(cq) => self.queue(cq).is_none_or(|queue| queue.armed.swap(false, Ordering::SeqCst)),
            CardEvent::CqOverrun(cq) => self.queue(cq).is_none_or(|queue| !queue.overrun.swap(true, Ordering::SeqCst)),
            _ => true,
        };
        if news {
            self.sink.event(event);
        }
    }

    /// Publishes the counters of a processing unit, with what the others told last. Whether all have them now; else it is worth
    /// another attempt.
    pub(crate) fn tell_counters(&self, unit: usize, counters: &NicCounters) -> bool {
        let mut all = self.counters.lock();
        all.units[unit] = *counters;
        let mut sum = NicCounters::default();
        all.units.iter().for_each(|unit| sum.add(unit));
        self.sink.counters(&sum);
        // What cannot be written cannot be written the next time either, mostly, and nothing depends on it.
        let told = all.publisher.as_mut().map(|publisher| publisher.publish(&(&sum).into()));
        !matches!(told, Some(Err(e)) if e.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// The queue pairs of all processing units.
#[derive(Debug, Default)]
pub(crate) struct Pairs(BTreeMap<u16, QpInit>);

impl Pairs {
    /// The one of so many processing units that has the fewest queue pairs.
    pub(crate) fn emptiest_unit(&self, units: usize) -> usize {
        let mut count = vec![0; units];
        self.0.keys().for_each(|&qpn| count[qpn as usize & (units - 1)] += 1);
        (0..units).min_by_key(|&unit| count[unit]).unwrap_or(0)
    }

    pub(crate) fn insert(&mut self, qpn: u16, init: QpInit) {
        self.0.insert(qpn, init);
    }

    pub(crate) fn remove(&mut self, qpn: u16) -> Option<QpInit> {
        self.0.remove(&qpn)
    }

    /// Whether one of so many processing units has a queue pair with a completion queue.
    pub(crate) fn any(&self, cq: CqId, unit: usize, units: usize) -> bool {
        let has = |init: &QpInit| init.send_cq == cq || init.recv_cq == cq;
        self.0.iter().any(|(&qpn, init)| qpn as usize & (units - 1) == unit && has(init))
    }
}
