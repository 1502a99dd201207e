//! Cards, step by step: what each operation does, at its edges too.

#[path = "support/cards.rs"]
mod cards;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cards::*;
use srd_core::card::*;
use srd_core::*;

#[test]
fn sends_of_every_size_up_to_the_limit_arrive_and_one_byte_more_is_refused() {
    let limit = options().profile.max_msg;
    for size in [0, 1, 31, 32, 33, 4096, 8192, 8193, limit - 1, limit] {
        let mut two = Two::new();
        two.world.bytes(0)[..size as usize].copy_from_slice(&pattern(1, size as usize));
        two.world.bytes(1).fill(0xee);
        two.recv(5, 100, limit);
        two.post(4, SendOp::Send { imm: Some(size) }, &[two.sge(0, 0, size)]);
        let (sent, got) = (two.wait(0), two.wait(1));
        assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.byte_len), (4, Status::Ok, Opcode::Send, 0));
        assert_eq!((got.wr_id, got.status, got.opcode), (5, Status::Ok, Opcode::Recv));
        assert_eq!((got.byte_len, got.imm, got.src_qpn, got.qpn), (size, Some(size), two.qpn[0], two.qpn[1]));
        assert_eq!((got.ah, got.sgid, got.unsolicited), (two.ah[1], gid(0), false));
        let memory = two.world.bytes(1);
        assert_eq!(memory[100..][..size as usize], pattern(1, size as usize));
        memory[100..][..size as usize].fill(0xee);
        assert!(memory.iter().all(|b| *b == 0xee), "bytes outside the message were touched, size {size}");
    }
    let mut two = Two::new();
    two.recv(5, 100, limit);
    two.send(4, 0, limit + 1);
    assert_eq!(two.wait(0).status, Status::LocalBadLength);
    assert!(two.world.poll(1).is_none());
    two.send(6, 0, limit);
    assert_eq!(two.wait(0).status, Status::Ok);
    assert_eq!(two.wait(1).wr_id, 5, "the receive was not consumed");
    two.assert_usable();
}

#[test]
fn nothing_at_all_can_be_sent_written_and_read() {
    let mut two = Two::new();
    let null = Sge { addr: 0, len: 0, lkey: two.keys[0].lkey };
    let none = Sge { addr: 0, len: 0, lkey: two.keys[1].lkey };
    for sges in [&[][..], &[Sge { addr: BASE, ..null }][..]] {
        two.world.recv(1, two.qpn[1], 1, &[none]);
        two.world.recv(1, two.qpn[1], 2, &[none]);
        two.post(10, SendOp::Send { imm: None }, sges);
        two.post(11, two.write(0, None), sges);
        two.post(12, two.write(0, Some(7)), sges);
        two.post(13, two.read(0), sges);
        let mut done: Vec<_> = (0..4).map(|_| two.wait(0)).map(|c| (c.wr_id, c.status)).collect();
        done.sort_unstable_by_key(|done| done.0);
        assert_eq!(done, [10, 11, 12, 13].map(|wr_id| (wr_id, Status::Ok)));
        let got = [two.wait(1), two.wait(1)];
        assert!(got.iter().all(|c| c.status == Status::Ok && c.byte_len == 0));
        assert!(got.iter().any(|c| c.opcode == Opcode::RecvRdmaWithImm && c.imm == Some(7)));
        assert!(two.world.poll(1).is_none());
    }
}

#[test]
fn parts_are_gathered_and_scattered() {
    let mut two = Two::new();
    two.world.bytes(0)[..3000].copy_from_slice(&pattern(3, 3000));
    let parts = [two.sge(0, 0, 1001), two.sge(0, 1001, 1999)];
    let into = [two.sge(1, 10, 7), two.sge(1, 5000, 2000), two.sge(1, 9000, 5000)];
    two.world.recv(1, two.qpn[1], 1, &into);
    two.post(2, SendOp::Send { imm: None }, &parts);
    assert_eq!((two.wait(0).status, two.wait(1).byte_len), (Status::Ok, 3000));
    let memory = two.world.bytes(1);
    let got = [&memory[10..17], &memory[5000..7000], &memory[9000..9993]].concat();
    assert_eq!(got, pattern(3, 3000));
    assert!(memory[9993..14_000].iter().all(|b| *b == 0));
    let three = [two.sge(0, 0, 1); 3];
    let too_many = two.try_post(1, SendOp::Send { imm: None }, SendData::Sges(&three));
    assert!(matches!(too_many, Err(CardError::Invalid(_))));
    let too_many = two.try_post(1, two.read(0), SendData::Sges(&three[..2]));
    assert!(matches!(too_many, Err(CardError::Invalid(_))), "RDMA has one local buffer");
    let four = [two.sge(1, 0, 1); 4];
    assert!(matches!(two.world.hosts[1].card.post_recv(two.qpn[1], 1, &four), Err(CardError::Invalid(_))));
}

#[test]
fn inline_bytes_are_those_of_the_moment_of_posting() {
    let mut two = Two::new();
    let mut bytes = pattern(9, 32);
    two.recv(1, 0, 100);
    two.try_post(2, SendOp::Send { imm: None }, SendData::Inline(&bytes)).unwrap();
    bytes.fill(0);
    two.try_post(3, two.write(500, None), SendData::Inline(b"write")).unwrap();
    let long = two.try_post(4, SendOp::Send { imm: None }, SendData::Inline(&[0; 33]));
    assert!(matches!(long, Err(CardError::Invalid(_))));
    let read = two.try_post(4, two.read(0), SendData::Inline(&[]));
    assert!(matches!(read, Err(CardError::Invalid(_))));
    let with_writes = std::mem::replace(&mut two.qpn[0], two.world.qp(0, |init| init.inline_write = false));
    let write = two.try_post(4, two.write(500, None), SendData::Inline(b"write"));
    assert!(matches!(write, Err(CardError::Invalid(_))), "the queue pair is not made for it");
    two.qpn[0] = with_writes;
    assert_eq!((two.wait(0).status, two.wait(0).status), (Status::Ok, Status::Ok));
    assert_eq!(two.world.bytes(1)[..32], pattern(9, 32));
    assert_eq!(&two.world.bytes(1)[500..505], b"write");
}

