//! A network that misbehaves on request: [`Faulty`] wraps any driver and loses, repeats, damages and delays datagrams.
//!
//! What goes wrong may change with time, by a [`FaultPlan`]. Which datagram meets which fault depends on the seed and on the
//! order of the datagrams, on nothing else; every kind of fault draws from a generator of its own, so that switching one on
//! does not move the others. The module has no I/O and no clock of its own: both are the wrapped driver's. It never invents
//! bytes that were not sent, except the flipped bit of a damaged datagram, and it never keeps more than
//! [`Faults::max_held`] datagrams back.

mod plan;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use crate::batch::{Burst, TxBatch};
use crate::driver::{Driver, RxMeta, SourcePort};
use crate::time::{Span, Time};
use crate::upper::{Gather, Token};

use plan::Numbers;
pub use plan::{BlackHole, FaultPlan, Way, Where};

/// A probability in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u32);

impl Share {
    /// Never.
    pub const NEVER: Share = Share(0);
    /// Always.
    pub const ALWAYS: Share = Share(1_000_000);

    /// `n` in a million; more than a million counts as always.
    pub const fn per_million(n: u32) -> Share {
        if n > 1_000_000 { Share::ALWAYS } else { Share(n) }
    }

    /// `n` in a hundred; more than a hundred counts as always.
    pub const fn percent(n: u32) -> Share {
        Share::per_million(n.saturating_mul(10_000))
    }

    /// The number of times in a million.
    pub const fn as_per_million(self) -> u32 {
        self.0
    }

    pub(crate) fn hits(self, rng: &mut Xoshiro256PlusPlus) -> bool {
        // No draw when it cannot matter; else the upper bits of a 64-bit product give a number in 0..1_000_000.
        self.0 > 0 && below(rng, 1_000_000) < u64::from(self.0)
    }
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} %", f64::from(self.0) / 1e4)
    }
}

/// What goes wrong, and how often. The default is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Sent datagrams that vanish. Default never.
    pub loss: Share,
    /// Sent datagrams that arrive twice. Default never.
    pub duplicate: Share,
    /// Sent datagrams in which one bit is flipped. Default never.
    pub corrupt: Share,
    /// Sent datagrams that are held back while later ones pass. Default never.
    pub delay: Share,
    /// Shortest time that a datagram is held back. Default 100 us: a few datagrams' worth of reordering.
    pub delay_min: Span,
    /// Longest time that a datagram is held back, at least `delay_min`. Default 1 ms.
    pub delay_max: Span,
    /// Datagrams held back at once; when as many wait, further ones pass undelayed. Default 4096.
    pub max_held: usize,
    /// Received datagrams that vanish. Default never.
    pub recv_loss: Share,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            loss: Share::NEVER,
            duplicate: Share::NEVER,
            corrupt: Share::NEVER,
            delay: Share::NEVER,
            delay_min: Span::from_micros(100),
            delay_max: Span::from_millis(1),
            max_held: 4096,
            recv_loss: Share::NEVER,
        }
    }
}

/// What a [`Faulty`] driver has done so far, in datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Handed to the wrapped driver or thrown away; everything that was to be sent, once.
    pub offered: u64,
    /// Lost at random when sent.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Held back.
    pub delayed: u64,
    /// Swallowed by a black hole when sent.
    pub swallowed: u64,
    /// Lost at random when received.
    pub recv_lost: u64,
    /// Swallowed by a black hole when received.
    pub recv_swallowed: u64,
}

/// A driver that wraps another one and injects faults: see the module documentation.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    faults: Faults,
    /// What `faults` becomes, and when; the next change last.
    changes: Vec<(Time, Faults)>,
    holes: Vec<BlackHole>,
    numbers: Numbers,
    dice: Dice,
    counts: FaultCounts,
    held: BinaryHeap<Reverse<Held>>,
    next_held: u64,
    /// Rebuilt batches, and one burst's bytes: working memory.
    out: TxBatch,
    bytes: Vec<u8>,
    fates: Vec<Fate>,
}

/// One generator per kind of fault.
#[derive(Debug)]
struct Dice {
    loss: Xoshiro256PlusPlus,
    duplicate: Xoshiro256PlusPlus,
    corrupt: Xoshiro256PlusPlus,
    delay: Xoshiro256PlusPlus,
    recv_loss: Xoshiro256PlusPlus,
}

