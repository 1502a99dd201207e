//! An open card: the card of the core, a driver, and the thread that drives both when the program does not.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use srd_core::card::{
    Access, Card, CardError, CardEvent, CardOptions, Completion, CqId, DeviceCounters, Gid, GidError, MrKeys, PdId,
    PortCounters, Profile, QpAttr, QpInit, QpModify, SendWr, Sge, Trouble,
};
use srd_core::{CheckedConfig, Config, Driver, Endpoint, Engine, FaultPlan, Faulty, Stats, Time};
use srd_udp::{BindError, UdpOptions};
use srd_xdp::{DriverChoice, XdpOptions};

use crate::bind;
use crate::counters::{Identity, Publisher};
use crate::memory::{HostMem, RawRegion};
use crate::patience::Patience;
use crate::thread::{self, Shift};

/// What a card is made of.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Name of the device, for logs.
    pub name: String,
    /// Address and port that peers reach it at; port 0 lets the kernel choose, and so does a port that is taken.
    pub addr: SocketAddr,
    /// The transport.
    pub transport: CheckedConfig,
    /// What moves the packets.
    pub driver: DriverChoice,
    /// Receive queues of the interface to take for AF_XDP, 1..=16, as far as they are free.
    pub xdp_queues: u32,
    /// The driver, as far as it uses kernel UDP.
    pub udp: UdpOptions,
    /// The card.
    pub card: CardOptions,
    /// What goes wrong in the network on request, and the seed of it.
    pub faults: Option<(FaultPlan, u64)>,
    /// The directory that counters are published in, for `srd stat`; `None` for nowhere.
    pub counters: Option<PathBuf>,
    /// Seed of keys, numbers and connection ids; `None` for one that nobody can guess.
    pub seed: Option<u64>,
}

impl NicConfig {
    /// A card of the newest generation that peers reach at `addr`, and defaults otherwise.
    pub fn at(addr: SocketAddr) -> NicConfig {
        let newest = Profile::GENERATIONS.into_iter().rev().find_map(Profile::generation);
        NicConfig {
            name: "srd_0".into(),
            addr,
            transport: Config::default().check().expect("the defaults are valid"),
            driver: DriverChoice::Udp,
            xdp_queues: XdpOptions::default().queues,
            udp: UdpOptions::default(),
            card: CardOptions { profile: newest.unwrap_or_default(), ..CardOptions::default() },
            faults: None,
            counters: None,
            seed: None,
        }
    }
}

