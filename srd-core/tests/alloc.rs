//! Two connected endpoints allocate nothing per packet once they are warm.
//!
//! A counting allocator stands behind the whole test; the wire and the upper storey here do not allocate either, so what
//! is counted is the core's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use srd_core::*;

#[path = "support/lean.rs"]
mod lean;
use lean::{World, addr};

struct Counting;

thread_local! {
    /// Of this thread: that of the test harness says something now and then.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Not while the thread ends.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: everything is passed on to the system allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are those of this function.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `messages` messages of `size` bytes from either side and waits for their completion.
fn transfer(world: &mut World, messages: u64, size: u32) {
    let first = [0, 1].map(|i| world.sides[i].1.completed);
    let mut posted = [0; 2];
    while (0..2).any(|i| world.sides[i].1.completed - first[i] < messages) {
        for i in 0..2 {
            let peer = world.sides[i].0.peer(addr(1 - i), 8972).expect("room for a peer");
            while posted[i] < messages && posted[i] + first[i] < world.sides[i].1.completed + 256 {
                let out = Outbound { token: Token(0), flow: 0, header_len: 8, len: size, rnr: RnrRetry::Forever };
                world.sides[i].0.send(world.now, peer, out).expect("room in the queue");
                posted[i] += 1;
            }
        }
        world.exchange();
        while world.sides[0].0.poll_event().is_some() || world.sides[1].0.poll_event().is_some() {}
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let mut report = String::new();
    let mut fine = true;
    for (checksum, loss) in [(Checksum::Udp, 0), (Checksum::Crc32c, 0), (Checksum::Udp, 101)] {
        // Few enough large messages that what marks their blocks comes from the pool of 64 spares.
        for (size, messages) in [(64, 6000), (8192, 600), (100_000, 32)] {
            let cc = CcChoice::Fixed { rate: 1 << 40, window: 1 << 20 };
            let mut world = World::new(&Config { cc, checksum, ..Config::default() }, size as usize, loss);
            // Warm: every table and queue reaches its working size.
            for _ in 0..48 {
                transfer(&mut world, messages, size);
            }
            let (packets, before) = (world.packets, ALLOCATIONS.get());
            transfer(&mut world, messages, size);
            let allocations = ALLOCATIONS.get() - before;
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
