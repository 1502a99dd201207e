//! Answers that keep no state: to handshakes of unproven addresses, and to packets of connections that are not here.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::driver::RxMeta;
use crate::time::{Span, Time};

/// What an answer is about. Each has a budget and a queue of its own, so that a flood of strays cannot keep newcomers out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    Opening,
    Stray,
}

/// The packet that is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) meta: &'a RxMeta,
    /// The port that its sender says it receives on.
    pub(crate) port: u16,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) to: SocketAddr,
    pub(crate) from: Option<IpAddr>,
    pub(crate) bytes: Vec<u8>,
}

/// Bounded queues of answers, which take turns.
#[derive(Debug)]
pub(crate) struct Replies {
    /// By occasion.
    queues: [Queue; 2],
    /// The one whose turn it is.
    turn: usize,
}

/// Answers to one occasion.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Reply>,
    budget: Budget,
}

/// Answers to one occasion that wait to be sent.
const MAX_REPLIES: usize = 512;

impl Replies {
    pub(crate) fn new(now: Time) -> Replies {
        Replies { queues: [0; 2].map(|_| Queue { waiting: VecDeque::new(), budget: Budget::new(now) }), turn: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// Queues an answer, unless it would be longer than the question (nobody uses us to hit others harder) or too many are
    /// asked for. Says whether it did.
    pub(crate) fn push(
        &mut self,
        now: Time,
        occasion: Occasion,
        asked: Asked<'_>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let queue = &mut self.queues[occasion as usize];
        if queue.waiting.len() >= MAX_REPLIES || asked.port == 0 || !queue.budget.take(now) {
            return false;
        }
        let mut bytes = Vec::with_capacity(32);
        encode(&mut bytes);
        // [SEC-2]
        if bytes.len() > asked.len {
            return false;
        }
        let to = main_addr(asked.meta.from, asked.port);
        queue.waiting.push_back(Reply { to, from: asked.meta.to, bytes });
        true
    }

    pub(crate) fn pop(&mut self) -> Option<Reply> {
        self.turn = 1 - self.turn;
        let [next, other] = [self.turn, 1 - self.turn];
        self.queues[next].waiting.pop_front().or_else(|| self.queues[other].waiting.pop_front())
    }
}

/// The address that the sender at `from` receives on, when it says that its port there is `port`.
pub(crate) fn main_addr(from: SocketAddr, port: u16) -> SocketAddr {
    let mut addr = from;
    addr.set_port(port);
    addr
}

/// Answers per second are limited, so that a flood of garbage does not make us one.
#[derive(Debug)]
struct Budget {
    tokens: u32,
    refilled: Time,
}

impl Budget {
    fn new(now: Time) -> Budget {
        Budget { tokens: Self::BURST, refilled: now }
    }

    const BURST: u32 = 4096;
    const REFILL: Span = Span::from_micros(10);

    fn take(&mut self, now: Time) -> bool {
        let earned = now.since(self.refilled).as_nanos() / Self::REFILL.as_nanos();
        if earned > 0 {
            self.tokens = (u64::from(self.tokens) + earned).min(Self::BURST.into()) as u32;
            self.refilled += Self::REFILL * earned;
        }
        self.tokens > 0 && {
            self.tokens -= 1;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Ecn;

    /// Asks for an answer of `answer` bytes to a packet of `len`.
    fn ask(replies: &mut Replies, now: Time, occasion: Occasion, port: u16, len: usize, answer: usize) -> bool {
        let meta = RxMeta { from: ([10, 0, 0, 1], 50_000).into(), to: None, ecn: Ecn::NotEct, at: now };
        replies.push(now, occasion, Asked { meta: &meta, port, len }, |out| out.resize(answer, 0))
    }

    /// How many of so many strays are answered, when each answer leaves at once.
    fn answered(replies: &mut Replies, now: Time, strays: u32) -> u32 {
        (0..strays)
            .map(|_| u32::from(ask(replies, now, Occasion::Stray, 4000, 30, 24) && replies.pop().is_some()))
            .sum()
    }

    #[test]
    fn answers_are_limited_in_rate() {
        let (start, us) = (Time::from_nanos(1), Span::from_micros(1));
        let mut replies = Replies::new(start);
        assert_eq!(answered(&mut replies, start, 5000), 4096);
        assert_eq!(answered(&mut replies, start + us * 9, 10), 0);
        assert_eq!(answered(&mut replies, start + us * 10, 10), 1, "one per 10 us");
        assert_eq!(answered(&mut replies, start + us * 35, 10), 2);
        assert_eq!(answered(&mut replies, start + us * 40, 10), 1, "the 5 us before count");
        // A flood of strays does not keep newcomers out.
        assert!(ask(&mut replies, start + us * 40, Occasion::Opening, 4000, 70, 22));
        assert_eq!(answered(&mut replies, start + us * 10_000_000, 5000), 4096, "no more is saved up");
    }

    #[test]
    fn an_answer_is_no_longer_than_the_question() {
        let now = Time::from_nanos(1);
        let mut replies = Replies::new(now);
        assert!(!ask(&mut replies, now, Occasion::Stray, 4000, 23, 24));
        assert!(replies.is_empty());
        assert!(ask(&mut replies, now, Occasion::Stray, 4000, 24, 24));
        let reply = replies.pop().expect("queued");
        assert_eq!((reply.to, reply.bytes.len()), (([10, 0, 0, 1], 4000).into(), 24));
        assert!(!ask(&mut replies, now, Occasion::Stray, 0, 24, 24), "nobody is there");
    }

    /// Strays come faster than answers leave.
    #[test]
    fn strays_whose_answers_wait_do_not_keep_newcomers_out() {
        let now = Time::from_nanos(1);
        let mut replies = Replies::new(now);
        (0..3000).for_each(|_| _ = ask(&mut replies, now, Occasion::Stray, 4000, 30, 24));
        assert!(ask(&mut replies, now, Occasion::Opening, 4001, 70, 22));
        let left = (0..2).find_map(|_| replies.pop().filter(|reply| reply.to.port() == 4001));
        assert!(left.is_some(), "its answer waits behind those to strays");
    }

    #[test]
    fn answers_that_wait_are_bounded() {
        let now = Time::from_nanos(1);
        let mut replies = Replies::new(now);
        let queued = (0..3000).filter(|_| ask(&mut replies, now, Occasion::Stray, 4000, 30, 24)).count();
        assert_eq!(queued, MAX_REPLIES);
    }
}
