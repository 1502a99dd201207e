//! How work requests end: every status for its cause, and what becomes of everything else meanwhile.

#[path = "support/cards.rs"]
mod cards;

use cards::*;
use srd_core::card::*;
use srd_core::*;

/// Posts and waits for how it ends, then sees that the queue pair is as good as before.
fn status_of(two: &mut Two, op: SendOp, sge: Sge) -> Status {
    two.post(1, op, &[sge]);
    let done = two.wait(0);
    assert_eq!(done.wr_id, 1);
    assert!(two.world.poll(0).is_none());
    two.assert_usable();
    done.status
}

#[test]
fn local_errors() {
    let mut two = Two::new();
    let good = two.sge(0, 0, 100);
    let send = SendOp::Send { imm: None };
    assert_eq!(status_of(&mut two, send, Sge { lkey: good.lkey + 1, ..good }), Status::InvalidLkey);
    assert_eq!(status_of(&mut two, send, Sge { addr: BASE + (1 << 20) - 99, ..good }), Status::InvalidLkey);
    assert_eq!(status_of(&mut two, send, Sge { addr: BASE - 1, ..good }), Status::InvalidLkey);
    assert_eq!(status_of(&mut two, send, Sge { lkey: good.lkey ^ 1 << 23, ..good }), Status::InvalidLkey);
    assert_eq!(status_of(&mut two, send, Sge { len: 8929, ..good }), Status::LocalBadLength);
    let longest = two.world.options.profile.max_rdma;
    let too_long = Sge { len: longest + 1, ..good };
    let (write, read) = (two.write(0, None), two.read(0));
    // Descriptors have room for what the keys have in common.
    let rkey = two.keys[0].rkey;
    assert_eq!(status_of(&mut two, write, Sge { lkey: rkey, ..good }), Status::Ok);
    assert_eq!(status_of(&mut two, write, too_long), Status::LocalBadLength);
    assert_eq!(status_of(&mut two, read, too_long), Status::LocalBadLength);

    // A region for reading only is a source, not a target.
    let host = &mut two.world.hosts[0];
    let keys = host.card.reg_mr(host.pd, 0, BASE, 1000, Access::default()).unwrap();
    assert_eq!(status_of(&mut two, read, sge(keys, 0, 10)), Status::InvalidLkey);
    assert_eq!(status_of(&mut two, write, sge(keys, 0, 10)), Status::Ok);

    // The region of another protection domain.
    let host = &mut two.world.hosts[0];
    let pd = host.card.alloc_pd().unwrap();
    let keys = host.card.reg_mr(pd, 0, BASE, 1000, ALL).unwrap();
    assert_eq!(status_of(&mut two, send, sge(keys, 0, 10)), Status::InvalidLkey);

    let ah = std::mem::replace(&mut two.ah[0], 999);
    two.post(1, send, &[good]);
    assert_eq!(two.wait(0).status, Status::InvalidAh);
    two.ah[0] = ah;
    two.assert_usable();

    let qpn = std::mem::replace(&mut two.qpn[0], 0);
    two.qpn[0] = two.world.qp(0, |init| init.ops = SendOps::default());
    assert_eq!(status_of(&mut two, write, good), Status::UnsupportedOp);
    assert_eq!(status_of(&mut two, read, good), Status::UnsupportedOp);
    two.qpn[0] = qpn;
}

#[test]
fn remote_keys_are_checked_before_a_byte_moves() {
    let mut two = Two::new();
    two.world.bytes(1).fill(0x5a);
    two.world.bytes(0).fill(0xa5);
    let host = &mut two.world.hosts[1];
    let only = |local_write, remote_read, remote_write| Access { local_write, remote_read, remote_write };
    let mut reg = |pd, access| host.card.reg_mr(pd, 1000, BASE + 1000, 1000, access).unwrap();
    let all = reg(host.pd, ALL);
    let readable = reg(host.pd, only(false, true, false));
    let writable = reg(host.pd, only(true, false, true));
    let foreign = host.card.alloc_pd().unwrap();
    let foreign = host.card.reg_mr(foreign, 1000, BASE + 1000, 1000, ALL).unwrap();
    let (start, end) = (BASE + 1000, BASE + 2000);
    for (addr, len, rkey) in [
        (end - 15, 16, all.rkey),
        (start - 1, 16, all.rkey),
        (u64::MAX - 7, 16, all.rkey),
        (end + 1, 0, all.rkey),
        (start, 1001, all.rkey),
        (start, 16, all.rkey + 1),
        (start, 16, all.rkey ^ 1 << 31),
        (start, 16, all.lkey),
        (start, 16, foreign.rkey),
        (start, 16, 0),
    ] {
        for op in [SendOp::Write { addr, rkey, imm: None }, SendOp::Read { addr, rkey }] {
            let local = two.sge(0, 0, len);
            assert_eq!(status_of(&mut two, op, local), Status::BadAddress, "{op:?} {len}");
        }
    }
    let local = two.sge(0, 0, 16);
    let write = |rkey| SendOp::Write { addr: start, rkey, imm: None };
    assert_eq!(status_of(&mut two, write(readable.rkey), local), Status::BadAddress);
    assert_eq!(status_of(&mut two, SendOp::Read { addr: start, rkey: writable.rkey }, local), Status::BadAddress);
    assert!(two.world.bytes(1)[10..].iter().all(|b| *b == 0x5a), "no byte was written");
    assert!(two.world.bytes(0).iter().all(|b| *b == 0xa5), "no byte was disclosed");
    let nothing = two.sge(0, 0, 0);
    let at_end = SendOp::Write { addr: end, rkey: all.rkey, imm: None };
    assert_eq!(status_of(&mut two, at_end, nothing), Status::Ok);
}

