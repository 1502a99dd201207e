//! A bar on standard error for whatever takes longer than two seconds, if somebody is there to see it.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};
use srd::{Span, Time};

/// A progress bar over time or over a count. Draws nothing when standard error is no terminal or the work is short.
pub(crate) struct Progress {
    bar: ProgressBar,
    next: Time,
}

/// Bars for less than this only flicker.
const WORTH_A_BAR: Span = Span::from_secs(2);
/// Time between two looks at the bar.
const TICK: Span = Span::from_millis(100);

impl Progress {
    /// A bar that is full at `total`; `expected` is how long that will take.
    pub(crate) fn new(total: u64, expected: Span) -> Progress {
        let bar = if expected > WORTH_A_BAR && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        Progress { bar, next: Time::ZERO }
    }

    /// Whether it is time for the next [`set`](Self::set).
    pub(crate) fn due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Shows `done` of the total and a short text.
    pub(crate) fn set(&mut self, now: Time, done: u64, text: impl FnOnce() -> String) {
        self.next = now + TICK;
        if !self.bar.is_hidden() {
            self.bar.set_position(done);
            self.bar.set_message(text());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
