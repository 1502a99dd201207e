//! The card: verbs semantics above the transport, as EFA has them.
//!
//! Protection domains, memory regions, address handles, queue pairs and completion queues. Like the transport it does no
//! I/O and has no thread: commands and work requests come in by method calls, completions are polled, and what the
//! transport asks of its upper storey is answered here. Payload is read from and written to registered memory directly;
//! every access is checked first.
//!
//! | module | what it is for |
//! |---|---|
//! | `control` | commands: make, change and destroy objects |
//! | `requester`, `out` | work requests on their way out; their messages |
//! | `bundle` | short sends that travel as one message |
//! | `ends` | how things end that are under way |
//! | `responder` | messages of peers: where they go, or why not |
//! | `local` | messages of the card to itself |
//! | `ahead` | which receive buffers are fetched into the cache early |
//! | `slots`, `reads` | where messages are while they are under way; reads, until their data is here |
//! | `memory`, `qp`, `cq` | regions and keys; queue pairs; completion queues |
//! | `header` | what travels with each message |
//! | `peers`, `gid` | peers and the address handles for them; addresses |
//! | `options`, `profile` | how a card behaves; identities and limits |
//! | `status`, `counters` | how requests end; what is counted |

mod ahead;
mod bundle;
mod control;
mod counters;
mod cq;
mod ends;
mod gid;
mod header;
mod local;
mod memory;
mod options;
mod out;
mod peers;
pub mod profile;
mod qp;
mod reads;
mod requester;
mod responder;
mod slots;
mod status;

use std::collections::VecDeque;
use std::num::NonZeroU32;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use slab::Slab;

pub use counters::{DeviceCounters, PortCounters};
pub use cq::{Completion, Opcode, UNKNOWN_AH};
pub use gid::{Gid, GidError, MAX_UNITS, Unit};
pub use memory::{Access, HostMemory, MrKeys, Sge};
pub use options::{CardFaults, CardOptions, ForcedStatus};
pub use profile::Profile;
pub use qp::{QpAttr, QpCap, QpInit, QpModify, QpState, QpType, RNR_INFINITE, SendOps};
pub use requester::{SendData, SendOp, SendWr};
pub use status::{Status, StatusInfo};

use ahead::Ahead;
use bundle::{Arrival, Bundle, Open};
use cq::{CompletionQueue, Pushed};
use local::Local;
use memory::Regions;
use out::Out;
use peers::{Ah, Peers};
use qp::QueuePair;
use reads::Reads;
use responder::Place;
use slots::Slots;

use crate::endpoint::{Endpoint, PeerId};
use crate::time::Time;

/// A protection domain of a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PdId(pub u32);

/// A completion queue of a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqId(pub u32);

/// Bytes that precede the payload of a datagram in the buffer of a UD queue pair: the Global Routing Header.
pub const GRH_LEN: u32 = 40;

/// Why a command or a work request was not taken. Each variant stands for an error number of the verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// `EINVAL`.
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// `EOPNOTSUPP`.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// `ENOMEM`: a table or a queue is full.
    #[error("no room: {0}")]
    NoMemory(&'static str),
    /// `EBUSY`: others depend on it.
    #[error("in use: {0}")]
    Busy(&'static str),
    /// `EIO`: the device does not work any more, see [`Card::fail`].
    #[error("the device has failed; close it and open it again")]
    Failed,
}

/// Something that happened to a card or an object, outside completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CardEvent {
    /// An entry was added to a completion queue that was armed.
    Completion(CqId),
    /// A completion queue was full and lost an entry; told once for each queue.
    CqOverrun(CqId),
    /// A peer stopped answering.
    Unresponsive(Gid),
}

/// An error completion in words, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// How the request ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Its id.
    pub wr_id: u64,
    /// Our queue pair.
    pub qpn: u16,
    /// The peer's queue pair.
    pub remote_qpn: u16,
    /// The peer; zero if none was known.
    pub gid: Gid,
    /// The peer in the transport; `None` for ourselves.
    pub peer: Option<PeerId>,
}

