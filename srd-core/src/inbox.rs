//! Messages on their way in: which are done, which were turned away, which are half here.
//!
//! Guarantees that each message id is placed at most once and delivered when its last byte arrives, in any order. The
//! state is a ring over the ids between the sender's floor (the oldest message whose outcome it does not know) and the
//! window that we granted; ids below the floor are settled for ever.

use std::collections::BTreeMap;

use crate::blocks::{Blocks, BlocksPool};
use crate::endpoint::PeerId;
use crate::seq::Seq;
use crate::upper::{PlaceToken, Placement, Upper};
use crate::wire::Refusal;

/// What became of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It brought something new; the message's length if it is complete now.
    New(Option<u32>),
    /// Everything in it was here already.
    Duplicate,
    /// The message is turned away.
    Refused(Refusal),
    /// The sender breaks the rules: outside the window, or at odds with what it said before.
    Violation,
}

/// Status of a message that is longer than we accept; senders that heed the handshake never see it.
const REFUSED_TOO_LONG: u8 = u8::MAX;

/// What the ring knows of an id. Small numbers are states, the rest indices of partial messages.
type State = u16;
const UNSEEN: State = 0;
const DONE: State = 1;
const REFUSED: State = 2;
const FIRST_PARTIAL: State = 3;

/// Ids that the floor passes at once if they are all unseen or delivered: one that leaps over the whole window with every
/// packet must not cost as much as all those ids.
const RUN: usize = 64;

#[derive(Debug)]
struct Partial {
    place: PlaceToken,
    total: u32,
    blocks: Box<Blocks>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Inbox {
    floor: Seq,
    window: u32,
    max_message: u32,
    max_partials: usize,
    /// `states[id % len]` for ids in `floor..floor + len`; grows up to the window.
    states: Vec<State>,
    partials: Vec<Option<Partial>>,
    free_partials: Vec<State>,
    refusals: BTreeMap<u32, Refusal>,
    pool: BlocksPool,
}

impl Inbox {
    pub(crate) fn new(first: Seq, window: u32, max_message: u32, max_partials: u32) -> Inbox {
        Inbox {
            floor: first,
            window,
            max_message,
            max_partials: max_partials as usize,
            states: vec![UNSEEN; 64],
            partials: Vec::new(),
            free_partials: Vec::new(),
            refusals: BTreeMap::new(),
            pool: BlocksPool::default(),
        }
    }

    /// Whether any message is half here.
    pub(crate) fn has_partials(&self) -> bool {
        self.partials.len() > self.free_partials.len()
    }

    /// The sender knows the outcome of everything before `floor`, or has withdrawn it: places of what is half here go
    /// back. Says whether that is possible.
    pub(crate) fn advance<U: Upper>(&mut self, floor: Seq, upper: &mut U) -> bool {
        // [REL-6]
        let ahead = floor.since(self.floor);
        if ahead > self.window {
            // An old packet, overtaken by one with a higher floor; or nonsense.
            return floor.is_before(self.floor);
        }
        let mut left = (ahead as usize).min(self.states.len());
        let mut id = self.floor;
        while left > 0 {
            let at = id.0 as usize & (self.states.len() - 1);
            let run = left.min(self.states.len() - at).min(RUN);
            let states = &mut self.states[at..at + run];
            match states.iter().fold(UNSEEN, |all, state| all | state) {
                UNSEEN => {}
                DONE => states.fill(UNSEEN),
                _ => (0..run as u32).for_each(|i| self.settle(id.plus(i), upper)),
            }
            id = id.plus(run as u32);
            left -= run;
        }
        self.floor = floor;
        true
    }

    /// Nothing more comes of the id.
    fn settle<U: Upper>(&mut self, id: Seq, upper: &mut U) {
        match std::mem::replace(self.state_mut(id), UNSEEN) {
            UNSEEN | DONE => {}
            REFUSED => {
                self.refusals.remove(&id.0);
            }
            partial => upper.abandoned(self.close_partial(partial)),
        }
    }

    fn state_mut(&mut self, id: Seq) -> &mut State {
        let mask = self.states.len() - 1;
        &mut self.states[id.0 as usize & mask]
    }

    /// Makes room for `id`, which lies in the window.
    fn reach(&mut self, id: Seq) {
        let needed = id.since(self.floor) + 1;
        if needed as usize > self.states.len() {
            let len = needed.next_power_of_two() as usize;
            let mut states = vec![UNSEEN; len];
            for i in 0..self.states.len() as u32 {
                let id = self.floor.plus(i);
                states[id.0 as usize & (len - 1)] = *self.state_mut(id);
            }
            self.states = states;
        }
    }