#[test]
fn remote_errors_fail_one_request_only() {
    let mut two = Two::new();
    let good = two.sge(0, 0, 100);
    let send = SendOp::Send { imm: None };
    // No such queue pair, another type, a wrong key, a state that does not receive.
    let qpn = two.qpn[1];
    let ud = two.world.qp(1, |init| (init.ty, init.ops) = (QpType::Ud, SendOps::default()));
    let young = two.world.new_qp(1, |_| ());
    let sick = two.world.qp(1, |_| ());
    two.world.set_state(1, sick, QpState::Err);
    for bad in [qpn ^ 0x1000, ud, young, sick] {
        two.qpn[1] = bad;
        for op in [send, two.write(0, None), two.read(0)] {
            two.post(1, op, &[good]);
            assert_eq!(two.wait(0).status, Status::BadDestQpn, "{op:?} to {bad}");
        }
    }
    two.qpn[1] = qpn;
    let sges = [good];
    let data = SendData::Sges(&sges);
    let wr = SendWr { wr_id: 1, op: send, ah: two.ah[0], qpn, qkey: QKEY + 1, data };
    two.world.post(0, two.qpn[0], wr).unwrap();
    assert_eq!(two.wait(0).status, Status::BadDestQpn);
    two.assert_usable();

    // Too short a receive stays for a message that fits.
    two.recv(50, 0, 99);
    two.post(1, send, &[good]);
    assert_eq!(two.wait(0).status, Status::RemoteBadLength);
    two.send(2, 0, 99);
    assert_eq!((two.wait(0).status, two.wait(1).wr_id), (Status::Ok, 50));

    // A receive that the receiver's own memory does not cover.
    let bad = Sge { lkey: two.keys[1].lkey + 1, ..two.sge(1, 0, 100) };
    two.world.recv(1, qpn, 60, &[bad]);
    two.post(1, send, &[good]);
    assert_eq!(two.wait(0).status, Status::BadStatus);
    let failed = two.wait(1);
    assert_eq!((failed.wr_id, failed.status, failed.opcode), (60, Status::InvalidLkey, Opcode::Recv));
    two.assert_usable();
}

#[test]
fn rdma_needs_an_address_handle_at_the_target_unless_that_is_relaxed() {
    for strict in [true, false] {
        let mut two = Two::with(CardOptions { strict_peers: strict, ..options() });
        two.world.destroy_ah(1, two.ah[1]);
        let local = two.sge(0, 0, 100);
        let want = if strict { Status::UnknownPeer } else { Status::Ok };
        for op in [two.write(0, None), two.read(0)] {
            assert_eq!(status_of(&mut two, op, local), want);
        }
        // Sends need none, and come from nobody known.
        two.recv(3, 0, 100);
        two.send(4, 0, 1);
        let got = two.wait(1);
        assert_eq!((got.ah, got.sgid), (UNKNOWN_AH, gid(0)));
        two.wait(0);
        two.world.ah(1, 0);
        let op = two.read(0);
        assert_eq!(status_of(&mut two, op, local), Status::Ok);
    }
}

