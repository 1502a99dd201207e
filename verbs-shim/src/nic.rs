//! An open card: its processing units as one.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use srd_core::card::{
    Access, Card, CardError, CardEvent, Completion, CqId, DeviceCounters, Gid, GidError, MrKeys, PdId, PortCounters,
    Profile, QpAttr, QpInit, QpModify, SendWr, Sge, Unit,
};
use srd_core::{Driver, Engine, Stats};

use crate::bind::{self, Opened};
use crate::common::{Common, Pairs};
use crate::config::{NicConfig, OpenError};
use crate::counters::{Identity, Publisher};
use crate::lock::{self, MappedMutexGuard, Mutex, MutexGuard};
use crate::memory::{HostMem, RawRegion};
use crate::unit::{Pu, counters, spawn, turn, turn_all};

pub(crate) type BoxedDriver = Box<dyn Driver + Send>;
pub(crate) type CardEngine = Engine<BoxedDriver, Card<HostMem>>;

/// Counters of a card.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicCounters {
    /// Those of the port.
    pub port: PortCounters,
    /// Those of commands.
    pub device: DeviceCounters,
    /// Those of the transport.
    pub transport: Stats,
}

impl NicCounters {
    /// Adds those of another processing unit.
    pub(crate) fn add(&mut self, other: &NicCounters) {
        self.port.add(&other.port);
        self.device.add(&other.device);
        self.transport.add(&other.transport);
    }
}

/// Gets events and counters. Called with the lock of the card: it must not call the card.
pub trait NicSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: CardEvent);

    /// Counters, a few times a second while anything moves.
    fn counters(&self, _counters: &NicCounters) {}
}

impl NicSink for () {
    fn event(&self, _: CardEvent) {}
}

/// An open card. All methods may be called from any thread. What posts and polls takes the lock of one processing unit for a
/// short time, and of another one only for completion queues that have queue pairs there.
#[derive(Debug)]
pub struct Nic {
    /// Their number is a power of two.
    units: Box<[Arc<Pu>]>,
    common: Arc<Common>,
    /// Locked by each command, so that all units get the same ones in the same order.
    pairs: Mutex<Pairs>,
    gid: Gid,
    profile: Profile,
    threads: Vec<JoinHandle<()>>,
}

/// How long a card that is closed answers what comes late: as long as something comes, within bounds.
const LINGER_QUIET: Duration = Duration::from_millis(2);
const LINGER_MAX: Duration = Duration::from_millis(100);
/// How long it keeps datagrams that count as sent for peers that do not answer, since they may have no core just then: the card
/// itself gives them up about then.
const LINGER_OWING: Duration = Duration::from_secs(1);

impl Nic {
    /// Opens a card.
    ///
    /// # Errors
    /// The address cannot be a card's, or the system does not permit it.
    pub fn open(config: NicConfig, sink: Box<dyn NicSink>) -> Result<Nic, OpenError> {
        let opened = bind::open(&config)?;
        Nic::of(config, opened, sink)
    }

    /// Opens a card of one processing unit over any driver, at the driver's address. The thread sleeps until one of `readiness`
    /// is readable; those options of `config` that are about UDP mean nothing.
    ///
    /// # Errors
    /// The driver's address cannot be a card's, or the system does not permit a thread.
    pub fn over(
        config: NicConfig,
        driver: Box<dyn Driver + Send>,
        readiness: Vec<OwnedFd>,
        sink: Box<dyn NicSink>,
    ) -> Result<Nic, OpenError> {
        Nic::of(NicConfig { units: 1, ..config }, vec![(driver, readiness)], sink)
    }

