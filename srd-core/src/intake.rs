//! How much of its link this host keeps up with.
//!
//! A host that is slower than its link leaves packets unread when it looks. Those that it reads as soon as it looks make no
//! queue, however rarely that is: a program may poll now and then, or not have been scheduled. So a packet has waited for as
//! long as it had when the host looked the time before, and the speed of the host is that of the time in between: it was busy.

use crate::time::{Span, Time};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Intake {
    /// Part of the link to give out, 0.0..=1.0, and the part that the host took in when it was last too slow.
    capacity: f64,
    speed: f64,
    /// Packets that wait longer than this to be read are queued.
    patience: Span,
    /// When packets were last read, and when the time before.
    turn: Time,
    before: Time,
    /// How long the oldest of this turn had waited in the one before, and the least of this over the period.
    waited: Option<Span>,
    least: Option<Span>,
    /// Bytes of this turn; of turns that ended in this period, and how long it took until the next.
    bytes: u64,
    taken: u64,
    busy: Span,
}

/// A standing queue of so many patiences halves what is given out.
const LONG_QUEUE: f64 = 8.0;
/// What is given out grows by this part per period while nothing waits.
const RECOVERY: f64 = 1.0 / 64.0;

impl Intake {
    pub(crate) fn new(patience: Span, now: Time) -> Intake {
        Intake {
            capacity: 1.0,
            speed: 0.0,
            patience,
            turn: now,
            before: now,
            waited: None,
            least: None,
            bytes: 0,
            taken: 0,
            busy: Span::ZERO,
        }
    }

    /// Part of the link to give out.
    pub(crate) fn capacity(&self) -> f64 {
        self.capacity
    }

    /// A packet was read at `now` that arrived at the host at `at`.
    pub(crate) fn read(&mut self, now: Time, at: Time) {
        if self.turn != now {
            self.end_turn();
            (self.before, self.turn) = (self.turn, now);
            self.busy = self.busy + now.since(self.before);
            self.taken += std::mem::take(&mut self.bytes);
        }
        let waited = self.before.since(at);
        self.waited = Some(self.waited.map_or(waited, |w| w.max(waited)));
    }

    /// It takes this many bytes of the link, with headers.
    pub(crate) fn took(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// All that was read at one time has been seen.
    fn end_turn(&mut self) {
        if let Some(waited) = self.waited.take() {
            self.least = Some(self.least.map_or(waited, |l| l.min(waited)));
        }
    }

    /// A period is over, or several since there was one with packets, on a link of `rate` bytes per second.
    pub(crate) fn judge(&mut self, rate: u64, periods: u64) {
        self.end_turn();
        let waited = self.least.take().unwrap_or(Span::ZERO);
        let (taken, busy) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.busy));
        let excess = waited.as_secs_f64() / self.patience.as_secs_f64() - 1.0;
        if excess > 0.0 && taken > 0 {
            self.speed = taken as f64 / busy.as_secs_f64() / rate as f64;
            let drained = self.speed * (1.0 - 0.5 * (excess / LONG_QUEUE).min(1.0));
            self.capacity = self.capacity.min(drained.max(self.capacity / 2.0));
        } else {
            // What was less than that was for the queue, which is gone.
            let grown = self.capacity.max(self.speed) * (1.0 + RECOVERY * periods.min(64) as f64);
            self.capacity = grown.min(1.0);
        }
    }
}