#[test]
fn the_error_state_flushes_everything_and_reset_forgets_it() {
    for state in [QpState::Err, QpState::Reset] {
        let mut two = Two::new();
        two.world.wire = Box::new(|_, _| Fate::Lost);
        for n in 0..10 {
            two.send(n, 0, 100);
            two.post(10 + n, two.write(0, None), &[two.sge(0, 0, 100_000)]);
            two.post(20 + n, two.read(0), &[two.sge(0, 0, 100_000)]);
            let sge = two.sge(0, 0, 10);
            two.world.recv(0, two.qpn[0], 30 + n, &[sge]);
        }
        two.world.run(Span::from_millis(1));
        two.world.set_state(0, two.qpn[0], state);
        let mut done = Vec::new();
        while let Some(entry) = two.world.poll(0) {
            assert_eq!(entry.status, Status::Flushed);
            assert_eq!(entry.opcode.is_recv(), entry.wr_id >= 30);
            done.push(entry.wr_id);
        }
        done.sort_unstable();
        let want: Vec<u64> = if state == QpState::Err { (0..40).collect() } else { Vec::new() };
        assert_eq!(done, want);
        two.world.wire = Box::new(|_, _| Fate::Arrives);
        two.world.run(Span::from_secs(1));
        assert!(two.world.poll(0).is_none());
        let late = two.try_post(1, SendOp::Send { imm: None }, SendData::Inline(&[]));
        assert!(matches!(late, Err(CardError::Invalid(_))));
        assert!(two.world.hosts[0].card.post_recv(two.qpn[0], 1, &[]).is_err());
        if state == QpState::Err {
            two.world.set_state(0, two.qpn[0], QpState::Reset);
        }
        two.world.up(0, two.qpn[0], None);
        two.assert_usable();
    }
}

/// Two of which the first queue pair is in SQD, and has a send of 10 bytes.
fn draining(ty: QpType) -> Two {
    let mut two = Two::new();
    let of_type = |init: &mut QpInit| (init.ty, init.ops) = (ty, SendOps::default());
    two.qpn = [0, 1].map(|i| two.world.qp(i, of_type));
    two.recv(1, 0, 100);
    two.world.set_state(0, two.qpn[0], QpState::Sqd);
    two.send(2, 0, 10);
    two
}

#[test]
fn sends_posted_while_draining_leave_later() {
    for ty in [QpType::Srd, QpType::Ud] {
        let mut two = draining(ty);
        // Longer than any patience, whose time begins when they leave.
        two.world.run(Span::from_secs(10));
        assert!(two.world.poll(0).is_none(), "{ty:?}");
        two.world.set_state(0, two.qpn[0], QpState::Rts);
        assert_eq!((two.wait(0).status, two.wait(1).wr_id), (Status::Ok, 1), "{ty:?}");
    }
}

#[test]
fn sends_posted_while_draining_end_with_the_queue_pair() {
    for (ty, state) in [(QpType::Srd, QpState::Err), (QpType::Ud, QpState::Err), (QpType::Ud, QpState::Reset)] {
        let mut two = draining(ty);
        two.world.set_state(0, two.qpn[0], state);
        let flushed = (state == QpState::Err).then_some((2, Status::Flushed));
        assert_eq!(two.world.poll(0).map(|c| (c.wr_id, c.status)), flushed, "{ty:?} {state:?}");
        two.world.set_state(0, two.qpn[0], QpState::Reset);
        two.world.up(0, two.qpn[0], None);
        two.world.set_state(0, two.qpn[0], QpState::Sqd);
        two.world.set_state(0, two.qpn[0], QpState::Rts);
        two.world.run(Span::from_secs(1));
        assert!(two.world.poll(1).is_none(), "{ty:?} {state:?}");
        assert_eq!(two.world.hosts[0].card.in_flight(), 0);
    }
}

#[test]
fn an_address_handle_that_goes_flushes_its_requests_only() {
    let mut world = World::new(3, options());
    let qpn: Vec<u16> = (0..3).map(|i| world.qp(i, |_| ())).collect();
    let keys: Vec<MrKeys> = (0..3).map(|i| world.mr(i)).collect();
    let ah = [world.ah(0, 1), world.ah(0, 2)];
    world.wire = Box::new(|a, b| if a.max(b) == 1 { Fate::Late(Span::from_millis(500)) } else { Fate::Arrives });
    for n in 0..100 {
        for (i, &ah) in ah.iter().enumerate() {
            world.recv(i + 1, qpn[i + 1], n, &[sge(keys[i + 1], 0, 1000)]);
            let sges = [sge(keys[0], 0, 1000)];
            let (op, data) = (SendOp::Send { imm: None }, SendData::Sges(&sges));
            let wr = SendWr { wr_id: n << 8 | i as u64, op, ah, qpn: qpn[i + 1], qkey: QKEY, data };
            world.post(0, qpn[0], wr).unwrap();
        }
    }
    world.run(Span::from_millis(50));
    world.destroy_ah(0, ah[0]);
    let mut seen = [0; 2];
    while let Some(done) = world.poll(0) {
        let to = (done.wr_id & 0xff) as usize;
        assert_eq!(done.status, [Status::Flushed, Status::Ok][to]);
        seen[to] += 1;
    }
    assert_eq!(seen, [100, 100]);
    assert_eq!(world.hosts[0].card.query_qp(qpn[0]).unwrap().state, QpState::Rts);
    let ah = world.ah(0, 1);
    let data = SendData::Inline(b"again");
    let wr = SendWr { wr_id: 1, op: SendOp::Send { imm: None }, ah, qpn: qpn[1], qkey: QKEY, data };
    world.post(0, qpn[0], wr).unwrap();
    assert_eq!(world.wait(0, Span::from_secs(20)).status, Status::Ok);
}