/// What becomes of one datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fate {
    gone: bool,
    twice: bool,
    /// Which bit, as a fraction of the datagram in 2^-32.
    flip: Option<u32>,
    hold: Option<Span>,
}

#[derive(Debug, PartialEq, Eq)]
struct Held {
    release: Time,
    number: u64,
    head: Head,
    bytes: Vec<u8>,
}

/// Where datagrams go, and how: a [`Burst`] without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    to: SocketAddr,
    from: Option<IpAddr>,
    port: SourcePort,
    ect: bool,
    segment: usize,
}

impl Head {
    fn of(burst: &Burst<'_>) -> Head {
        let Burst { to, from, port, ect, segment, .. } = *burst;
        Head { to, from, port, ect, segment }
    }

    /// Adds a burst of these bytes to a batch.
    fn push(self, batch: &mut TxBatch, bytes: &[u8]) {
        let mut burst = batch.burst(self.to, self.port, self.segment).ect(self.ect);
        if let Some(from) = self.from {
            burst = burst.from(from);
        }
        burst.inline(bytes);
        burst.finish();
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> Ordering {
        (self.release, self.number).cmp(&(other.release, other.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<D: Driver> Faulty<D> {
    /// Wraps `inner`; `seed` decides which datagrams meet which fault.
    pub fn new(inner: D, faults: Faults, seed: u64) -> Faulty<D> {
        Faulty::with_plan(inner, FaultPlan::from(faults), seed)
    }

    /// Wraps `inner`; the times of the plan count from now.
    pub fn with_plan(mut inner: D, plan: FaultPlan, seed: u64) -> Faulty<D> {
        let (faults, changes, holes) = plan.starting(inner.now());
        let dice = |purpose: u64| Xoshiro256PlusPlus::seed_from_u64(seed ^ (purpose << 56));
        Faulty {
            inner,
            faults,
            changes,
            holes,
            numbers: Numbers::default(),
            dice: Dice { loss: dice(1), duplicate: dice(2), corrupt: dice(3), delay: dice(4), recv_loss: dice(5) },
            counts: FaultCounts::default(),
            held: BinaryHeap::new(),
            next_held: 0,
            out: TxBatch::new(),
            bytes: Vec::new(),
            fates: Vec::new(),
        }
    }

    /// Adds a black hole; its times are those of the driver's clock. Black holes add up.
    pub fn black_hole(&mut self, hole: BlackHole) {
        self.holes.push(hole);
    }

    /// Closes all black holes.
    pub fn heal(&mut self) {
        self.holes.clear();
    }

    /// What has been done so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// The wrapped driver.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The time if anything depends on it, else any time. Changes what goes wrong when that is due.
    fn tick(&mut self) -> Time {
        if self.holes.is_empty() && self.changes.is_empty() {
            return Time::ZERO;
        }
        let now = self.inner.now();
        while self.changes.last().is_some_and(|c| c.0 <= now) {
            let Some((_, faults)) = self.changes.pop() else { break };
            self.faults = faults;
        }
        now
    }

    /// Draws the fate of every datagram of a batch; whether any of them is not simply sent.
    fn draw(&mut self, batch: &TxBatch) -> bool {
        let now = self.tick();
        let Faulty { faults, holes, numbers, dice, counts, held, fates, .. } = self;
        fates.clear();
        let mut free = faults.max_held.saturating_sub(held.len());
        let mut any = false;
        for burst in batch.bursts() {
            let number = numbers.number(burst.port);
            let hole = holes.iter().any(|h| h.takes_sent(now, burst.port, number, burst.to));
            for _ in 0..burst.datagrams() {
                // Every die is thrown for every datagram, so that one fault does not move the others.
                let lost = faults.loss.hits(&mut dice.loss);
                let mut fate = Fate {
                    gone: lost || hole,
                    twice: faults.duplicate.hits(&mut dice.duplicate),
                    flip: faults.corrupt.hits(&mut dice.corrupt).then(|| dice.corrupt.next_u32()),
                    hold: None,
                };
                if faults.delay.hits(&mut dice.delay) {
                    let range = (faults.delay_max - faults.delay_min).as_nanos().saturating_add(1);
                    let hold = faults.delay_min + Span::from_nanos(below(&mut dice.delay, range));
                    if !fate.gone && free > 0 {
                        free -= 1;
                        fate.hold = Some(hold);
                    }
                }
                counts.offered += 1;
                if fate.gone {
                    fate = Fate { gone: true, ..Fate::default() };
                    if hole {
                        counts.swallowed += 1;
                    } else {
                        counts.lost += 1;
                    }
                }
                counts.duplicated += u64::from(fate.twice);
                counts.corrupted += u64::from(fate.flip.is_some());
                counts.delayed += u64::from(fate.hold.is_some());
                any |= fate != Fate::default();
                fates.push(fate);
            }
        }
        any
    }

    /// Writes what is left of `burst` into the outgoing batch, and keeps back what is delayed.
    fn rebuild(&mut self, burst: &Burst<'_>, fates: &[Fate], mem: &dyn Gather) {
        self.bytes.clear();
        burst.copy_to(mem, &mut self.bytes);
        let head = Head::of(burst);
        let (mut kept, mut read) = (0, 0);
        for fate in fates {
            let end = (read + head.segment).min(self.bytes.len());
            if let Some(fraction) = fate.flip {
                let bit = ((8 * (end - read) as u64 * u64::from(fraction)) >> 32) as usize;
                self.bytes[read + bit / 8] ^= 1 << (bit % 8);
            }
            if fate.twice {
                // A copy of its own, ahead of the burst: the two need not arrive next to each other.
                head.push(&mut self.out, &self.bytes[read..end]);
            }
            if let Some(hold) = fate.hold {
                let release = self.inner.now() + hold;
                let number = self.next_held;
                self.next_held += 1;
                let bytes = self.bytes[read..end].to_vec();
                self.held.push(Reverse(Held { release, number, head, bytes }));
            }
            if !fate.gone && fate.hold.is_none() {
                // Close the gap that missing datagrams left; all keep the same length, only the last may be shorter.
                self.bytes.copy_within(read..end, kept);
                kept += end - read;
            }
            read = end;
        }
        if kept > 0 {
            head.push(&mut self.out, &self.bytes[..kept]);
        }
    }

    /// Sends what was held back long enough.
    fn release(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let now = self.inner.now();
        self.out.clear();
        while self.held.peek().is_some_and(|h| h.0.release <= now) {
            let Some(Reverse(h)) = self.held.pop() else { break };
            h.head.push(&mut self.out, &h.bytes);
        }
        if self.out.is_empty() { Ok(()) } else { self.inner.send(&self.out, &NoPayload) }
    }
}

impl<D: Driver> Driver for Faulty<D> {
    fn now(&mut self) -> Time {
        self.inner.now()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        self.release()?;
        let now = self.tick();
        let Faulty { inner, faults, holes, dice, counts, .. } = self;
        if faults.recv_loss == Share::NEVER && holes.is_empty() {
            return inner.recv(sink);
        }
        inner.recv(&mut |meta, bytes| {
            // The die is thrown for every datagram, so that a black hole does not move the losses.
            let lost = faults.recv_loss.hits(&mut dice.recv_loss);
            if holes.iter().any(|h| h.takes_received(now, meta.from)) {
                counts.recv_swallowed += 1;
            } else if lost {
                counts.recv_lost += 1;
            } else {
                sink(meta, bytes);
            }
        })
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        self.release()?;
        if !self.draw(batch) {
            return self.inner.send(batch, mem);
        }
        self.out.clear();
        let fates = std::mem::take(&mut self.fates);
        let mut rest = &fates[..];
        for burst in batch.bursts() {
            let (own, others) = rest.split_at(burst.datagrams());
            self.rebuild(&burst, own, mem);
            rest = others;
        }
        self.fates = fates;
        if self.out.is_empty() { Ok(()) } else { self.inner.send(&self.out, &NoPayload) }
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        let release = self.held.peek().map(|h| h.0.release);
        let until = match (until, release) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.inner.wait(until)?;
        self.release()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn source_ports(&self) -> u16 {
        self.inner.source_ports()
    }

    fn max_datagram(&mut self, to: SocketAddr) -> u16 {
        self.inner.max_datagram(to)
    }
}

/// Batches that hold all their bytes ask for no payload.
struct NoPayload;

impl Gather for NoPayload {
    fn payload(&self, token: Token, _: u32, _: usize) -> &[u8] {
        unreachable!("a rebuilt batch names payload of {token:?}")
    }
}

/// A number in `0..range`; the bias of the multiplication is far below what anybody could measure here.
fn below(rng: &mut Xoshiro256PlusPlus, range: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests;
