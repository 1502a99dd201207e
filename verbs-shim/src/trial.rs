//! Finds out which of two ways is faster where nothing but trying tells them apart: the way that is not taken is tried for a
//! short while now and then. The other way is taken only where it is clearly faster than the first. A trial that fails is
//! repeated ever more rarely.

use srd_core::{Span, Time};

/// Steps of a stretch whose duration is compared: long against single hiccups, short against the phases of a program.
const STRETCH: u32 = 256;
/// Stretches of a trial. The other way has to be clearly faster in each of them, or the first is taken.
const TRIAL: u32 = 2;
/// Stretches until the first trial, and at the most between trials that fail: then they cost nothing to speak of.
const FIRST: u32 = 4;
const RAREST: u32 = 256;
/// What the other way may take of the time that the first takes, in percent: the rest is more than noise.
const CLEARLY: u64 = 90;
/// A way that becomes slower is believed so by this part of its time in each stretch: hiccups are forgotten before that.
const FORGET: u64 = 16;
/// By how many percent stretches differ that belong to different phases of a program. What was found out in one says nothing of
/// the other.
const PHASE: u64 = 50;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// Whether the other way is taken now.
    other: bool,
    /// Stretches that are left of a trial; 0 if there is none.
    trying: u32,
    /// Steps of this stretch, and since when.
    steps: u32,
    began: Time,
    /// What a step took in the fastest of the last stretches that were no trial; zero if there was none.
    usual: Span,
    /// Stretches until the next trial, and from there to the one after it if it fails.
    left: u32,
    pause: u32,
}

impl Trial {
    /// The first way is taken from now on.
    fn begin(now: Time, usual: Span) -> Trial {
        Trial { other: false, trying: 0, steps: 0, began: now, usual, left: FIRST, pause: FIRST }
    }

    /// Whether to go the other way.
    #[inline]
    pub(crate) fn is_other(&self) -> bool {
        self.other
    }

    /// So many steps were done by now.
    #[inline]
    pub(crate) fn advance(&mut self, steps: u32, now: Time) {
        self.steps += steps;
        if self.steps >= STRETCH {
            let step = now.since(self.began) / u64::from(self.steps);
            (self.began, self.steps) = (now, 0);
            self.judge(now, step);
        }
    }

    /// A stretch is over in which a step took so long.
    fn judge(&mut self, now: Time, step: Span) {
        if self.trying > 0 {
            self.trying -= 1;
            let (first, other) = if self.other { (self.usual, step) } else { (step, self.usual) };
            let is_faster = other * 100 < first * CLEARLY;
            if !is_faster || self.trying == 0 {
                self.end_trial(is_faster == self.other, step);
            }
            return;
        }
        let (less, more) = (self.usual.min(step), self.usual.max(step));
        if more * 100 > less * (100 + PHASE) {
            *self = Trial::begin(now, step);
            return;
        }
        self.usual = step.min(self.usual + self.usual / FORGET);
        self.left -= 1;
        if self.left == 0 {
            (self.trying, self.other) = (TRIAL, !self.other);
        }
    }

    /// A trial is over, and what was tried is `kept` or not.
    fn end_trial(&mut self, kept: bool, step: Span) {
        if kept {
            (self.pause, self.usual) = (FIRST, step);
        } else {
            self.other = !self.other;
            self.pause = (2 * self.pause).min(RAREST);
        }
        (self.trying, self.left) = (0, self.pause);
    }
}

impl Default for Trial {
    fn default() -> Trial {
        Trial::begin(Time::ZERO, Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs stretches whose steps take what `cost` says, given the number of the stretch and whether the other way is taken, in
    /// nanoseconds. Returns in which of them it was.
    fn run(trial: &mut Trial, now: &mut Time, stretches: u64, cost: impl Fn(u64, bool) -> u64) -> Vec<bool> {
        let stretch = |n| {
            let other = trial.is_other();
            for _ in 0..STRETCH {
                *now += Span::from_nanos(cost(n, other));
                trial.advance(1, *now);
            }
            other
        };
        (0..stretches).map(stretch).collect()
    }

    fn fresh() -> (Trial, Time) {
        (Trial::default(), Time::ZERO + Span::from_secs(5))
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        let (mut trial, mut now) = fresh();
        let ways = run(&mut trial, &mut now, 100, |_, other| if other { 800 } else { 1000 });
        assert!(ways[..4].iter().all(|other| !other), "nothing is known at first");
        assert!(ways.iter().filter(|&&other| other).count() > 75, "{ways:?}");
        // It ceases to be faster.
        let ways = run(&mut trial, &mut now, 200, |_, other| if other { 1100 } else { 900 });
        assert!(ways[100..].iter().filter(|&&other| other).count() < 10, "{ways:?}");
    }

    #[test]
    fn where_it_makes_no_difference_it_is_tried_ever_more_rarely() {
        let (mut trial, mut now) = fresh();
        let noise = |n: u64, _| 1000 + n * 7 % 50;
        let ways = run(&mut trial, &mut now, 3000, noise);
        let tried = |ways: &[bool]| ways.iter().filter(|&&other| other).count();
        assert!(tried(&ways[..100]) >= 4, "{ways:?}");
        assert!(tried(&ways[1000..]) <= 10, "{ways:?}");
    }

    #[test]
    fn one_hiccup_convinces_nobody() {
        for at in 0..40 {
            let (mut trial, mut now) = fresh();
            // One stretch is longer than the others, by what may be a trial.
            let ways =
                run(&mut trial, &mut now, 60, |n, other| if n == at { 1400 } else { 1000 + 10 * u64::from(other) });
            let longest = ways.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).max();
            assert!(longest <= Some((TRIAL + FIRST) as usize), "at {at}: {ways:?}");
        }
    }

    #[test]
    fn what_was_found_out_does_not_outlive_its_phase() {
        let (mut trial, mut now) = fresh();
        run(&mut trial, &mut now, 100, |_, other| if other { 800 } else { 1000 });
        assert!(trial.is_other());
        let ways = run(&mut trial, &mut now, 4, |_, other| if other { 200 } else { 150 });
        assert_eq!(ways, [true, false, false, false], "one stretch tells that this is another phase");
    }
}