#[test]
fn a_queue_pair_that_goes_is_silent_and_leaves_the_others_alone() {
    let mut two = Two::new();
    two.world.wire = bad_wire(1);
    let other = two.world.qp(0, |_| ());
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..200 {
        two.recv(n, 0, 9000);
        two.send(10_000 + n, 0, 5000);
        let sges = [two.sge(0, 0, 5000)];
        let (op, data) = (two.write(100_000, None), SendData::Sges(&sges));
        let wr = SendWr { wr_id: n, op, ah: two.ah[0], qpn: two.qpn[1], qkey: QKEY, data };
        two.world.post(0, other, wr).unwrap();
    }
    two.world.run(Span::from_micros(300));
    two.world.destroy_qp(0, two.qpn[0]);
    while seen.len() < 200 {
        let done = two.wait(0);
        assert_eq!((done.qpn, done.status), (other, Status::Ok));
        assert!(seen.insert(done.wr_id), "{} twice", done.wr_id);
    }
    two.world.run(Span::from_secs(1));
    assert!(two.world.poll(0).is_none());
}

/// The operations that can be in the middle of something.
fn operations(two: &Two) -> [(SendOp, Sge); 4] {
    let (short, long) = (two.sge(0, 0, 8000), two.sge(0, 0, 400_000));
    [
        (SendOp::Send { imm: None }, short),
        (two.write(500_000, None), long),
        (two.write(500_000, Some(1)), long),
        (two.read(500_000), long),
    ]
}

#[test]
fn a_process_that_ends_hears_no_more_of_its_sends() {
    let mut two = Two::new();
    for (n, (op, sge)) in (0..).zip(operations(&two)) {
        two.recv(n, 500_000, 8928);
        two.post(n, op, &[sge]);
    }
    two.world.run(Span::from_micros(30));
    assert!(two.world.poll(0).is_none(), "all are under way");
    let (now, host) = (two.world.now, &mut two.world.hosts[0]);
    host.card.hush(&mut host.endpoint);
    host.endpoint.abort(now, &mut host.card);
    let sges = [two.sge(0, 0, 8)];
    two.post(9, SendOp::Send { imm: None }, &sges);
    two.world.run(Span::from_secs(10));
    assert_eq!(two.world.poll(0), None);
}

#[test]
fn memory_withdrawn_in_the_middle_is_not_touched_any_more() {
    let mut ends = std::collections::BTreeMap::new();
    for seed in 0..300u64 {
        let mut two = Two::new();
        let (op, local) = operations(&two)[seed as usize % 4];
        two.recv(5, 500_000, 8928);
        // The connection is there, and half of the transfer too, when one side or the other withdraws its memory.
        two.post(9, two.write(0, None), &[two.sge(0, 0, 1)]);
        two.wait(0);
        two.world.wire = bad_wire(seed);
        two.world.bytes(0).fill(0xaa);
        two.world.bytes(1).fill(0xbb);
        two.post(1, op, &[local]);
        let mut rng = Rng(seed);
        two.world.run(Span::from_micros(rng.below(600)));
        let side = (seed / 4 % 2) as usize;
        let lkey = two.keys[side].lkey;
        two.world.dereg(side, lkey);
        let done = two.world.poll(0);
        two.world.bytes(side).fill(0xcc);
        let done = done.unwrap_or_else(|| two.wait(0));
        two.world.run(Span::from_secs(1));
        assert!(two.world.bytes(side).iter().all(|b| *b == 0xcc), "seed {seed}: touched after deregistration");
        // Nor was anything read of what came into it afterwards.
        assert!(!two.world.bytes(1 - side).contains(&0xcc), "seed {seed}: disclosed after deregistration");
        let expected: &[Status] = match (op, side) {
            (_, 0) => &[Status::Ok, Status::InvalidLkey],
            (SendOp::Send { .. }, _) => &[Status::Ok, Status::BadStatus],
            _ => &[Status::Ok, Status::BadAddress],
        };
        assert!(expected.contains(&done.status), "seed {seed}: {op:?} {side} ended with {}", done.status);
        assert!(two.world.poll(0).is_none(), "seed {seed}: twice");
        *ends.entry((seed % 8, done.status)).or_insert(0) += 1;
    }
    assert!(ends.len() >= 14, "the middle was hit too seldom: {ends:?}");
}