#[test]
fn writes_and_reads_of_many_packets_over_a_bad_network() {
    for seed in 0..20 {
        let mut two = Two::new();
        two.world.wire = bad_wire(seed);
        two.world.bytes(0)[..300_000].copy_from_slice(&pattern(1, 300_000));
        two.post(1, two.write(500_000, None), &[two.sge(0, 0, 300_000)]);
        let done = two.wait(0);
        assert_eq!((done.wr_id, done.status, done.opcode), (1, Status::Ok, Opcode::RdmaWrite), "seed {seed}");
        // Success means visible now, and a late copy must not write again.
        assert_eq!(two.world.bytes(1)[500_000..800_000], pattern(1, 300_000), "seed {seed}");
        assert!(two.world.poll(1).is_none(), "nobody is told");
        two.world.bytes(1)[500_000..800_000].copy_from_slice(&pattern(2, 300_000));
        two.post(2, two.read(500_000), &[two.sge(0, 600_000, 300_000)]);
        let done = two.wait(0);
        assert_eq!((done.wr_id, done.status, done.opcode), (2, Status::Ok, Opcode::RdmaRead), "seed {seed}");
        assert_eq!(two.world.bytes(0)[600_000..900_000], pattern(2, 300_000), "seed {seed}");
        two.world.bytes(0)[600_000..900_000].fill(0x11);
        two.world.run(Span::from_secs(1));
        assert!(two.world.bytes(0)[600_000..900_000].iter().all(|b| *b == 0x11), "seed {seed}");
        assert_eq!(two.world.bytes(1)[500_000..800_000], pattern(2, 300_000), "seed {seed}");
        let (a, b) = (two.world.hosts[0].card.port, two.world.hosts[1].card.port);
        assert_eq!((a.rdma_write_wrs, a.rdma_write_bytes, b.rdma_write_recv_bytes), (1, 300_000, 300_000));
        assert_eq!((a.rdma_read_wrs, a.rdma_read_bytes, b.rdma_read_resp_bytes), (1, 300_000, 300_000));
    }
}

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

/// A usual pair that knows each other, and who of them is not heard.
fn with_switch() -> (Two, Rc<Cell<Option<usize>>>) {
    let mut two = Two::new();
    two.assert_usable();
    let mute = Rc::new(Cell::new(None));
    let is_mute = Rc::clone(&mute);
    two.world.wire = Box::new(move |from, _| if is_mute.get() == Some(from) { Fate::Lost } else { Fate::Arrives });
    (two, mute)
}

/// Until the second card has received what the first posted, and not answered yet.
fn request_arrives(two: &mut Two) {
    let before = two.world.hosts[1].endpoint.stats().rx_packets;
    while two.world.hosts[1].endpoint.stats().rx_packets == before {
        assert!(two.world.step(two.world.now + Span::from_secs(1)));
    }
}

#[test]
fn a_card_talks_to_itself() {
    let mut world = World::new(1, options());
    let (a, b) = (world.qp(0, |_| ()), world.qp(0, |_| ()));
    let (ah, keys) = (world.ah(0, 0), world.mr(0));
    world.bytes(0)[..5000].copy_from_slice(&pattern(1, 5000));
    let wr = |wr_id, op, at, len, sges: &mut [Sge; 1]| {
        sges[0] = sge(keys, at, len);
        (wr_id, op)
    };
    let mut sges = [Sge::default()];
    // The receive comes after the send, so the first attempts are in vain.
    let (wr_id, op) = wr(1, SendOp::Send { imm: None }, 0, 5000, &mut sges);
    world.post(0, a, SendWr { wr_id, op, ah, qpn: b, qkey: QKEY, data: SendData::Sges(&sges) }).unwrap();
    world.run(Span::from_millis(5));
    assert!(world.poll(0).is_none());
    world.recv(0, b, 2, &[sge(keys, 10_000, 8928)]);
    let done = [world.wait(0, Span::from_millis(50)), world.wait(0, Span::from_millis(50))];
    assert!(done.iter().all(|c| c.status == Status::Ok));
    let got = done.iter().find(|c| c.wr_id == 2).unwrap();
    assert_eq!((got.byte_len, got.ah, got.sgid, got.src_qpn), (5000, ah, gid(0), a));
    assert_eq!(world.bytes(0)[10_000..15_000], pattern(1, 5000));
    let rkey = keys.rkey;
    let read = SendOp::Read { addr: BASE, rkey };
    let (wr_id, op) = wr(3, read, 20_000, 5000, &mut sges);
    world.post(0, a, SendWr { wr_id, op, ah, qpn: b, qkey: QKEY, data: SendData::Sges(&sges) }).unwrap();
    assert_eq!(world.wait(0, Span::from_millis(5)).status, Status::Ok);
    assert_eq!(world.bytes(0)[20_000..25_000], pattern(1, 5000));
    // Attempts are counted here as well.
    let qp = world.new_qp(0, |_| ());
    world.up(0, qp, Some(2));
    let (wr_id, op) = wr(4, SendOp::Send { imm: None }, 0, 10, &mut sges);
    world.post(0, qp, SendWr { wr_id, op, ah, qpn: b, qkey: QKEY, data: SendData::Sges(&sges) }).unwrap();
    assert_eq!(world.wait(0, Span::from_millis(5)).status, Status::Rnr);
}

/// The pauses between attempts double, from 50 us on.
#[test]
fn a_queue_pair_of_ourselves_that_is_not_ready_is_tried_as_often_as_the_attribute_says() {
    for (retry, took) in (0..RNR_INFINITE).zip([0, 50, 150, 350, 750, 1550, 3150]) {
        let mut world = World::new(1, options());
        let (from, to, ah) = (world.new_qp(0, |_| ()), world.qp(0, |_| ()), world.ah(0, 0));
        world.up(0, from, Some(retry));
        let (op, data, start) = (SendOp::Send { imm: None }, SendData::Inline(b"x"), world.now);
        world.post(0, from, SendWr { wr_id: 1, op, ah, qpn: to, qkey: QKEY, data }).unwrap();
        assert_eq!(world.wait(0, Span::from_secs(1)).status, Status::Rnr);
        assert_eq!(world.now.since(start), Span::from_micros(took), "{retry}");
    }
}

/// After however many attempts, pauses are no longer than 10 ms.
#[test]
fn a_receive_of_ourselves_that_comes_late_is_soon_found() {
    let mut world = World::new(1, options());
    let (from, to, ah, keys) = (world.qp(0, |_| ()), world.qp(0, |_| ()), world.ah(0, 0), world.mr(0));
    let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(b"x"));
    for patience in [Span::from_millis(200), Span::from_secs(20)] {
        world.post(0, from, SendWr { wr_id: 1, op, ah, qpn: to, qkey: QKEY, data }).unwrap();
        world.run(patience);
        world.recv(0, to, 2, &[sge(keys, 0, 1)]);
        let done = [(); 2].map(|()| world.wait(0, Span::from_millis(10)));
        assert!(done.iter().all(|c| c.status == Status::Ok));
    }
}

