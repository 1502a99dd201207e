//! A mutex that costs nearly nothing to the thread that always takes it.
//!
//! A program that posts and polls from one thread takes several locks for each work request, and nobody contends for them: the
//! card's thread takes over only while the program is away. Two atomic read-modify-writes for each are still a sixth of a
//! sender's time by samples, and 3 % of its rate. So a thread that has taken a lock often in a row becomes its owner and enters
//! with plain stores and loads. Whoever else comes ends that first, with a barrier in all threads of the process that they do
//! not have to ask for: membarrier(2), `MEMBARRIER_CMD_PRIVATE_EXPEDITED`. Where the system refuses that, no thread ever becomes
//! an owner.
//!
//! A signal handler may interrupt a thread that is inside, and call us again, often by exit(3). It would wait for itself for
//! ever, so it is told: [`Interrupted`].

use std::cell::Cell;
use std::panic::resume_unwind;
use std::ptr::{from_ref, null};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use nix::libc;
use parking_lot::lock_api::{self, GuardNoSend};

use crate::cancel;

/// A mutex over [`RawMutex`].
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// What [`Mutex::lock`] returns.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// A guard of a part of what the mutex has.
pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, RawMutex, T>;

/// What [`Mutex::lock`] unwinds with if the calling thread is inside already. No defect, so nothing is printed.
#[derive(Debug)]
pub struct Interrupted;

/// The lock itself. Not re-entrant.
pub struct RawMutex {
    /// The seat of the thread that may enter by it alone, or [`NONE`]. Written with `shared` held.
    owner: AtomicUsize,
    /// The seat by which whoever is inside came; [`NONE`] if it holds `shared`. Accessed by whoever is inside.
    came_by: AtomicUsize,
    seats: [Seat; SEATS],
    /// Taken by all others.
    shared: parking_lot::RawMutex,
    /// Who took `shared` last, with [`STILL`] until it gives it back, and how often in a row before. Written with `shared` held.
    last: AtomicUsize,
    streak: AtomicU32,
}

/// The seat of a thread that was the owner once. It has it for ever: a thread that has found itself to be the owner may lose its
/// core before it says that it is inside, and somebody else may be the owner when it gets one. What it says then, and takes
/// back, must not be said of that one.
struct Seat {
    /// The thread, 0 for none. Written once.
    of: AtomicUsize,
    /// It is inside, or is looking whether it may be. Written by itself.
    inside: AtomicBool,
}

/// Threads that can be owners of a lock.
const SEATS: usize = 4;
/// Number of no seat.
const NONE: usize = usize::MAX;

/// Numbers of threads are even.
const STILL: usize = 1;

/// A thread that has taken the lock so often in a row becomes its owner. What an end of that costs, a system call that interrupts
/// other cores (10 us), is then small beside what was saved.
const STREAK: u32 = 10_000;

thread_local! {
    /// The lock whose `shared` this thread takes or gives back just now: it may have it, whatever `last` says, and must not ask
    /// for it again meanwhile.
    static PASSING: Cell<*const RawMutex> = const { Cell::new(null()) };
}

impl RawMutex {
    /// Enters if this thread is the owner and is not inside already.
    #[inline]
    fn enter_as_owner(&self) -> bool {
        self.own_seat().is_some_and(|number| self.sit_down(number))
    }

    /// The number of this thread's seat, if it is the owner's and empty.
    #[inline]
    fn own_seat(&self) -> Option<usize> {
        let number = self.owner.load(Ordering::Relaxed);
        let seat = self.seats.get(number)?;
        (seat.of.load(Ordering::Relaxed) == me() && !seat.inside.load(Ordering::Relaxed)).then_some(number)
    }

    /// Enters by this thread's seat if it is the owner's still.
    #[inline]
    fn sit_down(&self, number: usize) -> bool {
        let inside = &self.seats[number].inside;
        inside.store(true, Ordering::Relaxed);
        // The processor may let the load overtake the store; whoever ends our ownership sees to that.
        compiler_fence(Ordering::SeqCst);
        if self.owner.load(Ordering::Acquire) == number {
            self.came_by.store(number, Ordering::Relaxed);
            return true;
        }
        inside.store(false, Ordering::Release);
        false
    }

