//! Measures how late this machine lets threads run, so that its own noise is not blamed on the network.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that asks to be woken every millisecond.
#[derive(Debug)]
pub(crate) struct Watch {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const TICK: Duration = Duration::from_millis(1);

impl Watch {
    pub(crate) fn start() -> Watch {
        let (late, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (book, end) = (Arc::clone(&late), Arc::clone(&is_over));
        let run = move || {
            while !end.load(Ordering::Relaxed) {
                let due = Instant::now() + TICK;
                std::thread::sleep(TICK);
                let now = Instant::now();
                book.lock().expect("nobody panics with it").push((now, now - due));
            }
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(run).expect("a thread");
        Watch { late, is_over, thread: Some(thread) }
    }

    /// The latest wake-up between two points in time.
    pub(crate) fn lateness(&self, from: Instant, to: Instant) -> Duration {
        let late = self.late.lock().expect("nobody panics with it");
        late.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, late)| *late).max().unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
