//! What each operation does, at its edges too.

use srd_core::card::*;
use srd_core::*;

use crate::Vast;
use crate::cards::*;

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