    /// Whether the calling thread is inside.
    fn is_inside(&self) -> bool {
        let me = me();
        let sits = |seat: &Seat| seat.of.load(Ordering::Relaxed) == me && seat.inside.load(Ordering::Relaxed);
        self.seats.iter().any(sits) || self.last.load(Ordering::Relaxed) == me | STILL
    }

    /// Whether anybody is inside by its seat.
    fn anyone_sits(&self) -> bool {
        self.seats.iter().any(|seat| seat.inside.load(Ordering::Acquire))
    }

    /// Runs what takes `shared` or gives it back.
    #[inline]
    fn passing<T>(&self, run: impl FnOnce() -> T) -> T {
        PASSING.with(|passing| {
            let before = passing.replace(from_ref(self));
            compiler_fence(Ordering::SeqCst);
            let done = run();
            compiler_fence(Ordering::SeqCst);
            passing.set(before);
            done
        })
    }

    /// Whether the calling thread is inside or [`passing`](Self::passing): then it is a signal handler that asks.
    fn is_here(&self) -> bool {
        self.is_inside() || PASSING.get() == from_ref(self)
    }

    /// Ends the ownership of another thread, if there is one; called with `shared` held. Afterwards nobody enters without it, but
    /// who was the owner may be inside still.
    #[inline]
    fn disown(&self) {
        if self.owner.load(Ordering::Relaxed) != NONE {
            self.owner.store(NONE, Ordering::Relaxed);
            // Either the owner sees the store above, or it had sat down before, which we will see.
            barrier();
        }
    }

    /// Counts; called with `shared` held and nobody inside.
    #[inline]
    fn count(&self) {
        let me = me();
        let streak = if self.last.load(Ordering::Relaxed) == me { self.streak.load(Ordering::Relaxed) + 1 } else { 0 };
        self.last.store(me | STILL, Ordering::Relaxed);
        self.streak.store(streak, Ordering::Relaxed);
    }

    /// Makes the calling thread the owner, if there is a seat for it; called with `shared` held, by whoever leaves: while it was
    /// inside without its seat, nothing would have kept it from entering by that as well.
    #[cold]
    fn own(&self) {
        self.streak.store(0, Ordering::Relaxed);
        if !*HAS_BARRIER {
            return;
        }
        let of = |thread| self.seats.iter().position(|seat| seat.of.load(Ordering::Relaxed) == thread);
        let me = me();
        if let Some(number) = of(me).or_else(|| of(0)) {
            self.seats[number].of.store(me, Ordering::Relaxed);
            self.owner.store(number, Ordering::Relaxed);
        }
    }
}

// SAFETY: whoever is inside either came as the owner, and then its seat says so, or holds `shared`. A holder of `shared` unmakes
// the owner and waits until all seats are empty before it is inside itself, and until it leaves nobody is the owner. Whoever
// sits down then, since it was the owner when it looked, finds that it is not.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: RawMutex = RawMutex {
        owner: AtomicUsize::new(NONE),
        came_by: AtomicUsize::new(NONE),
        seats: [const { Seat { of: AtomicUsize::new(0), inside: AtomicBool::new(false) } }; SEATS],
        shared: <parking_lot::RawMutex as lock_api::RawMutex>::INIT,
        last: AtomicUsize::new(0),
        streak: AtomicU32::new(0),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.enter_as_owner() {
            return;
        }
        if self.is_here() {
            refuse();
        }
        self.passing(|| {
            self.shared.lock();
            self.disown();
            for tries in 0.. {
                if !self.anyone_sits() {
                    break;
                }
                wait(tries);
            }
            self.count();
        });
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if self.enter_as_owner() {
            return true;
        }
        self.passing(|| {
            if !self.shared.try_lock() {
                return false;
            }
            self.disown();
            if self.anyone_sits() {
                // SAFETY: it was locked above.
                unsafe { self.shared.unlock() };
                return false;
            }
            self.count();
            true
        })
    }

    #[inline]
    unsafe fn unlock(&self) {
        let number = self.came_by.load(Ordering::Relaxed);
        if let Some(seat) = self.seats.get(number) {
            self.came_by.store(NONE, Ordering::Relaxed);
            seat.inside.store(false, Ordering::Release);
            return;
        }
        self.passing(|| {
            if self.streak.load(Ordering::Relaxed) == STREAK {
                self.own();
            }
            self.last.store(self.last.load(Ordering::Relaxed) & !STILL, Ordering::Relaxed);
            // SAFETY: whoever did not come as the owner holds it.
            unsafe { self.shared.unlock() };
        });
    }
}

