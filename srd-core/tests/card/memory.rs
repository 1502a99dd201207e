//! Memory that vanishes, and memory that is fetched early.

use std::cell::RefCell;

use srd_core::card::*;
use srd_core::*;

use crate::cards::*;
use crate::with_switch;

/// What a peer read is still unacknowledged when its memory goes: the reader may have told the program that it is done.
/// Registrations that are cached outlive the memory.
#[test]
fn memory_that_was_read_may_vanish_before_the_reader_is_heard() {
    let (mut two, mute) = with_switch();
    two.world.bytes(1)[900_000..930_000].copy_from_slice(&pattern(1, 30_000));
    two.post(1, two.read(900_000), &[two.sge(0, 0, 30_000)]);
    request_arrives(&mut two);
    mute.set(Some(0));
    let done = two.wait(0);
    assert_eq!((done.wr_id, done.status), (1, Status::Ok));
    two.world.bytes(1).truncate(800_000);
    two.world.run(Span::from_millis(200));
    assert_eq!(two.world.hosts[1].endpoint.stats().messages_failed, 1, "given up, not waited for");
    mute.set(None);
    two.world.run(Span::from_millis(200));
    assert_eq!(two.world.bytes(0)[..30_000], pattern(1, 30_000));
    assert!(two.world.poll(0).is_none());
    two.assert_usable();
}

#[test]
fn memory_that_vanishes_before_it_was_read_is_an_error_of_the_reader() {
    let (mut two, mute) = with_switch();
    two.post(1, two.read(900_000), &[two.sge(0, 0, 30_000)]);
    request_arrives(&mut two);
    mute.set(Some(1));
    two.world.run(Span::from_micros(100));
    two.world.bytes(1).truncate(800_000);
    two.world.run(Span::from_millis(200));
    mute.set(None);
    let done = two.wait(0);
    assert_eq!((done.wr_id, done.status), (1, Status::BadAddress));
    two.assert_usable();
}

/// Until the second card has received what the first posted, and not answered yet.
fn request_arrives(two: &mut Two) {
    let before = two.world.hosts[1].endpoint.stats().rx_packets;
    while two.world.hosts[1].endpoint.stats().rx_packets == before {
        assert!(two.world.step(two.world.now + Span::from_secs(1)));
    }
}

/// Memory that notes what it is told to fetch.
#[derive(Debug, Default)]
struct Noting(RefCell<Vec<(u64, usize)>>);

impl HostMemory for Noting {
    type Region = ();

    fn read<'m>(&'m self, _: &'m (), _: u64, len: usize) -> &'m [u8] {
        &[0; 10_000][..len]
    }

    fn prefetch(&self, _: &(), offset: u64, len: usize) {
        self.0.borrow_mut().push((offset, len));
    }

    fn write(&mut self, _: &(), _: u64, _: &[u8]) {}
}

#[test]
fn the_next_buffers_are_fetched_as_far_as_the_last_messages_went() {
    let mut world = World::with(2, options(), Config::default(), |_| Noting::default());
    let qpn = [world.qp(0, |_| ()), world.qp(1, |_| ())];
    let ah = world.ah(0, 1);
    let keys = [0, 1].map(|i| {
        let host = &mut world.hosts[i];
        host.card.reg_mr(host.pd, (), BASE, 100_000, ALL).unwrap()
    });
    let buffer = |at, len| Sge { addr: BASE + at, len, lkey: keys[1].lkey };
    let fetched = |world: &mut World<Noting>| {
        world.hosts[1].card.anticipate();
        world.hosts[1].card.memory_mut().0.take()
    };
    let arrive = |world: &mut World<Noting>, len| {
        let sge = [Sge { addr: BASE, len, lkey: keys[0].lkey }];
        let (op, data) = (SendOp::Send { imm: None }, SendData::Sges(&sge));
        world.post(0, qpn[0], SendWr { wr_id: 0, op, ah, qpn: qpn[1], qkey: QKEY, data }).unwrap();
        assert_eq!(world.wait(1, Span::from_secs(1)).status, Status::Ok);
    };
    world.recv(1, qpn[1], 1, &[buffer(0, 8000)]);
    world.recv(1, qpn[1], 2, &[buffer(10_000, 200), buffer(20_000, 8000)]);
    for wr_id in 3..7 {
        world.recv(1, qpn[1], wr_id, &[buffer(10_000 * wr_id, 8000)]);
    }
    assert_eq!(fetched(&mut world), [], "nothing has arrived");
    arrive(&mut world, 300);
    assert_eq!(fetched(&mut world), [(10_000, 200), (20_000, 100)]);
    assert_eq!(fetched(&mut world), [], "once is enough");
    arrive(&mut world, 100);
    arrive(&mut world, 200);
    assert_eq!(fetched(&mut world), [(40_000, 200), (50_000, 200)], "as many as came");
    arrive(&mut world, 100);
    arrive(&mut world, 100);
    world.dereg(1, keys[1].lkey);
    assert_eq!(fetched(&mut world), [], "it may not be written any more");
}