#[derive(Debug)]
struct Pd {
    /// Address handles by number.
    ahs: Vec<Option<Ah>>,
    /// Queue pairs.
    users: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Card<M: HostMemory> {
    options: CardOptions,
    gid: Gid,
    unit: Unit,
    regions: Regions<M>,
    pds: Slab<Pd>,
    ahs: u32,
    cqs: Slab<CompletionQueue>,
    /// By the low bits of the number, without those that tell the processing unit.
    qps: Vec<Option<Box<QueuePair>>>,
    free_qps: VecDeque<u16>,
    /// Those of all processing units.
    live_qps: u32,
    /// The upper bits of the number that was last given, by slot; where they begin is a matter of chance, so that a
    /// process that starts again does not repeat the numbers of the last one.
    qp_numbers: Vec<u8>,
    numbers: Xoshiro256PlusPlus,
    peers: Peers,
    outs: Slots<Out>,
    reads: Reads,
    places: Slots<Place>,
    ahead: Ahead,
    bundles: Slots<Bundle>,
    /// Messages that more sends may join, until the transport sends.
    waiting: Vec<Open>,
    /// Sends in bundles, beyond one in each that has left.
    bundled: usize,
    arrivals: Slots<Arrival>,
    /// Messages that could not be given to the transport where they arose.
    queued: VecDeque<usize>,
    /// How often one was offered to the transport in vain since one was taken, or came.
    vain_offers: usize,
    /// Datagrams by the time when they are given up, their place and their number; most are gone by then.
    datagrams: VecDeque<(Time, usize, NonZeroU32)>,
    datagram_count: NonZeroU32,
    /// Datagrams under way whose work request has completed.
    done_datagrams: usize,
    /// Buffers for payload that is copied.
    free_copies: Vec<Vec<u8>>,
    local: Local,
    rng: Xoshiro256PlusPlus,
    forced: u32,
    /// Nothing comes or goes any more.
    failed: bool,
    now: Time,
    events: VecDeque<CardEvent>,
    troubles: VecDeque<Trouble>,
    /// Counters of the port.
    pub port: PortCounters,
    /// Counters of commands.
    pub device: DeviceCounters,
}

/// Entries of the log that nobody has fetched, of which older ones are forgotten; and events, if they are of peers.
const MAX_NOTES: usize = 4096;
/// Low bits of a queue pair's number are its slot, and of these the lowest the processing unit; the rest changes with each
/// use of the slot.
const QPN_SLOT_BITS: u32 = 12;
const QPN_SLOT_MASK: u16 = (1 << QPN_SLOT_BITS) - 1;

impl<M: HostMemory> Card<M> {
    /// A card that peers know as `gid`. All its chance comes from `seed`. Limits of the profile that are beyond the card's
    /// own are lowered to these.
    pub fn new(options: CardOptions, gid: Gid, memory: M, seed: u64) -> Card<M> {
        Card::with_unit(options, gid, Unit::default(), memory, seed)
    }

