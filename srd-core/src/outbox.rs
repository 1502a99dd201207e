//! Messages on their way out: queued, in flight piece by piece, waiting for a receiver that was not ready, done.
//!
//! Owns what is known of each outgoing message, and the order in which pieces are sent. It never owns payload, and knows
//! neither packets nor paths. Message ids are given when the first piece is sent, so that the window of ids holds only
//! messages in progress; a message that was not taken gets a new id for its next attempt, so an id is delivered at most
//! once whatever the network does with old packets.

mod classes;
mod crowds;
mod queue;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU16;

use crate::blocks::{Blocks, BlocksPool};
use crate::endpoint::{Outbound, RnrRetry};
use crate::seq::{Seq, SeqRing};
use crate::time::Time;
use crate::upper::{Failure, Token};
use crate::wire::{BLOCK, fragment_len};
use classes::Place;
use crowds::Crowds;
use queue::Queue;

/// A piece of a message, as a packet carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    slot: u32,
    pub(crate) message: Seq,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// All that is needed to write a piece into a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) piece: Piece,
    pub(crate) token: Token,
    pub(crate) total: u32,
    /// Whether these bytes have been sent before.
    pub(crate) again: bool,
}

#[derive(Debug)]
struct Message {
    out: Outbound,
    /// Its id while an attempt is in progress.
    id: Option<Seq>,
    /// First byte that this attempt has not sent yet.
    next: u32,
    /// What the receiver has, once the message has been cut into more than one piece.
    acked: Option<Box<Blocks>>,
    rnr_attempts: u8,
    standing: Standing,
    /// The crowd that it belongs to, if it does.
    crowd: Option<NonZeroU16>,
}

