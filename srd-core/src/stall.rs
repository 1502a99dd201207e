//! Lateness of our own host.

use crate::config::CheckedConfig;
use crate::time::{Span, Time};

/// Runs of this endpoint that find a peer silent, however far apart, for it to be dead. Between two of them, peers had as many
/// chances to answer as between any others; one is not enough, since we may have stood still before we could ask.
const RUNS: u64 = 8;

/// Notices that this endpoint was not run when it wanted to be: then silence is nobody's fault but ours.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    /// Typical lateness of wake-ups, decaying.
    lateness: Span,
    /// When the last stall ended; zero before the first.
    pub(crate) stall_end: Time,
    /// Length of all stalls together, less what counts of each.
    pub(crate) lost: Span,
}

impl StallWatch {
    /// Never believe a granularity above this.
    const MAX_GRANULARITY: Span = Span::from_millis(5);

    /// Clock and scheduling granularity G, as configured or measured.
    pub(crate) fn granularity(&self, config: &CheckedConfig) -> Span {
        config.granularity.max(self.lateness).min(Self::MAX_GRANULARITY.max(config.granularity))
    }

    /// We run at `now`, before what was due at `due` is done. Says whether we were held up.
    pub(crate) fn notice(&mut self, now: Time, due: Time, config: &CheckedConfig) -> bool {
        // What was due before the last stall ended is that stall, noticed again: no time is lost twice.
        let late = now.since(due.max(self.stall_end));
        let granularity = self.granularity(config);
        let stalled = late > (granularity * 4).max(Span::from_millis(1));
        if stalled {
            self.stall_end = now;
            // A host that stood still for long knows no more of its peers than before. But one that is late every time
            // would never know enough: each of its runs counts for something, so that silence has a bound.
            self.lost = self.lost + (late - config.peer_timeout / RUNS);
            // One stall is no habit; some in a row are.
            self.lateness = granularity * 2;
        }
        stalled
    }

    /// What was due at `due` is done at `now`: measures by how much we are usually late.
    pub(crate) fn woke(&mut self, now: Time, due: Time) {
        let late = now.since(due.max(self.stall_end));
        self.lateness = if late > self.lateness { late } else { self.lateness - self.lateness / 1024 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn no_time_is_lost_twice() {
        let config = Config { peer_timeout: Span::from_millis(80), ..Config::default() }.check().expect("valid");
        let mut watch = StallWatch::default();
        // What was due at 100 ms is only done after the third look.
        assert!(watch.notice(at(600), at(100), &config));
        assert!(!watch.notice(at(600), at(100), &config));
        assert!(watch.notice(at(900), at(100), &config));
        // Of each stall an eighth of the peer timeout counts.
        assert_eq!(watch.lost, Span::from_millis(490 + 290));
    }

    #[test]
    fn a_habit_of_being_late_is_granularity_and_one_stall_is_not() {
        let config = Config::default().check().expect("valid");
        let mut watch = StallWatch::default();
        assert!(watch.notice(at(600), at(100), &config));
        assert!(watch.granularity(&config) <= config.granularity * 2);
        let stalls = (7..100).filter(|i| watch.notice(at(i * 100), at(i * 100 - 10), &config)).count();
        assert!(stalls < 5, "{stalls} times late by 10 ms");
        assert!(watch.granularity(&config) >= Span::from_micros(2500), "{}", watch.granularity(&config));
    }
}