/// Takes the lock if that is possible within a time; what the calling thread has itself, it does not wait for.
pub fn try_lock_for<T>(mutex: &Mutex<T>, time: Duration) -> Option<MutexGuard<'_, T>> {
    let began = Instant::now();
    loop {
        if let Some(guard) = mutex.try_lock() {
            return Some(guard);
        }
        if is_held_here(mutex) || began.elapsed() >= time {
            return None;
        }
        cancel::sleep(Duration::from_micros(100));
    }
}

/// Whether the calling thread has locked it, or is about to, or about to unlock it: then it is a signal handler that asks.
pub fn is_held_here<T>(mutex: &Mutex<T>) -> bool {
    // SAFETY: it is not unlocked.
    unsafe { mutex.raw() }.is_here()
}

/// Unwinds like [`Mutex::lock`] of what the calling thread has locked, if so.
#[inline]
pub fn refuse_if(is_held_here: bool) {
    if is_held_here {
        refuse();
    }
}

#[cold]
fn refuse() -> ! {
    resume_unwind(Box::new(Interrupted))
}

/// A number that only this thread has, while it lives; not 0, and even.
#[inline]
pub fn me() -> usize {
    // SAFETY: it has no conditions.
    (unsafe { libc::pthread_self() }) as usize
}

/// Waits a little for somebody who is inside: a turn of the card takes tens of microseconds, and may be off its core.
#[cold]
fn wait(tries: u32) {
    match tries {
        0..100 => std::hint::spin_loop(),
        100..110 => std::thread::yield_now(),
        _ => cancel::sleep(Duration::from_micros(50)),
    }
}

/// Asks the system for the barrier, once. It may take milliseconds where the process has several threads already; if nobody did it
/// before, the first thread that might become an owner does.
pub fn prepare() {
    LazyLock::force(&HAS_BARRIER);
}

/// Whether [`barrier`] can be had.
static HAS_BARRIER: LazyLock<bool> = LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));

/// A memory barrier in all threads of the process.
#[cold]
fn barrier() {
    if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // It was there, and somebody has forbidden it since. No processor keeps a store to itself for that long.
        cancel::sleep(Duration::from_millis(1));
    }
}

