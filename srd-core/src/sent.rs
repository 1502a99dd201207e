//! Packets on their way: what was sent when, on which path, with which pieces, until the fate of each is known.

use std::collections::VecDeque;

use crate::outbox::Piece;
use crate::seq::{Seq, SeqRing};
use crate::time::Time;

/// What the sender knows of a packet's fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    InFlight,
    Acked,
    /// Declared lost, and when.
    Lost(Time),
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) fate: Fate,
    /// UDP payload bytes.
    pub(crate) bytes: u16,
    pub(crate) path: u8,
    /// Life of the path (its replacements) when it was sent.
    pub(crate) path_life: u32,
    /// A tail probe: its pieces are those of another packet, whose loss is what sends them again.
    pub(crate) probe: bool,
    /// Place in the order of packets on that path.
    pub(crate) path_seq: u32,
    pieces: u8,
    first_piece: u32,
}

/// What the connection adds to a packet when it has been written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentInfo {
    pub(crate) at: Time,
    pub(crate) bytes: u16,
    pub(crate) path: u8,
    pub(crate) path_life: u32,
    pub(crate) probe: bool,
    pub(crate) path_seq: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct SentPackets {
    ring: SeqRing<Sent>,
    pieces: VecDeque<Piece>,
    /// Number of the first piece in `pieces`, counted from the start of the connection.
    pieces_base: u32,
    /// `acked[(pn / 64) % len]`, bit `pn % 64`: acknowledged. Acknowledgements repeat all that lies beyond a gap, and this
    /// tells the news from the rest, 64 packets at a time.
    acked: Vec<u64>,
}

impl SentPackets {
    /// Of a connection whose first packet has number `first`, with at most `window` (a power of two) packets remembered.
    pub(crate) fn new(first: Seq, window: u32) -> SentPackets {
        // Twice the window, so that no packet meets one that is still remembered.
        let acked = vec![0; window as usize / 32];
        SentPackets { ring: SeqRing::new(first), pieces: VecDeque::new(), pieces_base: 0, acked }
    }

    fn bit(&self, pn: Seq) -> (usize, u64) {
        ((pn.0 as usize / 64) & (self.acked.len() - 1), 1 << (pn.0 % 64))
    }

    /// Which of the 64 packets from `first` on are known to be acknowledged, lowest first. Says nothing of packets that
    /// are not remembered.
    pub(crate) fn acked_word(&self, first: Seq) -> u64 {
        let shift = first.0 % 64;
        let (word, _) = self.bit(first);
        let low = self.acked[word] >> shift;
        if shift == 0 { low } else { low | self.acked[(word + 1) & (self.acked.len() - 1)] << (64 - shift) }
    }

    /// Number of the next packet.
    // [REL-1]
    pub(crate) fn next(&self) -> Seq {
        self.ring.next()
    }

    /// Oldest packet whose fate is unknown, or that was declared lost so recently that it may still turn up.
    pub(crate) fn base(&self) -> Seq {
        self.ring.base()
    }

    /// Packets between the oldest and the next.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Adds a piece to the packet that is being written.
    pub(crate) fn add_piece(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
    }

    /// Ends the packet that is being written, with the last `pieces` added pieces in it.
    pub(crate) fn push(&mut self, info: SentInfo, pieces: u8) -> Seq {
        let end = self.pieces_base.wrapping_add(self.pieces.len() as u32);
        let (word, bit) = self.bit(self.ring.next());
        self.acked[word] &= !bit;
        self.ring.push(Sent {
            at: info.at,
            fate: Fate::InFlight,
            bytes: info.bytes,
            path: info.path,
            path_life: info.path_life,
            probe: info.probe,
            path_seq: info.path_seq,
            pieces,
            first_piece: end.wrapping_sub(pieces.into()),
        })
    }

    pub(crate) fn get(&self, pn: Seq) -> Option<&Sent> {
        self.ring.get(pn)
    }

    pub(crate) fn set_fate(&mut self, pn: Seq, fate: Fate) {
        self.ring.get_mut(pn).expect("fate of a known packet").fate = fate;
        if fate == Fate::Acked {
            let (word, bit) = self.bit(pn);
            self.acked[word] |= bit;
        }
    }

    /// The pieces of a packet.
    pub(crate) fn pieces(&self, sent: &Sent) -> impl Iterator<Item = Piece> + '_ {
        let first = sent.first_piece.wrapping_sub(self.pieces_base) as usize;
        self.pieces.range(first..first + usize::from(sent.pieces)).copied()
    }

    /// The oldest packet in flight.
    pub(crate) fn oldest_in_flight(&self) -> Option<(Seq, &Sent)> {
        (0..self.ring.len()).map(|i| self.ring.base().plus(i)).find_map(|pn| {
            let sent = self.ring.get(pn)?;
            (sent.fate == Fate::InFlight).then_some((pn, sent))
        })
    }

    /// When the oldest packet that is remembered was sent: none that is in flight is older.
    pub(crate) fn oldest_at(&self) -> Option<Time> {
        self.ring.front().map(|sent| sent.at)
    }

    /// Forgets the oldest packets that were acknowledged. Says whether one that was lost is the oldest now.
    pub(crate) fn forget_acked(&mut self) -> bool {
        self.forget(Time::ZERO);
        matches!(self.ring.front(), Some(Sent { fate: Fate::Lost(_), .. }))
    }

    /// Forgets the oldest packets whose fate is settled: acknowledged, or lost at or before `lost_before`.
    pub(crate) fn forget(&mut self, lost_before: Time) {
        while let Some(sent) = self.ring.front() {
            match sent.fate {
                Fate::Acked => {}
                Fate::Lost(at) if at <= lost_before => {}
                _ => break,
            }
            self.pieces.drain(..usize::from(sent.pieces));
            self.pieces_base = self.pieces_base.wrapping_add(sent.pieces.into());
            self.ring.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acked_word_knows_every_packet_across_the_wrap() {
        let first = Seq(u32::MAX - 100);
        let mut sent = SentPackets::new(first, 64);
        let info = SentInfo { at: Time::ZERO, bytes: 100, path: 0, path_life: 0, probe: false, path_seq: 0 };
        for i in 0..1000 {
            let pn = sent.push(info, 0);
            if i % 3 == 0 {
                sent.set_fate(pn, Fate::Acked);
            }
            let word = sent.acked_word(sent.base());
            for k in 0..sent.len() {
                let acked = sent.get(sent.base().plus(k)).is_some_and(|s| s.fate == Fate::Acked);
                assert_eq!((word >> k) & 1 == 1, acked, "packet {k} of {i}");
            }
            if sent.len() == 64 {
                for k in 0..32 {
                    sent.set_fate(first.plus(i - 63 + k), Fate::Acked);
                }
                sent.forget(Time::ZERO);
            }
        }
    }
}
