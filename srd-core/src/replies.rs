//! Answers that keep no state: to handshakes of unproven addresses, and to packets of connections that are not here.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::driver::RxMeta;
use crate::time::{Span, Time};

/// What an answer is about. Each has a budget of its own, so that a flood of strays cannot keep newcomers out.
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

/// A bounded queue of answers.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    opening: Budget,
    stray: Budget,
}

/// Answers that wait to be sent.
const MAX_REPLIES: usize = 1024;

impl Replies {
    pub(crate) fn new(now: Time) -> Replies {
        Replies { queue: VecDeque::new(), opening: Budget::new(now), stray: Budget::new(now) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
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
        let budget = match occasion {
            Occasion::Opening => &mut self.opening,
            Occasion::Stray => &mut self.stray,
        };
        if self.queue.len() >= MAX_REPLIES || asked.port == 0 || !budget.take(now) {
            return false;
        }
        let mut bytes = Vec::with_capacity(32);
        encode(&mut bytes);
        // [SEC-2]
        if bytes.len() > asked.len {
            return false;
        }
        let to = main_addr(asked.meta.from, asked.port);
        self.queue.push_back(Reply { to, from: asked.meta.to, bytes });
        true
    }

    pub(crate) fn pop(&mut self) -> Option<Reply> {
        self.queue.pop_front()
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
