//! Queue pairs for datagrams.

use srd_core::card::*;
use srd_core::*;

use crate::cards::*;
use crate::with_switch;

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
