//! What links are made of.

use srd_core::Span;

/// A part of a link. A link has at most one of each kind; packets pass them in the order of this list. What is lost or damaged on
/// a cable has been sent, and took its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Drops everything.
    Blackhole,
    /// Silently drops IP packets longer than this many bytes (UDP payload plus 28).
    Mtu(u32),
    /// A transmitter with a bounded queue before it.
    Queue(Queue),
    /// Drops a share of packets, in millionths, each by itself.
    Loss(u32),
    /// Drops in bursts (Gilbert): see [`Burst`].
    Burst(Burst),
    /// Changes the bytes of a share of packets, in millionths: flips bits, cuts them short or appends to them.
    Corrupt(u32),
    /// Propagation delay.
    Delay(Span),
    /// A further delay between zero and this, evenly distributed; packets overtake each other.
    Jitter(Span),
    /// Holds back a share of packets: (share in millionths, how long at most).
    Reorder(u32, Span),
    /// Delivers a share of packets twice: (share in millionths, how much later at most).
    Duplicate(u32, Span),
}

/// A rate and a drop-tail queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Bits per second, at least 1.
    pub rate: u64,
    /// Bytes that may wait, the packet in service included. A packet that finds an empty queue is always taken.
    pub limit: u64,
    /// Queue length in bytes from which ECN-capable packets are marked; `u64::MAX` for never.
    pub ecn: u64,
    /// Bytes beyond `ecn` over which the probability of a mark rises from 0 to 1; 0 marks all.
    pub ramp: u64,
}

impl Queue {
    /// A queue that marks above half its limit.
    pub fn new(rate: u64, limit: u64) -> Queue {
        Queue { rate, limit, ecn: limit / 2, ramp: 0 }
    }
}

/// Loss in bursts: a good state without loss and a bad one where everything is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Probability per packet of going bad, in millionths.
    pub enter: u32,
    /// Probability per packet of becoming good again, in millionths.
    pub leave: u32,
}

/// The kinds of parts, to name the one to remove.
#[expect(missing_docs, reason = "each is the kind of the part of the same name")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PartKind {
    Blackhole,
    Mtu,
    Queue,
    Loss,
    Burst,
    Corrupt,
    Delay,
    Jitter,
    Reorder,
    Duplicate,
}

impl Part {
    /// Its kind.
    pub fn kind(&self) -> PartKind {
        match self {
            Part::Blackhole => PartKind::Blackhole,
            Part::Mtu(_) => PartKind::Mtu,
            Part::Queue(_) => PartKind::Queue,
            Part::Loss(_) => PartKind::Loss,
            Part::Burst(_) => PartKind::Burst,
            Part::Corrupt(_) => PartKind::Corrupt,
            Part::Delay(_) => PartKind::Delay,
            Part::Jitter(_) => PartKind::Jitter,
            Part::Reorder(..) => PartKind::Reorder,
            Part::Duplicate(..) => PartKind::Duplicate,
        }
    }
}