    /// Takes a fragment (already checked to lie within `total`), asking `upper` for a place if it is the message's first.
    pub(crate) fn take<U: Upper>(
        &mut self,
        peer: PeerId,
        id: Seq,
        total: u32,
        offset: u32,
        header: &[u8],
        payload: &[u8],
        upper: &mut U,
    ) -> Taken {
        // [REL-7]
        let ahead = id.since(self.floor);
        if ahead >= self.window {
            return if id.is_before(self.floor) { Taken::Duplicate } else { Taken::Violation };
        }
        self.reach(id);
        let whole = payload.len() as u32 == total;
        match *self.state_mut(id) {
            DONE => return Taken::Duplicate,
            // [RNR-2]
            REFUSED => return Taken::Refused(self.refusals[&id.0]),
            // [REL-8]
            UNSEEN => {
                let crowded = !whole && self.partials.len() - self.free_partials.len() >= self.max_partials;
                let placement = if total > self.max_message {
                    Placement::Refuse(REFUSED_TOO_LONG)
                } else if crowded {
                    Placement::NotReady
                } else {
                    upper.place(peer, header, total)
                };
                let place = match placement {
                    Placement::Accept(place) => place,
                    Placement::NotReady => return self.refuse(id, Refusal::NotReady),
                    Placement::Refuse(status) => return self.refuse(id, Refusal::Refused(status)),
                };
                if whole {
                    if total > 0 {
                        upper.write(place, 0, payload);
                    }
                    upper.placed(place);
                    *self.state_mut(id) = DONE;
                    return Taken::New(Some(total));
                }
                let blocks = self.pool.take(total);
                let partial = Partial { place, total, blocks };
                let index = match self.free_partials.pop() {
                    Some(index) => {
                        self.partials[index as usize] = Some(partial);
                        index
                    }
                    None => {
                        self.partials.push(Some(partial));
                        (self.partials.len() - 1) as State
                    }
                };
                *self.state_mut(id) = FIRST_PARTIAL + index;
            }
            _ => {}
        }
        let index = *self.state_mut(id) - FIRST_PARTIAL;
        let partial = self.partials[index as usize].as_mut().expect("a live partial message");
        if partial.total != total {
            return Taken::Violation;
        }
        if !partial.blocks.mark(offset, payload.len() as u32) {
            return Taken::Duplicate;
        }
        let (place, full) = (partial.place, partial.blocks.is_full());
        if let Some(status) = upper.revoked(place) {
            upper.abandoned(self.close_partial(FIRST_PARTIAL + index));
            return self.refuse(id, Refusal::Refused(status));
        }
        upper.write(place, offset, payload);
        if !full {
            return Taken::New(None);
        }
        upper.placed(self.close_partial(FIRST_PARTIAL + index));
        *self.state_mut(id) = DONE;
        Taken::New(Some(total))
    }

    /// Forgets the message that is half here; what remains is its place.
    fn close_partial(&mut self, state: State) -> PlaceToken {
        let index = state - FIRST_PARTIAL;
        let partial = self.partials[index as usize].take().expect("a live partial message");
        self.free_partials.push(index);
        self.pool.put(partial.blocks);
        partial.place
    }

    fn refuse(&mut self, id: Seq, refusal: Refusal) -> Taken {
        *self.state_mut(id) = REFUSED;
        self.refusals.insert(id.0, refusal);
        Taken::Refused(refusal)
    }