/// Why a card could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address cannot be a card's.
    #[error(transparent)]
    Address(#[from] GidError),
    /// The sockets could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// AF_XDP cannot be used.
    #[error(transparent)]
    Xdp(srd_xdp::OpenError),
    /// The system has no more of something.
    #[error("cannot open a card: {0}")]
    System(#[from] std::io::Error),
}

pub(crate) type BoxedDriver = Box<dyn Driver + Send>;
type CardEngine = Engine<BoxedDriver, Card<HostMem>>;

/// Counters of a card, all at one moment.
#[derive(Clone, Copy, Debug)]
pub struct NicCounters {
    /// Those of the port.
    pub port: PortCounters,
    /// Those of commands.
    pub device: DeviceCounters,
    /// Those of the transport.
    pub transport: Stats,
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

pub(crate) struct Shared {
    name: String,
    engine: Mutex<CardEngine>,
    pub(crate) shift: Shift,
    sink: Box<dyn NicSink>,
    patience: Patience,
    unpublished: AtomicBool,
    /// Messages posted, and receives handed out, since anything was sent: what waits for company.
    waiting: AtomicU32,
    publisher: Option<Mutex<Publisher>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An open card. All methods may be called from any thread; they take one lock, for a short time.
#[derive(Debug)]
pub struct Nic {
    shared: Arc<Shared>,
    gid: Gid,
    profile: Profile,
    thread: Option<JoinHandle<()>>,
}

/// Messages that wait for company at most, and receives whose acknowledgement does: enough to share the cost of a packet, few
/// against the depth of queues, so that both ends have something to do at the same time.
const COMPANY: u32 = 128;
/// How long a card that is closed answers what comes late: as long as something comes, within bounds.
const LINGER_QUIET: Duration = Duration::from_millis(2);
const LINGER_MAX: Duration = Duration::from_millis(100);

impl Nic {
    /// Opens a card.
    ///
    /// # Errors
    /// The address cannot be a card's, or the system does not permit it.
    pub fn open(config: NicConfig, sink: Box<dyn NicSink>) -> Result<Nic, OpenError> {
        let (driver, readiness) = bind::open(&config)?;
        Nic::over(config, driver, readiness, sink)
    }

    /// Opens a card over any driver, at the driver's address. The thread sleeps until one of `readiness` is readable; those
    /// options of `config` that are about UDP mean nothing.
    ///
    /// # Errors
    /// The driver's address cannot be a card's, or the system does not permit a thread.
    pub fn over(
        config: NicConfig,
        driver: Box<dyn Driver + Send>,
        readiness: Vec<OwnedFd>,
        sink: Box<dyn NicSink>,
    ) -> Result<Nic, OpenError> {
        let local = driver.local_addr();
        let publisher = config.counters.as_ref().and_then(|dir| {
            let publisher = Publisher::new(dir, Identity::from(&config), local);
            publisher
                .inspect_err(|e| tracing::warn!("counters are not published in {}: {e}", dir.display()))
                .ok()
                .map(Mutex::new)
        });
        let mut seed = [0; 32];
        match config.seed {
            Some(n) => {
                seed[..8].copy_from_slice(&n.to_le_bytes());
                // Two cards must not share a seed.
                seed[8..10].copy_from_slice(&local.port().to_le_bytes());
            }
            None => getrandom::fill(&mut seed).map_err(std::io::Error::from)?,
        }
        let mut driver: BoxedDriver = match config.faults {
            Some((plan, seed)) => Box::new(Faulty::with_plan(driver, plan, seed)),
            None => driver,
        };
        let now = driver.now();
        let gid = Gid::new(local)?;
        let endpoint = Endpoint::new(config.transport, local, seed, now);
        let secret = u64::from_le_bytes(*seed.last_chunk().expect("a seed of 32 bytes"));
        let card = Card::new(config.card, gid, HostMem, secret);
        let shared = Arc::new(Shared {
            name: config.name,
            engine: Mutex::new(Engine::new(endpoint, driver, card)),
            shift: Shift::new().map_err(std::io::Error::from)?,
            sink,
            patience: Patience::default(),
            unpublished: AtomicBool::new(true),
            waiting: AtomicU32::new(0),
            publisher,
        });
        let thread = spawn(&shared, readiness)?;
        Ok(Nic { shared, gid, profile: config.card.profile, thread: Some(thread) })
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// What it claims to be.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// A command, under the lock, and what follows from it. What was posted before it is on its way, as behind a doorbell.
    fn command<T>(&self, run: impl FnOnce(&mut CardEngine) -> Result<T, CardError>) -> Result<T, CardError> {
        let mut engine = self.shared.lock();
        if self.shared.waiting() > 0 {
            engine.now = engine.driver.now();
            self.shared.speak(&mut engine);
        }
        let outcome = run(&mut engine);
        self.shared.after(&mut engine);
        self.shared.shift.kick();
        if let Err(error) = &outcome {
            tracing::warn!(device = %self.shared.name, "command refused: {error}");
        }
        outcome
    }

    /// See [`Card::alloc_pd`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc_pd(&self) -> Result<PdId, CardError> {
        self.command(|e| e.upper.alloc_pd())
    }

    /// See [`Card::dealloc_pd`].
    ///
    /// # Errors
    /// As there.
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), CardError> {
        self.command(|e| e.upper.dealloc_pd(pd))
    }

    /// See [`Card::reg_mr`].
    ///
    /// # Errors
    /// As there.
    pub fn reg_mr(&self, pd: PdId, memory: RawRegion, base: u64, access: Access) -> Result<MrKeys, CardError> {
        self.command(|e| {
            let outcome = e.upper.reg_mr(pd, memory, base, memory.bytes() as u64, access);
            if matches!(outcome, Err(CardError::NoMemory(_))) {
                let (regions, bytes) = e.upper.registered();
                let wanted = memory.bytes();
                tracing::warn!(device = %self.shared.name, "{wanted} bytes are not registered: {regions} regions of {bytes} bytes are");
            }
            outcome
        })
    }

    /// See [`Card::dereg_mr`].
    ///
    /// # Errors
    /// As there.
    pub fn dereg_mr(&self, lkey: u32) -> Result<(), CardError> {
        self.command(|e| e.upper.dereg_mr(&mut e.endpoint, lkey))
    }

    /// Makes an address handle for the card with this GID and returns its number, see [`Card::create_ah`].
    ///
    /// # Errors
    /// As there.
    pub fn create_ah(&self, pd: PdId, gid: Gid) -> Result<u16, CardError> {
        self.command(|e| {
            let max_datagram = gid.addr().map_or(0, |addr| e.driver.max_datagram(addr));
            e.upper.create_ah(&mut e.endpoint, pd, gid, max_datagram)
        })
    }

    /// See [`Card::destroy_ah`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_ah(&self, pd: PdId, ah: u16) -> Result<(), CardError> {
        self.command(|e| e.upper.destroy_ah(&mut e.endpoint, pd, ah))
    }

    /// See [`Card::create_cq`].
    ///
    /// # Errors
    /// As there.
    pub fn create_cq(&self, depth: u32) -> Result<CqId, CardError> {
        self.command(|e| e.upper.create_cq(depth))
    }

    /// Entries that a completion queue holds; 0 if there is no such queue.
    pub fn cq_depth(&self, cq: CqId) -> usize {
        self.shared.lock().upper.cq_depth(cq).unwrap_or(0)
    }

    /// See [`Card::destroy_cq`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), CardError> {
        self.command(|e| e.upper.destroy_cq(cq))
    }

    /// Asks for a [`CardEvent::Completion`] when there is an entry in a completion queue, see [`Card::arm`]. The program is
    /// expected to sleep from now on.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn arm_cq(&self, cq: CqId) -> Result<(), CardError> {
        let mut engine = self.shared.lock();
        engine.upper.arm(cq)?;
        self.shared.after(&mut engine);
        drop(engine);
        self.shared.shift.leave();
        Ok(())
    }

    /// See [`Card::create_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn create_qp(&self, init: QpInit) -> Result<u16, CardError> {
        self.command(|e| e.upper.create_qp(init))
    }

    /// See [`Card::modify_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn modify_qp(&self, qpn: u16, change: &QpModify) -> Result<(), CardError> {
        self.command(|e| e.upper.modify_qp(&mut e.endpoint, qpn, change))
    }

    /// See [`Card::query_qp`].
    ///
    /// # Errors
    /// As there.
    pub fn query_qp(&self, qpn: u16) -> Result<QpAttr, CardError> {
        self.shared.lock().upper.query_qp(qpn)
    }

    /// See [`Card::destroy_qp`]. What it owes to peers is sent before it returns.
    ///
    /// # Errors
    /// As there.
    pub fn destroy_qp(&self, qpn: u16) -> Result<(), CardError> {
        self.command(|e| {
            e.upper.destroy_qp(&mut e.endpoint, qpn)?;
            turn(e);
            Ok(())
        })
    }

    /// Posts sends up to the first one that cannot be posted, see [`Card::post_send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send(&self, qpn: u16, wrs: &[SendWr<'_>]) -> (usize, Result<(), CardError>) {
        let engine = &mut *self.shared.lock();
        let now = self.shared.recent(engine);
        let outcome = engine.upper.post_send(&mut engine.endpoint, now, qpn, wrs);
        self.shared.doorbell(engine, wrs.len());
        outcome
    }

    /// Posts all of the sends or none, see [`Card::post_send_all`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send_all(&self, qpn: u16, wrs: &[SendWr<'_>]) -> Result<(), CardError> {
        let engine = &mut *self.shared.lock();
        let now = self.shared.recent(engine);
        let outcome = engine.upper.post_send_all(&mut engine.endpoint, now, qpn, wrs);
        self.shared.doorbell(engine, wrs.len());
        outcome
    }

    /// Posts a receive buffer, see [`Card::post_recv`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_recv(&self, qpn: u16, wr_id: u64, sges: &[Sge]) -> Result<(), CardError> {
        self.shared.lock().upper.post_recv(qpn, wr_id, sges)
    }

    /// Takes completions from a queue, and returns how many: `out` is filled from its start. If there are none, drives the
    /// card for a turn and looks again.
    pub fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut engine = self.shared.lock();
        let ready = take(&mut engine, cq, out);
        if ready > 0 {
            self.shared.handed_out(&mut engine, &out[..ready]);
            return ready;
        }
        let mut moved = self.shared.waiting() > 0 && self.shared.speak(&mut engine);
        moved |= hear(&mut engine);
        let ready = take(&mut engine, cq, out);
        if ready > 0 {
            self.shared.handed_out(&mut engine, &out[..ready]);
        } else {
            moved |= self.shared.speak(&mut engine);
        }
        self.shared.after(&mut engine);
        drop(engine);
        self.shared.shift.drove();
        if self.shared.patience.is_over(moved || ready > 0) {
            std::thread::yield_now();
        }
        ready
    }

    /// The same without driving the card.
    pub(crate) fn take_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        take(&mut self.shared.lock(), cq, out)
    }

    /// Runs something while the card touches no memory.
    pub(crate) fn with_lock<T>(&self, run: impl FnOnce() -> T) -> T {
        let _engine = self.shared.lock();
        run()
    }

    /// Counters, as of now.
    pub fn counters(&self) -> NicCounters {
        counters(&self.shared.lock())
    }
}

