//! Two connected endpoints allocate nothing per packet once they are warm.
//!
//! A counting allocator stands behind the whole test; the wire and the upper storey here do not allocate either, so what
//! is counted is the core's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use srd_core::*;

#[path = "support/lean.rs"]
mod lean;
use lean::Lean;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct World {
    now: Time,
    sides: [(Endpoint, Lean); 2],
    batch: TxBatch,
    wire: Vec<u8>,
    packets: u64,
    /// Every so many datagrams one is lost; 0 for none.
    loss: u64,
}

fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

impl World {
    fn new(size: usize, checksum: Checksum, loss: u64) -> World {
        let cc = CcChoice::Fixed { rate: 1 << 40, window: 1 << 20 };
        let side = |i: usize| {
            let config = Config { cc, checksum, ..Config::default() }.check().expect("a valid configuration");
            let upper = Lean::new(size);
            (Endpoint::new(config, addr(i), [i as u8 + 1; 32], Time::ZERO), upper)
        };
        let wire = Vec::with_capacity(1 << 16);
        World { now: Time::ZERO, sides: [side(0), side(1)], batch: TxBatch::new(), wire, packets: 0, loss }
    }

    /// Moves what either side has to say.
    fn exchange(&mut self) {
        for i in 0..2 {
            let (a, b) = self.sides.split_at_mut(1);
            let (from, to) = if i == 0 { (&mut a[0], &mut b[0]) } else { (&mut b[0], &mut a[0]) };
            for _ in 0..8 {
                self.now += Span::from_nanos(500);
                if !from.0.poll_transmit(self.now, &mut from.1, &mut self.batch) {
                    break;
                }
                for burst in self.batch.bursts() {
                    self.wire.clear();
                    burst.copy_to(&from.1, &mut self.wire);
                    let meta = RxMeta { from: addr(i), to: None, ecn: Ecn::Ect, at: self.now };
                    for datagram in self.wire.chunks(burst.segment) {
                        self.packets += 1;
                        if self.loss == 0 || !self.packets.is_multiple_of(self.loss) {
                            to.0.handle_datagram(self.now, &meta, datagram, &mut to.1);
                        }
                    }
                }
                self.batch.clear();
            }
            if from.0.poll_timeout().is_some_and(|t| t <= self.now) {
                from.0.handle_timeout(self.now, &mut from.1);
            }
        }
    }

    /// Sends `messages` messages of `size` bytes from either side and waits for their completion.
    fn transfer(&mut self, messages: u64, size: u32) {
        let first = [0, 1].map(|i| self.sides[i].1.completed);
        let mut posted = [0; 2];
        while (0..2).any(|i| self.sides[i].1.completed - first[i] < messages) {
            for i in 0..2 {
                let peer = self.sides[i].0.peer(addr(1 - i), 8972).expect("room for a peer");
                while posted[i] < messages && posted[i] + first[i] < self.sides[i].1.completed + 256 {
                    let out = Outbound { token: Token(0), header_len: 8, len: size, rnr: RnrRetry::Forever };
                    self.sides[i].0.send(self.now, peer, out).expect("room in the queue");
                    posted[i] += 1;
                }
            }
            self.exchange();
            while self.sides[0].0.poll_event().is_some() || self.sides[1].0.poll_event().is_some() {}
        }
    }
}

/// One test, because the counter is one for the process.
#[test]
fn steady_state_allocates_nothing() {
    let mut report = String::new();
    let mut fine = true;
    for (checksum, loss) in [(Checksum::Udp, 0), (Checksum::Crc32c, 0), (Checksum::Udp, 101)] {
        // Few enough large messages that what marks their blocks comes from the pool of 64 spares.
        for (size, messages) in [(64, 6000), (8192, 600), (100_000, 32)] {
            let mut world = World::new(size as usize, checksum, loss);
            // Warm: every table and queue reaches its working size.
            for _ in 0..48 {
                world.transfer(messages, size);
            }
            let (packets, before) = (world.packets, ALLOCATIONS.load(Ordering::Relaxed));
            world.transfer(messages, size);
            let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            let packets = world.packets - packets;
            assert!(packets > 100, "{packets} packets");
            let per_packet = allocations as f64 / packets as f64;
            let loss_text = if loss == 0 { "no loss".to_owned() } else { format!("loss 1/{loss}") };
            report += &format!(
                "{size:>6} B {checksum:?} {loss_text}: {allocations} in {packets} packets, {per_packet:.4} each\n"
            );
            // Recovery is not steady: a tail probe collects what it repeats.
            fine &= if loss == 0 { allocations == 0 } else { per_packet < 0.05 };
        }
    }
    println!("allocations:\n{report}");
    assert!(fine, "allocations:\n{report}");
}