// More of them in a cache line is worth some percent of the rate of short messages.
const _: () = assert!(size_of::<Message>() <= 40);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Nothing,
    /// A message that tries, or has not been tried yet.
    Tries,
    /// A message that waits until another of its crowd was taken.
    Waits,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Outbox {
    slots: Vec<Message>,
    free: Vec<u32>,
    /// Messages with bytes that were never sent.
    queue: Queue,
    /// Lost pieces.
    again: VecDeque<Piece>,
    /// Lost pieces that are all of their message, too long for a packet now, and wait until the peer may keep another message
    /// half delivered.
    whole: Vec<Piece>,
    /// Messages in progress by id; the entry is the slot.
    ids: SeqRing<Option<u32>>,
    backoff: BinaryHeap<Reverse<(Time, u32)>>,
    crowds: Crowds,
    /// What the peer keeps: messages in progress, and half-delivered ones; and how many of the latter there are.
    window: u32,
    max_split: u32,
    split: u32,
    pool: BlocksPool,
    /// Framed bytes in the queues and in `again`, roughly: enough to tell whether all that waits fits into one packet.
    waiting: u64,
    live: u32,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            slots: Vec::new(),
            free: Vec::new(),
            queue: Queue::default(),
            again: VecDeque::new(),
            whole: Vec::new(),
            ids: SeqRing::new(Seq(0)),
            backoff: BinaryHeap::new(),
            crowds: Crowds::default(),
            window: 0,
            max_split: 0,
            split: 0,
            pool: BlocksPool::default(),
            waiting: 0,
            live: 0,
        }
    }

    /// A new connection begins, with this first message id. The peer keeps `window` messages in progress, and `max_split` of
    /// more than one packet half delivered. Nothing may be in progress.
    pub(crate) fn start_ids(&mut self, first: Seq, window: u32, max_split: u32) {
        assert_eq!(self.ids.len(), 0, "messages in progress across connections");
        self.ids = SeqRing::new(first);
        self.whole.clear();
        (self.window, self.max_split) = (window, max_split);
    }

    /// Messages queued or in progress.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Messages in progress under an id.
    pub(crate) fn in_progress(&self) -> bool {
        self.ids.len() > 0
    }

    /// Oldest id whose outcome is unknown.
    // [REL-5]
    pub(crate) fn floor(&self) -> Seq {
        self.ids.base()
    }

    /// The id that the next message to begin will have.
    pub(crate) fn next_id(&self) -> Seq {
        self.ids.next()
    }

    /// Framed bytes that wait to be sent, roughly.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Whether there is something that the peer has room for.
    pub(crate) fn sendable(&self) -> bool {
        self.has_again() || self.front().is_some()
    }

    /// Whether lost pieces wait that may go; the path that lost the first of them is not known here.
    pub(crate) fn has_again(&self) -> bool {
        self.next_again().is_some()
    }

    #[inline]
    fn next_again(&self) -> Option<&Piece> {
        self.again.front().or_else(|| self.whole.last().filter(|_| self.split < self.max_split))
    }

    #[inline]
    fn pop_again(&mut self) -> Option<Piece> {
        self.again.pop_front().or_else(|| self.whole.pop_if(|_| self.split < self.max_split))
    }

    /// Whether a message has begun, or may begin; a long one might have to be split.
    #[inline]
    fn may_go_on(&self, slot: u32) -> bool {
        let message = &self.slots[slot as usize];
        message.id.is_some()
            // [RNR-8]
            || (self.ids.len() < self.window && (self.split < self.max_split || cost(&message.out) <= SURELY_WHOLE))
    }

    #[inline]
    pub(crate) fn push(&mut self, out: Outbound) {
        let standing = Standing::Tries;
        let message = Message { out, id: None, next: 0, acked: None, rnr_attempts: 0, standing, crowd: None };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = message;
                slot
            }
            None => {
                self.slots.push(message);
                (self.slots.len() - 1) as u32
            }
        };
        self.live += 1;
        self.enqueue(slot);
    }

    #[inline]
    fn enqueue(&mut self, slot: u32) {
        let out = &self.slots[slot as usize].out;
        self.waiting += cost(out);
        self.queue.push(slot, out.flow, out.len);
    }

    /// The message whose turn it is; one that the peer has no room for is passed over for one that has begun.
    #[inline]
    fn front(&self) -> Option<Place> {
        self.queue.front(|slot| self.may_go_on(slot))
    }

    /// Cuts the next piece that fits into `room` bytes of a packet (`fresh`: of a packet that is still empty), or `None`
    /// if nothing waits or what waits should start the next packet.
    // Inlined where the piece goes: it is made in parts, which a copy of it would have to wait for.
    #[inline(always)]
    pub(crate) fn cut(&mut self, room: usize, fresh: bool, full_room: usize) -> Option<Cut> {
        while let Some(piece) = self.pop_again() {
            self.waiting = self.waiting.saturating_sub(u64::from(piece.len));
            let Some(message) = self.current(&piece) else { continue };
            if message.has(&piece) {
                continue;
            }
            let (out, total) = (message.out, message.out.len);
            let Some(len) = cut_len(&out, piece.len, room, fresh, full_room) else {
                self.push_again_front(piece);
                return None;
            };
            if len < total && message.acked.is_none() && self.split >= self.max_split {
                // [RNR-8]
                self.waiting += u64::from(piece.len);
                self.whole.push(piece);
                continue;
            }
            if len < piece.len {
                self.push_again_front(Piece { offset: piece.offset + len, len: piece.len - len, ..piece });
            }
            if len < total {
                self.split(piece.slot);
            }
            return Some(Cut { piece: Piece { len, ..piece }, token: out.token, total, again: true });
        }
        let place = self.front()?;
        let slot = place.slot;
        let message = &self.slots[slot as usize];
        let (out, offset) = (message.out, message.next);
        let left = out.len - offset;
        let len = cut_len(&out, left, room, fresh, full_room)?;
        let id = match message.id {
            Some(id) => id,
            // [REL-4]
            None => self.ids.push(Some(slot)),
        };
        if len < out.len {
            self.split(slot);
        }
        let message = &mut self.slots[slot as usize];
        message.id = Some(id);
        message.next += len;
        self.waiting = self.waiting.saturating_sub(u64::from(len));
        self.queue.served(place, out.flow, len, len == left);
        if len == left {
            let framing = OVERHEAD + u64::from(out.header_len);
            self.waiting = if self.is_waiting() { self.waiting.saturating_sub(framing) } else { 0 };
        }
        let piece = Piece { slot, message: id, offset, len };
        Some(Cut { piece, token: out.token, total: out.len, again: false })
    }

    /// The piece again, for a tail probe; `None` if it needs no sending any more.
    pub(crate) fn recut(&self, piece: Piece) -> Option<Cut> {
        let message = self.current(&piece)?;
        if message.has(&piece) {
            return None;
        }
        Some(Cut { piece, token: message.out.token, total: message.out.len, again: true })
    }

    /// The packet that carried this piece was acknowledged. Returns the message's token if that completes it.
    #[inline]
    pub(crate) fn acked(&mut self, piece: &Piece) -> Option<(Token, u32)> {
        let message = self.current_mut(piece)?;
        if piece.len < message.out.len {
            let blocks = message.acked.as_mut().expect("a message in pieces was split");
            blocks.mark(piece.offset, piece.len);
            if !blocks.is_full() {
                // The receiver has taken it, however long the rest may be on its way.
                if let Some(crowd) = message.crowd.take() {
                    self.let_follow(crowd);
                }
                return None;
            }
        }
        // [REL-10]
        let done = (message.out.token, message.out.len);
        // A message can complete while its last bytes wait to be sent again, never before they were sent once.
        self.end_attempt(piece.slot);
        self.release(piece.slot);
        Some(done)
    }

    /// The packet that carried this piece is lost: it goes again, unless it is settled.
    pub(crate) fn lost(&mut self, piece: Piece) {
        if self.recut(piece).is_some() {
            self.waiting += u64::from(piece.len);
            self.again.push_back(piece);
        }
    }

    /// The receiver refused message `id` for good. Returns its token.
    // [RNR-4]
    pub(crate) fn refused(&mut self, id: Seq) -> Option<Token> {
        let slot = self.slot_of(id)?;
        self.unqueue(slot);
        self.end_attempt(slot);
        let token = self.slots[slot as usize].out.token;
        self.release(slot);
        Some(token)
    }

    /// The receiver had no buffer for message `id`: it goes again at a time that `resume` gives for the attempt's number,
    /// or fails (its token is returned) when all attempts are used up. Of those that may try for ever and for which `waits_for`
    /// says the same, one tries for all.
    // [RNR-3]
    pub(crate) fn not_ready(
        &mut self,
        id: Seq,
        waits_for: impl FnOnce(Token) -> Option<NonZeroU16>,
        resume: impl FnOnce(u8) -> Time,
    ) -> Option<Token> {
        let slot = self.slot_of(id)?;
        self.unqueue(slot);
        self.end_attempt(slot);
        let message = &mut self.slots[slot as usize];
        let mut attempts = message.rnr_attempts;
        match message.out.rnr {
            RnrRetry::Times(limit) if attempts >= limit => {
                let token = message.out.token;
                self.release(slot);
                return Some(token);
            }
            RnrRetry::Times(_) => {}
            RnrRetry::Forever => {
                let tried = message.crowd.is_some();
                message.crowd = message.crowd.or_else(|| waits_for(message.out.token));
                if let Some(crowd) = message.crowd {
                    let Some(in_vain) = self.crowds.turned_away(crowd, slot, tried) else {
                        message.standing = Standing::Waits;
                        return None;
                    };
                    attempts = in_vain;
                }
            }
        }
        message.rnr_attempts = attempts.saturating_add(1);
        self.backoff.push(Reverse((resume(attempts), slot)));
        None
    }

    /// When the first message that was not taken goes again.
    pub(crate) fn next_resume(&self) -> Option<Time> {
        self.backoff.peek().map(|Reverse((t, _))| *t)
    }

    /// Whether the next piece goes well into `room` bytes of an otherwise empty packet, of which `full_room` is the most:
    /// whole if it could be whole, else in pieces of a good size.
    pub(crate) fn next_fits(&self, room: usize, full_room: usize) -> bool {
        let (out, left) = match (self.next_again(), self.front()) {
            (Some(piece), _) => (&self.slots[piece.slot as usize].out, piece.len),
            (None, Some(Place { slot, .. })) => {
                let message = &self.slots[slot as usize];
                (&message.out, message.out.len - message.next)
            }
            (None, None) => return false,
        };
        let whole = fragment_len(out.header_len, left == out.len) + left as usize;
        whole <= room || (whole > full_room && room >= full_room / 2)
    }

    /// Whether anything waits to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has_again() || !self.queue.is_empty()
    }

    /// Queues the messages whose pause is over.
    pub(crate) fn resume(&mut self, now: Time) {
        while let Some(&Reverse((t, slot))) = self.backoff.peek() {
            if t > now {
                break;
            }
            self.backoff.pop();
            self.enqueue(slot);
        }
    }

    /// Fails messages that are longer than the peer accepts. Nothing may be in progress.
    pub(crate) fn fail_longer_than(&mut self, max: u32, mut f: impl FnMut(Token)) {
        self.take_back(|out| {
            let fails = out.len > max;
            if fails {
                f(out.token);
            }
            fails
        });
    }

    /// Fails everything: the connection ended.
    pub(crate) fn fail_all(&mut self, failure: Failure, mut f: impl FnMut(Token, Failure)) {
        for message in self.slots.iter().filter(|m| m.is_live()) {
            f(message.out.token, failure);
        }
        *self = Outbox::new();
    }

    /// Forgets the messages whose tokens `which` picks, wherever they stand: their memory is not read again. The receiver
    /// learns it from the floor. Returns how many it was.
    pub(crate) fn withdraw(&mut self, mut which: impl FnMut(Token) -> bool) -> u32 {
        self.take_back(|out| which(out.token))
    }

    fn take_back(&mut self, mut which: impl FnMut(&Outbound) -> bool) -> u32 {
        let before = self.live;
        for slot in 0..self.slots.len() as u32 {
            let message = &self.slots[slot as usize];
            if !message.is_live() || !which(&message.out) {
                continue;
            }
            if message.id.is_some() {
                self.unqueue(slot);
                self.end_attempt(slot);
            }
            self.release(slot);
        }
        if self.live < before {
            // Those that waited for their first packet, or for a receiver that was not ready.
            let Outbox { slots, queue, backoff, crowds, waiting, .. } = self;
            queue.retain(|slot| {
                let message = &slots[slot as usize];
                if !message.is_live() {
                    *waiting = waiting.saturating_sub(cost(&message.out));
                }
                message.is_live()
            });
            backoff.retain(|Reverse((_, slot))| slots[*slot as usize].is_live());
            crowds.retain(|slot| slots[slot as usize].is_live());
        }
        before - self.live
    }

    fn slot_of(&self, id: Seq) -> Option<u32> {
        self.ids.get(id).copied().flatten()
    }

    fn current(&self, piece: &Piece) -> Option<&Message> {
        let message = &self.slots[piece.slot as usize];
        (message.id == Some(piece.message)).then_some(message)
    }

    #[inline]
    fn current_mut(&mut self, piece: &Piece) -> Option<&mut Message> {
        let message = &mut self.slots[piece.slot as usize];
        (message.id == Some(piece.message)).then_some(message)
    }

    fn push_again_front(&mut self, piece: Piece) {
        self.waiting += u64::from(piece.len);
        self.again.push_front(piece);
    }

    fn split(&mut self, slot: u32) {
        let message = &mut self.slots[slot as usize];
        if message.acked.is_none() {
            message.acked = Some(self.pool.take(message.out.len));
            self.split += 1;
        }
    }

    /// Takes a message with unsent bytes out of the queue (rare: it was refused half-way).
    fn unqueue(&mut self, slot: u32) {
        let message = &self.slots[slot as usize];
        if message.next < message.out.len {
            self.waiting = self.waiting.saturating_sub(cost(&message.out) - u64::from(message.next));
            self.queue.remove(slot, message.out.flow, message.out.len);
        }
    }

    #[inline]
    fn end_attempt(&mut self, slot: u32) {
        let message = &mut self.slots[slot as usize];
        let id = message.id.take().expect("an attempt is in progress");
        message.next = 0;
        if let Some(blocks) = message.acked.take() {
            self.split -= 1;
            self.pool.put(blocks);
        }
        *self.ids.get_mut(id).expect("its id is in the ring") = None;
        while let Some(None) = self.ids.front() {
            self.ids.pop_front();
        }
    }

    #[inline]
    fn release(&mut self, slot: u32) {
        let message = &mut self.slots[slot as usize];
        let standing = std::mem::replace(&mut message.standing, Standing::Nothing);
        if let Some(crowd) = message.crowd.take()
            && standing == Standing::Tries
        {
            self.let_follow(crowd);
        }
        self.live -= 1;
        self.free.push(slot);
    }

    /// A message of this crowd that tried has been taken, or is no more.
    #[cold]
    fn let_follow(&mut self, crowd: NonZeroU16) {
        let next = self.crowds.done(crowd, |slot| self.slots[slot as usize].is_live());
        for slot in next.into_iter().flatten() {
            self.slots[slot as usize].standing = Standing::Tries;
            self.enqueue(slot);
        }
    }
}

