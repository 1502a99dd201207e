//! A processing unit of a card: the card of the core, a driver, and the thread that drives both when the program does not.

use std::fmt;
use std::io;
use std::ops::DerefMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use srd_core::card::{Card, CardError, Completion, CqId, Gid, Trouble, Unit};
use srd_core::{Driver, Endpoint, Engine, Faulty, Time};
use srd_udp::WaitMode;

use crate::answers::{Answers, Until};
use crate::cancel::NoCancel;
use crate::common::Common;
use crate::company::Company;
use crate::config::{NicConfig, OpenError};
use crate::deaf;
use crate::gone::Gone;
use crate::lock::{self, MappedMutexGuard, Mutex, MutexGuard};
use crate::memory::HostMem;
use crate::nic::{BoxedDriver, CardEngine, NicCounters};
use crate::patience::Patience;
use crate::thread::{self, Failed, Shift, Turn};

/// A processing unit: a card of its own, but for what it is told together with the others.
pub(crate) struct Pu {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    inside: Mutex<Inside>,
    pub(crate) shift: Shift,
    common: Arc<Common>,
    /// Whether there are fewer cores than want to run, as the thread last saw.
    pub(crate) cores_are_scarce: AtomicBool,
    unpublished: AtomicBool,
}

/// What a processing unit has under its lock.
struct Inside {
    engine: CardEngine,
    answers: Answers,
    company: Company,
    patience: Patience,
    /// If the thread sleeps: until when at the most.
    sleeps_until: Time,
}

impl Inside {
    /// When there is something to do without any input.
    fn deadline(&self) -> Time {
        let transport = self.engine.endpoint.poll_timeout().unwrap_or(Time::NEVER);
        transport.min(self.engine.upper.deadline())
    }

    /// Sends, as of the last reading of the clock.
    fn speak(&mut self) -> bool {
        self.company.leave(self.engine.now);
        speak(&mut self.engine)
    }

    fn speak_now(&mut self) {
        self.engine.now = self.engine.driver.now();
        self.speak();
    }

    /// The program has these completions. To what it received it may answer: then the acknowledgement travels with the answer.
    #[inline]
    fn handed_out(&mut self, completions: &[Completion]) {
        let received = completions.iter().filter(|c| c.opcode.is_recv());
        let (count, bytes) = received.fold((0, 0u32), |(n, bytes), c| (n + 1, bytes.saturating_add(c.byte_len)));
        if count > 0 {
            self.answers.handed_out(count as u32, bytes, self.engine.now);
            if self.company.handed_out(count) {
                self.speak_now();
            }
        }
    }
}