impl Drop for Nic {
    /// Answers what still comes in for a moment, says good-bye to all peers and ends the thread.
    fn drop(&mut self) {
        self.shared.shift.stop();
        if let Some(thread) = self.thread.take() {
            // It ended by a panic, which has been reported.
            let _ = thread.join();
        }
        let mut engine = self.shared.lock();
        let began = Instant::now();
        let mut quiet = began;
        // Whoever never met anybody owes nobody an answer.
        let has_met = engine.endpoint.peers().next().is_some();
        while has_met && quiet.elapsed() < LINGER_QUIET && began.elapsed() < LINGER_MAX {
            if turn(&mut engine) {
                quiet = Instant::now();
            }
        }
        let CardEngine { endpoint, driver, upper, .. } = &mut *engine;
        endpoint.abort(driver.now(), upper);
        let began = Instant::now();
        while !engine.endpoint.is_closed() && began.elapsed() < LINGER_MAX {
            turn(&mut engine);
        }
        self.shared.tell_counters(&counters(&engine));
    }
}

fn spawn(shared: &Arc<Shared>, readiness: Vec<OwnedFd>) -> std::io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    // Signals are the program's: the thread inherits a mask that blocks them all.
    let before = nix::sys::signal::SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK);
    let thread = std::thread::Builder::new()
        .name(format!("srd-{}", shared.name))
        .spawn(move || thread::run(&shared, &readiness));
    if let Ok(before) = before {
        // It was in force before, so it can be set.
        let _ = before.thread_set_mask();
    }
    thread
}