/// Makes a queue pair one for datagrams.
fn ud(init: &mut QpInit) {
    (init.ty, init.ops) = (QpType::Ud, SendOps::default());
}

#[test]
fn datagrams_come_with_the_routing_header_or_not_at_all() {
    let mut two = Two::new();
    let qps = [0, 1].map(|i| two.world.qp(i, ud));
    let post = |two: &mut Two, wr_id, qpn, qkey, len| {
        let sges = [two.sge(0, 0, len)];
        let op = SendOp::Send { imm: None };
        let wr = SendWr { wr_id, op, ah: two.ah[0], qpn, qkey, data: SendData::Sges(&sges) };
        two.world.post(0, qps[0], wr).unwrap();
    };
    two.world.bytes(0)[..200].copy_from_slice(&pattern(1, 200));
    let into = two.sge(1, 0, 240);
    two.world.recv(1, qps[1], 7, &[into]);
    post(&mut two, 1, qps[1], QKEY, 200);
    assert_eq!(two.wait(0).status, Status::Ok);
    let got = two.wait(1);
    assert_eq!((got.wr_id, got.byte_len, got.ah), (7, 240, two.ah[1]));
    let memory = two.world.bytes(1);
    assert_eq!(memory[40..240], pattern(1, 200));
    assert_eq!((memory[0] >> 4, &memory[8..24], &memory[24..40]), (6, &gid(0).0[..], &gid(1).0[..]));
    assert_eq!(memory[4..6], [0, 200], "the length of the payload, in network order");
    let port = two.world.hosts[1].card.port;
    assert_eq!((port.recv_wrs, port.recv_bytes), (1, 200), "the header is not counted");
    // Whatever is wrong with it, its sender has success.
    let before = two.world.hosts[1].card.port.rx_drops;
    post(&mut two, 2, qps[1], QKEY, 200);
    post(&mut two, 3, qps[1], QKEY + 1, 1);
    post(&mut two, 4, qps[1] ^ 1, QKEY, 1);
    two.world.run(Span::from_millis(1));
    two.world.recv(1, qps[1], 8, &[into]);
    let srd = two.qpn[1];
    post(&mut two, 5, srd, QKEY, 1);
    post(&mut two, 6, qps[1], QKEY, 201);
    for _ in 0..5 {
        assert_eq!(two.wait(0).status, Status::Ok);
    }
    // It is done when it is sent.
    two.world.run(Span::from_millis(1));
    assert!(two.world.hosts[1].card.port.rx_drops == before + 5);
    // Even if the queue pair goes at once.
    let last = two.world.qp(0, ud);
    let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(b"last words"));
    let wr = SendWr { wr_id: 9, op, ah: two.ah[0], qpn: qps[1], qkey: QKEY, data };
    two.world.post(0, last, wr).unwrap();
    assert_eq!(two.wait(0).status, Status::Ok);
    two.world.destroy_qp(0, last);
    assert_eq!(two.wait(1).wr_id, 8);
    assert_eq!(&two.world.bytes(1)[40..50], b"last words");
    // And in time, also when nobody is there.
    two.world.hosts[1].alive = false;
    let start = two.world.now;
    post(&mut two, 7, qps[1], QKEY, 1);
    assert_eq!(two.wait(0).status, Status::Ok);
    assert!(two.world.now.since(start) < Span::from_millis(150));
}

#[test]
fn a_datagram_that_is_done_has_the_bytes_of_the_moment_of_posting() {
    let mut two = Two::new();
    two.qpn = [0, 1].map(|i| two.world.qp(i, ud));
    two.recv(5, 0, 340);
    two.world.bytes(0)[..300].copy_from_slice(&pattern(1, 300));
    two.post(1, SendOp::Send { imm: None }, &[two.sge(0, 0, 100), two.sge(0, 100, 200)]);
    let done = two.world.poll(0).expect("nothing has moved yet");
    assert_eq!((done.wr_id, done.status), (1, Status::Ok));
    two.world.bytes(0)[..300].fill(0xdd);
    assert_eq!((two.wait(1).wr_id, two.world.hosts[1].card.port.recv_bytes), (5, 300));
    assert_eq!(two.world.bytes(1)[40..340], pattern(1, 300));
}

#[test]
fn datagrams_beyond_those_that_are_copied_are_done_when_they_have_arrived() {
    const COPIED: usize = 1024;
    let mut two = Two::new();
    two.qpn[1] = two.world.qp(1, ud);
    two.qpn[0] = two.world.qp(0, |init| {
        ud(init);
        init.cap.send_wr = 2048;
    });
    (0..COPIED as u64 + 10).for_each(|n| two.send(n, 0, 100));
    let done = |two: &mut Two| std::iter::from_fn(|| two.world.poll(0)).map(|c| c.wr_id).collect::<Vec<u64>>();
    assert!(done(&mut two).into_iter().eq(0..COPIED as u64));
    two.world.run(two.world.delay - Span::from_nanos(1));
    assert_eq!(done(&mut two), [], "nothing has arrived yet");
    // Long before they would be given up.
    two.world.run(Span::from_millis(100));
    assert_eq!(done(&mut two).len(), 10);
    assert_eq!(two.world.hosts[0].card.in_flight(), 0);
}

/// Datagrams are given up after a second. Those that are over leave their places to others.
#[test]
fn the_time_of_a_datagram_that_is_over_is_nobody_elses() {
    let (mut two, mute) = with_switch();
    let (srd, ah) = (two.qpn, two.ah[0]);
    two.qpn = [0, 1].map(|i| two.world.qp(i, ud));
    // One that is older, to nobody, is under way still.
    two.ah[0] = two.world.ah(0, 7);
    two.send(0, 0, 10);
    two.ah[0] = ah;
    two.recv(1, 0, 100);
    two.send(1, 0, 10);
    two.world.run(Span::from_millis(1));
    assert_eq!((two.wait(0).wr_id, two.wait(0).wr_id, two.wait(1).wr_id), (0, 1, 1));
    assert_eq!(two.world.hosts[0].card.in_flight(), 1);
    two.qpn = srd;
    mute.set(Some(1));
    two.recv(2, 0, 100);
    two.send(2, 0, 10);
    two.world.run(Span::from_secs(2));
    assert!(two.world.poll(0).is_none());
    assert_eq!(two.world.hosts[0].card.in_flight(), 1);
    mute.set(None);
    let done = two.wait(0);
    assert_eq!((done.wr_id, done.status), (2, Status::Ok));
}

