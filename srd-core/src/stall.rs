//! Lateness of our own host.

use crate::config::CheckedConfig;
use crate::time::{Span, Time};

/// Notices that this endpoint was not run when it wanted to be: then silence is nobody's fault but ours.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    /// Typical lateness of wake-ups, decaying.
    lateness: Span,
    /// When the last stall ended; zero before the first.
    pub(crate) stall_end: Time,
    /// Length of all stalls together.
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
        // What was due before the last stall ended is that stall, noticed again: no time is lost twice, or the clock that
        // stands meanwhile would run backwards and silence would have no bound.
        let late = now.since(due.max(self.stall_end));
        let threshold = (self.granularity(config) * 4).max(Span::from_millis(1));
        let stalled = late > threshold;
        if stalled {
            self.stall_end = now;
            self.lost = self.lost + late;
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

    #[test]
    fn no_time_is_lost_twice() {
        let config = Config::default().check().expect("valid");
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let mut watch = StallWatch::default();
        // What was due at 100 ms is only done after the third look.
        assert!(watch.notice(at(600), at(100), &config));
        assert!(!watch.notice(at(600), at(100), &config));
        assert!(watch.notice(at(900), at(100), &config));
        assert_eq!(watch.lost, Span::from_millis(800));
    }
}
