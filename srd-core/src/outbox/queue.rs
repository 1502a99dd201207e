//! The order in which messages with unsent bytes are served: flows take turns, and of a flow its messages (`classes.rs`).
//!
//! A few lanes stand for all flows, as in stochastic fairness queueing (McKenney, INFOCOM 1990): flows whose numbers are the
//! same modulo the number of lanes share one. So the memory and the time that finding the next message takes are bounded.

use super::classes::{Classes, Place};

/// As many as a word has bits.
const LANES: usize = 32;

/// Messages of all flows.
// Messages come by the million, mostly of one flow for a while: those of the lane that is served are found without a look at
// the others.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The messages of the lane that is served now, and its number.
    here: Classes,
    lane: usize,
    /// Those of the others, once there were any; the place of the lane that is served is empty.
    others: Vec<Classes>,
    /// One bit for each of the others that has any message.
    filled: u32,
}

fn lane_of(flow: u8) -> usize {
    usize::from(flow) % LANES
}

impl Queue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.filled == 0
    }

    /// Behind the others of its flow. `len`: the message's length.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, flow: u8, len: u32) {
        let lane = lane_of(flow);
        if lane != self.lane {
            if !self.is_empty() {
                return self.push_other(slot, lane, len);
            }
            self.lane = lane;
        }
        self.here.push(slot, len);
    }

    #[inline(never)]
    fn push_other(&mut self, slot: u32, lane: usize, len: u32) {
        self.others.resize_with(LANES, Classes::default);
        self.others[lane].push(slot, len);
        self.filled |= 1 << lane;
    }

    /// The message whose turn it is. One that may not go on is passed over for one that may.
    // Inlined, because a place that was just written in parts and is read as a whole has to be waited for.
    #[inline(always)]
    pub(super) fn front(&self, may_go_on: impl Fn(u32) -> bool) -> Option<Place> {
        match self.here.front(&may_go_on) {
            None if self.filled != 0 => self.other(&may_go_on),
            place => place,
        }
    }

    /// The first one that may go on of the lanes after this one.
    #[inline(never)]
    fn other(&self, may_go_on: &dyn Fn(u32) -> bool) -> Option<Place> {
        let mut left = self.filled;
        while left != 0 {
            let lane = next(left, self.lane);
            let place = self.others[lane].front(may_go_on);
            if place.is_some() {
                return place;
            }
            left &= !(1 << lane);
        }
        None
    }

    /// The message at this place, of this flow, had `len` bytes sent, and is `done` or goes on.
    #[inline(always)]
    pub(super) fn served(&mut self, place: Place, flow: u8, len: u32, done: bool) {
        let lane = lane_of(flow);
        if lane != self.lane {
            self.turn_to(lane);
        }
        let over = self.here.served(place, len, done);
        if over && self.filled != 0 {
            self.turn_to(next(self.filled, self.lane));
        }
    }

    #[inline(never)]
    fn turn_to(&mut self, lane: usize) {
        if !self.here.is_empty() {
            self.filled |= 1 << self.lane;
        }
        std::mem::swap(&mut self.here, &mut self.others[self.lane]);
        std::mem::swap(&mut self.here, &mut self.others[lane]);
        self.filled &= !(1 << lane);
        self.lane = lane;
    }

    /// Takes a message out, whether it is here or not. `len`: its length.
    pub(super) fn remove(&mut self, slot: u32, flow: u8, len: u32) {
        let lane = lane_of(flow);
        if lane == self.lane {
            self.here.remove(slot, len);
        } else if let Some(classes) = self.others.get_mut(lane) {
            classes.remove(slot, len);
            self.note(lane);
        }
    }

    /// Keeps those that `which` picks.
    pub(super) fn retain(&mut self, mut which: impl FnMut(u32) -> bool) {
        self.here.retain(&mut which);
        for lane in 0..self.others.len() {
            self.others[lane].retain(&mut which);
            self.note(lane);
        }
    }

    /// Another lane may have become empty.
    fn note(&mut self, lane: usize) {
        if self.others[lane].is_empty() {
            self.filled &= !(1 << lane);
        }
    }
}

/// The first of the lanes in `filled`, which is not empty, that comes after `lane`; itself last.
fn next(filled: u32, lane: usize) -> usize {
    let turned = filled.rotate_right(lane as u32 + 1);
    (lane + 1 + turned.trailing_zeros() as usize) % LANES
}

#[cfg(test)]
mod tests {
    use super::super::classes::TURN_BYTES;
    use super::*;

