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

    /// We run at `now` and wanted to at `due`. Says whether that was a stall.
    pub(crate) fn woke(&mut self, now: Time, due: Time, config: &CheckedConfig) -> bool {
        let late = now.since(due);
        let threshold = (self.granularity(config) * 4).max(Span::from_millis(1));
        if late > threshold {
            self.stall_end = now;
            self.lost = self.lost + late;
            return true;
        }
        self.lateness = if late > self.lateness { late } else { self.lateness - self.lateness / 1024 };
        false
    }
}
