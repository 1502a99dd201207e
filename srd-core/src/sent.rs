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
}

impl SentPackets {
    pub(crate) fn new(first: Seq) -> SentPackets {
        SentPackets { ring: SeqRing::new(first), pieces: VecDeque::new(), pieces_base: 0 }
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