/// See membarrier(2).
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: it takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};
    use std::thread;

    use super::*;

    impl RawMutex {
        fn is_mine(&self) -> bool {
            let owner = self.seats.get(self.owner.load(Ordering::Relaxed));
            owner.is_some_and(|seat| seat.of.load(Ordering::Relaxed) == me())
        }
    }

    /// A lock that this thread owns as soon as it leaves it again, if that is possible here at all.
    fn nearly_owned() -> Mutex<u64> {
        let mutex = Mutex::new(0);
        for _ in 0..STREAK {
            *mutex.lock() += 1;
        }
        mutex
    }

    /// The same once it has left it.
    fn owned() -> Mutex<u64> {
        let mutex = nearly_owned();
        *mutex.lock() += 1;
        mutex
    }

    fn raw<T>(mutex: &Mutex<T>) -> &RawMutex {
        // SAFETY: nothing here unlocks what it has not locked.
        unsafe { mutex.raw() }
    }

    #[test]
    fn the_one_who_always_takes_it_becomes_the_owner() {
        let mutex = owned();
        assert_eq!(raw(&mutex).is_mine(), *HAS_BARRIER);
        assert_eq!(*mutex.lock(), u64::from(STREAK) + 1);
        thread::scope(|scope| {
            scope.spawn(|| *mutex.lock() += 1);
        });
        assert!(!raw(&mutex).is_mine(), "another one came");
        (0..=STREAK).for_each(|_| *mutex.lock() += 1);
        assert_eq!(raw(&mutex).is_mine(), *HAS_BARRIER, "and did not come again");
    }

    #[test]
    fn two_in_turn_never_own_it() {
        let (mutex, turn) = (Mutex::new(0), Barrier::new(2));
        thread::scope(|scope| {
            for k in 0..2 {
                let (mutex, turn) = (&mutex, &turn);
                scope.spawn(move || {
                    for n in 0..2 * STREAK {
                        if n % 2 == k {
                            *mutex.lock() += 1;
                        }
                        turn.wait();
                        assert!(!raw(mutex).is_mine());
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 2 * STREAK);
    }

    #[test]
    fn nobody_enters_while_the_owner_is_inside() {
        let mutex = owned();
        let mut guard = mutex.lock();
        assert!(mutex.try_lock().is_none(), "not even the owner");
        let (tell, told) = mpsc::channel();
        let other = thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(mutex.try_lock().is_none());
                tell.send(()).expect("somebody listens");
                *mutex.lock()
            });
            *guard = 7;
            told.recv().expect("the other one has tried");
            *guard = 8;
            drop(guard);
            other.join().unwrap()
        });
        assert_eq!(other, 8);
    }

    #[test]
    fn who_is_inside_is_told_instead_of_waiting_for_itself() {
        let refused = |mutex: &Mutex<u64>| {
            let panic =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *mutex.lock())).expect_err("it is held");
            panic.is::<Interrupted>() && is_held_here(mutex) && try_lock_for(mutex, Duration::MAX).is_none()
        };
        for mutex in [Mutex::new(0), nearly_owned(), owned()] {
            let guard = mutex.lock();
            assert!(refused(&mutex));
            thread::scope(|scope| {
                let other = scope.spawn(|| (is_held_here(&mutex), try_lock_for(&mutex, Duration::ZERO).is_none()));
                assert_eq!(other.join().unwrap(), (false, true));
            });
            assert!(refused(&mutex), "nor if it came as the owner and is none any more");
            drop(guard);
            assert!(!is_held_here(&mutex));
            assert!(try_lock_for(&mutex, Duration::ZERO).is_some());
        }
    }

    /// It takes long between two instructions, because it has no core.
    #[test]
    fn who_was_the_owner_when_it_looked_disturbs_nobody_who_is_it_now() {
        let mutex = owned();
        let Some(number) = raw(&mutex).own_seat() else { return assert!(!*HAS_BARRIER) };
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (mutex, end) = (&mutex, end);
            scope.spawn(move || {
                (0..=STREAK).for_each(|_| *mutex.lock() += 1);
                let guard = mutex.lock();
                tell.send(raw(mutex).is_mine()).expect("somebody listens");
                ended.recv().expect_err("nothing is sent");
                drop(guard);
            });
            assert!(told.recv().expect("it tells"), "the other one is the owner, and inside");
            assert!(!raw(mutex).sit_down(number));
            assert!(mutex.try_lock().is_none());
            drop(end);
        });
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn no_more_threads_than_there_are_seats_become_owners() {
        let mutex = Mutex::new(0);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            // They live on, or the number of one were that of the next.
            let mut ends = Vec::new();
            for k in 0..=SEATS {
                let (mutex, tell) = (&mutex, tell.clone());
                let (end, ended) = mpsc::channel::<()>();
                ends.push(end);
                scope.spawn(move || {
                    (0..=STREAK).for_each(|_| *mutex.lock() += 1);
                    tell.send(raw(mutex).is_mine()).expect("somebody listens");
                    ended.recv().expect_err("nothing is sent");
                });
                assert_eq!(told.recv(), Ok(k < SEATS && *HAS_BARRIER));
            }
            drop(ends);
        });
    }

    #[test]
    fn who_is_on_its_way_is_not_made_to_wait_for_itself() {
        let mutex = Mutex::new(0);
        raw(&mutex).passing(|| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(mutex.lock())));
            assert!(outcome.is_err_and(|panic| panic.is::<Interrupted>()));
            assert_eq!(*Mutex::new(7).lock(), 7, "another one");
        });
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn nothing_is_lost_when_owners_are_disturbed() {
        const ENTRIES: u64 = 3_000_000;
        let mutex = Mutex::new((0u64, 0u64));
        let add = || {
            let mut guard = mutex.lock();
            guard.0 += 1;
            guard.1 += 1;
            assert_eq!(guard.0, guard.1);
        };
        let visits = thread::scope(|scope| {
            let busy = scope.spawn(|| (0..ENTRIES).for_each(|_| add()));
            let mut visits = 0;
            while !busy.is_finished() {
                // As soon as there is an owner, since its ways in and out are what can go wrong.
                if raw(&mutex).owner.load(Ordering::Relaxed) != NONE {
                    add();
                    visits += 1;
                }
            }
            visits
        });
        assert_eq!(mutex.lock().0, ENTRIES + visits);
    }
}