#[test]
fn writes_with_immediate_take_a_receive_or_are_unsolicited() {
    for (mine, theirs) in [(false, false), (true, true), (false, true), (true, false)] {
        let mut two = Two::new();
        two.qpn = [(0, mine), (1, theirs)].map(|(i, on)| two.world.qp(i, |init| init.unsolicited_write_recv = on));
        if !theirs {
            two.recv(5, 0, 0);
        }
        two.post(1, two.write(0, Some(77)), &[two.sge(0, 0, 1000)]);
        let done = two.wait(0);
        if mine != theirs {
            assert_eq!(done.status, Status::FeatureMismatch);
            // Without immediate it makes no difference.
            two.post(2, two.write(0, None), &[two.sge(0, 0, 1000)]);
            assert_eq!(two.wait(0).status, Status::Ok);
            continue;
        }
        assert_eq!(done.status, Status::Ok);
        let got = two.wait(1);
        assert_eq!((got.opcode, got.imm, got.byte_len), (Opcode::RecvRdmaWithImm, Some(77), 1000));
        assert_eq!((got.unsolicited, got.wr_id), (mine, if mine { 0 } else { 5 }));
        assert!(two.world.poll(1).is_none());
    }
}

/// How long it takes until a send to a queue pair without receives fails.
fn time_to_rnr(retry: u8) -> Option<Span> {
    let mut two = Two::new();
    two.assert_usable();
    two.qpn[0] = two.world.new_qp(0, |_| ());
    two.world.up(0, two.qpn[0], Some(retry));
    assert_eq!(two.world.hosts[0].card.query_qp(two.qpn[0]).unwrap().rnr_retry, retry);
    let start = two.world.now;
    two.send(1, 0, 100);
    let end = start + Span::from_secs(20);
    while two.world.now < end {
        if let Some(done) = two.world.poll(0) {
            assert_eq!((done.wr_id, done.status), (1, Status::Rnr));
            let took = two.world.now.since(start);
            // What was reported as not delivered is never delivered later.
            for wr_id in 0..100 {
                two.recv(wr_id, 0, 100);
            }
            two.world.run(Span::from_secs(1));
            assert!(two.world.poll(1).is_none());
            two.send(2, 0, 100);
            assert_eq!(two.wait(0).status, Status::Ok, "the queue pair goes on");
            return Some(took);
        }
        two.world.step(end);
    }
    // For ever: a receive after 20 seconds is not too late.
    two.recv(7, 0, 100);
    assert_eq!(two.wait(0).status, Status::Ok);
    assert_eq!(two.wait(1).wr_id, 7);
    None
}

#[test]
fn a_receiver_that_is_not_ready_is_tried_as_often_as_the_attribute_says() {
    let times: Vec<_> = (0..7).map(|n| time_to_rnr(n).expect("it fails")).collect();
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    assert_eq!(time_to_rnr(RNR_INFINITE), None);
    let mut world = World::new(1, options());
    let qpn = world.new_qp(0, |_| ());
    assert_eq!(world.hosts[0].card.query_qp(qpn).unwrap().rnr_retry, RNR_INFINITE, "the default");
}

#[test]
fn a_receive_without_parts_takes_room_and_no_message() {
    let mut two = Two::new();
    two.qpn[0] = two.world.new_qp(0, |_| ());
    two.world.up(0, two.qpn[0], Some(0));
    for wr_id in 0..two.world.hosts[1].card.query_qp(two.qpn[1]).unwrap().cap.recv_wr {
        two.world.recv(1, two.qpn[1], wr_id.into(), &[]);
    }
    let full = two.world.hosts[1].card.post_recv(two.qpn[1], 1, &[]);
    assert!(matches!(full, Err(CardError::NoMemory(_))));
    two.send(1, 0, 0);
    assert_eq!(two.wait(0).status, Status::Rnr);
    // Nor does the error state give it back; only RESET makes room.
    two.world.set_state(1, two.qpn[1], QpState::Err);
    assert!(two.world.poll(1).is_none());
    two.world.set_state(1, two.qpn[1], QpState::Reset);
    two.world.up(1, two.qpn[1], Some(0));
    two.recv(2, 0, 1);
    two.send(2, 0, 1);
    assert_eq!((two.wait(0).status, two.wait(1).wr_id), (Status::Ok, 2));
}

#[test]
fn full_queues_refuse_until_completions_are_polled() {
    let mut two = Two::new();
    let depth = cap().send_wr;
    for n in 0..depth {
        two.send(n.into(), 0, 1);
    }
    let more = |two: &mut Two| two.try_post(1, SendOp::Send { imm: None }, SendData::Inline(&[]));
    assert!(matches!(more(&mut two), Err(CardError::NoMemory(_))));
    let wrong = two.try_post(1, two.read(0), SendData::Inline(&[]));
    assert!(matches!(wrong, Err(CardError::NoMemory(_))), "there is looked for room first");
    for n in 0..two.world.hosts[1].card.query_qp(two.qpn[1]).unwrap().cap.recv_wr {
        two.recv(n.into(), 0, 1);
    }
    let full = two.world.hosts[1].card.post_recv(two.qpn[1], 1, &[]);
    assert!(matches!(full, Err(CardError::NoMemory(_))));
    two.world.run(Span::from_millis(50));
    assert!(matches!(more(&mut two), Err(CardError::NoMemory(_))), "done, but not polled");
    assert!(two.world.poll(0).is_some());
    more(&mut two).unwrap();
    assert!(two.world.poll(1).is_some());
    two.recv(1, 0, 1);
}

