//! The order of the messages of a flow: by length, in turns, so that none waits for gigabytes of others.
//!
//! Short messages are served in order, every other turn. The other turns go round the classes of long ones, each of messages
//! up to twice as long as the last, so that a message waits for few that are much longer than itself. Of such a class the first
//! few messages take turns: few, so that the first is done soon, and the receiver has few half-done ones.

use std::collections::VecDeque;

/// Bytes of a turn; longer messages than this are long.
pub(super) const TURN_BYTES: u32 = 64 * 1024;
/// What a piece counts at least: empty messages have turns, too, and do not get one without an end.
const LEAST: u32 = 64;
/// Long messages of a class that take turns.
pub(super) const LONG_IN_TURN: usize = 4;

/// The class of short messages; those of long ones follow.
const SHORT: usize = 0;

/// Messages, each known by its slot in the outbox.
#[derive(Debug, Default)]
pub(super) struct Classes {
    short: VecDeque<u32>,
    /// By class, from the first one after the short ones to the longest one so far.
    long: Vec<VecDeque<u32>>,
    /// One bit for each class of long messages that has any.
    filled: u32,
    /// The class that is served now, and how many bytes this turn has had.
    serving: usize,
    turn: u32,
    /// The class of long messages from which on the next one to serve is looked for.
    next_long: usize,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    class: usize,
    index: usize,
    pub(super) slot: u32,
}

/// Class of a message of this length.
const fn class_of(len: u32) -> usize {
    (u32::BITS - (len.saturating_sub(1) / TURN_BYTES).leading_zeros()) as usize
}