fn take(engine: &mut CardEngine, cq: CqId, out: &mut [Completion]) -> usize {
    let mut n = 0;
    for slot in out {
        match engine.upper.poll(cq) {
            Some(entry) => *slot = entry,
            None => break,
        }
        n += 1;
    }
    n
}

/// One turn of the run loop.
fn turn(engine: &mut CardEngine) -> bool {
    let heard = hear(engine);
    speak(engine) || heard
}

/// Receives. A driver that fails for good looks like a network that lost everything.
fn hear(engine: &mut CardEngine) -> bool {
    let mut worked = false;
    let moved = engine.receive_with(|endpoint, card, _, now| worked = card.work(endpoint, now));
    fine(moved) || worked
}

/// Sends.
fn speak(engine: &mut CardEngine) -> bool {
    fine(engine.transmit())
}

fn fine(moved: std::io::Result<bool>) -> bool {
    moved.unwrap_or_else(|error| {
        tracing::error!("driver failed: {error}");
        false
    })
}

fn counters(engine: &CardEngine) -> NicCounters {
    NicCounters { port: engine.upper.port, device: engine.upper.device, transport: *engine.endpoint.stats() }
}

impl Shared {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, CardEngine> {
        // A panic inside is a defect; the state is still the best there is.
        self.engine.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The time, a millisecond or two old at most: while anyone drives the card, that of the last turn.
    #[inline]
    fn recent(&self, engine: &mut CardEngine) -> Time {
        if self.shift.is_asleep() {
            engine.now = engine.driver.now();
        }
        engine.now
    }