#[test]
fn queues_that_were_reset_take_as_many_as_new_ones() {
    let mut two = Two::new();
    two.world.wire = Box::new(|_, _| Fate::Lost);
    let (qpn, none) = (two.qpn[0], [two.sge(0, 0, 0)]);
    let cap = two.world.hosts[0].card.query_qp(qpn).unwrap().cap;
    for _ in 0..2 {
        (0..cap.send_wr).for_each(|n| two.send(n.into(), 0, 1));
        (0..cap.recv_wr).for_each(|n| two.world.recv(0, qpn, n.into(), &none));
        let more = two.try_post(1, SendOp::Send { imm: None }, SendData::Inline(&[]));
        assert!(matches!(more, Err(CardError::NoMemory(_))));
        assert!(matches!(two.world.hosts[0].card.post_recv(qpn, 1, &none), Err(CardError::NoMemory(_))));
        two.world.set_state(0, qpn, QpState::Reset);
        two.world.up(0, qpn, None);
    }
}

#[test]
fn what_waits_for_a_silent_peer_holds_up_no_answer_to_another() {
    let config = Config { send_queue: 16, ..Config::default() };
    let mut world = World::with(3, options(), config, |_| Ram(vec![0; 1 << 20]));
    let [busy, other] = [0, 2].map(|i| world.qp(i, |init| (init.cap.send_wr, init.inline_write) = (4096, false)));
    let (to_silent, to_busy) = (world.ah(0, 1), world.ah(2, 0));
    let [busy_keys, other_keys] = [0, 2].map(|i| world.mr(i));
    world.ah(0, 2);
    let read = |world: &mut World<Ram>| {
        let (op, sges) = (SendOp::Read { addr: BASE, rkey: busy_keys.rkey }, [sge(other_keys, 0, 8)]);
        let wr = SendWr { wr_id: 1, op, ah: to_busy, qpn: busy, qkey: QKEY, data: SendData::Sges(&sges) };
        let start = world.now;
        world.post(2, other, wr).unwrap();
        assert_eq!(world.wait(2, Span::from_secs(60)).status, Status::Ok);
        world.now.since(start)
    };
    read(&mut world);
    let alone = read(&mut world);
    world.hosts[1].alive = false;
    let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(&[1]));
    let wr = SendWr { wr_id: 1, op, ah: to_silent, qpn: 1, qkey: QKEY, data };
    (0..4096).for_each(|_| world.post(0, busy, wr).unwrap());
    world.run(Span::from_millis(400));
    let beside = read(&mut world);
    assert!(beside <= alone * 2, "{beside} instead of {alone}");
}

#[test]
fn a_chain_is_posted_up_to_the_first_bad_request_or_all_or_none() {
    let mut two = Two::new();
    two.recv(1, 0, 100);
    let chain = |len: usize| SendData::Inline(&[0; 40][..len]);
    let wr = |wr_id, data| SendWr {
        wr_id,
        op: SendOp::Send { imm: None },
        ah: two.ah[0],
        qpn: two.qpn[1],
        qkey: QKEY,
        data,
    };
    let wrs = [wr(1, chain(4)), wr(2, chain(40)), wr(3, chain(4))];
    let (now, qpn) = (two.world.now, two.qpn[0]);
    let Host { card, endpoint, .. } = &mut two.world.hosts[0];
    assert!(card.post_send_all(endpoint, now, qpn, &wrs).is_err());
    let (posted, outcome) = card.post_send(endpoint, now, qpn, &wrs);
    assert!(posted == 1 && matches!(outcome, Err(CardError::Invalid(_))));
    assert_eq!(two.wait(0).wr_id, 1);
    two.world.run(Span::from_millis(50));
    assert!(two.world.poll(0).is_none());
}

#[test]
fn a_chain_that_has_no_room_as_a_whole_is_not_posted() {
    let mut two = Two::new();
    two.qpn[0] = two.world.qp(0, |init| init.cap.send_wr = 4);
    (0..3).for_each(|n| two.send(n, 0, 1));
    let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(&[]));
    let wr = SendWr { wr_id: 3, op, ah: two.ah[0], qpn: two.qpn[1], qkey: QKEY, data };
    let (now, qpn) = (two.world.now, two.qpn[0]);
    let Host { card, endpoint, .. } = &mut two.world.hosts[0];
    assert!(matches!(card.post_send_all(endpoint, now, qpn, &[wr; 2]), Err(CardError::NoMemory(_))));
    assert_eq!(card.in_flight(), 3);
    card.post_send_all(endpoint, now, qpn, &[wr]).unwrap();
    assert!(matches!(card.post_send_all(endpoint, now, qpn, &[wr]), Err(CardError::NoMemory(_))));
    assert_eq!(card.in_flight(), 4);
}

#[test]
fn an_overrun_of_a_completion_queue_is_told_once_and_harms_nobody_else() {
    let mut world = World::new(2, options());
    let small = world.hosts[1].card.create_cq(64).unwrap();
    let to = world.qp(1, |init| (init.recv_cq, init.unsolicited_write_recv) = (small, true));
    let from = world.qp(0, |init| init.unsolicited_write_recv = true);
    let (ah, keys) = (world.ah(0, 1), [world.mr(0), world.mr(1)]);
    world.ah(1, 0);
    let mut done = 0;
    for n in 0..500u32 {
        let op = SendOp::Write { addr: BASE, rkey: keys[1].rkey, imm: Some(n) };
        let data = SendData::Inline(b"x");
        world.post(0, from, SendWr { wr_id: n.into(), op, ah, qpn: to, qkey: QKEY, data }).unwrap();
        if n % 100 == 99 {
            world.run(Span::from_millis(20));
            while world.poll(0).is_some_and(|c| c.status == Status::Ok) {
                done += 1;
            }
        }
    }
    assert_eq!(done, 500);
    let overruns = world.hosts[1].events.iter().filter(|e| **e == CardEvent::CqOverrun(small)).count();
    assert_eq!(overruns, 1);
    let mut seen = std::collections::BTreeSet::new();
    while let Some(entry) = world.hosts[1].card.poll(small) {
        assert!(entry.unsolicited && seen.insert(entry.imm), "{entry:?} twice");
    }
    assert_eq!(seen.len(), 64);
    world.destroy_qp(1, to);
    world.hosts[1].card.destroy_cq(small).unwrap();
}