    fn of(config: NicConfig, opened: Vec<Opened>, sink: Box<dyn NicSink>) -> Result<Nic, OpenError> {
        let local = opened[0].0.local_addr();
        let gid = Gid::with_units(local, config.units)?;
        lock::prepare();
        let publisher = config.counters.as_ref().and_then(|dir| {
            Publisher::new(dir, Identity { addr: Some(local), ..Identity::from(&config) })
                .inspect_err(|e| tracing::warn!("counters are not published in {}: {e}", dir.display()))
                .ok()
        });
        let common = Arc::new(Common::new(sink, publisher, config.units, config.card.profile.max_cq));
        let mut secret = None;
        let mut units = Vec::new();
        let mut readinesses = Vec::new();
        for (index, (driver, readiness)) in (0..).zip(opened) {
            let unit = Unit::new(index, config.units).ok_or(GidError::Units(config.units))?;
            let mut seed = [0; 32];
            match config.seed {
                Some(n) => {
                    seed[..8].copy_from_slice(&n.to_le_bytes());
                    // Two endpoints must not share a seed.
                    seed[8..10].copy_from_slice(&driver.local_addr().port().to_le_bytes());
                }
                None => getrandom::fill(&mut seed).map_err(std::io::Error::from)?,
            }
            // All units give the same numbers and keys.
            let secret = *secret.get_or_insert(u64::from_le_bytes(*seed.last_chunk().expect("a seed of 32 bytes")));
            units.push(Arc::new(Pu::new(&config, gid, unit, driver, seed, secret, &common)?));
            readinesses.push(readiness);
        }
        let units = units.into_boxed_slice();
        // As the card has it: what was asked for may be beyond its own limits.
        let (pairs, profile) = (Mutex::default(), *units[0].lock().upper.profile());
        let mut nic = Nic { units, common, pairs, gid, profile, threads: Vec::new() };
        for (unit, readiness) in nic.units.iter().zip(readinesses) {
            // If one fails, those before it end with the card.
            nic.threads.push(spawn(unit, readiness, config.udp.wait).map_err(OpenError::Thread)?);
        }
        Ok(nic)
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// What it claims to be.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The processing unit that has a queue pair.
    #[inline]
    fn unit(&self, qpn: u16) -> &Pu {
        &self.units[qpn as usize & (self.units.len() - 1)]
    }

    /// Begins a command to several processing units. A signal handler that interrupted this thread inside of one of them is told
    /// before another one has done its part.
    fn commands(&self) -> MutexGuard<'_, Pairs> {
        let pairs = self.pairs.lock();
        lock::refuse_if(self.units.iter().any(|unit| unit.is_held_here()));
        pairs
    }

    /// A command to the processing unit that has a queue pair.
    fn command<T>(&self, qpn: u16, run: impl FnOnce(&mut CardEngine) -> Result<T, CardError>) -> Result<T, CardError> {
        let _pairs = self.pairs.lock();
        self.unit(qpn).command(run).inspect_err(|error| self.refused(*error))
    }

    /// A command to all processing units, which counts once. If one refuses it, it is undone on those before.
    fn command_all<T: Copy + PartialEq + fmt::Debug>(
        &self,
        run: impl Fn(&mut CardEngine) -> Result<T, CardError>,
        undo: impl Fn(&mut CardEngine, T) -> Result<(), CardError>,
    ) -> Result<T, CardError> {
        let _pairs = self.commands();
        let (first, others) = self.units.split_first().expect("a card has a unit");
        let done = first.command(&run).inspect_err(|error| self.refused(*error))?;
        for (k, unit) in others.iter().enumerate() {
            match unit.command_uncounted(&run) {
                Ok(same) => assert_eq!(same, done, "the processing units have gone apart"),
                Err(error) => {
                    for unit in &self.units[..=k] {
                        // What was just made can be undone.
                        let _ = unit.command_uncounted(|e| undo(e, done));
                    }
                    first.lock().upper.device.fail_last();
                    self.refused(error);
                    return Err(error);
                }
            }
        }
        Ok(done)
    }

    fn refused(&self, error: CardError) {
        tracing::warn!(device = %self.units[0].name, "command refused: {error}");
    }

