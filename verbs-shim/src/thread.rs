//! The thread that drives a card while the program does not.
//!
//! A program that polls drives the card itself, inside of its polling: nothing passes between threads. The thread looks
//! now and then whether that goes on. When it does not (the program sleeps, computes, or waits for an event), the thread
//! takes over until the program polls again, so that acknowledgements, retransmissions and RDMA do not wait for the
//! program: a device answers whatever its program does. Whoever was away is looked after more often for a while, unless
//! cores are scarce: then it may just be waiting for one, and the thread would only take it from others.
//!
//! Programs that wait for bytes that others write into their memory poll for a moment only, and run all the same: such a program
//! does not wait for a core, and is looked after the more often the more often it was found so. A thread that is told to spin
//! ([`WaitMode::Spin`]) has a core of its own, and takes over after microseconds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use srd_udp::{WaitMode, spare_standard};

use crate::cancel::NoCancel;
use crate::cores::Cores;
use crate::cpu;
use crate::unit::Pu;

/// How often the thread looks whether the program drives the card: after the program was away, and when it has driven for
/// long. The former is as long as a peer may have to wait, the latter not felt by a program that shares a core with the thread.
const LOOK: Duration = Duration::from_micros(200);
/// The same for a program that runs without driving again and again.
const SHORTEST_LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_millis(4);
/// How often counters are published at the least while anything moves.
const PUBLISH: Duration = Duration::from_millis(200);

/// How long a program that does not drive is trusted by a thread that spins; longer than most polls take.
const SPIN_LOOK: Duration = Duration::from_micros(5);

/// The program drives; nobody needs to be woken.
const PARKED: u8 = 0;
/// The thread drives, and is awake or about to be.
const AWAKE: u8 = 1;
/// The thread drives, and sleeps or is about to.
const ASLEEP: u8 = 2;
/// The card has failed, and the thread has ended.
const ENDED: u8 = 3;

/// What the program and the thread tell each other.
#[derive(Debug)]
pub(crate) struct Shift {
    state: AtomicU8,
    event: Arc<EventFd>,
    /// Turns that the program has driven.
    turns: AtomicU64,
    /// The thread that drove the last one.
    driver: AtomicI32,
    /// The program is going to sleep.
    leaving: AtomicBool,
    stop: AtomicBool,
}

impl Shift {
    pub(crate) fn new() -> io::Result<Shift> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let event = spare_standard(OwnedFd::from(event))?;
        Ok(Shift {
            state: AtomicU8::new(AWAKE),
            // SAFETY: it is what it was.
            event: Arc::new(unsafe { EventFd::from_owned_fd(event) }),
            turns: AtomicU64::new(0),
            driver: AtomicI32::new(0),
            leaving: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    /// The program drove a turn. Called with the lock of the card.
    #[inline]
    pub(crate) fn drove(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.driver.store(cpu::me(), Ordering::Relaxed);
    }

    /// There is something to do; whoever drives shall do it. Called with the lock of the card, under which the thread
    /// says that it goes to sleep: so either it sees what was done, or we see that it sleeps. Once is enough: it may be long
    /// until it runs, where the program has the core.
    #[inline]
    pub(crate) fn kick(&self) {
        if self.is_asleep() && self.state.compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.signal();
        }
    }

    /// Whether the thread sleeps (or is about to), so that nobody has looked at the clock for a while. Called with the lock
    /// of the card.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    /// The thread found nothing to do and is about to sleep. Called with the lock of the card.
    pub(crate) fn falls_asleep(&self) {
        self.state.store(ASLEEP, Ordering::Relaxed);
    }

    /// The program will not poll for a while.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != AWAKE {
            self.signal();
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.signal();
    }

    #[cold]
    fn signal(&self) {
        if self.state.load(Ordering::SeqCst) == ENDED {
            return;
        }
        let _whole = NoCancel::begin();
        // It can only fail when it is full, and then it is signalled.
        let _ = self.event.write(1);
    }

    /// The card has failed, perhaps because the program closed all descriptors: then this one may be a file of its own by now,
    /// and is neither written nor closed.
    fn ends(&self) {
        self.state.store(ENDED, Ordering::SeqCst);
        std::mem::forget(self.event.clone());
    }
}

/// The card has failed.
#[derive(Debug)]
pub(crate) struct Failed;

/// What came of a turn that the thread drove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// There may be more to do.
    Moved,
    /// There was nothing to do.
    Nothing,
    /// There was nothing to do, and whoever brings something will wake the thread; it may sleep so long, or for ever.
    Sleep(Option<Duration>),
}

/// How often to look after the program.
#[derive(Debug)]
struct Looks {
    /// How soon, after the program was away.
    first: Duration,
    next: Duration,
    /// The program was not seen to drive, and was given more time.
    waited: bool,
}

impl Looks {
    fn new() -> Looks {
        Looks { first: LOOK, next: LOOK, waited: false }
    }