#[test]
fn completions_without_their_queue_pair_are_gone() {
    let mut two = Two::new();
    for n in 0..16 {
        two.recv(n, 0, 100);
        two.send(n, 0, 10);
    }
    two.world.run(Span::from_millis(10));
    two.world.destroy_qp(1, two.qpn[1]);
    assert!(two.world.poll(1).is_none());
    two.qpn[1] = two.world.qp(1, |_| ());
    for _ in 0..16 {
        assert_eq!(two.wait(0).status, Status::Ok);
    }
    two.assert_usable();
    // Of sends, too, and in both queues if they are two.
    let Host { card, .. } = &mut two.world.hosts[0];
    let cqs = [(); 2].map(|()| card.create_cq(16).unwrap());
    let own = two.world.qp(0, |init| [init.send_cq, init.recv_cq] = cqs);
    let (ah, sges) = (two.world.ah(0, 0), [two.sge(0, 0, 10)]);
    for _ in 0..2 {
        two.world.recv(0, own, 1, &sges);
        let (op, data) = (SendOp::Send { imm: None }, SendData::Sges(&sges));
        two.world.post(0, own, SendWr { wr_id: 2, op, ah, qpn: own, qkey: QKEY, data }).unwrap();
    }
    two.world.run(Span::from_millis(1));
    for cq in cqs {
        assert!(two.world.hosts[0].card.poll(cq).is_some(), "there are two in each");
    }
    two.world.destroy_qp(0, own);
    for cq in cqs {
        assert!(two.world.hosts[0].card.poll(cq).is_none());
    }
}

#[test]
fn numbers_of_queue_pairs_come_back_late() {
    let mut world = World::new(1, options());
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..3000 {
        let qpn = world.new_qp(0, |_| ());
        assert!(qpn > 1 && qpn != 0xffff);
        assert!(seen.insert(qpn), "QPN {qpn} again after {n}");
        world.destroy_qp(0, qpn);
    }
    for _ in 0..10_000 {
        let qpn = world.new_qp(0, |_| ());
        world.destroy_qp(0, qpn);
    }
    let all: Vec<u16> = (0..1024).map(|_| world.new_qp(0, |_| ())).collect();
    let Host { card, pd, cq, .. } = &mut world.hosts[0];
    let (pd, cq) = (*pd, *cq);
    let init = QpInit::new(QpType::Srd, pd, cq, cap());
    assert!(matches!(card.create_qp(init), Err(CardError::NoMemory(_))));
    assert_eq!(card.device.create_qp_err, 1);
    assert_eq!(std::collections::BTreeSet::from_iter(&all).len(), all.len());
}

#[test]
fn objects_that_others_depend_on_stay() {
    type Make = fn(&mut World<Ram>) -> u32;
    type End = fn(&mut World<Ram>, u32);
    let dependents: [(Make, End); 3] = [
        (|world| world.mr(0).lkey, |world, lkey| world.dereg(0, lkey)),
        (|world| world.ah(0, 1).into(), |world, ah| world.destroy_ah(0, ah as u16)),
        (|world| world.new_qp(0, |_| ()).into(), |world, qpn| world.destroy_qp(0, qpn as u16)),
    ];
    let mut world = World::new(2, options());
    for (make, end) in dependents {
        let made = make(&mut world);
        let Host { card, pd, .. } = &mut world.hosts[0];
        assert!(matches!(card.dealloc_pd(*pd), Err(CardError::Busy(_))));
        end(&mut world, made);
        let Host { card, pd, .. } = &mut world.hosts[0];
        card.dealloc_pd(*pd).unwrap();
        assert!(matches!(card.dealloc_pd(*pd), Err(CardError::Invalid(_))), "it is gone");
        *pd = card.alloc_pd().unwrap();
    }
    let uses: [fn(&mut QpInit, CqId); 2] = [|init, cq| init.send_cq = cq, |init, cq| init.recv_cq = cq];
    for set in uses {
        let cq = world.hosts[0].card.create_cq(16).unwrap();
        let qpn = world.new_qp(0, |init| set(init, cq));
        assert!(matches!(world.hosts[0].card.destroy_cq(cq), Err(CardError::Busy(_))));
        world.destroy_qp(0, qpn);
        world.hosts[0].card.destroy_cq(cq).unwrap();
    }
    let Host { card, .. } = &world.hosts[0];
    assert_eq!((card.device.cmds_err, card.registered()), (3 * 2 + 2, (0, 0)));
}

#[test]
fn a_peer_is_known_as_long_as_any_domain_has_a_handle_for_it() {
    let config = Config { max_peers: 1, ..Config::default() };
    let mut world = World::with(1, options(), config, |_| Ram(Vec::new()));
    let ah = world.ah(0, 1);
    let Host { card, pd, .. } = &mut world.hosts[0];
    let first = std::mem::replace(pd, card.alloc_pd().unwrap());
    let other = world.ah(0, 1);
    let Host { card, endpoint, .. } = &mut world.hosts[0];
    card.destroy_ah(endpoint, first, ah).unwrap();
    let full = world.try_ah(0, addr(2));
    assert!(matches!(full, Err(CardError::NoMemory(_))), "{full:?}");
    world.destroy_ah(0, other);
    world.try_ah(0, addr(2)).expect("its place is free");
}

/// Addresses may come to belong to cards of another kind: then numbers of queue pairs mean something else.
#[test]
fn a_handle_for_another_card_that_had_the_address_is_none_for_the_one_that_has_it() {
    let mut two = Two::new();
    two.world.destroy_ah(0, two.ah[0]);
    let Host { card, endpoint, pd, .. } = &mut two.world.hosts[0];
    let of_two_units = card.create_ah(endpoint, *pd, Gid::with_units(addr(1), 2).unwrap(), 8972).unwrap();
    let ask = |two: &mut Two, op| {
        let sges = [two.sge(1, 0, 10)];
        let wr = SendWr { wr_id: 1, op, ah: two.ah[1], qpn: two.qpn[0], qkey: QKEY, data: SendData::Sges(&sges) };
        two.world.post(1, two.qpn[1], wr).unwrap();
        two.wait(1).status
    };
    let read = SendOp::Read { addr: BASE, rkey: two.keys[0].rkey };
    let receive = |two: &mut Two| {
        let into = [two.sge(0, 0, 100)];
        two.world.recv(0, two.qpn[0], 2, &into);
        assert_eq!(ask(two, SendOp::Send { imm: None }), Status::Ok);
        two.wait(0).ah
    };
    assert_eq!(ask(&mut two, read), Status::UnknownPeer);
    assert_eq!(receive(&mut two), UNKNOWN_AH);
    let ah = two.world.ah(0, 1);
    assert_ne!(ah, of_two_units);
    assert_eq!(ask(&mut two, read), Status::Ok);
    assert_eq!(receive(&mut two), ah);
}

fn access(local_write: bool, remote_read: bool, remote_write: bool) -> Access {
    Access { local_write, remote_read, remote_write }
}