    /// See [`Card::alloc_pd`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc_pd(&self) -> Result<PdId, CardError> {
        self.command_all(|e| e.upper.alloc_pd(), |e, pd| e.upper.dealloc_pd(pd))
    }

    /// See [`Card::dealloc_pd`].
    ///
    /// # Errors
    /// As there.
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), CardError> {
        self.command_all(|e| e.upper.dealloc_pd(pd), NOT_UNDONE)
    }

    /// See [`Card::reg_mr`].
    ///
    /// # Errors
    /// As there.
    pub fn reg_mr(&self, pd: PdId, memory: RawRegion, base: u64, access: Access) -> Result<MrKeys, CardError> {
        let register = |e: &mut CardEngine| {
            let outcome = e.upper.reg_mr(pd, memory, base, memory.bytes() as u64, access);
            if matches!(outcome, Err(CardError::NoMemory(_))) {
                let (regions, bytes) = e.upper.registered();
                let (device, wanted) = (&self.units[0].name, memory.bytes());
                tracing::warn!(%device, "{wanted} bytes are not registered: {regions} regions of {bytes} bytes are");
            }
            outcome
        };
        self.command_all(register, |e, keys| e.upper.dereg_mr(&mut e.endpoint, keys.lkey))
    }

    /// See [`Card::dereg_mr`].
    ///
    /// # Errors
    /// As there.
    pub fn dereg_mr(&self, lkey: u32) -> Result<(), CardError> {
        self.command_all(|e| e.upper.dereg_mr(&mut e.endpoint, lkey), NOT_UNDONE)
    }

    /// Makes an address handle for the card with this GID and returns its number, see [`Card::create_ah`].
    ///
    /// # Errors
    /// As there.
    pub fn create_ah(&self, pd: PdId, gid: Gid) -> Result<u16, CardError> {
        let create = |e: &mut CardEngine| {
            let max_datagram = gid.addr().map_or(0, |addr| e.driver.max_datagram(addr));
            e.upper.create_ah(&mut e.endpoint, pd, gid, max_datagram)
        };
        self.command_all(create, |e, ah| e.upper.destroy_ah(&mut e.endpoint, pd, ah))
    }

    /// See [`Card::destroy_ah`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_ah(&self, pd: PdId, ah: u16) -> Result<(), CardError> {
        self.command_all(|e| e.upper.destroy_ah(&mut e.endpoint, pd, ah), NOT_UNDONE)
    }

    /// See [`Card::create_cq`].
    ///
    /// # Errors
    /// As there.
    pub fn create_cq(&self, depth: u32) -> Result<CqId, CardError> {
        let cq = self.command_all(|e| e.upper.create_cq(depth), |e, cq| e.upper.destroy_cq(cq))?;
        self.common.begin(cq);
        Ok(cq)
    }

    /// Entries that a completion queue holds; 0 if there is no such queue.
    pub fn cq_depth(&self, cq: CqId) -> usize {
        self.units[0].lock().upper.cq_depth(cq).unwrap_or(0)
    }

    /// See [`Card::destroy_cq`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), CardError> {
        self.command_all(|e| e.upper.destroy_cq(cq), NOT_UNDONE)
    }

    /// Asks for a [`CardEvent::Completion`] when there is an entry in a completion queue, see [`Card::arm`]. The program is
    /// expected to sleep from now on.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn arm_cq(&self, cq: CqId) -> Result<(), CardError> {
        self.common.arm(cq);
        self.units_of(cq).try_for_each(|unit| unit.arm(cq))
    }

    /// The processing units that have queue pairs with a completion queue; the first one if there are none.
    fn units_of(&self, cq: CqId) -> impl Iterator<Item = &Pu> {
        let mask = self.common.units_of(cq);
        let of_cq = move |index: usize| mask & 1 << index != 0;
        self.units.iter().enumerate().filter(move |(index, _)| of_cq(*index)).map(|(_, unit)| &**unit)
    }

    /// See [`Card::create_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn create_qp(&self, init: QpInit) -> Result<u16, CardError> {
        let mut pairs = self.commands();
        let home = pairs.emptiest_unit(self.units.len());
        let qpn = self.units[home].command(|e| e.upper.create_qp(init)).inspect_err(|error| self.refused(*error))?;
        for unit in self.others(home) {
            unit.lock().upper.count_qp(&init);
        }
        pairs.insert(qpn, init);
        for cq in [init.send_cq, init.recv_cq] {
            if self.common.join(cq, home) {
                self.units[home].arm(cq)?;
            }
        }
        Ok(qpn)
    }

    /// See [`Card::modify_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn modify_qp(&self, qpn: u16, change: &QpModify) -> Result<(), CardError> {
        self.command(qpn, |e| e.upper.modify_qp(&mut e.endpoint, qpn, change))
    }

    /// See [`Card::query_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn query_qp(&self, qpn: u16) -> Result<QpAttr, CardError> {
        self.unit(qpn).lock().upper.query_qp(qpn)
    }

    /// See [`Card::destroy_qp`]. What it owes to peers is sent before it returns.
    ///
    /// # Errors
    /// As there.
    pub fn destroy_qp(&self, qpn: u16) -> Result<(), CardError> {
        let mut pairs = self.commands();
        let destroy = |e: &mut CardEngine| {
            e.upper.destroy_qp(&mut e.endpoint, qpn)?;
            turn(e);
            Ok(())
        };
        let home = self.unit(qpn);
        home.command(destroy).inspect_err(|error| self.refused(*error))?;
        let Some(init) = pairs.remove(qpn) else { return Ok(()) };
        let home = home.unit.index().into();
        for unit in self.others(home) {
            unit.lock().upper.discount_qp(&init);
        }
        for cq in [init.send_cq, init.recv_cq] {
            if !pairs.any(cq, home, self.units.len()) {
                self.common.part(cq, home);
            }
        }
        Ok(())
    }

    /// All processing units but one.
    fn others(&self, home: usize) -> impl Iterator<Item = &Pu> {
        self.units.iter().enumerate().filter(move |(index, _)| *index != home).map(|(_, unit)| &**unit)
    }

    /// Posts sends up to the first one that cannot be posted, see [`Card::post_send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send(&self, qpn: u16, wrs: &[SendWr<'_>]) -> (usize, Result<(), CardError>) {
        self.unit(qpn).post(wrs.len(), |e, now| e.upper.post_send(&mut e.endpoint, now, qpn, wrs))
    }

    /// Posts all of the sends or none, see [`Card::post_send_all`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send_all(&self, qpn: u16, wrs: &[SendWr<'_>]) -> Result<(), CardError> {
        self.unit(qpn).post(wrs.len(), |e, now| e.upper.post_send_all(&mut e.endpoint, now, qpn, wrs))
    }

    /// See [`Card::check_room`].
    ///
    /// # Errors
    /// As there.
    pub fn check_room(&self, qpn: u16, before: u32) -> Result<(), CardError> {
        self.unit(qpn).lock().upper.check_room(qpn, before)
    }

    /// Posts a receive buffer, see [`Card::post_recv`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_recv(&self, qpn: u16, wr_id: u64, sges: &[Sge]) -> Result<(), CardError> {
        self.unit(qpn).lock().upper.post_recv(qpn, wr_id, sges)
    }

    /// Takes completions from a queue, and returns how many: `out` is filled from its start. If there are none, drives the
    /// card for a turn and looks again. The room that their work requests took is free.
    #[inline]
    pub fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        self.drain::<true>(cq, out)
    }

    /// The same, but the room stays taken until each of them is [released](Self::release).
    #[inline]
    pub fn take_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        self.drain::<false>(cq, out)
    }

    /// Frees the room of a completion that was [taken](Self::take_cq).
    #[inline]
    pub fn release(&self, entry: &Completion) {
        self.unit(entry.qpn).lock().upper.release(std::slice::from_ref(entry));
    }

    fn drain<const RELEASE: bool>(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let (ready, bored) = match &*self.units {
            [only] => only.poll::<RELEASE>(cq, out),
            _ => self.poll_units::<RELEASE>(cq, out),
        };
        if ready == 0 && bored {
            std::thread::yield_now();
        }
        ready
    }

    /// Polls those processing units that have something to do with the queue, beginning after the one that filled `out` last
    /// time.
    fn poll_units<const RELEASE: bool>(&self, cq: CqId, out: &mut [Completion]) -> (usize, bool) {
        let mask = self.common.units_of(cq);
        if mask.is_power_of_two() {
            return self.units[mask.trailing_zeros() as usize].poll::<RELEASE>(cq, out);
        }
        // Before any of them gives what would be lost.
        lock::refuse_if(self.units_of(cq).any(Pu::is_held_here));
        let (mut ready, mut bored) = (0, true);
        let first = self.common.next_unit(cq);
        for index in (first..first + self.units.len()).map(|k| k & (self.units.len() - 1)) {
            if mask & 1 << index == 0 {
                continue;
            }
            let (more, also_bored) = self.units[index].poll::<RELEASE>(cq, &mut out[ready..]);
            ready += more;
            bored &= also_bored;
            if ready == out.len() {
                self.common.set_next_unit(cq, index + 1);
                break;
            }
        }
        (ready, bored)
    }

    /// Polls without driving the card.
    pub(crate) fn peek_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut ready = 0;
        for unit in self.units_of(cq) {
            ready += unit.lock().upper.poll_many(cq, &mut out[ready..]);
        }
        ready
    }

    /// Whether the calling thread is inside of one of the other functions: it is a signal handler that interrupted it.
    pub fn is_held_here(&self) -> bool {
        lock::is_held_here(&self.pairs) || self.units.iter().any(|unit| unit.is_held_here())
    }

    /// Runs something while the card touches no memory.
    pub(crate) fn with_lock<T>(&self, run: impl FnOnce() -> T) -> T {
        // Nobody else takes more than one of them.
        let _engines: Vec<_> = self.units.iter().map(|unit| unit.lock()).collect();
        run()
    }

    /// Counters, as of now, of all processing units together.
    pub fn counters(&self) -> NicCounters {
        let mut sum = NicCounters::default();
        self.units.iter().for_each(|unit| sum.add(&counters(&unit.lock())));
        sum
    }
}

