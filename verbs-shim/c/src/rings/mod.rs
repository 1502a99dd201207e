//! Rings: queue pairs and completion queues that a program uses without calling anybody.
//!
//! Programs (libfabric's "data path direct") may ask where the queues of a device are, and write their requests and read their
//! completions there themselves. What is a device's work then is done by a thread: it looks at the doorbells, posts what
//! stands in the rings, and moves completions from the card to theirs. For the card it is a program that polls.
//!
//! Nothing tells of a doorbell, which is a word in memory. So the thread looks all the time while anything happens, and after
//! that more and more rarely.
//!
//! A ring is made when the program asks for it. A completion queue is polled by its ring as soon as one of its queue pairs has
//! been used by its rings, or may complete what was never posted (unsolicited writes), and by functions until then.

mod layout;
mod pair;
mod queue;
mod ring;

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbs_shim::lock::Mutex;
use verbs_shim::{CqId, Nic, deaf};

use self::pair::Pair;
use self::queue::Queue;
pub(crate) use self::ring::Place;
use crate::cq::Cq;
use crate::errno::{EAGAIN, Errno};
use crate::qp::Qp;

/// How long the thread looks without pause after something happened.
const SPIN: Duration = Duration::from_micros(100);
/// Its pauses after that: the first one, and the longest.
const PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// The rings of a card.
pub(crate) struct Rings {
    shared: Arc<Shared>,
    nic: Arc<Nic>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    all: Mutex<All>,
    /// Calls that wait for the lock: the thread lets them have it.
    callers: AtomicUsize,
    stop: AtomicBool,
}

#[derive(Default)]
struct All {
    pairs: Vec<Pair>,
    queues: Vec<Queue>,
}

impl All {
    /// There is another ring.
    fn expect_unsolicited(&mut self) {
        self.pairs.iter().for_each(|pair| pair.expect_unsolicited(&mut self.queues));
    }
}

impl Rings {
    pub(crate) fn new(nic: Arc<Nic>) -> Rings {
        Rings { shared: Arc::default(), nic, thread: Mutex::default() }
    }

    /// The ring of a completion queue.
    ///
    /// # Errors
    /// `EAGAIN`: there cannot be a thread.
    pub(crate) fn of_cq(&self, cq: &Cq, depth: usize, is_wide: bool) -> Result<Place, Errno> {
        self.with_thread(|all| match all.queues.iter().find(|queue| queue.cq == cq.id) {
            Some(queue) => queue.place(),
            None => {
                let queue = Queue::new(cq, depth, is_wide);
                let place = queue.place();
                all.queues.push(queue);
                all.expect_unsolicited();
                place
            }
        })
    }

    /// The rings of a queue pair: of sends and of receives.
    ///
    /// # Errors
    /// `EAGAIN`: there cannot be a thread.
    pub(crate) fn of_qp(&self, qp: &Qp) -> Result<(Place, Place), Errno> {
        self.with_thread(|all| match all.pairs.iter().find(|pair| pair.qpn == qp.qpn) {
            Some(pair) => pair.places(),
            None => {
                let pair = Pair::new(qp);
                let places = pair.places();
                all.pairs.push(pair);
                all.expect_unsolicited();
                places
            }
        })
    }

    /// Runs what destroys a completion queue; if it does, its ring goes, too.
    pub(crate) fn without_cq<E>(&self, cq: CqId, destroy: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.locked(|all| destroy().inspect(|()| all.queues.retain(|queue| queue.cq != cq)))
    }

    /// Runs what destroys a queue pair; if it does, its rings go, too.
    pub(crate) fn without_qp<E>(&self, qpn: u16, destroy: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.locked(|all| destroy().inspect(|()| all.pairs.retain(|pair| pair.qpn != qpn)))
    }

    /// Runs what resets a queue pair; if it does, its rings begin anew.
    pub(crate) fn reset_qp<E>(&self, qpn: u16, reset: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.locked(|all| {
            reset().inspect(|()| all.pairs.iter_mut().filter(|pair| pair.qpn == qpn).for_each(Pair::reset))
        })
    }

    /// The program wants to hear of the next entry of a completion queue. Says whether it polls it by its ring.
    pub(crate) fn arm(&self, cq: CqId) -> bool {
        self.locked(|all| match all.queues.iter_mut().find(|queue| queue.cq == cq) {
            Some(queue) => {
                queue.arm();
                queue.is_used
            }
            None => false,
        })
    }

    /// Ends the thread. There are no rings any more, or nobody uses them.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            // It ended by a panic, which has been reported.
            let _ = thread.join();
        }
    }

    /// Runs something that makes rings, for which there must be a thread.
    fn with_thread<R>(&self, run: impl FnOnce(&mut All) -> R) -> Result<R, Errno> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, nic) = (self.shared.clone(), self.nic.clone());
            *thread = Some(deaf::spawn("srd-rings", move || serve(&shared, &nic)).map_err(|error| {
                tracing::error!("cannot start the thread of rings: {error}");
                EAGAIN
            })?);
        }
        let outcome = run(&mut self.shared.lock());
        // It sleeps while there is none.
        thread.iter().for_each(|thread| thread.thread().unpark());
        Ok(outcome)
    }

    fn locked<R>(&self, run: impl FnOnce(&mut All) -> R) -> R {
        run(&mut self.shared.lock())
    }
}

impl Shared {
    fn lock(&self) -> impl DerefMut<Target = All> + '_ {
        let _caller = Caller::new(&self.callers);
        self.all.lock()
    }
}

/// A call that waits for the lock, or has given up to.
struct Caller<'a>(&'a AtomicUsize);

impl Caller<'_> {
    fn new(callers: &AtomicUsize) -> Caller<'_> {
        callers.fetch_add(1, Ordering::Relaxed);
        Caller(callers)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread.
fn serve(shared: &Shared, nic: &Nic) {
    let (mut moved_at, mut pause) = (Instant::now(), PAUSE);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut all = shared.all.lock();
        let All { pairs, queues } = &mut *all;
        let mut moved = false;
        pairs.iter_mut().for_each(|pair| moved |= pair.serve(nic, queues));
        queues.iter_mut().for_each(|queue| moved |= queue.serve(nic));
        let is_idle = pairs.is_empty() && queues.is_empty();
        drop(all);
        while shared.callers.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        if is_idle {
            std::thread::park();
        } else if moved {
            (moved_at, pause) = (Instant::now(), PAUSE);
        } else if moved_at.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