#[test]
fn what_peers_may_write_its_owner_may_write_too() {
    let mut world = World::new(1, options());
    let Host { card, pd, .. } = &mut world.hosts[0];
    for remote_read in [false, true] {
        let refused = card.reg_mr(*pd, 0, BASE, 100, access(false, remote_read, true));
        assert!(matches!(refused, Err(CardError::Invalid(_))));
        card.reg_mr(*pd, 0, BASE, 100, access(true, remote_read, true)).unwrap();
        card.reg_mr(*pd, 0, BASE, 100, access(false, remote_read, false)).unwrap();
    }
}

#[test]
fn what_a_generation_cannot_do_is_refused() {
    let profile = Profile::generation(0xefa0).unwrap();
    let mut world = World::new(1, CardOptions { profile, ..CardOptions::default() });
    let Host { card, pd, cq, .. } = &mut world.hosts[0];
    let (pd, cq) = (*pd, *cq);
    for (access, fine) in [
        (access(true, false, false), true),
        (access(false, false, false), true),
        (access(true, true, false), false),
        (access(true, false, true), false),
    ] {
        let done = card.reg_mr(pd, 0, BASE, 100, access);
        let refused = matches!(done, Err(CardError::NotSupported(_)));
        assert_eq!((done.is_ok(), refused), (fine, !fine), "{access:?}");
    }
    assert_eq!(card.device.reg_mr_err, 2);
    assert!(matches!(card.reg_mr(pd, 0, BASE, 1 << 50, Access::default()), Err(CardError::NoMemory(_))));
    let base = QpInit::new(QpType::Srd, pd, cq, cap());
    card.create_qp(base).unwrap();
    let with = |cap| QpInit { cap, ..base };
    for bad in [
        QpInit { ops: SendOps { read: true, write: false }, ..base },
        QpInit { unsolicited_write_recv: true, ..base },
        QpInit { inline_write: true, ..base },
        with(QpCap { inline: profile.max_inline + 1, ..cap() }),
        with(QpCap { send_wr: profile.max_sq_wr + 1, ..cap() }),
        with(QpCap { recv_wr: profile.max_rq_wr, recv_sge: 2, ..cap() }),
        with(QpCap { send_sge: 3, ..cap() }),
        with(QpCap { recv_sge: 4, ..cap() }),
    ] {
        assert!(card.create_qp(bad).is_err(), "{bad:?}");
    }
    assert!(card.create_cq(0).is_err() && card.create_cq(profile.max_cqe + 1).is_err());
    assert_eq!(card.device.create_cq_err, 2);
}

#[test]
fn handles_of_one_address_are_one_and_the_table_of_them_has_an_end() {
    let mut options = options();
    options.profile.max_ah = 64;
    let config = Config { max_peers: 128, ..Config::default() };
    let mut world = World::with(1, options, config, |_| Ram(Vec::new()));
    let first = world.ah(0, 1);
    assert_eq!(world.ah(0, 1), first);
    for i in 2..65 {
        world.ah(0, i);
    }
    assert!(matches!(world.try_ah(0, addr(70)), Err(CardError::NoMemory(_))));
    assert_eq!(world.hosts[0].card.device.create_ah_err, 1);
    world.destroy_ah(0, first);
    assert_eq!(world.ah(0, 1), first, "it was there all the time");
    world.destroy_ah(0, first);
    world.destroy_ah(0, first);
    // Peers come and go: their places are used again.
    for i in 100..600 {
        let ah = world.try_ah(0, addr(i)).unwrap();
        assert_eq!(ah, first);
        world.destroy_ah(0, ah);
    }
}

#[test]
fn operations_complete_out_of_order() {
    let mut two = Two::new();
    let mut rng = Rng(5);
    two.world.wire = Box::new(move |_, _| Fate::Late(Span::from_micros(rng.below(5000))));
    let mut swapped = 0;
    for n in 0..50 {
        two.recv(n, 0, 0);
        two.post(1, two.write(0, None), &[two.sge(0, 0, 100_000)]);
        two.post(2, two.write(200_000, Some(n as u32)), &[two.sge(0, 0, 8)]);
        swapped += usize::from(two.wait(0).wr_id == 2);
        two.wait(0);
        two.wait(1);
    }
    assert!(swapped > 10, "a small one overtook a large one {swapped} times");
}

/// Memory that is longer than this host's: reading gives a pattern, and what is written must be the same pattern.
#[derive(Debug)]
struct Vast {
    pattern: Vec<u8>,
    written: u64,
}

const PERIOD: usize = 1 << 20;

impl Vast {
    fn new() -> Vast {
        let once: Vec<u8> = (0..PERIOD).map(|i| (i * 7 + i / 253) as u8).collect();
        Vast { pattern: once.repeat(2), written: 0 }
    }
}

impl HostMemory for Vast {
    type Region = ();

    fn read<'m>(&'m self, _: &'m (), offset: u64, len: usize) -> &'m [u8] {
        &self.pattern[offset as usize % PERIOD..][..len]
    }