impl Classes {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.filled == 0
    }

    /// Behind the others of its class. `len`: the message's length.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, len: u32) {
        if len <= TURN_BYTES { self.short.push_back(slot) } else { self.push_long(slot, len) }
    }

    fn push_long(&mut self, slot: u32, len: u32) {
        let class = class_of(len);
        if self.long.len() < class {
            self.long.resize_with(class, VecDeque::new);
        }
        self.long[class - 1].push_back(slot);
        self.filled |= 1 << class;
    }

    /// The message whose turn it is. One that may not go on is passed over for one that may.
    // Short messages come by the million, and are served without looking at the classes of long ones.
    #[inline(always)]
    pub(super) fn front(&self, may_go_on: impl Fn(u32) -> bool) -> Option<Place> {
        match self.short.front() {
            Some(&slot) if self.serving == SHORT && may_go_on(slot) => Some(Place { class: SHORT, index: 0, slot }),
            None if self.filled == 0 => None,
            _ => self.other(&may_go_on),
        }
    }

    /// The first one that may go on: of this class, of the short ones, of the long ones that follow.
    #[inline(never)]
    fn other(&self, may_go_on: &dyn Fn(u32) -> bool) -> Option<Place> {
        let long = (self.next_long..=self.long.len()).chain(SHORT + 1..self.next_long);
        [self.serving, SHORT].into_iter().chain(long).find_map(|class| {
            let (queue, some) = if class == SHORT { (&self.short, 1) } else { (&self.long[class - 1], LONG_IN_TURN) };
            let index = queue.iter().take(some).position(|&slot| may_go_on(slot))?;
            Some(Place { class, index, slot: queue[index] })
        })
    }

    /// The message at this place had `len` bytes sent, and is `done` or goes on. Says whether its turn is over.
    #[inline(always)]
    pub(super) fn served(&mut self, place: Place, len: u32, done: bool) -> bool {
        if place.class != self.serving {
            self.serving = place.class;
            self.turn = 0;
        }
        self.turn += len.max(LEAST);
        // A short message is not left half done, or the receiver would have one of each flow.
        let over = self.turn >= TURN_BYTES && (done || place.class != SHORT);
        if place.class != SHORT {
            self.served_long(place, over, done);
        } else if done {
            self.short.pop_front();
        }
        if over {
            self.pass_on();
        }
        over
    }

    #[inline(never)]
    fn served_long(&mut self, place: Place, over: bool, done: bool) {
        let queue = &mut self.long[place.class - 1];
        if done {
            queue.remove(place.index);
            self.note(place.class);
        } else if over {
            let slot = queue.remove(place.index).expect("it was served");
            queue.insert(queue.len().min(LONG_IN_TURN - 1), slot);
        }
    }

    /// The turn of a class is over: the next is of short messages if it was of long ones, and the other way round.
    #[cold]
    fn pass_on(&mut self) {
        self.turn = 0;
        if self.serving == SHORT {
            let later = self.filled & (u32::MAX << self.next_long);
            let long = if later == 0 { self.filled } else { later };
            if long != 0 {
                self.serving = long.trailing_zeros() as usize;
            }
        } else {
            self.next_long = self.serving + 1;
            self.serving = SHORT;
        }
    }

    /// Takes a message out, whether it is here or not. One that has begun is among the first, and found at once. `len`: its
    /// length.
    pub(super) fn remove(&mut self, slot: u32, len: u32) {
        let class = class_of(len);
        let queue = if class == SHORT { &mut self.short } else { &mut self.long[class - 1] };
        if let Some(index) = queue.iter().position(|&other| other == slot) {
            queue.remove(index);
        }
        if class != SHORT {
            self.note(class);
        }
    }

    /// Keeps those that `which` picks.
    pub(super) fn retain(&mut self, mut which: impl FnMut(u32) -> bool) {
        self.short.retain(|&slot| which(slot));
        for class in SHORT + 1..=self.long.len() {
            self.long[class - 1].retain(|&slot| which(slot));
            self.note(class);
        }
    }

    /// A class of long messages may have become empty.
    fn note(&mut self, class: usize) {
        if self.long[class - 1].is_empty() {
            self.filled &= !(1 << class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u32 = 8 * 1024;

    /// Messages of these lengths, by slot, all of them ready.
    fn classes(lens: &[u32]) -> Classes {
        let mut classes = Classes::default();
        for (slot, &len) in lens.iter().enumerate() {
            classes.push(slot as u32, len);
        }
        classes
    }

    /// Serves pieces until `stop`; what was sent of each message by then.
    fn serve(classes: &mut Classes, lens: &[u32], sent: &mut [u32], mut stop: impl FnMut(&[u32]) -> bool) {
        while !stop(sent)
            && let Some(place) = classes.front(|_| true)
        {
            let slot = place.slot as usize;
            let len = PIECE.min(lens[slot] - sent[slot]);
            sent[slot] += len;
            classes.served(place, len, sent[slot] == lens[slot]);
        }
    }

    #[test]
    fn classes_double() {
        let edges =
            [0, 1, TURN_BYTES, TURN_BYTES + 1, 2 * TURN_BYTES, 2 * TURN_BYTES + 1, 1 << 20, (1 << 20) + 1, 1 << 30];
        assert_eq!(edges.map(class_of), [0, 0, 0, 1, 1, 2, 4, 5, 14]);
        assert_eq!(class_of(u32::MAX), 16);
    }

    #[test]
    fn a_message_does_not_wait_for_those_that_are_much_longer() {
        // As many of a megabyte as take turns, and more of a gigabyte; all have begun.
        let mut lens = [[1 << 20; 8], [1 << 30; 8]].concat();
        let mut all = classes(&lens);
        let mut sent = vec![0; 17];
        serve(&mut all, &lens, &mut sent, |sent| sent.iter().sum::<u32>() >= 4 * TURN_BYTES);
        lens.push(TURN_BYTES + 1);
        all.push(16, TURN_BYTES + 1);
        let before: u32 = sent.iter().sum();
        serve(&mut all, &lens, &mut sent, |sent| sent[16] > TURN_BYTES);
        let others = sent.iter().sum::<u32>() - before - sent[16];
        assert!(others <= 5 * TURN_BYTES, "{others} bytes of others first");
    }

    #[test]
    fn short_ones_get_every_other_turn_and_classes_of_long_ones_the_same_share() {
        let lens = [[1 << 20; 2], [2 << 20; 2], [4 << 20; 2]]
            .concat()
            .into_iter()
            .chain([TURN_BYTES; 20])
            .collect::<Vec<u32>>();
        let (mut all, mut sent) = (classes(&lens), vec![0; lens.len()]);
        serve(&mut all, &lens, &mut sent, |sent| sent.iter().sum::<u32>() >= 24 * TURN_BYTES);
        let of = |class: std::ops::Range<usize>| sent[class].iter().sum::<u32>() / TURN_BYTES;
        assert_eq!([of(0..2), of(2..4), of(4..6), of(6..26)], [4, 4, 4, 12], "{sent:?}");
        serve(&mut all, &lens, &mut sent, |_| false);
        assert_eq!(sent, lens);
        assert!(all.is_empty());
    }

    #[test]
    fn empty_messages_without_an_end_do_not_stop_a_long_one() {
        let mut all = classes(&[1 << 20]);
        (1..=4096).for_each(|slot| all.push(slot, 0));
        let before = (0..4096).find(|_| {
            let place = all.front(|_| true).expect("there are enough");
            all.served(place, 0, place.slot > 0);
            place.slot == 0
        });
        assert_eq!(before, Some(TURN_BYTES / LEAST));
    }

    #[test]
    fn what_may_not_go_on_is_passed_over() {
        let mut all = classes(&[1 << 20, 100, 1 << 20, 4 << 20, 200]);
        assert_eq!(all.front(|slot| slot != 1).unwrap().slot, 0, "short ones stay in order, so a long one");
        assert_eq!(all.front(|slot| slot == 2).unwrap().slot, 2);
        assert_eq!(all.front(|slot| slot == 3).unwrap().slot, 3);
        assert!(all.front(|slot| slot == 4).is_none() && all.front(|_| false).is_none());
        all.remove(1, 100);
        assert_eq!(all.front(|_| true).unwrap().slot, 4);
        all.retain(|slot| slot == 3);
        assert_eq!(all.front(|_| true).unwrap().slot, 3);
        all.remove(3, 4 << 20);
        assert!(all.is_empty() && all.front(|_| true).is_none());
    }
}
