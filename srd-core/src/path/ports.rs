//! The source ports that a connection draws from, and those that it has given up: they rest, and are tried again.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::driver::SourcePort;
use crate::time::{Span, Time};

/// A source port that was given up, and is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retired {
    pub(super) port: SourcePort,
    until: Time,
    /// How often it has been given up in a row.
    pub(super) failures: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Ports {
    pool: u16,
    retired: Vec<Retired>,
    next_revival: Time,
}

/// First rest of a source port that was given up; doubles with each failure. Long against rerouting in the fabric.
const QUARANTINE: Span = Span::from_secs(1);
/// Retired ports are tried again at most this often, so that a spine that is still dead costs little.
pub(super) const REVIVAL_PAUSE: Span = Span::from_millis(20);
/// Draws after which no port is taken to be free.
const DRAWS: u32 = 32;

impl Ports {
    /// The ports below `pool`.
    pub(super) fn new(pool: u16) -> Ports {
        Ports { pool, retired: Vec::new(), next_revival: Time::ZERO }
    }

    /// A port that is neither in use nor resting, if there is one to spare.
    pub(super) fn draw(&self, rng: &mut Xoshiro256PlusPlus, in_use: impl Fn(SourcePort) -> bool) -> Option<SourcePort> {
        (0..DRAWS)
            .map(|_| SourcePort(rng.random_range(0..self.pool)))
            .find(|&p| !in_use(p) && self.retired.iter().all(|r| r.port != p))
    }

    /// The port has failed for so many times in a row, and rests.
    pub(super) fn retire(&mut self, port: SourcePort, failures: u32, now: Time) {
        self.retired.push(Retired { port, until: now + QUARANTINE * (1 << failures.min(7)) / 2, failures });
    }

    /// Whether it is time to look for a port whose rest is over.
    pub(super) fn may_revive(&self, now: Time) -> bool {
        !self.retired.is_empty() && now >= self.next_revival
    }

    /// The place of a port whose rest is over, for [`take`](Self::take). It is not looked for again for a while.
    pub(super) fn find_rested(&mut self, now: Time) -> Option<usize> {
        self.next_revival = now + REVIVAL_PAUSE;
        self.retired.iter().position(|r| r.until <= now)
    }

    /// The port at this place is in use again.
    pub(super) fn take(&mut self, place: usize) -> Retired {
        self.retired.swap_remove(place)
    }
}