    /// One processing unit of a card that peers know as `gid`.
    ///
    /// The units of a card share nothing. Each is made with the same seed, and is given the same commands in the same order;
    /// so each gives the same numbers and keys to the same objects. Only a queue pair belongs to one of them: the others are
    /// told with [`count_qp`](Self::count_qp) and [`discount_qp`](Self::discount_qp).
    pub fn with_unit(mut options: CardOptions, gid: Gid, unit: Unit, memory: M, seed: u64) -> Card<M> {
        options.profile = options.profile.possible();
        options.faults.force = options.faults.force.filter(|force| force.status != Status::Ok.code());
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let keys = Xoshiro256PlusPlus::seed_from_u64(rng.next_u64());
        let faults = Xoshiro256PlusPlus::seed_from_u64(options.faults.seed);
        Card {
            regions: Regions::new(memory, options.profile.max_mr, keys),
            local: Local::default(),
            gid,
            unit,
            pds: Slab::new(),
            ahs: 0,
            cqs: Slab::new(),
            qps: Vec::new(),
            free_qps: VecDeque::new(),
            live_qps: 0,
            qp_numbers: Vec::new(),
            numbers: Xoshiro256PlusPlus::seed_from_u64(rng.next_u64()),
            peers: Peers::new(gid),
            outs: Slots::new(),
            reads: Reads::new(rng.next_u32()),
            places: Slots::new(),
            ahead: Ahead::default(),
            bundles: Slots::new(),
            waiting: Vec::new(),
            bundled: 0,
            arrivals: Slots::new(),
            queued: VecDeque::new(),
            vain_offers: 0,
            datagrams: VecDeque::new(),
            datagram_count: NonZeroU32::MIN,
            done_datagrams: 0,
            free_copies: Vec::new(),
            rng: faults,
            forced: 0,
            failed: false,
            now: Time::ZERO,
            events: VecDeque::new(),
            troubles: VecDeque::new(),
            port: PortCounters::default(),
            device: DeviceCounters::default(),
            options,
        }
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Which of the card's processing units this is, for its peers: see [`Endpoint::set_tag`].
    pub fn tag(&self) -> u8 {
        self.unit.tag()
    }

    /// What it claims to be.
    pub fn profile(&self) -> &Profile {
        &self.options.profile
    }

    /// Memory regions that are registered, and their bytes.
    pub fn registered(&self) -> (u32, u64) {
        self.regions.registered()
    }

    /// The memory that it was given.
    pub fn memory(&self) -> &M {
        self.regions.memory()
    }

    /// The same, to change it as a program would.
    pub fn memory_mut(&mut self) -> &mut M {
        self.regions.memory_mut()
    }

    /// Work between receiving and sending (see [`Engine::turn_with`](crate::Engine::turn_with)): answers that arose while
    /// receiving, messages to ourselves, completions that were held back. Returns whether anything moved.
    pub fn work(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        self.now = now;
        self.ring(endpoint);
        let moved = self.drain_queued(endpoint, now);
        let moved = self.run_local(endpoint) || moved;
        let moved = self.expire_datagrams(endpoint) || moved;
        if self.options.faults.shuffle > 0 { self.release_held() || moved } else { moved }
    }

    /// When [`work`](Self::work) next has something to do without any input.
    pub fn deadline(&self) -> Time {
        let mut at = self.local.deadline();
        if !self.is_stuck() || !self.waiting.is_empty() {
            at = Time::ZERO;
        }
        if let Some(&(due, ..)) = self.datagrams.front() {
            at = at.min(due);
        }
        if self.options.faults.shuffle > 0 {
            let hold = self.options.faults.hold;
            at = self.cqs.iter().fold(at, |at, (_, cq)| at.min(cq.held_until(hold)));
        }
        at
    }

    /// Messages under way.
    pub fn in_flight(&self) -> usize {
        self.outs.len() + self.bundled - self.waiting.len()
    }

    /// Whether datagrams that were reported as sent are under way still.
    pub fn owes_datagrams(&self) -> bool {
        self.done_datagrams > 0
    }

    /// Whether it [has failed](Self::fail).
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CardEvent> {
        self.events.pop_front()
    }

    /// The next error completion for the log.
    pub fn poll_trouble(&mut self) -> Option<Trouble> {
        self.troubles.pop_front()
    }

    /// The next entry of a completion queue, see [`poll_many`](Self::poll_many).
    pub fn poll(&mut self, cq: CqId) -> Option<Completion> {
        let mut entry = [Completion::EMPTY];
        (self.poll_many(cq, &mut entry) == 1).then_some(entry[0])
    }

    /// Takes the next entries of a completion queue, and says how many: `out` is filled from its start. The room that their
    /// work requests took in their queues is free from then on.
    #[inline]
    pub fn poll_many(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        let count = self.take_many(cq, out);
        self.release(&out[..count]);
        count
    }

    /// The same, but the room stays taken until the entries are [released](Self::release).
    #[inline]
    pub fn take_many(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.cqs.get_mut(cq.0 as usize).map_or(0, |queue| queue.pop_many(out))
    }

    /// Frees the room of entries that were [taken](Self::take_many).
    #[inline]
    pub fn release(&mut self, entries: &[Completion]) {
        // Neighbours are often of one queue pair.
        for entries in entries.chunk_by(|a, b| a.qpn == b.qpn) {
            if let Some(qp) = self.qp_mut(entries[0].qpn) {
                let sends = entries.iter().filter(|entry| !entry.opcode.is_recv()).count();
                let unsolicited = entries.iter().filter(|entry| entry.unsolicited).count();
                // Of a queue pair that was reset meanwhile it is free already.
                qp.sq_used = qp.sq_used.saturating_sub(sends as u32);
                qp.rq_used = qp.rq_used.saturating_sub((entries.len() - sends - unsolicited) as u32);
            }
        }
    }

    /// Asks for a [`CardEvent::Completion`] when there is an entry in a completion queue, be it now or later: a program that
    /// arms before it has taken all entries does not miss the rest.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn arm(&mut self, cq: CqId) -> Result<(), CardError> {
        if self.cqs.get_mut(cq.0 as usize).ok_or(NO_CQ)?.arm() {
            self.emit(CardEvent::Completion(cq));
        }
        Ok(())
    }

