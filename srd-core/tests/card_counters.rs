//! What is counted is what was done, to the byte, whatever the network loses and repeats.

#[path = "support/cards.rs"]
mod cards;

use std::collections::BTreeMap;

use cards::*;
use srd_core::card::*;
use srd_core::*;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// Waits for so many completions of a host, all of them good.
fn all_well(two: &mut Two, i: usize, count: usize) {
    for _ in 0..count {
        let done = two.wait(i);
        assert_eq!(done.status, Status::Ok, "{done:?}");
    }
}

/// Asserts that these counters of a host have these values, and all others of the port are zero.
fn assert_counted(two: &Two, i: usize, expected: &[(&str, u64)]) {
    let expected = BTreeMap::from_iter(expected.iter().copied());
    let counted: BTreeMap<_, _> = two.world.hosts[i].card.port.named().filter(|c| c.1 != 0).collect();
    assert_eq!(counted, expected, "host {i}");
}

#[test]
fn counters_are_exact_over_a_bad_network() {
    let mut two = Two::new();
    two.world.wire = bad_wire(8);
    for round in 0..10 {
        for n in 0..100 {
            two.recv(n, 0, 4 * KIB);
        }
        for n in 0..100 {
            two.send(round * 100 + n, 0, 4 * KIB);
        }
        all_well(&mut two, 0, 100);
        all_well(&mut two, 1, 100);
    }
    let write = two.write(0, None);
    let read = two.read(0);
    let whole = two.sge(0, 0, MIB);
    for n in 0..10 {
        two.post(n, write, &[whole]);
        two.post(n, read, &[whole]);
        all_well(&mut two, 0, 2);
    }
    two.world.run(Span::from_millis(100));
    let (sent, moved) = (1000 * u64::from(4 * KIB), 10 * u64::from(MIB));
    assert_counted(
        &two,
        0,
        &[
            ("send_wrs", 1000),
            ("send_bytes", sent),
            ("rdma_write_wrs", 10),
            ("rdma_write_bytes", moved),
            ("rdma_read_wrs", 10),
            ("rdma_read_bytes", moved),
        ],
    );
    assert_counted(
        &two,
        1,
        &[("recv_wrs", 1000), ("recv_bytes", sent), ("rdma_write_recv_bytes", moved), ("rdma_read_resp_bytes", moved)],
    );
    assert!(two.world.hosts[0].endpoint.stats().retransmits > 0);
}

#[test]
fn failures_are_counted_as_such() {
    let mut two = Two::new();
    let beyond = two.write(MIB as usize - 8, None);
    let read = two.read(MIB as usize - 8);
    let sge = two.sge(0, 0, 16);
    for op in [beyond, read] {
        two.post(1, op, &[sge]);
        assert_ne!(two.wait(0).status, Status::Ok);
    }
    let port = two.world.hosts[0].card.port;
    assert_eq!((port.rdma_write_wr_err, port.rdma_read_wr_err), (1, 1));
    assert_eq!((port.rdma_write_wrs, port.rdma_write_bytes), (0, 0));
    assert_eq!((port.rdma_read_wrs, port.rdma_read_bytes), (0, 0));
    let target = two.world.hosts[1].card.port;
    assert_eq!((target.rdma_write_recv_bytes, target.rdma_read_resp_bytes), (0, 0));
}
