//! Whether acknowledgements wait for an answer.
//!
//! A program that answers what it receives can carry the acknowledgement in its answer: one packet instead of two. Many
//! programs poll again before they answer (libfabric polls until there is nothing left), so a turn in vain does not mean
//! that no answer comes. How a program behaves is learned from what it did before, as TCP does it for its delayed
//! acknowledgements (RFC 1122, 4.2.3.2, and the "pingpong mode" of Linux). Much data is no question: its sender may be
//! waiting for acknowledgements to go on.
//!
//! Two programs that send to each other and wait for both messages look the same as two that take turns, but wait for
//! acknowledgements, too: if these wait for the next message, then they do take turns. Only trying tells which it is.

use srd_core::Time;

use crate::trial::Trial;

/// Turns in vain, after receives were handed out, in which an answer is prompt. A turn takes about a microsecond.
const TURNS: u32 = 8;
/// Bytes whose acknowledgements wait at most: less than what peers have in flight at first (64 KB).
const MUCH: u32 = 48 << 10;
/// Receives in a row without a prompt answer after which a program that always answered is no longer waited for.
const HABIT: u32 = 8;

/// When an answer is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// In this moment: the program only sees that nothing is left. Whatever is done now delays the answer.
    Now,
    /// In one of the next turns: nothing is sent until then.
    Soon,
    /// There will be none, or not soon.
    NoAnswer,
}

/// How a program answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Turns that are left for a prompt answer to what was handed out last.
    left: u32,
    /// Bytes that were handed out since the program posted, or since nothing was waited for.
    unanswered: u32,
    /// How much it is in the habit of answering, up to [`HABIT`].
    habit: u32,
    /// Whether acknowledgements had better not wait, habit or not.
    trial: Trial,
}

impl Answers {
    /// So many receives of so many bytes were handed out by now.
    #[inline]
    pub(crate) fn handed_out(&mut self, receives: u32, bytes: u32, now: Time) {
        self.trial.advance(receives, now);
        self.unanswered = self.unanswered.saturating_add(bytes);
        self.left = if self.unanswered > MUCH { 0 } else { TURNS };
    }

    /// The program posted sends.
    #[inline]
    pub(crate) fn posted(&mut self) {
        self.unanswered = 0;
        if self.left > 0 {
            self.left = 0;
            self.habit = HABIT.min(self.habit + 2);
        }
    }

    /// The program polled in vain. Says what to do before it answers.
    #[inline]
    pub(crate) fn until_then(&mut self) -> Until {
        let left = self.left;
        let waits = left > 0 && self.habit > 0 && !self.trial.is_other();
        self.left = left.saturating_sub(1);
        if left == 1 {
            self.habit = self.habit.saturating_sub(1);
        }
        match left {
            2..TURNS if waits => Until::Soon,
            TURNS if waits => Until::Now,
            _ => {
                self.unanswered = 0;
                Until::NoAnswer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use srd_core::Span;

    use super::*;

    /// Receives, and polls in vain until nothing is waited for; says how often.
    fn receive_only(answers: &mut Answers) -> usize {
        answers.handed_out(1, 1, Time::ZERO);
        (0..100).filter(|_| answers.until_then() != Until::NoAnswer).count()
    }

    #[test]
    fn only_programs_that_answer_are_waited_for() {
        let mut answers = Answers::default();
        assert_eq!(receive_only(&mut answers), 0, "nothing is known of it");
        answers.handed_out(1, 1, Time::ZERO);
        assert_eq!(answers.until_then(), Until::NoAnswer);
        answers.posted();
        answers.handed_out(1, 1, Time::ZERO);
        let turns = [(); 3].map(|()| answers.until_then());
        assert_eq!(turns, [Until::Now, Until::Soon, Until::Soon], "it answered last time");
        answers.posted();
        assert_eq!(answers.until_then(), Until::NoAnswer, "it has answered");
    }

    #[test]
    fn a_program_that_ceases_to_answer_is_soon_no_longer_waited_for() {
        let mut answers = Answers::default();
        for _ in 0..100 {
            answers.handed_out(1, 1, Time::ZERO);
            answers.posted();
        }
        let waited: Vec<_> = (0..2 * HABIT).map(|_| receive_only(&mut answers)).collect();
        assert!(waited[0] > 0 && waited[0] < TURNS as usize);
        assert_eq!(waited.iter().filter(|&&turns| turns > 0).count(), HABIT as usize);
        assert_eq!(waited.last(), Some(&0));
    }

    #[test]
    fn sends_that_answer_nothing_are_no_habit() {
        let mut answers = Answers::default();
        (0..100).for_each(|_| answers.posted());
        assert_eq!(receive_only(&mut answers), 0);
        (0..100).for_each(|_| answers.posted());
        assert_eq!(receive_only(&mut answers), 0, "they came too late");
    }

    /// A program that always answered.
    fn talkative() -> Answers {
        let mut answers = Answers::default();
        for _ in 0..HABIT {
            answers.handed_out(1, 1, Time::ZERO);
            answers.posted();
        }
        answers
    }

    #[test]
    fn much_data_is_acknowledged_at_once() {
        let mut answers = talkative();
        (0..4).for_each(|_| answers.handed_out(1, MUCH / 4, Time::ZERO));
        assert_eq!(answers.until_then(), Until::Now);
        answers.handed_out(1, 1, Time::ZERO);
        assert_eq!(answers.until_then(), Until::NoAnswer);
        answers.handed_out(1, MUCH, Time::ZERO);
        assert_eq!(answers.until_then(), Until::Now, "what came before was acknowledged");
        answers.posted();
        answers.handed_out(1, MUCH + 1, Time::ZERO);
        assert_eq!(answers.until_then(), Until::NoAnswer, "in one message");
    }

    /// Of 2,000 rounds that take so long, in microseconds, when acknowledgements wait and when they do not: how many do not.
    fn rounds_without_waiting(waiting: u64, not: u64) -> usize {
        let (mut answers, mut now) = (talkative(), Time::ZERO);
        let mut round = || {
            // Two packets of a message.
            answers.handed_out(2, 16 << 10, now);
            let waits = answers.until_then() != Until::NoAnswer;
            answers.posted();
            now += Span::from_micros(if waits { waiting } else { not });
            waits
        };
        (0..2000).filter(|_| !round()).count()
    }

    #[test]
    fn programs_that_exchange_messages_are_not_made_to_take_turns() {
        assert!(rounds_without_waiting(23, 17) > 1000);
        assert!(rounds_without_waiting(11, 14) < 500);
    }
}
