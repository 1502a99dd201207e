//! What threads of this process have of the processors.

use std::cell::Cell;
use std::time::Duration;

use nix::libc;

/// The calling thread's number in the system.
#[inline]
pub(crate) fn me() -> i32 {
    thread_local!(static ME: Cell<i32> = const { Cell::new(0) });
    match ME.get() {
        0 => {
            let me = nix::unistd::gettid().as_raw();
            ME.set(me);
            me
        }
        me => me,
    }
}

/// Time for which a thread has run; `None` if it has ended. One that ended may have lent its number to another one.
pub(crate) fn time_of(thread: i32) -> Option<Duration> {
    // The clock of a thread's scheduler, CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED of linux/posix-timers.h.
    let clock = !thread << 3 | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for the call, which refuses clocks that are none.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    done.then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
}

/// Lets timeouts of the calling thread end when they are over, not up to 50 us later.
pub(crate) fn be_punctual() {
    // SAFETY: no memory is passed. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn threads_run_or_wait() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(me()).expect("somebody listens");
            ended.recv().expect_err("nothing is sent");
        });
        let other_id = told.recv().expect("it tells");
        assert_ne!(other_id, me());
        let before = [me(), other_id].map(time_of);
        let began = Instant::now();
        // However little this thread gets of a core: so much.
        while time_of(me()) < before[0].map(|t| t + Duration::from_millis(5)) {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        let rested = time_of(other_id).zip(before[1]).map(|(now, then)| now - then);
        assert!(rested.is_some_and(|t| t < Duration::from_millis(4)), "{rested:?}");
        drop(end);
        other.join().expect("no panic");
        assert_eq!(time_of(1 << 27), None, "there are no such numbers");
    }
}
