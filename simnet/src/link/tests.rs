//! Links, part by part.

use super::*;
use crate::packet::{Addr, HostId, WIRE_OVERHEAD};

/// A packet of `len` bytes enters a link.
fn pass(link: &mut Link, now: Time, len: usize) -> Passage {
    let (addr, mut packets) = (Addr::of(HostId(0), 1), Arena::default());
    let packet = packets.alloc(addr, addr, HostId(0), Ecn::Ect, |p| p.put(&vec![0xa5; len]));
    link.pass(now, packet, &mut packets, None)
}

fn link(parts: &[Part]) -> Link {
    Link::new(parts, Rng::new(1))
}

fn arrival(passage: Passage) -> u64 {
    match passage {
        Passage::Arrives { at, .. } => at.as_nanos(),
        Passage::Dropped(reason) => panic!("dropped: {reason:?}"),
    }
}

#[test]
fn queue_serialises_exactly_and_then_delays() {
    // 34 + 66 = 100 bytes at 100 Gbit/s: 8 ns each.
    let queue = Queue { rate: 100_000_000_000, limit: 1_000_000, ecn: u64::MAX, ramp: 0 };
    let mut l = link(&[Part::Delay(Span::from_nanos(500)), Part::Queue(queue)]);
    for i in 1..=1_000 {
        assert_eq!(arrival(pass(&mut l, Time::ZERO, 34)), 500 + 8 * i);
    }
    // 67 bytes at 400 Gbit/s take 1.34 ns: the fractions add up.
    let mut l = link(&[Part::Queue(Queue { rate: 400_000_000_000, ..queue })]);
    let last = (0..1_000).map(|_| arrival(pass(&mut l, Time::ZERO, 1))).last();
    assert_eq!(last, Some(1_340));
}

#[test]
fn queue_drops_the_tail_and_marks() {
    let each = u64::from(100 + WIRE_OVERHEAD);
    let mut l = link(&[Part::Queue(Queue { rate: 1_000_000, limit: 5 * each, ecn: 2 * each, ramp: 0 })]);
    let mut marks = Vec::new();
    for _ in 0..5 {
        assert!(matches!(pass(&mut l, Time::ZERO, 100), Passage::Arrives { .. }));
        marks.push(l.stats().marked);
    }
    assert_eq!(marks, [0, 0, 1, 2, 3]);
    assert_eq!(pass(&mut l, Time::ZERO, 100), Passage::Dropped(DropReason::QueueFull));
    let stats = *l.stats();
    assert_eq!((stats.packets, stats.queue_drops, stats.max_queue, stats.marked), (5, 1, 5 * each, 3));
    // One packet leaves after 1.328 ms and makes room for one.
    let later = Time::from_nanos(1_328_000);
    assert_eq!(l.queued(later), 4 * each);
    assert!(matches!(pass(&mut l, later, 100), Passage::Arrives { .. }));
}

#[test]
fn what_is_late_goes_with_its_queue() {
    let queue = Queue { rate: 1_000_000, limit: 1_000_000, ecn: u64::MAX, ramp: 0 };
    // A packet takes 1,328 us, and is as late again.
    let late = |l: &mut Link| {
        let at = Time::from_nanos(arrival(pass(l, Time::ZERO, 100)));
        l.late(at, 100, 1_000_000).as_nanos()
    };
    let mut l = link(&[Part::Queue(queue)]);
    assert_eq!(late(&mut l), 2_656_000);
    l.set_rate(Time::ZERO, 1_000_000_000);
    assert_eq!(late(&mut l), 2 * 1_328 + 1_328, "at a thousand times the rate");
    let mut l = link(&[Part::Queue(queue)]);
    assert_eq!([late(&mut l), late(&mut l)], [2_656_000, 3_984_000]);
    l.empty(Time::ZERO);
    assert_eq!(late(&mut l), 2_656_000, "what was before it is gone");
}

#[test]
fn parts_replace_those_of_their_kind() {
    let mut l = link(&[Part::Delay(Span::from_nanos(1)), Part::Loss(1_000_000)]);
    assert_eq!(pass(&mut l, Time::ZERO, 1), Passage::Dropped(DropReason::Loss));
    l.set(Part::Loss(0));
    assert_eq!(arrival(pass(&mut l, Time::ZERO, 1)), 1);
    l.set(Part::Blackhole);
    assert_eq!(pass(&mut l, Time::ZERO, 1), Passage::Dropped(DropReason::Blackhole));
    l.clear(PartKind::Blackhole);
    l.set(Part::Mtu(1_500));
    assert_eq!(arrival(pass(&mut l, Time::ZERO, 1_472)), 1);
    assert_eq!(pass(&mut l, Time::ZERO, 1_473), Passage::Dropped(DropReason::Mtu));
    assert_eq!(l.stats().other_drops, 3);
}

#[test]
fn burst_loses_in_runs() {
    let mut l = link(&[Part::Burst(Burst { enter: 10_000, leave: 200_000 })]);
    let lost: Vec<bool> = (0..100_000).map(|_| matches!(pass(&mut l, Time::ZERO, 1), Passage::Dropped(_))).collect();
    let total = lost.iter().filter(|l| **l).count();
    let runs = lost.windows(2).filter(|w| !w[0] && w[1]).count();
    assert!((3_500..6_000).contains(&total), "{total} lost, expected about 4,760");
    assert!((4..=6).contains(&(total / runs)), "mean run {}", total / runs);
}

#[test]
fn corrupt_always_changes_something() {
    let mut rng = Rng::new(3);
    for len in [1, 2, 17, 1_400] {
        let whole = vec![0x5a; len];
        for _ in 0..2_000 {
            let mut data = whole.clone();
            corrupt(&mut data, &mut rng);
            assert_ne!(data, whole);
        }
    }
}

#[test]
fn duplicate_and_reorder_stay_within_their_spans() {
    let most = Span::from_micros(10);
    let mut l = link(&[Part::Duplicate(500_000, most), Part::Reorder(500_000, most)]);
    let (mut copies, mut late) = (0, 0);
    for _ in 0..1_000 {
        match pass(&mut l, Time::ZERO, 1) {
            Passage::Arrives { at, copy } => {
                late += u32::from(at > Time::ZERO);
                copies += u32::from(copy.is_some());
                assert!(at <= Time::ZERO + most && copy.is_none_or(|c| c >= at && c <= at + most));
            }
            Passage::Dropped(_) => panic!("nothing drops here"),
        }
    }
    assert!((400..600).contains(&copies) && (400..600).contains(&late));
}