/// Answers may be late by the peer timeout, in which a card does millions of reads.
#[test]
fn a_late_answer_to_a_read_that_was_given_up_is_for_no_other_read() {
    let mut world = World::new(3, options());
    let qpn = [0, 1, 2].map(|i| world.qp(i, |_| ()));
    let keys = [0, 1, 2].map(|i| world.mr(i));
    let ah = [0, 1, 2].map(|i| world.ah(0, i));
    (1..3).for_each(|i| _ = world.ah(i, 0));
    world.bytes(1)[..100].fill(0x11);
    world.bytes(1)[100..200].fill(0x22);
    let read = |world: &mut World<Ram>, wr_id, own: MrKeys, from: usize, at: u64| {
        let (op, sges) = (SendOp::Read { addr: BASE + at, rkey: keys[from].rkey }, [sge(own, 0, 100)]);
        let wr = SendWr { wr_id, op, ah: ah[from], qpn: qpn[from], qkey: QKEY, data: SendData::Sges(&sges) };
        world.post(0, qpn[0], wr).unwrap();
    };
    for from in [1, 2] {
        read(&mut world, 0, keys[0], from, 0);
        assert_eq!(world.wait(0, Span::from_secs(1)).status, Status::Ok);
    }
    world.wire = Box::new(|from, _| if from == 1 { Fate::Late(Span::from_secs(2)) } else { Fate::Arrives });
    read(&mut world, 1, keys[0], 1, 0);
    world.run(Span::from_micros(100));
    world.dereg(0, keys[0].lkey);
    assert_eq!(world.wait(0, Span::ZERO).status, Status::InvalidLkey);
    // Ids that had a slot and 12 bits of a count came back after so many.
    let own = world.mr(0);
    for _ in 0..4095 {
        read(&mut world, 2, own, 2, 0);
        assert_eq!(world.wait(0, Span::from_secs(1)).status, Status::Ok);
    }
    read(&mut world, 3, own, 1, 100);
    let done = world.wait(0, Span::from_secs(20));
    assert_eq!((done.wr_id, done.status), (3, Status::Ok));
    assert_eq!(world.bytes(0)[..100], [0x22; 100]);
}

#[test]
fn a_queue_pair_that_goes_serves_no_reads_any_more() {
    const LEN: usize = 4 << 20;
    for (server, state) in
        [1, 0].into_iter().flat_map(|s| [(s, None), (s, Some(QpState::Err)), (s, Some(QpState::Reset))])
    {
        let mut two = Two::of(World::with(2, options(), Config::default(), |_| Ram(vec![0xaa; 2 * LEN])));
        two.assert_usable();
        let usual = (two.ah[0], two.qpn[1]);
        if server == 0 {
            (two.ah[0], two.qpn[1]) = (two.world.ah(0, 0), two.world.qp(0, |_| ()));
        }
        two.world.bytes(server)[LEN..].fill(0xbb);
        let rkey = two.keys[server].rkey;
        two.post(1, SendOp::Read { addr: BASE + LEN as u64, rkey }, &[two.sge(0, 0, LEN as u32)]);
        let arrived = |two: &mut Two, byte| two.world.bytes(0)[..LEN].iter().filter(|b| **b == byte).count();
        while arrived(&mut two, 0xbb) < LEN / 4 {
            assert!(two.world.step(two.world.now + Span::from_secs(1)));
        }
        match state {
            None => two.world.destroy_qp(server, two.qpn[1]),
            Some(state) => two.world.set_state(server, two.qpn[1], state),
        }
        // Still registered, but whoever asked through that queue pair has no business there now.
        two.world.bytes(server)[LEN..].fill(0xcc);
        let done = two.wait(0);
        assert_eq!((done.wr_id, done.status), (1, Status::BadDestQpn), "{server} {state:?}");
        two.world.run(Span::from_secs(1));
        assert_eq!(arrived(&mut two, 0xcc), 0, "{server} {state:?}");
        (two.ah[0], two.qpn[1]) = usual;
        if server == 1 {
            two.qpn[1] = two.world.qp(1, |_| ());
        }
        two.assert_usable();
    }
}

#[test]
fn a_read_of_more_than_the_transport_takes_fails() {
    let config = Config { max_message: 1 << 16, ..Config::default() };
    let mut two = Two::of(World::with(2, options(), config, |_| Ram(vec![0; 1 << 20])));
    let (op, most, more) = (two.read(0), two.sge(0, 0, 1 << 16), two.sge(0, 0, (1 << 16) + 1));
    assert_eq!(status_of(&mut two, op, most), Status::Ok);
    assert_eq!(status_of(&mut two, op, more), Status::BadAddress);
    let op = two.write(0, None);
    assert_eq!(status_of(&mut two, op, more), Status::LocalBadLength);
}

