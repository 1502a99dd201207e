//! A card that talks to itself.

use srd_core::card::*;
use srd_core::*;

use crate::Vast;
use crate::cards::*;

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