    const PIECE: u32 = 8 * 1024;

    /// Serves pieces of messages of these flows and lengths, by slot, until `stop`; what was sent of each by then.
    fn serve(queue: &mut Queue, messages: &[(u8, u32)], sent: &mut [u32], mut stop: impl FnMut(&[u32]) -> bool) {
        while !stop(sent)
            && let Some(place) = queue.front(|_| true)
        {
            let slot = place.slot as usize;
            let len = PIECE.min(messages[slot].1 - sent[slot]);
            sent[slot] += len;
            queue.served(place, messages[slot].0, len, sent[slot] == messages[slot].1);
        }
    }

    fn queue(messages: &[(u8, u32)]) -> Queue {
        let mut queue = Queue::default();
        for (slot, &(flow, len)) in messages.iter().enumerate() {
            queue.push(slot as u32, flow, len);
        }
        queue
    }

    #[test]
    fn lanes_come_round() {
        assert_eq!(next(0b1, 0), 0);
        assert_eq!(next(0b11, 0), 1);
        assert_eq!(next(0b11, 1), 0);
        assert_eq!(next(1 << 31 | 1, 0), 31);
        assert_eq!(next(1 << 31 | 1, 31), 0);
        assert_eq!(next(0b1010, 2), 3);
    }

    #[test]
    fn a_flow_does_not_wait_for_all_that_another_has_posted() {
        // Of every class, so that nothing but the flow tells them apart.
        for len in [64, PIECE, TURN_BYTES, 1 << 20] {
            let mut messages = vec![(7, len); (64 << 20) / len as usize];
            let mut all = queue(&messages);
            let mut sent = vec![0; messages.len() + 1];
            serve(&mut all, &messages, &mut sent, |sent| sent[0] == len);
            messages.push((8, len));
            all.push(messages.len() as u32 - 1, 8, len);
            let before: u32 = sent.iter().sum();
            serve(&mut all, &messages, &mut sent, |sent| *sent.last().unwrap() == len);
            let others = sent.iter().sum::<u32>() - before - len;
            assert!(others <= len + TURN_BYTES, "{len} bytes wait for {others}");
        }
    }

    #[test]
    fn nor_if_all_that_is_empty() {
        let mut all = queue(&[(7, 0); 4096]);
        all.push(4096, 8, 64);
        let before = (0..4096).find(|_| {
            let place = all.front(|_| true).expect("there are enough");
            all.served(place, if place.slot == 4096 { 8 } else { 7 }, 0, true);
            place.slot == 4096
        });
        assert!(before.is_some_and(|n| n <= TURN_BYTES / 64), "{before:?}");
    }

    #[test]
    fn flows_share_alike_whatever_their_messages() {
        let messages = [[(1, 64); 20_000].as_slice(), &[(2, 1 << 20); 2], &[(3, TURN_BYTES); 20]].concat();
        let (mut all, mut sent) = (queue(&messages), vec![0; messages.len()]);
        serve(&mut all, &messages, &mut sent, |sent| sent.iter().sum::<u32>() >= 30 * TURN_BYTES);
        let of = |flow| (0..sent.len()).filter(|&i| messages[i].0 == flow).map(|i| sent[i]).sum::<u32>();
        for flow in 1..=3 {
            let turns = of(flow) / TURN_BYTES;
            assert!((9..=11).contains(&turns), "flow {flow} had {turns} of 30 turns");
        }
        serve(&mut all, &messages, &mut sent, |_| false);
        assert!(sent.iter().zip(&messages).all(|(sent, m)| *sent == m.1) && all.is_empty());
    }

    #[test]
    fn what_may_not_go_on_is_passed_over() {
        let mut all = queue(&[(0, 100), (5, 1 << 20), (31, 100), (5 + LANES as u8, 100)]);
        let may = |slots: &'static [u32]| move |slot| slots.contains(&slot);
        assert_eq!(all.front(may(&[2, 3])).unwrap().slot, 3, "the next lane, whichever flow");
        assert_eq!(all.front(may(&[2])).unwrap().slot, 2);
        assert!(all.front(|_| false).is_none());
        all.remove(0, 0, 100);
        all.remove(0, 9, 100);
        assert_eq!(all.front(|_| true).unwrap().slot, 3, "short ones first");
        all.retain(|slot| slot == 2);
        assert_eq!(all.front(|_| true).unwrap().slot, 2);
        all.remove(2, 31, 100);
        assert!(all.is_empty() && all.front(|_| true).is_none());
    }
}