    fn write(&mut self, region: &(), offset: u64, bytes: &[u8]) {
        assert!(bytes == self.read(region, offset, bytes.len()), "bytes at {offset} are those of another place");
        self.written += bytes.len() as u64;
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

#[test]
fn rdma_of_the_longest_length_and_one_byte_more() {
    let mut world = World::with(2, options(), Config::default(), |_| Vast::new());
    let limit = options().profile.max_rdma;
    assert_eq!(limit, 1 << 30);
    let qpn = [world.qp(0, |_| ()), world.qp(1, |_| ())];
    let ah = world.ah(0, 1);
    world.ah(1, 0);
    let keys = [0, 1].map(|i| {
        let host = &mut world.hosts[i];
        host.card.reg_mr(host.pd, (), BASE, 200 << 30, ALL).expect("registering costs nothing by the byte")
    });
    for (wr_id, (read, len, status)) in [
        (false, limit, Status::Ok),
        (true, limit, Status::Ok),
        (false, limit + 1, Status::LocalBadLength),
        (true, limit + 1, Status::LocalBadLength),
    ]
    .into_iter()
    .enumerate()
    {
        // Somewhere in the middle, at the same place of the pattern on both sides.
        let (at, there) = (BASE + (3 << 30) + 17, BASE + (150 << 30) + 17);
        let sges = [Sge { addr: at, len, lkey: keys[0].lkey }];
        let rkey = keys[1].rkey;
        let op = match read {
            true => SendOp::Read { addr: there, rkey },
            false => SendOp::Write { addr: there, rkey, imm: None },
        };
        let data = SendData::Sges(&sges);
        world.post(0, qpn[0], SendWr { wr_id: wr_id as u64, op, ah, qpn: qpn[1], qkey: QKEY, data }).unwrap();
        assert_eq!(world.wait(0, Span::from_secs(600)).status, status, "{len} bytes");
        let target = &mut world.hosts[usize::from(!read)].card;
        let written = std::mem::take(&mut target.memory_mut().written);
        assert_eq!(written, if status == Status::Ok { len.into() } else { 0 });
    }
}

#[test]
fn writes_with_immediate_wait_for_receives_and_are_counted_exactly() {
    for unsolicited in [false, true] {
        let mut two = Two::new();
        let count = |n: u64| (n, n * 64);
        two.qpn = [0, 1].map(|i| {
            two.world.qp(i, |init| {
                init.unsolicited_write_recv = unsolicited;
                init.cap.send_wr = 512;
            })
        });
        for n in 0..100 {
            two.recv(n, 0, 0);
        }
        for n in 0..300 {
            two.post(n.into(), two.write(4096, Some(n)), &[two.sge(0, 0, 64)]);
        }
        two.world.run(Span::from_millis(100));
        let want = if unsolicited { 300 } else { 100 };
        let (a, b) = (two.world.hosts[0].card.port, two.world.hosts[1].card.port);
        assert_eq!((a.rdma_write_wrs, a.rdma_write_bytes), count(want));
        assert_eq!(b.rdma_write_recv_bytes, count(want).1);
        let told: Vec<Completion> = std::iter::from_fn(|| two.world.poll(1)).collect();
        assert_eq!(told.len() as u64, want);
        assert!(told.iter().all(|c| c.unsolicited == unsolicited));
        for n in 0..200 {
            // Unused receives are still there: only 156 more fit.
            let none = two.sge(1, 0, 0);
            let host = &mut two.world.hosts[1];
            if host.card.post_recv(two.qpn[1], n, &[none]).is_err() {
                assert!(unsolicited && n == 156, "{n}");
                break;
            }
        }
        two.world.run(Span::from_millis(100));
        assert_eq!(two.world.hosts[0].card.port.rdma_write_wrs, 300);
    }
}

#[test]
fn regions_up_to_the_limit_and_again_after_one_has_gone() {
    let mut options = options();
    options.profile.max_mr = 100;
    let mut world = World::new(1, options);
    let all: Vec<MrKeys> = (0..100).map(|_| world.mr(0)).collect();
    let host = &mut world.hosts[0];
    let more = host.card.reg_mr(host.pd, 0, BASE, 1, ALL);
    assert!(matches!(more, Err(CardError::NoMemory(_))));
    assert_eq!(host.card.device.reg_mr_err, 1);
    assert_eq!(host.card.registered(), (100, 100 << 20));
    world.dereg(0, all[50].lkey);
    assert_eq!(world.hosts[0].card.registered(), (99, 99 << 20));
    let new = world.mr(0);
    assert_ne!(new.lkey, all[50].lkey, "the key is another");
    assert!(world.hosts[0].card.reg_mr(PdId(0), 0, u64::MAX, 2, ALL).is_err(), "around the end of all addresses");
}

#[test]
fn long_messages_to_ourselves_take_turns_and_can_be_stopped() {
    const LEN: u32 = 50 << 20;
    for stop in 0..5 {
        let mut world = World::with(1, options(), Config::default(), |_| Vast::new());
        let (a, b) = (world.qp(0, |_| ()), world.qp(0, |_| ()));
        let ah = world.ah(0, 0);
        let [from, to] = [(); 2].map(|()| {
            let host = &mut world.hosts[0];
            host.card.reg_mr(host.pd, (), BASE, LEN.into(), ALL).unwrap()
        });
        let sges = [Sge { addr: BASE, len: LEN, lkey: from.lkey }];
        let op = SendOp::Write { addr: BASE, rkey: to.rkey, imm: None };
        let data = SendData::Sges(&sges);
        world.post(0, a, SendWr { wr_id: 1, op, ah, qpn: b, qkey: QKEY, data }).unwrap();
        let mut turns = 0;
        while world.hosts[0].card.memory().written < u64::from(LEN) / 2 {
            assert!(world.step(world.now + Span::from_secs(1)));
            turns += 1;
        }
        assert!(turns >= 20, "others would wait for {LEN} bytes");
        match stop {
            0 => {}
            1 => world.dereg(0, from.lkey),
            2 => world.dereg(0, to.lkey),
            3 => world.destroy_qp(0, a),
            _ => world.set_state(0, b, QpState::Err),
        }
        let written = world.hosts[0].card.memory().written;
        world.run(Span::from_secs(1));
        let end = world.poll(0).map(|c| c.status);
        let want =
            [Some(Status::Ok), Some(Status::InvalidLkey), Some(Status::BadAddress), None, Some(Status::BadDestQpn)];
        assert_eq!(end, want[stop], "{stop}");
        let after = world.hosts[0].card.memory().written;
        assert!(stop == 0 || after == written, "written after it was stopped");
        assert!(stop != 0 || after == u64::from(LEN));
    }
}

#[test]
fn a_card_that_fails_ends_everything_as_flushed() {
    let mut two = Two::new();
    two.recv(1, 0, 100);
    two.send(2, 0, 100);
    two.post(3, two.read(0), &[two.sge(0, 0, 100)]);
    let fresh = two.world.new_qp(0, |_| ());
    let Host { card, endpoint, .. } = &mut two.world.hosts[0];
    card.fail(endpoint);
    assert!(card.has_failed());
    let ends: Vec<_> = std::iter::from_fn(|| two.world.poll(0)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(2, Status::Flushed), (3, Status::Flushed)]);
    let refused = two.try_post(4, SendOp::Send { imm: None }, SendData::Sges(&[]));
    assert!(matches!(refused, Err(CardError::Invalid(_))));
    let [init, ..] = QpModify::up_to_rts(QKEY, None);
    let Host { card, endpoint, .. } = &mut two.world.hosts[0];
    card.modify_qp(endpoint, two.qpn[0], &QpModify::to(QpState::Reset)).unwrap();
    for qpn in [two.qpn[0], fresh] {
        assert_eq!(card.modify_qp(endpoint, qpn, &init), Err(CardError::Failed));
    }
}