    /// The connection ended: places of half-delivered messages go back.
    pub(crate) fn abandon<U: Upper>(&mut self, upper: &mut U) {
        for partial in self.partials.drain(..).flatten() {
            upper.abandoned(partial.place);
        }
        self.free_partials.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;

    const FIRST: Seq = Seq(u32::MAX - 1);
    const WINDOW: u32 = 64;
    const TOO_LONG: Taken = Taken::Refused(Refusal::Refused(REFUSED_TOO_LONG));
    const NOT_READY: Taken = Taken::Refused(Refusal::NotReady);

    /// An inbox for messages of 1000 bytes at most, of which three may be half here, and its upper storey.
    fn inbox() -> (Inbox, Mailbox) {
        (Inbox::new(FIRST, WINDOW, 1000, 3), Mailbox::new(100_000))
    }

    /// Takes the `len` bytes from `offset` on of message `id`, counted from the first, of `total` bytes.
    fn take(inbox: &mut Inbox, upper: &mut Mailbox, id: u32, total: u32, offset: u32, len: usize) -> Taken {
        inbox.take(PeerId(0), FIRST.plus(id), total, offset, &[], &[7; 1100][..len], upper)
    }

    #[test]
    fn an_id_beyond_the_window_is_a_violation() {
        let (mut inbox, mut upper) = inbox();
        let (inbox, upper) = (&mut inbox, &mut upper);
        assert_eq!(take(inbox, upper, WINDOW, 10, 0, 10), Taken::Violation);
        assert_eq!(take(inbox, upper, 1 << 30, 10, 0, 10), Taken::Violation);
        assert_eq!((inbox.floor, inbox.states.len()), (FIRST, 64), "nothing is kept of it");
        assert_eq!(take(inbox, upper, WINDOW - 1, 10, 0, 10), Taken::New(Some(10)));
        assert!(!inbox.advance(FIRST.plus(WINDOW + 1), upper), "nor does the floor get there");
        assert!(inbox.advance(FIRST.plus(WINDOW), upper));
        assert_eq!(take(inbox, upper, WINDOW - 1, 10, 0, 10), Taken::Duplicate);
        assert_eq!(take(inbox, upper, WINDOW, 10, 0, 10), Taken::New(Some(10)));
    }

    #[test]
    fn a_message_does_not_change_its_length() {
        let (mut inbox, mut upper) = inbox();
        let (inbox, upper) = (&mut inbox, &mut upper);
        assert_eq!(take(inbox, upper, 0, 128, 0, 64), Taken::New(None));
        assert_eq!(take(inbox, upper, 0, 192, 128, 64), Taken::Violation);
        assert_eq!(take(inbox, upper, 0, 64, 0, 64), Taken::Violation);
        assert_eq!(take(inbox, upper, 0, 128, 64, 64), Taken::New(Some(128)));
        assert_eq!(upper.poll_received().expect("delivered").data, [7; 128]);
    }

    #[test]
    fn no_more_messages_are_half_here_than_was_granted() {
        let (mut inbox, mut upper) = inbox();
        let (inbox, upper) = (&mut inbox, &mut upper);
        for id in 0..3 {
            assert_eq!(take(inbox, upper, id, 128, 0, 64), Taken::New(None));
        }
        let held = upper.held();
        assert_eq!(take(inbox, upper, 3, 128, 0, 64), NOT_READY);
        assert_eq!(upper.held(), held, "the upper storey was not asked");
        assert_eq!(take(inbox, upper, 4, 64, 0, 64), Taken::New(Some(64)), "a whole one needs no room");
        assert_eq!(take(inbox, upper, 0, 128, 64, 64), Taken::New(Some(128)));
        assert_eq!(take(inbox, upper, 3, 128, 64, 64), NOT_READY, "what was turned away stays so");
        assert_eq!(take(inbox, upper, 5, 128, 0, 64), Taken::New(None));
    }

    #[test]
    fn longer_messages_than_was_granted_are_refused() {
        let (mut inbox, mut upper) = inbox();
        let (inbox, upper) = (&mut inbox, &mut upper);
        assert_eq!(take(inbox, upper, 0, 1001, 0, 1001), TOO_LONG);
        assert_eq!(take(inbox, upper, 1, u32::MAX, 0, 64), TOO_LONG);
        assert_eq!(upper.held(), 0);
        assert_eq!(take(inbox, upper, 2, 1000, 0, 1000), Taken::New(Some(1000)));
    }

    #[test]
    fn refusals_are_forgotten_once_they_are_settled() {
        let (mut inbox, mut upper) = inbox();
        let (inbox, upper) = (&mut inbox, &mut upper);
        for id in 0..1000 {
            assert_eq!(take(inbox, upper, id, 1001, 0, 1001), TOO_LONG);
            assert!(inbox.advance(FIRST.plus(id), upper));
            assert_eq!(inbox.refusals.len(), 1, "the last one");
        }
        assert!(inbox.advance(FIRST.plus(1000), upper));
        assert!(inbox.refusals.is_empty());
    }

    /// The states of ids are those of others that far behind: nothing of what the floor passes may be left, however it leaps.
    #[test]
    fn a_floor_that_leaps_settles_all_that_it_passes() {
        const WINDOW: u32 = 4096;
        for steps in [&[1][..], &[WINDOW], &[64], &[63, 65, 1], &[1000, 7]] {
            let (mut inbox, mut upper) = (Inbox::new(FIRST, WINDOW, 1000, 3), Mailbox::new(1 << 20));
            for round in 0..6 {
                for (n, offset) in [WINDOW - 1, 0, 63, 64, 65, 700, 701, 1023].into_iter().enumerate() {
                    let id = inbox.floor.plus(offset);
                    let taken = match (n + round) % 3 {
                        0 => (10, 10, Taken::New(Some(10))),
                        1 => (128, 64, Taken::New(None)),
                        _ => (1001, 1001, TOO_LONG),
                    };
                    let (total, len, expected) = taken;
                    let taken = inbox.take(PeerId(0), id, total, 0, &[], &[7; 1001][..len], &mut upper);
                    assert_eq!(taken, expected, "round {round}, id {offset}, by {steps:?}");
                }
                let end = inbox.floor.plus(WINDOW);
                let mut steps = steps.iter().cycle();
                while inbox.floor != end {
                    let step = *steps.next().expect("endless").min(&end.since(inbox.floor));
                    assert!(inbox.advance(inbox.floor.plus(step), &mut upper));
                }
                let half_done = inbox.partials.iter().flatten().count();
                assert_eq!((half_done, inbox.refusals.len()), (0, 0), "round {round}, by {steps:?}");
            }
        }
    }
}