    /// The program was away; it may have `run` since it drove last.
    fn away(&mut self, ran: bool) {
        // If it drove for no longer than that.
        let again = ran && self.next <= self.first * 2;
        let first = if again { (self.first / 2).max(SHORTEST_LOOK) } else { LOOK };
        *self = Looks { first, next: first, waited: false };
    }

    /// It drives: when to look again. Slowly less often, since many programs are away again soon.
    fn next(&mut self) -> Duration {
        let next = self.next;
        (self.next, self.waited) = ((next + next / 8).min(LONGEST_LOOK), false);
        next
    }

    /// It was not seen to drive. Once, if it had little time and may be waiting for a core: when to look again. If it computed
    /// instead, it may be seen to drive then, as long as that is; so it is trusted less nevertheless.
    fn wait(&mut self, cores_are_scarce: impl FnOnce() -> bool) -> Option<Duration> {
        self.waited = !self.waited && self.next < LONGEST_LOOK && cores_are_scarce();
        if self.waited {
            self.next = (self.next / 2).max(LOOK);
        }
        self.waited.then_some(LONGEST_LOOK)
    }
}

/// Runs until it is told to stop, or the card has failed.
pub(crate) fn run(pu: &Pu, readiness: Vec<OwnedFd>, wait: WaitMode) {
    let cores = Cores::new();
    cpu::be_punctual();
    if look_after(pu, &readiness, &cores, wait).is_err() {
        pu.shift.ends();
        pu.publish();
        // Their numbers may be those of the program's files by now, which must not be closed.
        std::mem::forget((readiness, cores));
    }
}

/// # Errors
/// The card has failed, and the program knows.
fn look_after(pu: &Pu, readiness: &[OwnedFd], cores: &Cores, wait: WaitMode) -> Result<(), Failed> {
    let shift = &pu.shift;
    let mut seen = shift.turns.load(Ordering::Relaxed);
    let mut published = Instant::now();
    let mut looks = Looks::new();
    // When the program was last seen to drive, and what its thread had had of a core.
    let mut trusted = (Instant::now(), None);
    let has_run = |(since, had): (Instant, Option<Duration>)| {
        let has = cpu::time_of(shift.driver.load(Ordering::Relaxed));
        had.zip(has).is_some_and(|(had, has)| has.saturating_sub(had) > since.elapsed() / 2)
    };
    // How long there has been nothing to do, while the thread drives.
    let mut idle: Option<Instant> = None;
    // When it was asked whether there is a core to spin on, and whether there was.
    let (mut asked, mut cores_suffice) = (Instant::now(), false);
    // Whoever polls hears of it, too.
    let cores_are_scarce = || {
        let scarce = cores.are_scarce();
        pu.cores_are_scarce.store(scarce, Ordering::Relaxed);
        scarce
    };
    while !shift.stop.load(Ordering::SeqCst) {
        let turns = shift.turns.load(Ordering::Relaxed);
        let left = shift.leaving.swap(false, Ordering::SeqCst);
        if published.elapsed() >= PUBLISH {
            published = Instant::now();
            pu.publish();
        }
        let mut ran = false;
        // How much longer the program is trusted to drive.
        let pause = if wait == WaitMode::Spin {
            (turns != seen).then_some(SPIN_LOOK)
        } else if left {
            None
        } else if turns != seen {
            let next = looks.next();
            if next >= LOOK {
                cores_are_scarce();
            }
            trusted = (Instant::now(), cpu::time_of(shift.driver.load(Ordering::Relaxed)));
            Some(next)
        } else if shift.state.load(Ordering::Relaxed) == PARKED {
            // It may wait for a core.
            ran = has_run(trusted);
            if ran { None } else { looks.wait(cores_are_scarce) }
        } else {
            None
        };
        if let Some(pause) = pause {
            seen = turns;
            shift.state.store(PARKED, Ordering::SeqCst);
            idle = None;
            if wait == WaitMode::Spin {
                spin(pause);
            } else if !shift.leaving.load(Ordering::SeqCst) && !shift.stop.load(Ordering::SeqCst) {
                sleep(pu, &[], Some(pause))?;
            }
            continue;
        }
        seen = turns;
        if shift.state.load(Ordering::Relaxed) == PARKED {
            looks.away(ran);
        }
        shift.state.store(AWAKE, Ordering::SeqCst);
        let may_sleep = match wait {
            WaitMode::Spin => false,
            WaitMode::Sleep => true,
            WaitMode::Adaptive { spin } => {
                if asked.elapsed() >= LONGEST_LOOK {
                    (asked, cores_suffice) = (Instant::now(), cores.suffice());
                }
                !cores_suffice || idle.is_some_and(|since| since.elapsed() >= spin)
            }
        };
        let mut timeout = match pu.drive(may_sleep)? {
            Turn::Moved => {
                idle = None;
                continue;
            }
            Turn::Nothing => {
                idle.get_or_insert_with(Instant::now);
                std::hint::spin_loop();
                continue;
            }
            Turn::Sleep(timeout) => timeout,
        };
        idle = None;
        if shift.stop.load(Ordering::SeqCst) {
            continue;
        }
        if pu.is_unpublished() {
            let due = PUBLISH.saturating_sub(published.elapsed());
            timeout = Some(timeout.map_or(due, |t| t.min(due)));
        }
        sleep(pu, readiness, timeout)?;
    }
    if pu.lock().upper.has_failed() { Err(Failed) } else { Ok(()) }
}

fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn sleep(pu: &Pu, readiness: &[OwnedFd], timeout: Option<Duration>) -> Result<(), Failed> {
    let shift = &pu.shift;
    let mut fds = Vec::with_capacity(4);
    fds.push(PollFd::new(shift.event.as_fd(), PollFlags::POLLIN));
    fds.extend(readiness.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
    let timeout = timeout.map(TimeSpec::from_duration);
    match ppoll(&mut fds, timeout, None) {
        Ok(_) if fds[0].any().unwrap_or(false) => _ = shift.event.read(),
        Ok(_) | Err(Errno::EINTR) => {}
        // The program has lowered the limit of descriptors (`RLIMIT_NOFILE`) below their number, as sandboxes do.
        Err(_) => std::thread::sleep(LOOK),
    }
    // One cannot sleep on it any more, and nothing else may tell.
    if fds.iter().any(|fd| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLNVAL))) {
        pu.lost_descriptor();
        return Err(Failed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::unit::tests::Lone;

    #[test]
    fn whoever_was_away_is_looked_after_more_often_for_a_while() {
        let mut looks = Looks::new();
        for _ in 0..2 {
            assert_eq!(looks.wait(|| false), None, "it would have driven");
            assert_eq!(
                (looks.wait(|| true), looks.wait(|| true)),
                (Some(LONGEST_LOOK), None),
                "more time is given once"
            );
            let pauses: Vec<_> = (0..100).map(|_| looks.next()).collect();
            assert!(pauses[0] == LOOK && pauses.is_sorted() && pauses[99] == LONGEST_LOOK);
            assert!(pauses[..5].iter().sum::<Duration>() < LOOK * 8, "not for a moment only");
            assert_eq!(looks.wait(|| unreachable!("nobody asks")), None, "it had enough");
            looks.away(false);
        }
    }

    #[test]
    fn whoever_runs_without_driving_is_looked_after_sooner_and_sooner() {
        let mut looks = Looks::new();
        for first in [200, 100, 50, 25, 20, 20].map(Duration::from_micros) {
            assert_eq!(looks.next(), first);
            looks.away(true);
        }
        // Until it drives for longer.
        while looks.next() < LOOK {}
        looks.away(true);
        assert_eq!(looks.next(), LOOK);
        looks.away(true);
        looks.away(false);
        assert_eq!(looks.next(), LOOK, "it may have waited");
    }

    #[test]
    fn whoever_is_away_in_every_look_but_the_long_ones_is_not_trusted() {
        let mut looks = Looks::new();
        for _ in 0..100 {
            assert!((0..5).all(|_| looks.next() < LOOK * 5), "it drives for a millisecond");
            assert!(looks.wait(|| true).is_some(), "and is away for three");
        }
    }

    #[test]
    fn whoever_polls_is_seen_to_drive_and_whoever_arms_to_leave() {
        let Lone { pu, cq, .. } = &Lone::new();
        let turns = || pu.shift.turns.load(Ordering::Relaxed);
        let before = turns();
        (0..3).for_each(|_| _ = pu.poll::<true>(*cq, &mut []));
        assert_eq!(turns(), before + 3);
        assert!(!pu.shift.leaving.load(Ordering::Relaxed));
        pu.arm(*cq).expect("it is there");
        assert!(pu.shift.leaving.load(Ordering::Relaxed));
    }

    /// Though the program has just driven.
    #[test]
    fn the_thread_takes_over_at_once_from_whoever_leaves() {
        let lone = Lone::new();
        let (pu, seen) = (lone.pu.clone(), Arc::new(AtomicU64::new(0)));
        let (in_turn, count) = (pu.clone(), seen.clone());
        *lone.world.in_turn.lock() = Some(Box::new(move || {
            let shift = &in_turn.shift;
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    shift.drove();
                    shift.leave();
                }
                _ => {
                    assert!(!shift.leaving.load(Ordering::Relaxed), "it left once");
                    shift.stop();
                }
            }
        }));
        run(&pu, Vec::new(), WaitMode::Sleep);
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        *lone.world.in_turn.lock() = None;
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let shift = Shift::new().expect("an event descriptor");
        shift.kick();
        assert!(shift.event.read().is_err(), "nobody sleeps");
        for _ in 0..2 {
            shift.falls_asleep();
            (0..3).for_each(|_| shift.kick());
            assert_eq!(shift.event.read(), Ok(1));
        }
    }
}
