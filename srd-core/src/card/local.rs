//! Messages of the card to itself: from one of its queue pairs to another, without a network.
//!
//! They go through the same questions as those of peers: a place, or 'not ready', or a refusal.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Card, HostMemory};
use crate::endpoint::{Endpoint, RnrRetry};
use crate::time::{Span, Time};
use crate::upper::{Failure, Gather as _, PlaceToken, Placement, Token, Upper as _};

/// Messages to ourselves.
#[derive(Debug, Default)]
pub(super) struct Local {
    ready: VecDeque<Attempt>,
    /// Those that met no receive buffer, by the time of their next attempt.
    waiting: BinaryHeap<Reverse<(Time, usize, u8)>>,
    /// The message that has a place. Long ones take several turns.
    copying: Option<Copying>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    out: usize,
    place: PlaceToken,
    done: u32,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    out: usize,
    number: u8,
}

/// Messages delivered per turn, so that peers are heard in between.
const PER_TURN: usize = 64;
/// Bytes copied per turn.
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

    /// Forgets messages. Returns the place of the one that had one, which is to be abandoned.
    pub(super) fn remove(&mut self, gone: impl Fn(usize) -> bool) -> Option<PlaceToken> {
        self.ready.retain(|a| !gone(a.out));
        self.waiting.retain(|Reverse((_, out, _))| !gone(*out));
        self.copying.take_if(|c| gone(c.out)).map(|c| c.place)
    }

    pub(super) fn deadline(&self) -> Time {
        if !self.ready.is_empty() || self.copying.is_some() {
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
            if self.local.copying.is_none() {
                let Some(attempt) = self.local.ready.pop_front() else { return done > 0 };
                self.begin(attempt);
            }
            bytes += self.copy(BYTES_PER_TURN - bytes);
            // What it caused may go to ourselves as well.
            if !self.is_stuck() {
                self.drain_queued(endpoint, self.now);
            }
        }
        true
    }

    /// Finds a place for a message.
    fn begin(&mut self, attempt: Attempt) {
        let token = Token(attempt.out as u64);
        let out = &self.outs[attempt.out];
        let (header, len, rnr) = (out.header, out.len, out.rnr);
        match self.place_from(None, header.as_bytes(), len) {
            Placement::Accept(place) => self.local.copying = Some(Copying { out: attempt.out, place, done: 0 }),
            Placement::Refuse(status) => self.completed(token, Err(Failure::Refused(status))),
            Placement::NotReady => {
                if matches!(rnr, RnrRetry::Times(n) if attempt.number >= n) {
                    self.completed(token, Err(Failure::NotReady));
                } else {
                    let pause = (RNR_MIN * (1 << attempt.number.min(16))).min(RNR_MAX);
                    let next = (self.now + pause, attempt.out, attempt.number.saturating_add(1));
                    self.local.waiting.push(Reverse(next));
                }
            }
        }
    }

    /// Copies at most so many bytes of the message that has a place, and delivers it when that was all. Returns how many it
    /// was.
    fn copy(&mut self, most: u32) -> u32 {
        let Some(Copying { out, place, done }) = self.local.copying else { return 0 };
        let token = Token(out as u64);
        if let Some(status) = self.revoked(place) {
            self.local.copying = None;
            self.abandoned(place);
            self.completed(token, Err(Failure::Refused(status)));
            return 0;
        }
        let len = self.outs[out].len;
        let end = done.saturating_add(most).min(len);
        let mut scratch = std::mem::take(&mut self.local.scratch);
        let mut offset = done;
        while offset < end {
            scratch.clear();
            scratch.extend_from_slice(self.payload(token, offset, CHUNK.min((end - offset) as usize)));
            self.write(place, offset, &scratch);
            offset += scratch.len() as u32;
        }
        self.local.scratch = scratch;
        if end < len {
            self.local.copying = Some(Copying { out, place, done: end });
        } else {
            self.local.copying = None;
            self.placed(place);
            self.completed(token, Ok(()));
        }
        end - done
    }
}