    /// See [`Shared::waiting`]. Under the lock of the card, as all that concerns it.
    #[inline]
    fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    fn speak(&self, engine: &mut CardEngine) -> bool {
        self.waiting.store(0, Ordering::Relaxed);
        speak(engine)
    }

    /// There is something more to be sent: it leaves in the next turn, or now if much waits.
    #[inline]
    fn speak_soon(&self, engine: &mut CardEngine, more: usize) {
        let waiting = self.waiting() + more as u32;
        self.waiting.store(waiting, Ordering::Relaxed);
        if waiting >= COMPANY {
            engine.now = engine.driver.now();
            self.speak(engine);
        }
    }

    /// The program has these completions. To what it received it may answer: then the acknowledgement travels with the answer.
    #[inline]
    fn handed_out(&self, engine: &mut CardEngine, completions: &[Completion]) {
        if completions[0].opcode.is_recv() {
            self.speak_soon(engine, completions.len());
        }
    }

    /// `new` messages were posted. Alone, they leave at once; where others are under way they leave together with what is
    /// posted next.
    #[inline]
    fn doorbell(&self, engine: &mut CardEngine, new: usize) {
        if engine.upper.in_flight() <= new {
            engine.now = engine.driver.now();
            self.speak(engine);
        } else {
            self.speak_soon(engine, new);
        }
        self.shift.kick();
    }

    /// Tells what happened in a turn or a command.
    fn after(&self, engine: &mut CardEngine) {
        while let Some(event) = engine.upper.poll_event() {
            self.sink.event(event);
        }
        while let Some(trouble) = engine.upper.poll_trouble() {
            self.log(&trouble, engine);
        }
        if !self.unpublished.load(Ordering::Relaxed) {
            self.unpublished.store(true, Ordering::Relaxed);
        }
    }

    /// One line for each error completion: what, why, who, and on which paths.
    #[cold]
    fn log(&self, trouble: &Trouble, engine: &CardEngine) {
        let info = trouble.status.info();
        let addr = trouble.gid.addr().map_or_else(|| "unknown".to_owned(), |a| a.to_string());
        let paths = trouble.peer.map_or_else(String::new, |peer| {
            let stats = engine.endpoint.peer_stats(peer);
            let usable = stats.paths.iter().filter(|p| p.state == srd_core::PathState::Good).count();
            format!(", {usable} of {} paths good, SRTT {}", stats.paths.len(), stats.srtt)
        });
        tracing::warn!(
            device = %self.name,
            "{:?} wr_id {} on QP {} to QP {} at {addr} ended with {}: {}{paths}; see: srd explain {}",
            trouble.opcode,
            trouble.wr_id,
            trouble.qpn,
            trouble.remote_qpn,
            trouble.status,
            info.meaning,
            trouble.status.code(),
        );
    }

    /// The thread drives a turn. Returns how long it may sleep: zero if more is to do, `None` inside for ever; the outer
    /// `None` if the card cannot be driven any more.
    pub(crate) fn drive(&self) -> Option<Option<Duration>> {
        let mut engine = self.lock();
        let moved = turn(&mut engine);
        self.after(&mut engine);
        if moved {
            return Some(Some(Duration::ZERO));
        }
        let transport = engine.endpoint.poll_timeout().unwrap_or(Time::NEVER);
        let deadline = transport.min(engine.upper.deadline());
        let now = engine.driver.now();
        if deadline <= now {
            return Some(Some(Duration::ZERO));
        }
        self.shift.falls_asleep();
        Some((deadline != Time::NEVER).then(|| Duration::from(deadline.since(now))))
    }

    pub(crate) fn is_unpublished(&self) -> bool {
        self.unpublished.load(Ordering::Relaxed)
    }

    pub(crate) fn publish(&self) {
        if self.unpublished.swap(false, Ordering::Relaxed) {
            let counters = counters(&self.lock());
            self.tell_counters(&counters);
        }
    }

    fn tell_counters(&self, counters: &NicCounters) {
        self.sink.counters(counters);
        if let Some(publisher) = &self.publisher {
            let mut publisher = publisher.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // The next attempt may succeed, and nothing depends on it.
            let _ = publisher.publish(&counters.into());
        }
    }
}
