//! What a card knows of its peers, and the address handles that its program has for them.
//!
//! In all of it `None` in place of a peer stands for the card itself.

use super::{Gid, PdId, UNKNOWN_AH};
use crate::endpoint::PeerId;
use crate::time::Time;

/// An address handle of a program.
#[derive(Debug)]
pub(super) struct Ah {
    pub(super) gid: Gid,
    /// The first processing unit of the peer, and the others. `None` for ourselves.
    pub(super) first: Option<PeerId>,
    pub(super) others: Box<[Option<PeerId>]>,
    /// How often it was made: handles of one address in one domain have one number.
    pub(super) refs: u32,
}

impl Ah {
    /// The processing unit that has a queue pair.
    #[inline]
    pub(super) fn peer(&self, qpn: u16) -> Option<PeerId> {
        // Their number is a power of two.
        match qpn as usize & self.others.len() {
            0 => self.first,
            unit => self.others[unit - 1],
        }
    }

    /// All its processing units.
    pub(super) fn peers(&self) -> impl Iterator<Item = Option<PeerId>> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// What is known of a peer.
#[derive(Debug, Default)]
pub(super) struct PeerEntry {
    id: Option<PeerId>,
    /// The card that it belongs to: as it says itself, or as was assumed before it did.
    pub(super) gid: Gid,
    /// The address handles for it.
    pub(super) handles: Vec<Handle>,
    /// Reads that are being answered.
    pub(super) serving: u32,
    /// It said that it closes: until then nobody is there. In the past otherwise.
    pub(super) closed_until: Time,
}

/// An address handle, as its peer's entry has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    pub(super) pd: PdId,
    pub(super) number: u16,
    pub(super) gid: Gid,
}

impl PeerEntry {
    /// The number of the handle in this domain for the card that it belongs to.
    pub(super) fn handle(&self, pd: PdId) -> u16 {
        self.handles.iter().find(|h| h.pd == pd && h.gid == self.gid).map_or(UNKNOWN_AH, |h| h.number)
    }

    /// Whether there is a handle for the card that it belongs to, and not only for another one that had its address.
    pub(super) fn is_known(&self) -> bool {
        self.handles.iter().any(|h| h.gid == self.gid)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Peers {
    /// By slot of the peer in the transport.
    entries: Vec<PeerEntry>,
    own: PeerEntry,
}

impl Peers {
    /// Nobody but ourselves.
    pub(super) fn new(own: Gid) -> Peers {
        Peers { entries: Vec::new(), own: PeerEntry { gid: own, ..PeerEntry::default() } }
    }

    /// What is known of a peer.
    pub(super) fn get(&self, peer: Option<PeerId>) -> Option<&PeerEntry> {
        match peer {
            None => Some(&self.own),
            Some(peer) => self.entries.get(peer.slot()).filter(|e| e.id == Some(peer)),
        }
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, peer: Option<PeerId>) -> Option<&mut PeerEntry> {
        match peer {
            None => Some(&mut self.own),
            Some(peer) => self.entries.get_mut(peer.slot()).filter(|e| e.id == Some(peer)),
        }
    }

    /// The same, made if need be.
    pub(super) fn meet(&mut self, peer: Option<PeerId>, gid: Gid) -> &mut PeerEntry {
        let Some(peer) = peer else { return &mut self.own };
        let slot = peer.slot();
        if self.entries.len() <= slot {
            self.entries.resize_with(slot + 1, PeerEntry::default);
        }
        let entry = &mut self.entries[slot];
        if entry.id != Some(peer) {
            *entry = PeerEntry { id: Some(peer), gid, ..PeerEntry::default() };
        }
        entry
    }
}