#[test]
fn a_peer_that_restarts_in_the_middle_aborts_each_operation() {
    let mut aborted = 0;
    for seed in 0..80u64 {
        let mut two = Two::new();
        let (op, local) = operations(&two)[seed as usize % 4];
        two.recv(5, 500_000, 8928);
        two.post(9, two.write(0, None), &[two.sge(0, 0, 1)]);
        two.wait(0);
        two.post(1, op, &[local]);
        let start = two.world.now;
        two.world.run(Span::from_micros(Rng(seed).below(150)));
        two.world.restart(1, 99, Ram(vec![0xdd; 1 << 20]));
        let done = two.wait(0);
        assert!([Status::Ok, Status::Abort].contains(&done.status), "seed {seed}: {op:?}: {}", done.status);
        assert!(two.world.now.since(start) < Span::from_secs(2), "seed {seed}: a read waits for a keepalive");
        assert!(two.world.bytes(1).iter().all(|b| *b == 0xdd), "seed {seed}: old data reached the new process");
        aborted += u32::from(done.status == Status::Abort);
        // The new one is as good as the old, once a keepalive has told of it.
        two.world.run(Span::from_secs(2));
        let old = two.qpn[1];
        two.qpn[1] = two.world.qp(1, |_| ());
        assert_eq!(two.qpn[1], old, "even under the same number");
        two.keys[1] = two.world.mr(1);
        two.world.ah(1, 0);
        two.assert_usable();
    }
    assert!(aborted >= 20, "the middle was hit {aborted} times");
}

/// The second host starts again, and its queue pair has the same number.
fn succeed(two: &mut Two) {
    two.world.restart(1, 99, Ram(vec![0xdd; 1 << 20]));
    let old = std::mem::replace(&mut two.qpn[1], two.world.qp(1, |_| ()));
    assert_eq!(two.qpn[1], old);
    (two.keys[1], two.ah[1]) = (two.world.mr(1), two.world.ah(1, 0));
}

/// The second host asks for something.
fn ask(two: &mut Two, op: SendOp, sges: &[Sge]) {
    let wr = SendWr { wr_id: 1, op, ah: two.ah[1], qpn: two.qpn[0], qkey: QKEY, data: SendData::Sges(sges) };
    two.world.post(1, two.qpn[1], wr).unwrap();
}

#[test]
fn what_waits_for_a_peer_is_not_for_its_successor() {
    // In pauses, because there is no receive; in the card, because the transport has no room; in SQD.
    for (send_queue, state) in [(64, QpState::Rts), (1, QpState::Rts), (64, QpState::Sqd)] {
        let config = Config { send_queue, ..Config::default() };
        let mut two = Two::of(World::with(2, options(), config, |_| Ram(vec![0; 1 << 20])));
        two.assert_usable();
        two.world.set_state(0, two.qpn[0], state);
        (0..3).for_each(|n| two.send(n, 0, 100));
        two.world.run(Span::from_millis(30));
        assert!(two.world.poll(0).is_none());
        succeed(&mut two);
        two.recv(50, 0, 1000);
        // It is heard of before anything is sent to it.
        ask(&mut two, SendOp::Send { imm: None }, &[]);
        let mut ids = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let done = two.wait(0);
            assert_eq!(done.status, Status::Abort, "{send_queue} {state:?}");
            ids.insert(done.wr_id);
        }
        assert_eq!(ids.len(), 3);
        if state == QpState::Sqd {
            two.world.set_state(0, two.qpn[0], QpState::Rts);
        }
        two.world.run(Span::from_secs(1));
        assert!(two.world.poll(1).is_none());
        two.assert_usable_after(&[50]);
    }
}

#[test]
fn an_answer_for_a_peer_is_not_for_its_successor() {
    // The transport of the first host has no room for an answer.
    let config = Config { send_queue: 1, ..Config::default() };
    let mut two = Two::of(World::with(2, options(), config, |_| Ram(vec![0; 1 << 20])));
    two.assert_usable();
    let read = |two: &mut Two, at: u64| {
        let (addr, rkey, own) = (BASE + at, two.keys[0].rkey, two.sge(1, 0, 100));
        ask(two, SendOp::Read { addr, rkey }, &[own]);
    };
    two.world.bytes(0)[..100].fill(0x11);
    two.world.bytes(0)[100..200].fill(0x22);
    two.send(2, 0, 100);
    read(&mut two, 0);
    two.world.run(Span::from_millis(30));
    assert!(two.world.poll(1).is_none());
    succeed(&mut two);
    // It has the same id.
    read(&mut two, 100);
    let done = two.wait(1);
    assert_eq!((done.wr_id, done.status), (1, Status::Ok));
    assert_eq!(two.world.bytes(1)[..100], [0x22; 100]);
    assert_eq!(two.wait(0).status, Status::Abort);
}