impl fmt::Debug for Pu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pu").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Pu {
    pub(crate) fn new(
        config: &NicConfig,
        gid: Gid,
        unit: Unit,
        driver: BoxedDriver,
        seed: [u8; 32],
        secret: u64,
        common: &Arc<Common>,
    ) -> Result<Pu, OpenError> {
        // Each unit has faults of its own.
        let own = |seed: u64| seed.wrapping_add(u64::from(unit.index()) << 32);
        let local = driver.local_addr();
        let mut driver: BoxedDriver = match &config.faults {
            Some((plan, seed)) => Box::new(Faulty::with_plan(driver, plan.clone(), own(*seed))),
            None => driver,
        };
        let mut endpoint = Endpoint::new(config.transport.clone(), local, seed, driver.now());
        let mut options = config.card;
        options.faults.seed = own(options.faults.seed);
        let card = Card::with_unit(options, gid, unit, HostMem, secret);
        endpoint.set_tag(card.tag());
        Ok(Pu {
            name: config.name.clone(),
            unit,
            inside: Mutex::new(Inside {
                engine: Engine::new(endpoint, driver, card),
                answers: Answers::default(),
                company: Company::default(),
                patience: Patience::default(),
                sleeps_until: Time::ZERO,
            }),
            shift: Shift::new()?,
            common: common.clone(),
            cores_are_scarce: AtomicBool::new(false),
            unpublished: AtomicBool::new(true),
        })
    }

    /// A command, under the lock, and what follows from it. What was posted before it is on its way, as behind a doorbell.
    pub(crate) fn command<T>(&self, run: impl FnOnce(&mut CardEngine) -> Result<T, CardError>) -> Result<T, CardError> {
        let mut inside = self.inside.lock();
        if inside.company.any() {
            inside.speak_now();
        }
        let outcome = run(&mut inside.engine);
        self.after(&mut inside.engine);
        self.shift.kick();
        outcome
    }

    /// The same for a command that another unit counts.
    pub(crate) fn command_uncounted<T>(
        &self,
        run: impl FnOnce(&mut CardEngine) -> Result<T, CardError>,
    ) -> Result<T, CardError> {
        self.command(|engine| {
            let before = engine.upper.device;
            let outcome = run(engine);
            engine.upper.device = before;
            outcome
        })
    }

    /// See [`Nic::arm_cq`](crate::Nic::arm_cq).
    pub(crate) fn arm(&self, cq: CqId) -> Result<(), CardError> {
        let mut engine = self.lock();
        engine.upper.arm(cq)?;
        self.after(&mut engine);
        drop(engine);
        self.shift.leave();
        Ok(())
    }

    /// See [`Nic::poll_cq`](crate::Nic::poll_cq), with `RELEASE`, and [`Nic::take_cq`](crate::Nic::take_cq). Returns how many
    /// completions there were, and whether nothing has happened for long.
    #[inline]
    pub(crate) fn poll<const RELEASE: bool>(&self, cq: CqId, out: &mut [Completion]) -> (usize, bool) {
        let inside = &mut *self.inside.lock();
        let take = |card: &mut Card<HostMem>, out: &mut [Completion]| {
            if RELEASE { card.poll_many(cq, out) } else { card.take_many(cq, out) }
        };
        let ready = take(&mut inside.engine.upper, out);
        if ready > 0 {
            inside.handed_out(&out[..ready]);
            inside.patience.begin();
            self.rouse(inside);
            return (ready, false);
        }
        let silent = match inside.answers.until_then() {
            Until::Now => return (0, false),
            Until::Soon => true,
            Until::NoAnswer => false,
        };
        let mut moved = hear(&mut inside.engine);
        let ready = take(&mut inside.engine.upper, out);
        if ready > 0 {
            inside.handed_out(&out[..ready]);
        } else if !silent {
            moved |= inside.speak();
        }
        self.after(&mut inside.engine);
        self.shift.drove();
        self.rouse(inside);
        if moved || ready > 0 {
            inside.patience.begin();
            return (ready, false);
        }
        if !silent {
            inside.engine.upper.anticipate();
        }
        let now = inside.engine.now;
        let is_over = inside.patience.is_over(now, self.cores_are_scarce.load(Ordering::Relaxed));
        (0, is_over && self.common.poller.spins_alone(now))
    }

    /// The program drove, and may not come back: the thread must not sleep for longer than it may now.
    #[inline]
    fn rouse(&self, inside: &Inside) {
        if self.shift.is_asleep() && inside.deadline() < inside.sleeps_until {
            self.shift.kick();
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MappedMutexGuard<'_, CardEngine> {
        MutexGuard::map(self.inside.lock(), |inside| &mut inside.engine)
    }

    /// The same, unless somebody has it for longer.
    pub(crate) fn try_lock_for(&self, time: Duration) -> Option<MappedMutexGuard<'_, CardEngine>> {
        Some(MutexGuard::map(lock::try_lock_for(&self.inside, time)?, |inside| &mut inside.engine))
    }

    /// Whether the calling thread has it: a signal handler that interrupted us.
    pub(crate) fn is_held_here(&self) -> bool {
        lock::is_held_here(&self.inside)
    }

    /// Posts `new` messages, given the time. Alone, they leave at once; where others are under way they wait for company.
    #[inline]
    pub(crate) fn post<T>(&self, new: usize, post: impl FnOnce(&mut CardEngine, Time) -> T) -> T {
        let inside = &mut *self.inside.lock();
        let engine = &mut inside.engine;
        // The time of the last turn is a millisecond or two old while anyone drives the card, and older only until a thread that
        // was woken gets a core.
        if self.shift.is_asleep() {
            engine.now = engine.driver.now();
        }
        let now = engine.now;
        let outcome = post(engine, now);
        inside.answers.posted();
        inside.patience.begin();
        if engine.upper.in_flight() <= new || inside.company.posted(new, || engine.driver.now()) {
            inside.speak_now();
        }
        self.shift.kick();
        outcome
    }

    /// Tells what happened in a turn or a command.
    fn after(&self, engine: &mut CardEngine) {
        while let Some(event) = engine.upper.poll_event() {
            self.common.event(event);
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
        let _whole = NoCancel::begin();
        let info = trouble.status.info();
        let addr = trouble.gid.addr().map_or_else(|| "unknown".to_owned(), |a| a.to_string());
        let stats = trouble.peer.map(|peer| engine.endpoint.peer_stats(peer)).filter(|stats| !stats.paths.is_empty());
        let paths = stats.map_or_else(String::new, |stats| {
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

    /// A descriptor of the card is not open any more.
    #[cold]
    pub(crate) fn lost_descriptor(&self) {
        let mut engine = self.lock();
        fail(&mut engine, &nix::errno::Errno::EBADF.into());
        self.after(&mut engine);
    }

    /// The thread drives a turn, after which it sleeps if it may and there is nothing to do.
    ///
    /// # Errors
    /// The card has failed.
    pub(crate) fn drive(&self, may_sleep: bool) -> Result<Turn, Failed> {
        let inside = &mut *self.inside.lock();
        let heard = hear(&mut inside.engine);
        let moved = inside.speak() || heard;
        let engine = &mut inside.engine;
        self.after(engine);
        if engine.upper.has_failed() {
            return Err(Failed);
        }
        if moved {
            return Ok(Turn::Moved);
        }
        if !may_sleep {
            return Ok(Turn::Nothing);
        }
        let deadline = inside.deadline();
        let now = inside.engine.driver.now();
        if deadline <= now {
            return Ok(Turn::Moved);
        }
        inside.sleeps_until = deadline;
        self.shift.falls_asleep();
        Ok(Turn::Sleep((deadline != Time::NEVER).then(|| Duration::from(deadline.since(now)))))
    }

    pub(crate) fn is_unpublished(&self) -> bool {
        self.unpublished.load(Ordering::Relaxed)
    }

    pub(crate) fn publish(&self) {
        if self.unpublished.swap(false, Ordering::Relaxed) {
            let counters = counters(&self.lock());
            if !self.common.tell_counters(self.unit.index().into(), &counters) {
                self.unpublished.store(true, Ordering::Relaxed);
            }
        }
    }
}

pub(crate) fn spawn(pu: &Arc<Pu>, readiness: Vec<OwnedFd>, wait: WaitMode) -> std::io::Result<JoinHandle<()>> {
    let pu = pu.clone();
    let name = match pu.unit.index() {
        0 => format!("srd-{}", pu.name),
        index => format!("srd-{}.{index}", pu.name),
    };
    deaf::spawn(name, move || thread::run(&pu, readiness, wait))
}

/// One turn of the run loop.
pub(crate) fn turn(engine: &mut CardEngine) -> bool {
    let heard = hear(engine);
    speak(engine) || heard
}

/// One turn of each.
pub(crate) fn turn_all(engines: &mut [impl DerefMut<Target = CardEngine>]) -> bool {
    let mut moved = false;
    for engine in engines {
        moved |= turn(engine);
    }
    moved
}

/// Receives.
fn hear(engine: &mut CardEngine) -> bool {
    let mut worked = false;
    let moved = engine.receive_with(|endpoint, card, _, now| worked = card.work(endpoint, now));
    fine(engine, moved) || worked
}

/// Sends.
fn speak(engine: &mut CardEngine) -> bool {
    engine.upper.ring(&mut engine.endpoint);
    let moved = engine.transmit();
    fine(engine, moved)
}

fn fine(engine: &mut CardEngine, moved: io::Result<bool>) -> bool {
    moved.unwrap_or_else(|error| {
        fail(engine, &error);
        true
    })
}

/// The driver will not work again: nobody calls it any more, and the program hears of it by its requests.
#[cold]
fn fail(engine: &mut CardEngine, error: &io::Error) {
    if engine.upper.has_failed() {
        return;
    }
    let _whole = NoCancel::begin();
    tracing::error!(
        "the device at {} has failed, and its requests end as flushed: {error}; close it and open it again (a program that \
         closes all descriptors, as daemons do, must open the device after that)",
        engine.driver.local_addr()
    );
    let gone = Gone::of(&mut *engine.driver);
    // To drop it would close its descriptors. If somebody else has done so, their numbers may be those of other files by now.
    std::mem::forget(std::mem::replace(&mut engine.driver, Box::new(gone)));
    engine.upper.fail(&mut engine.endpoint);
    engine.endpoint.abort(engine.now, &mut engine.upper);
}

pub(crate) fn counters(engine: &CardEngine) -> NicCounters {
    NicCounters { port: engine.upper.port, device: engine.upper.device, transport: *engine.endpoint.stats() }
}

#[cfg(test)]
pub(crate) mod tests;