    /// Where a queue pair is, if it is one of this processing unit.
    #[inline]
    fn qp_slot(&self, qpn: u16) -> usize {
        ((qpn & QPN_SLOT_MASK) >> self.unit.bits()) as usize
    }

    #[inline]
    fn qp(&self, qpn: u16) -> Option<&QueuePair> {
        self.qps.get(self.qp_slot(qpn))?.as_deref().filter(|qp| qp.qpn == qpn)
    }

    #[inline]
    fn qp_mut(&mut self, qpn: u16) -> Option<&mut QueuePair> {
        let slot = self.qp_slot(qpn);
        self.qps.get_mut(slot)?.as_deref_mut().filter(|qp| qp.qpn == qpn)
    }

    /// Adds a completion, which `fill` makes of an empty one, to the queue of its queue pair.
    #[inline]
    fn complete(&mut self, cq: CqId, fill: impl FnOnce(&mut Completion)) {
        let faults = &self.options.faults;
        let Some(queue) = self.cqs.get_mut(cq.0 as usize) else { return };
        let pushed = if faults.shuffle == 0 {
            queue.push(fill)
        } else {
            let mut entry = Completion::EMPTY;
            fill(&mut entry);
            queue.hold(self.now, entry, faults.shuffle as usize, &mut self.rng)
        };
        if pushed != Pushed::Quietly {
            self.tell(cq, pushed);
        }
    }

    #[cold]
    fn tell(&mut self, cq: CqId, pushed: Pushed) {
        let event = match pushed {
            Pushed::Notify => CardEvent::Completion(cq),
            Pushed::Overrun => CardEvent::CqOverrun(cq),
            Pushed::Quietly => return,
        };
        self.emit(event);
    }

    /// Keeps an event for the program. Of completion queues there are no more than it asked for, and it may sleep until one
    /// comes; of peers there may be any number, so the latest are dropped while nobody fetches any.
    fn emit(&mut self, event: CardEvent) {
        let of_peer = matches!(event, CardEvent::Unresponsive(_));
        if !of_peer || self.events.len() < MAX_NOTES {
            self.events.push_back(event);
        }
    }

    fn release_held(&mut self) -> bool {
        let (now, hold) = (self.now, self.options.faults.hold);
        let due: Vec<usize> =
            self.cqs.iter().filter(|(_, cq)| cq.held_until(hold) <= now).map(|(key, _)| key).collect();
        for &key in &due {
            while let Some(entry) = self.cqs[key].unhold(&mut self.rng) {
                let pushed = self.cqs[key].push(|slot| *slot = entry);
                self.tell(CqId(key as u32), pushed);
            }
        }
        !due.is_empty()
    }
}

const NO_CQ: CardError = CardError::Invalid("no such completion queue");
const NO_PD: CardError = CardError::Invalid("no such protection domain");
const NO_QP: CardError = CardError::Invalid("no such queue pair");

/// A number in `0..n`.
fn below(rng: &mut Xoshiro256PlusPlus, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoMemory;

    impl HostMemory for NoMemory {
        type Region = ();

        fn read<'m>(&'m self, (): &'m (), _: u64, _: usize) -> &'m [u8] {
            &[]
        }

        fn write(&mut self, (): &(), _: u64, _: &[u8]) {}
    }

    #[test]
    fn events_of_peers_displace_none_of_completion_queues() {
        let mut card = Card::new(CardOptions::default(), Gid::default(), NoMemory, 1);
        let of_queues = [CardEvent::Completion(CqId(1)), CardEvent::Completion(CqId(2)), CardEvent::CqOverrun(CqId(1))];
        card.emit(of_queues[0]);
        (0..MAX_NOTES + 100).for_each(|_| card.emit(CardEvent::Unresponsive(Gid::default())));
        card.emit(of_queues[1]);
        card.emit(of_queues[2]);
        let kept: Vec<CardEvent> = std::iter::from_fn(|| card.poll_event()).collect();
        assert_eq!(kept.len(), MAX_NOTES + 2);
        assert!(kept.iter().filter(|event| !matches!(event, CardEvent::Unresponsive(_))).eq(&of_queues));
    }
}