impl Nic {
    /// Sends what is owed to peers and says good-bye to them, for a process that ends without closing the card. Nothing can be
    /// done with it afterwards. Gives up after a while, since a thread that holds a lock may wait for the caller.
    pub fn farewell(&self) {
        let began = Instant::now();
        let mut engines = Vec::with_capacity(self.units.len());
        for unit in &self.units {
            let Some(engine) = unit.try_lock_for(LINGER_MAX.saturating_sub(began.elapsed())) else { return };
            engines.push(engine);
        }
        linger(&mut engines);
        for engine in &mut engines {
            let CardEngine { endpoint, upper, .. } = &mut **engine;
            upper.hush(endpoint);
        }
        self.leave(&mut engines);
    }

    /// Says good-bye to all peers, of all processing units together as well.
    fn leave(&self, engines: &mut [MappedMutexGuard<'_, CardEngine>]) {
        for engine in &mut *engines {
            let CardEngine { endpoint, driver, upper, .. } = &mut **engine;
            endpoint.abort(driver.now(), upper);
        }
        let began = Instant::now();
        while !engines.iter().all(|e| e.endpoint.is_closed()) && began.elapsed() < LINGER_MAX {
            turn_all(engines);
        }
        for (unit, engine) in self.units.iter().zip(engines) {
            self.common.tell_counters(unit.unit.index().into(), &counters(engine));
        }
    }
}

/// Answers what still comes in for a moment, and sends datagrams that count as sent: of all processing units together, since they
/// may be each other's peers.
fn linger(engines: &mut [MappedMutexGuard<'_, CardEngine>]) {
    let began = Instant::now();
    let mut quiet = began;
    // Whoever never met anybody owes nobody an answer.
    let has_met = engines.iter().any(|e| e.endpoint.peers().next().is_some());
    while has_met && began.elapsed() < LINGER_OWING {
        if turn_all(engines) {
            quiet = Instant::now();
        }
        let is_late = quiet.elapsed() >= LINGER_QUIET || began.elapsed() >= LINGER_MAX;
        if is_late && !engines.iter().any(|e| e.upper.owes_datagrams()) {
            break;
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.units.iter().for_each(|unit| unit.shift.stop());
        for thread in self.threads.drain(..) {
            // It ended by a panic, which has been reported.
            let _ = thread.join();
        }
        let mut engines: Vec<_> = self.units.iter().map(|unit| unit.lock()).collect();
        linger(&mut engines);
        self.leave(&mut engines);
    }
}

/// Of commands that end something: all processing units refuse them alike, so there is nothing to undo.
const NOT_UNDONE: fn(&mut CardEngine, ()) -> Result<(), CardError> = |_, ()| Ok(());