#[test]
fn a_peer_that_falls_silent_closes_or_never_was() {
    for n in 0..4 {
        let mut two = Two::new();
        two.recv(5, 500_000, 8928);
        two.post(9, two.write(0, None), &[two.sge(0, 0, 1)]);
        two.wait(0);
        let (op, local) = operations(&two)[n];
        two.post(1, op, &[local]);
        two.world.run(Span::from_micros(if n == 0 { 5 } else { 15 }));
        two.world.hosts[1].alive = false;
        let start = two.world.now;
        let done = two.wait(0);
        assert_eq!((done.wr_id, done.status), (1, Status::UnrespRemote), "{op:?}");
        let took = two.world.now.since(start);
        assert!(took > Span::from_secs(4) && took < Span::from_secs(8), "{took}");
        assert_eq!(two.world.hosts[0].events, [CardEvent::Unresponsive(gid(1))]);
        two.send(2, 0, 1);
        assert_eq!(two.wait(0).status, Status::UnreachRemote, "from now on it counts as one that never answered");
        two.world.hosts[1].alive = true;
        two.assert_usable_after(&[5]);
    }
    let mut two = Two::new();
    for _ in 0..10 {
        two.send(1, 0, 1);
    }
    two.world.run(Span::from_millis(5));
    let (now, host) = (two.world.now, &mut two.world.hosts[1]);
    host.endpoint.abort(now, &mut host.card);
    let start = two.world.now;
    for _ in 0..10 {
        assert_eq!(two.wait(0).status, Status::BadDestQpn);
    }
    assert!(two.world.now.since(start) < Span::from_millis(5), "a peer that closes says so");
}

#[test]
fn a_device_that_closes_flushes_its_own_requests() {
    let mut two = Two::new();
    two.send(1, 0, 1);
    two.post(2, two.read(0), &[two.sge(0, 0, 100)]);
    let (now, host) = (two.world.now, &mut two.world.hosts[0]);
    host.endpoint.abort(now, &mut host.card);
    assert_eq!((two.wait(0).status, two.wait(0).status), (Status::Flushed, Status::Flushed));
    two.send(3, 0, 1);
    assert_eq!(two.wait(0).status, Status::Flushed);
}

#[test]
fn requests_to_a_peer_that_has_closed_fail_at_once_until_it_is_back() {
    // Who has reason to believe so: whom it has spoken to, who makes an address handle again, or one in another domain.
    for reason in 0..3 {
        let mut two = Two::new();
        two.assert_usable();
        let World { hosts, now, .. } = &mut two.world;
        let Host { endpoint, card, .. } = &mut hosts[1];
        endpoint.abort(*now, card);
        two.world.run(Span::from_millis(10));
        let (write, read) = (two.write(0, None), two.read(0));
        let soon = Span::from_millis(10);
        for op in [SendOp::Send { imm: None }, write, read] {
            let sge = two.sge(0, 0, 16);
            two.post(1, op, &[sge]);
            assert_eq!(two.world.wait(0, soon).status, Status::BadDestQpn, "{op:?}");
        }
        succeed(&mut two);
        two.recv(50, 0, 16);
        two.send(2, 0, 16);
        assert_eq!(two.world.wait(0, soon).status, Status::BadDestQpn, "nobody knows of it");
        match reason {
            0 => {
                let sges = [two.sge(0, 0, 0)];
                two.world.recv(0, two.qpn[0], 3, &sges);
                ask(&mut two, SendOp::Send { imm: None }, &[]);
                assert_eq!((two.world.wait(0, soon).wr_id, two.world.wait(1, soon).status), (3, Status::Ok));
            }
            1 => assert_eq!(two.world.ah(0, 1), two.ah[0], "the same once more"),
            _ => {
                let host = &mut two.world.hosts[0];
                host.pd = host.card.alloc_pd().unwrap();
                two.world.ah(0, 1);
            }
        }
        two.send(4, 0, 16);
        let done = two.world.wait(0, soon);
        assert_eq!((done.wr_id, done.status), (4, Status::Ok), "{reason}");
        assert_eq!(two.world.wait(1, soon).wr_id, 50);
    }
}