impl Message {
    #[inline]
    fn is_live(&self) -> bool {
        self.standing != Standing::Nothing
    }

    /// Whether the receiver is known to have all of a piece.
    fn has(&self, piece: &Piece) -> bool {
        self.acked.as_ref().is_some_and(|blocks| blocks.contains(piece.offset, piece.len))
    }
}

/// Framed bytes that fit into one packet whatever the path.
const SURELY_WHOLE: u64 = crate::MIN_DATAGRAM as u64 - 64;

/// Framing of a message in a packet, beside its header and payload.
const OVERHEAD: u64 = 16;

fn cost(out: &Outbound) -> u64 {
    OVERHEAD + u64::from(out.header_len) + u64::from(out.len)
}

/// How many of `left` bytes to put into `room`: all of a message that fits, nothing if it would fit whole into an empty
/// packet, else as many blocks as there is room for.
#[inline]
fn cut_len(out: &Outbound, left: u32, room: usize, fresh: bool, full_room: usize) -> Option<u32> {
    let whole_head = fragment_len(out.header_len, true);
    if left == out.len && whole_head + left as usize <= room {
        return Some(left);
    }
    let part_head = fragment_len(out.header_len, false);
    if left < out.len && part_head + left as usize <= room {
        return Some(left);
    }
    if !fresh && whole_head + out.len as usize <= full_room {
        return None;
    }
    let blocks = (room.saturating_sub(part_head) as u32 / BLOCK * BLOCK).min(left);
    (blocks > 0).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::classes::{LONG_IN_TURN, TURN_BYTES};
    use super::*;

    const ROOM: usize = 1400;

    fn outbox(lens: &[u32]) -> Outbox {
        let mut outbox = Outbox::new();
        outbox.start_ids(Seq(u32::MAX), 64, 8);
        for (i, &len) in lens.iter().enumerate() {
            outbox.push(Outbound { token: Token(i as u64), flow: 0, header_len: 9, len, rnr: RnrRetry::Forever });
        }
        outbox
    }

    /// Cuts all that waits, and returns the pieces.
    fn cut_all(outbox: &mut Outbox) -> Vec<Cut> {
        std::iter::from_fn(|| outbox.cut(ROOM, true, ROOM)).collect()
    }

    #[test]
    fn withdraw_before_anything_was_sent() {
        let mut outbox = outbox(&[100, 0, 100_000, 200, 100_000]);
        assert_eq!(outbox.withdraw(|t| t.0 != 3), 4);
        assert_eq!(outbox.live(), 1);
        let cuts = cut_all(&mut outbox);
        assert_eq!(cuts.iter().map(|c| (c.token.0, c.total)).collect::<Vec<_>>(), [(3, 200)]);
        assert_eq!((outbox.waiting(), outbox.is_waiting()), (0, false));
        assert_eq!(outbox.withdraw(|_| true), 1);
        assert_eq!((outbox.live(), outbox.in_progress()), (0, false));
    }

    #[test]
    fn withdraw_in_the_middle_moves_the_floor_and_frees_the_slot() {
        let mut outbox = outbox(&[100_000, 1000]);
        let first = outbox.cut(ROOM, true, ROOM).unwrap();
        let second = outbox.cut(ROOM, true, ROOM).unwrap();
        assert_eq!((first.token, second.token), (Token(1), Token(0)), "short ones first");
        outbox.lost(second.piece);
        assert_eq!(outbox.withdraw(|t| t == Token(0)), 1);
        assert_eq!(outbox.floor(), first.piece.message, "only the other is left");
        assert!(outbox.cut(ROOM, true, ROOM).is_none(), "neither the rest nor the lost piece is sent");
        // The same slot serves another message; acknowledgements of the old one mean nothing.
        outbox.push(Outbound { token: Token(7), flow: 0, header_len: 9, len: 3000, rnr: RnrRetry::Forever });
        assert!(outbox.acked(&second.piece).is_none());
        assert!(outbox.recut(second.piece).is_none());
        let pieces = cut_all(&mut outbox);
        assert!(pieces.len() > 1 && pieces.iter().all(|c| c.token == Token(7)));
        let done: Vec<_> = pieces.iter().filter_map(|c| outbox.acked(&c.piece)).collect();
        assert_eq!(done, [(Token(7), 3000)]);
        assert_eq!(outbox.acked(&first.piece), Some((Token(1), 1000)));
        assert_eq!((outbox.live(), outbox.in_progress(), outbox.split), (0, false, 0));
    }

    #[test]
    fn withdraw_while_the_receiver_is_not_ready() {
        let mut outbox = outbox(&[500, 600]);
        let cuts = cut_all(&mut outbox);
        for cut in &cuts {
            assert_eq!(outbox.not_ready(cut.piece.message, |_| None, |_| Time::from_nanos(5)), None);
        }
        assert_eq!(outbox.withdraw(|t| t == Token(0)), 1);
        outbox.resume(Time::from_nanos(5));
        let again = cut_all(&mut outbox);
        assert_eq!(again.iter().map(|c| c.token).collect::<Vec<_>>(), [Token(1)]);
        assert_eq!(outbox.next_resume(), None);
    }

    #[test]
    fn short_messages_and_the_first_few_long_ones_take_turns() {
        const LONG: u32 = 1 << 20;
        let mut outbox = Outbox::new();
        outbox.start_ids(Seq(u32::MAX), 16_384, 1024);
        let lens = std::iter::repeat_n(LONG, 10).chain(std::iter::repeat_n(1000, 1000));
        for (i, len) in lens.enumerate() {
            outbox.push(Outbound { token: Token(i as u64), flow: 0, header_len: 9, len, rnr: RnrRetry::Forever });
        }
        let (mut sent, mut done, mut short) = ([0; 10], 0, 0);
        // Bytes in a row of the one kind while the other waits.
        let mut run = (false, 0);
        let most = TURN_BYTES + ROOM as u32;
        while let Some(cut) = outbox.cut(ROOM, true, ROOM) {
            let long = cut.total == LONG;
            run = if long == run.0 { (long, run.1 + cut.piece.len) } else { (long, cut.piece.len) };
            if short < 1000 && done < 10 {
                assert!(run.1 <= most, "{} bytes in a row, long: {long}", run.1);
            }
            if long {
                sent[cut.token.0 as usize] += cut.piece.len;
                done = sent.iter().filter(|s| **s == LONG).count();
                let open: Vec<u32> = sent.iter().copied().filter(|s| (1..LONG).contains(s)).collect();
                assert!(open.len() <= LONG_IN_TURN, "{sent:?}");
                if done == 0 {
                    let (least, all) = (sent[..LONG_IN_TURN].iter().min(), sent[..LONG_IN_TURN].iter().max());
                    assert!(all.unwrap() - least.unwrap() <= most, "they advance alike: {sent:?}");
                }
            } else {
                short += 1;
            }
            outbox.acked(&cut.piece);
        }
        assert_eq!((done, short, outbox.live()), (10, 1000, 0));
    }

    #[test]
    fn messages_that_are_cut_anew_are_no_more_than_the_peer_keeps() {
        let mut outbox = Outbox::new();
        outbox.start_ids(Seq(0), 64, 1);
        for token in 0..4 {
            outbox.push(Outbound { token: Token(token), flow: 0, header_len: 9, len: 3000, rnr: RnrRetry::Forever });
        }
        // Each was sent whole in a large packet, and got lost; now packets are small.
        let large: Vec<_> = std::iter::from_fn(|| outbox.cut(8000, true, 8000)).collect();
        assert_eq!(large.len(), 4);
        large.iter().for_each(|cut| outbox.lost(cut.piece));
        let mut done = Vec::new();
        while outbox.live() > 0 {
            assert!(outbox.sendable(), "after {done:?}");
            let cuts = cut_all(&mut outbox);
            assert!(!outbox.sendable() && !outbox.has_again(), "the others wait");
            assert!(cuts.iter().all(|c| c.token == cuts[0].token) && outbox.split == 1, "{cuts:?}");
            // A piece of it gets lost, too, and is not held up by them.
            outbox.lost(cuts[1].piece);
            let again = outbox.cut(ROOM, true, ROOM).expect("the lost piece");
            assert_eq!(again.piece, cuts[1].piece);
            done.extend(cuts.iter().filter_map(|c| outbox.acked(&c.piece)));
        }
        assert_eq!((done.len(), outbox.split, outbox.waiting()), (4, 0, 0));
    }

    #[test]
    fn longer_messages_than_the_next_connection_takes_fail_wherever_they_wait() {
        let mut outbox = outbox(&[500, 600, 700, 800]);
        let first = outbox.cut(ROOM, true, ROOM).expect("the first");
        let second = outbox.cut(ROOM, true, ROOM).expect("the second");
        for piece in [first.piece, second.piece] {
            assert_eq!(outbox.not_ready(piece.message, |_| None, |_| Time::from_nanos(5)), None);
        }
        outbox.start_ids(Seq(7), 64, 8);
        let mut failed = Vec::new();
        outbox.fail_longer_than(550, |token| failed.push(token));
        failed.sort_unstable();
        assert_eq!(failed, [1, 2, 3].map(Token));
        outbox.resume(Time::from_nanos(5));
        assert_eq!(cut_all(&mut outbox).iter().map(|cut| cut.token).collect::<Vec<_>>(), [Token(0)]);
        assert_eq!((outbox.live(), outbox.waiting()), (1, 0));
    }

    #[test]
    fn messages_that_wait_to_be_cut_anew_can_be_withdrawn() {
        let mut outbox = Outbox::new();
        outbox.start_ids(Seq(0), 64, 1);
        for token in 0..3 {
            outbox.push(Outbound { token: Token(token), flow: 0, header_len: 9, len: 3000, rnr: RnrRetry::Forever });
        }
        let large: Vec<_> = std::iter::from_fn(|| outbox.cut(8000, true, 8000)).collect();
        large.iter().for_each(|cut| outbox.lost(cut.piece));
        let cuts = cut_all(&mut outbox);
        let others: Vec<Token> = (0..3).map(Token).filter(|&t| t != cuts[0].token).collect();
        assert_eq!(outbox.withdraw(|t| t == others[0]), 1);
        cuts.iter().for_each(|c| _ = outbox.acked(&c.piece));
        let cuts = cut_all(&mut outbox);
        assert!(!cuts.is_empty() && cuts.iter().all(|c| c.token == others[1]), "{cuts:?}");
    }

    /// An outbox with messages of which everything happens, beside a list of them.
    struct Random {
        rng: Xoshiro256PlusPlus,
        outbox: Outbox,
        live: BTreeSet<Token>,
        /// What is on its way.
        pieces: Vec<Piece>,
        now: u64,
        next: u64,
    }

    impl Random {
        fn new(seed: u64) -> Random {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut outbox = Outbox::new();
            outbox.start_ids(Seq(u32::MAX - 20), 1 << rng.random_range(0..6), 1 << rng.random_range(0..4));
            Random { rng, outbox, live: BTreeSet::new(), pieces: Vec::new(), now: 0, next: 0 }
        }

        fn push(&mut self) {
            let token = Token(self.next);
            self.next += 1;
            let len = [0, 100, 1_300, 5_000, 200_000][self.rng.random_range(0..5)];
            let rnr = if self.rng.random_ratio(1, 4) { RnrRetry::Times(1) } else { RnrRetry::Forever };
            let flow = self.rng.random_range(0..4);
            self.outbox.push(Outbound { token, flow, header_len: 9, len, rnr });
            self.live.insert(token);
        }

        fn ended(&mut self, token: Option<Token>) {
            if let Some(token) = token {
                assert!(self.live.remove(&token), "{token:?} ended twice");
            }
        }

        fn cut(&mut self) {
            let room = [ROOM, ROOM, 600][self.rng.random_range(0..3)];
            self.pieces.extend(self.outbox.cut(room, true, room).map(|cut| cut.piece));
        }

        /// Something comes of a piece.
        fn answer(&mut self, well: bool) {
            if self.pieces.is_empty() {
                return;
            }
            let piece = self.pieces.swap_remove(self.rng.random_range(0..self.pieces.len()));
            let token = match if well { 0 } else { self.rng.random_range(0..12) } {
                0..3 => self.outbox.acked(&piece).map(|(token, _)| token),
                3 => self.outbox.refused(piece.message),
                4..6 => {
                    self.outbox.lost(piece);
                    None
                }
                _ => {
                    let resume = Time::from_nanos(self.now + self.rng.random_range(0..50));
                    // Of each five messages one waits for nothing that others do.
                    let waits_for = |token: Token| NonZeroU16::new((token.0 % 5) as u16);
                    self.outbox.not_ready(piece.message, waits_for, |_| resume)
                }
            };
            self.ended(token);
        }

        fn withdraw(&mut self) {
            let (n, of) = (self.rng.random_range(0..7), self.rng.random_range(1..7));
            let before = self.live.len();
            self.live.retain(|token| token.0 % of != n);
            assert_eq!(self.outbox.withdraw(|token| token.0 % of == n) as usize, before - self.live.len());
        }

        fn pass(&mut self, time: u64) {
            self.now += time;
            self.outbox.resume(Time::from_nanos(self.now));
        }

        fn check(&self) {
            assert_eq!(self.outbox.live() as usize, self.live.len());
            let of = |standing| {
                let members = self.outbox.slots.iter().filter(move |m| m.standing == standing);
                members.filter_map(|m| m.crowd).fold(BTreeMap::new(), |mut count, crowd| {
                    *count.entry(crowd).or_insert(0) += 1;
                    count
                })
            };
            let trying: BTreeMap<NonZeroU16, u32> = of(Standing::Tries);
            assert_eq!(self.outbox.crowds.trying(), trying);
            assert!(of(Standing::Waits).keys().all(|crowd| trying.contains_key(crowd)), "they wait for nobody");
        }

        /// From now on the receiver takes all that comes.
        fn finish(&mut self) {
            while !self.live.is_empty() {
                self.cut();
                if self.pieces.is_empty() {
                    let next = self.outbox.next_resume().expect("somebody tries").as_nanos();
                    self.pass(next.saturating_sub(self.now));
                }
                self.answer(true);
                self.check();
            }
            // Of what was lost, and is done nevertheless.
            assert!(self.outbox.cut(ROOM, true, ROOM).is_none());
            assert_eq!((self.outbox.waiting(), self.outbox.is_waiting(), self.outbox.split), (0, false, 0));
            assert!(!self.outbox.in_progress() && self.outbox.next_resume().is_none());
        }
    }

    #[test]
    fn whatever_happens_to_messages_each_ends_once_and_none_waits_for_nobody() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            for _ in 0..400 {
                match random.rng.random_range(0..100) {
                    0..20 => random.push(),
                    20..55 => random.cut(),
                    55..90 => random.answer(false),
                    90..98 => random.pass(5),
                    _ => random.withdraw(),
                }
                random.check();
            }
            random.finish();
        }
    }
}
