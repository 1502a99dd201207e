//! The storey above the transport: keeps a number of messages under way, and books every one of them at both ends.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::mpsc::Sender;
use std::time::Instant;

use srd::{Endpoint, Failure, Gather, Outbound, PeerId, PlaceToken, Placement, RnrRetry, Time, Token, Upper};

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes per message, at most [`LONGEST`].
    pub(crate) size: u32,
    /// Messages under way at once.
    pub(crate) depth: usize,
    /// How many messages there will be, unless it is stopped before.
    pub(crate) count: u64,
}

/// The end of a message at its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    pub(crate) posted: Instant,
    pub(crate) completed: Instant,
    pub(crate) outcome: Result<(), Failure>,
}

/// A message at its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) from: u16,
    pub(crate) bytes: u32,
}

/// Longest message.
pub(crate) const LONGEST: u32 = 64 << 10;
/// Messages start at different places of the pattern, so that one is not taken for another.
const SHIFTS: u64 = 4093;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..u64::from(LONGEST) + SHIFTS).map(|_| next()).collect()
});

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Parcels {
    /// Marks what this endpoint sends.
    name: u16,
    load: Option<(PeerId, Load)>,
    sent: u64,
    outgoing: Vec<Outgoing>,
    free: Vec<u32>,
    /// Told when the load has been sent and nothing is under way any more.
    pub(crate) on_idle: Option<Sender<()>>,
    pub(crate) departures: Vec<Departure>,

    incoming: Vec<Incoming>,
    free_incoming: Vec<u32>,
    pub(crate) arrivals: Vec<Arrival>,
    /// Which messages of each sender were delivered, one bit each.
    delivered: BTreeMap<u16, Vec<u64>>,
    pub(crate) twice: u64,
    pub(crate) corrupt: u64,
}

#[derive(Debug)]
struct Outgoing {
    id: u64,
    header: [u8; 8],
    posted: Instant,
}

#[derive(Debug, Default)]
struct Incoming {
    id: u64,
    len: u32,
}

impl Parcels {
    pub(crate) fn new(name: u16) -> Parcels {
        LazyLock::force(&PATTERN);
        Parcels {
            name,
            load: None,
            sent: 0,
            outgoing: Vec::new(),
            free: Vec::new(),
            on_idle: None,
            departures: Vec::new(),
            incoming: Vec::new(),
            free_incoming: Vec::new(),
            arrivals: Vec::new(),
            delivered: BTreeMap::new(),
            twice: 0,
            corrupt: 0,
        }
    }

    /// Sends this from now on.
    pub(crate) fn begin(&mut self, peer: PeerId, load: Load) {
        assert!(load.size <= LONGEST);
        self.load = Some((peer, Load { count: self.sent.saturating_add(load.count), ..load }));
    }

    /// Sends nothing new.
    pub(crate) fn stop(&mut self) {
        self.load = None;
    }

    /// Tops up what is under way.
    pub(crate) fn work(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some((peer, load)) = self.load {
            if self.sent == load.count {
                self.load = None;
            } else if self.under_way() >= load.depth || !self.send(endpoint, now, peer, load.size) {
                break;
            }
        }
        if self.load.is_none()
            && self.under_way() == 0
            && let Some(told) = self.on_idle.take()
        {
            let _ = told.send(());
        }
    }

    /// Messages posted and not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.outgoing.len() - self.free.len()
    }

    fn send(&mut self, endpoint: &mut Endpoint, now: Time, peer: PeerId, size: u32) -> bool {
        let id = u64::from(self.name) << 48 | self.sent;
        let out = Outgoing { id, header: id.to_le_bytes(), posted: Instant::now() };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.outgoing[slot as usize] = out;
                slot
            }
            None => {
                self.outgoing.push(out);
                (self.outgoing.len() - 1) as u32
            }
        };
        let msg = Outbound { token: Token(slot.into()), flow: 0, header_len: 8, len: size, rnr: RnrRetry::Forever };
        let accepted = endpoint.send(now, peer, msg).is_ok();
        if accepted {
            self.sent += 1;
        } else {
            self.free.push(slot);
        }
        accepted
    }
}

fn pattern(id: u64, offset: u32, len: usize) -> &'static [u8] {
    &PATTERN[(id % SHIFTS) as usize + offset as usize..][..len]
}

impl Gather for Parcels {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        pattern(self.outgoing[token.0 as usize].id, offset, len)
    }
}

impl Upper for Parcels {
    fn header(&self, token: Token) -> &[u8] {
        &self.outgoing[token.0 as usize].header
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        let posted = self.outgoing[token.0 as usize].posted;
        self.departures.push(Departure { posted, completed: Instant::now(), outcome });
        self.free.push(token.0 as u32);
    }

    fn place(&mut self, _: PeerId, header: &[u8], len: u32) -> Placement {
        let Some(&header) = header.first_chunk().filter(|_| len <= LONGEST) else { return Placement::Refuse(0) };
        let slot = self.free_incoming.pop().unwrap_or_else(|| {
            self.incoming.push(Incoming::default());
            (self.incoming.len() - 1) as u32
        });
        self.incoming[slot as usize] = Incoming { id: u64::from_le_bytes(header), len };
        Placement::Accept(PlaceToken(slot.into()))
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let id = self.incoming[place.0 as usize].id;
        self.corrupt += u64::from(bytes != pattern(id, offset, bytes.len()));
    }

    fn placed(&mut self, place: PlaceToken) {
        let Incoming { id, len } = self.incoming[place.0 as usize];
        let (from, number) = ((id >> 48) as u16, id & ((1 << 48) - 1));
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        let seen = self.delivered.entry(from).or_default();
        seen.resize(seen.len().max(word + 1), 0);
        self.twice += u64::from(seen[word] & bit != 0);
        seen[word] |= bit;
        self.arrivals.push(Arrival { at: Instant::now(), from, bytes: len });
        self.free_incoming.push(place.0 as u32);
    }

    fn abandoned(&mut self, place: PlaceToken) {
        self.free_incoming.push(place.0 as u32);
    }
}