#[test]
fn statuses_are_forced_on_request() {
    for status in Status::all().filter(|s| *s != Status::Ok) {
        let mut options = options();
        options.faults.force = Some(ForcedStatus { every: 3, status: status.code() });
        let mut two = Two::with(options);
        let mut failed = 0;
        for n in 0..30 {
            two.recv(n, 0, 100);
            two.send(n, 0, 10);
            let done = two.wait(0);
            failed += u32::from(done.status == status);
            assert!(done.status == status || done.status == Status::Ok);
        }
        assert_eq!(failed, 10);
        assert_eq!(std::iter::from_fn(|| two.world.poll(1)).count(), 20, "those were not sent");
    }
}

#[test]
fn success_is_not_forced() {
    let mut options = options();
    options.faults.force = Some(ForcedStatus { every: 1, status: Status::Ok.code() });
    let mut two = Two::with(options);
    two.assert_usable();
}

#[test]
fn receivers_are_not_ready_and_completions_shuffled_on_request() {
    let mut options = options();
    options.faults.rnr = Share::per_million(500_000);
    options.faults.shuffle = 16;
    options.faults.seed = 7;
    let order = |options| {
        let mut two = Two::with(options);
        for n in 0..100 {
            two.recv(n, 0, 100);
            two.send(n, 0, 10);
        }
        let sent: Vec<u64> = (0..100).map(|_| two.wait(0).wr_id).collect();
        let got = (0..100).map(|_| two.wait(1).wr_id).collect::<Vec<u64>>();
        assert!(two.world.hosts[0].endpoint.stats().rnr > 20);
        (sent, got)
    };
    let (sent, got) = order(options);
    assert!(!sent.is_sorted() && !got.is_sorted());
    let every = |mut ids: Vec<u64>| {
        ids.sort_unstable();
        ids == (0..100).collect::<Vec<u64>>()
    };
    assert!(every(sent.clone()) && every(got.clone()));
    assert_eq!(order(options), (sent.clone(), got), "the same seed, the same order");
    options.faults.seed = 8;
    assert_ne!(order(options).0, sent);
}

#[test]
fn datagrams_are_lost_on_request() {
    let mut options = options();
    options.faults.rnr = Share::per_million(500_000);
    let mut two = Two::with(options);
    two.qpn = [0, 1].map(|i| two.world.qp(i, |init| (init.ty, init.ops) = (QpType::Ud, SendOps::default())));
    for n in 0..100 {
        two.recv(n, 0, 100);
        two.send(n, 0, 10);
        assert_eq!(two.wait(0).status, Status::Ok);
    }
    two.world.run(Span::from_millis(100));
    let got = std::iter::from_fn(|| two.world.poll(1)).count();
    assert!((20..80).contains(&got), "{got} of 100 arrived");
}

#[test]
fn packets_of_a_dead_process_never_reach_its_successor_or_its_peers() {
    let mut two = Two::new();
    two.assert_usable();
    // All that the first incarnation of the sender sends now is late.
    two.world.wire = Box::new(|from, _| if from == 0 { Fate::Late(Span::from_millis(300)) } else { Fate::Arrives });
    for n in 0..100 {
        two.recv(n, 1000 * n as usize, 1000);
        two.world.bytes(0)[..100].fill(1);
        two.send(n, 0, 100);
    }
    two.world.run(Span::from_millis(100));
    two.world.restart(0, 77, Ram(vec![2; 1 << 20]));
    two.world.wire = Box::new(|_, _| Fate::Arrives);
    let old = two.qpn[0];
    two.qpn[0] = two.world.qp(0, |_| ());
    assert_eq!(two.qpn[0], old);
    (two.ah[0], two.keys[0]) = (two.world.ah(0, 1), two.world.mr(0));
    for n in 0..50 {
        two.send(n, 0, 100);
    }
    two.world.run(Span::from_secs(5));
    let mut generations = Vec::new();
    while let Some(done) = two.world.poll(1) {
        let byte = two.world.bytes(1)[1000 * done.wr_id as usize];
        generations.push(byte);
    }
    assert_eq!(generations.iter().filter(|g| **g == 2).count(), 50, "each of the new ones once");
    assert!(generations.is_sorted(), "an old one after a new one");
    assert_eq!(std::iter::from_fn(|| two.world.poll(0)).count(), 50, "and no completion of the old ones");
}

#[test]
fn a_failed_unsolicited_write_is_nothing_to_its_target() {
    let mut two = Two::new();
    two.qpn = [0, 1].map(|i| two.world.qp(i, |init| init.unsolicited_write_recv = true));
    let lkey = two.keys[1].lkey;
    two.world.dereg(1, lkey);
    let (op, local) = (two.write(0, Some(5)), two.sge(0, 0, 100));
    two.post(1, op, &[local]);
    assert_eq!(two.wait(0).status, Status::BadAddress);
    two.world.run(Span::from_millis(10));
    assert!(two.world.poll(1).is_none());
}
