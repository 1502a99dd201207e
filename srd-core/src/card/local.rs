//! Messages of the card to itself: from one of its queue pairs to another, without a network.
//!
//! They go through the same questions as those of peers: a place, or 'not ready', or a refusal.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Card, HostMemory};
use crate::endpoint::{Endpoint, RnrRetry};
use crate::time::{Span, Time};
use crate::upper::{Failure, Gather as _, Placement, Token, Upper as _};

/// Messages to ourselves.
#[derive(Debug, Default)]
pub(super) struct Local {
    ready: VecDeque<Attempt>,
    /// Those that met no receive buffer, by the time of their next attempt.
    waiting: BinaryHeap<Reverse<(Time, usize, u8)>>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    out: usize,
    number: u8,
}

/// Messages delivered per turn, so that peers are heard in between.
const PER_TURN: usize = 64;
/// Bytes delivered per turn, about.
const BYTES_PER_TURN: u32 = 1 << 20;
/// Copied at a time.
const CHUNK: usize = 64 * 1024;
/// The first pause for a receiver that is not ready, and the longest; those of the transport's defaults.
const RNR_MIN: Span = Span::from_micros(50);
const RNR_MAX: Span = Span::from_millis(10);

impl Local {
    pub(super) fn push(&mut self, out: usize) {
        self.ready.push_back(Attempt { out, number: 0 });
    }

    pub(super) fn remove(&mut self, gone: impl Fn(usize) -> bool) {
        self.ready.retain(|a| !gone(a.out));
        self.waiting.retain(|Reverse((_, out, _))| !gone(*out));
    }

    pub(super) fn deadline(&self) -> Time {
        if !self.ready.is_empty() {
            return Time::ZERO;
        }
        self.waiting.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }
}

impl<M: HostMemory> Card<M> {
    /// Delivers what is due. Returns whether anything was.
    pub(super) fn run_local(&mut self, endpoint: &mut Endpoint) -> bool {
        while let Some(&Reverse((at, out, number))) = self.local.waiting.peek()
            && at <= self.now
        {
            self.local.waiting.pop();
            self.local.ready.push_back(Attempt { out, number });
        }
        let mut bytes = 0;
        for done in 0..PER_TURN {
            if bytes >= BYTES_PER_TURN {
                return true;
            }
            let Some(attempt) = self.local.ready.pop_front() else { return done > 0 };
            bytes += self.deliver(attempt);
            // What it caused may go to ourselves as well.
            self.drain_queued(endpoint, self.now);
        }
        true
    }

    fn deliver(&mut self, attempt: Attempt) -> u32 {
        let token = Token(attempt.out as u64);
        let out = &self.outs[attempt.out];
        let (header, len, rnr) = (out.header, out.len, out.rnr);
        match self.place_from(None, header.as_bytes(), len) {
            Placement::Accept(place) => {
                let mut scratch = std::mem::take(&mut self.local.scratch);
                let mut offset = 0;
                while offset < len {
                    scratch.clear();
                    let step = CHUNK.min((len - offset) as usize);
                    scratch.extend_from_slice(self.payload(token, offset, step));
                    self.write(place, offset, &scratch);
                    offset += scratch.len() as u32;
                }
                self.local.scratch = scratch;
                self.placed(place);
                self.completed(token, Ok(()));
            }
            Placement::Refuse(status) => self.completed(token, Err(Failure::Refused(status))),
            Placement::NotReady => {
                if matches!(rnr, RnrRetry::Times(n) if attempt.number >= n) {
                    self.completed(token, Err(Failure::NotReady));
                } else {
                    let pause = (RNR_MIN * (1 << attempt.number.min(16))).min(RNR_MAX);
                    let next = (self.now + pause, attempt.out, attempt.number.saturating_add(1));
                    self.local.waiting.push(Reverse(next));
                }
                return 0;
            }
        }
        len
    }
}
