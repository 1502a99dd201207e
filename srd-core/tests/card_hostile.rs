//! A card and a peer that breaks the rules of the card's messages.

#[path = "support/hostile.rs"]
mod hostile;

use hostile::*;
use srd_core::card::*;
use srd_core::*;

const LEN: u32 = 20_000;

/// A read of the victim, whose request the attacker has got.
fn victim_reads() -> (Duel, u32) {
    let mut duel = Duel::new();
    let local = duel.sge(0, LEN);
    duel.post(1, SendOp::Read { addr: 0, rkey: 0 }, local);
    duel.run(Span::from_millis(5), || true);
    let id = read_id(&duel.attackers[0].mailbox.poll_received().expect("a request").header).expect("of a read");
    (duel, id)
}

/// Lets only so many datagrams of the attacker through.
fn first(mut n: u32) -> impl FnMut() -> bool {
    move || {
        n = n.saturating_sub(1);
        n > 0
    }
}

fn buffer(duel: &mut Duel) -> &mut [u8] {
    &mut duel.card.memory_mut().0[REGION.start..][..LEN as usize]
}

#[test]
fn data_comes_once_whatever_the_peer_says() {
    let (mut duel, id) = victim_reads();
    duel.say(&data(id), vec![1; LEN as usize]);
    duel.run(Span::from_micros(300), first(6));
    assert!(duel.poll().is_none(), "half of it is here");
    duel.say(&data(id), vec![2; LEN as usize]);
    duel.run(Span::from_secs(1), || true);
    let done = duel.poll().expect("the first goes on");
    assert_eq!((done.wr_id, done.status, done.opcode), (1, Status::Ok, Opcode::RdmaRead));
    assert!(buffer(&mut duel).iter().all(|b| *b == 1));
    duel.say(&data(id), vec![3; LEN as usize]);
    duel.run(Span::from_secs(1), || true);
    assert!(duel.poll().is_none() && buffer(&mut duel).iter().all(|b| *b == 1));
}

#[test]
fn a_read_that_failed_takes_no_more_data() {
    for deregister in [false, true] {
        let (mut duel, id) = victim_reads();
        duel.say(&data(id), vec![1; LEN as usize]);
        duel.run(Span::from_micros(300), first(6));
        assert!(buffer(&mut duel).contains(&1), "half of it is here");
        duel.say(&fail(id, Status::BadAddress.code()), Vec::new());
        // The refusal alone gets through.
        let mut n = 0;
        while duel.poll().is_none() {
            n += 1;
            assert!(n < 100);
            duel.say(&fail(id, Status::BadAddress.code()), Vec::new());
            duel.run(Span::from_micros(50), || true);
        }
        buffer(&mut duel).fill(9);
        if deregister {
            duel.deregister();
        }
        duel.run(Span::from_secs(1), || true);
        assert!(buffer(&mut duel).iter().all(|b| *b == 9), "written after the read had ended");
        assert!(duel.poll().is_none());
    }
}

#[test]
fn another_peer_that_knows_the_id_of_a_read_neither_answers_nor_ends_it() {
    let (mut duel, id) = victim_reads();
    let other = duel.add_attacker();
    duel.say_as(other, &data(id), vec![1; LEN as usize]);
    duel.run(Span::from_millis(100), || true);
    duel.say_as(other, &fail(id, Status::BadAddress.code()), Vec::new());
    duel.run(Span::from_millis(100), || true);
    assert_eq!(duel.attackers[other].refused, [Status::BadStatus.code()], "the data; nobody cares for the other");
    assert!(duel.poll().is_none() && buffer(&mut duel).iter().all(|b| *b == 0xee));
    duel.say(&data(id), vec![2; LEN as usize]);
    duel.run(Span::from_millis(100), || true);
    assert_eq!(duel.poll().map(|c| (c.wr_id, c.status)), Some((1, Status::Ok)));
    assert!(buffer(&mut duel).iter().all(|b| *b == 2));
}

#[test]
fn data_of_the_wrong_length_or_for_nothing_is_refused() {
    let (mut duel, id) = victim_reads();
    for (id, len) in [(id, LEN - 1), (id, LEN + 1), (id, 0), (id ^ 1, LEN), (id.wrapping_add(1 << 20), LEN)] {
        duel.say(&data(id), vec![1; len as usize]);
    }
    duel.say(&fail(id ^ 1, 7), Vec::new());
    duel.run(Span::from_secs(1), || true);
    assert!(duel.poll().is_none() && buffer(&mut duel).iter().all(|b| *b == 0xee));
    assert_eq!(duel.card.port.rx_drops, 5);
    // A status that there is not, or that is none, is no success.
    duel.say(&fail(id, 0), Vec::new());
    duel.run(Span::from_secs(1), || true);
    assert_eq!(duel.poll().map(|c| c.status), Some(Status::BadStatus));
}

#[test]
fn headers_that_are_none_are_refused() {
    let mut duel = Duel::new();
    let (qpn, keys) = (duel.qpn, duel.keys.unwrap());
    let good = [
        send(qpn, QKEY),
        write(qpn, QKEY, keys.rkey, BASE),
        read(qpn, QKEY, keys.rkey, BASE, 10, 1),
        data(1),
        fail(1, 1),
        sends(qpn, QKEY, 1, 0),
    ];
    let mut said = 0;
    for header in &good {
        for cut in 0..header.len() {
            duel.say(&header[..cut], Vec::new());
            said += 1;
        }
        duel.say(&[header, &[0][..]].concat(), Vec::new());
        let kind = header[0];
        for flags in [0x80, if kind == 0 { 0x40 } else { 0x10 }, 6] {
            let mut bad = header.clone();
            bad[0] = if flags == 6 { 6 + kind } else { kind | flags };
            duel.say(&bad, Vec::new());
        }
        said += 4;
    }
    // Requests and refusals have no payload.
    duel.say(&good[2], vec![1]);
    duel.say(&good[4], vec![1]);
    said += 2;
    duel.run(Span::from_secs(1), || true);
    assert_eq!(duel.card.port.rx_drops, said);
    assert!(duel.poll().is_none());
}

#[test]
fn more_reads_than_are_answered_at_a_time_wait() {
    let mut duel = Duel::new();
    let (qpn, keys) = (duel.qpn, duel.keys.unwrap());
    // The attacker has room for one answer and reads none, so no other is ever done.
    duel.attackers[0].mailbox = Mailbox::new(30_200);
    for id in 0..2000 {
        duel.say(&read(qpn, QKEY, keys.rkey, BASE, 30_000, id), Vec::new());
    }
    duel.run(Span::from_millis(20), || true);
    assert_eq!(duel.card.port.rdma_read_resp_bytes, 30_000);
    let owed = duel.card.in_flight();
    assert!((2..=256).contains(&owed), "{owed} answers at a time");
    duel.deregister();
    duel.run(Span::from_millis(20), || true);
    // What is owed ends with the connection.
    duel.run(Span::from_secs(10), || false);
    duel.attackers[0].mailbox = Mailbox::new(1 << 20);
    duel.register();
    let rkey = duel.keys.unwrap().rkey;
    duel.say(&read(qpn, QKEY, rkey, BASE, 30_000, 5), Vec::new());
    duel.run(Span::from_secs(1), || true);
    assert_eq!(duel.card.port.rdma_read_resp_bytes, 60_000);
}

#[test]
fn a_read_of_more_than_the_card_reads_at_a_time_is_refused() {
    let mut duel = Duel::new();
    let most = duel.card.profile().max_rdma;
    // Only of this length there is a region.
    let access = Access { remote_read: true, ..Access::default() };
    let keys = duel.card.reg_mr(duel.pd, 0, 1 << 40, u64::from(most) + 1, access).unwrap();
    duel.say(&read(duel.qpn, QKEY, keys.rkey, 1 << 40, most + 1, 1), Vec::new());
    duel.run(Span::from_millis(100), || true);
    assert_eq!(duel.attackers[0].refused, [Status::BadAddress.code()]);
    assert_eq!(duel.card.in_flight(), 0);
}

/// Sends that arrive together are taken as they are told, or not at all.
#[test]
fn sends_that_are_not_what_their_header_says_take_no_receive() {
    let mut duel = Duel::new();
    let qpn = duel.qpn;
    let (none, short, long): (&[u8], &[u8], &[u8]) = (&[], &[1; 10], &[2; 100]);
    for wr_id in 0..4 {
        let sge = duel.sge(wr_id as usize * 100, 100);
        duel.card.post_recv(qpn, wr_id, &[sge]).unwrap();
    }
    // By their header: none, more than they can be, more bytes than receives have, or than may come.
    let refused = [
        (sends(qpn, QKEY, 0, 0), together(&[])),
        (sends(qpn, QKEY, 0, 10), together(&[short])),
        (sends(qpn, QKEY, u16::MAX, 10), together(&[short; 5])),
        (sends(qpn, QKEY, 2, 101), together(&[short; 2])),
        (sends(qpn, QKEY, 2, u16::MAX), together(&[short; 2])),
        (sends(qpn, QKEY, 2, 100), vec![0; 8193]),
        (sends(qpn, QKEY, 3, 10), vec![0; 5]),
    ];
    for (header, payload) in refused {
        duel.say(&header, payload);
        duel.run(Span::from_millis(10), || true);
        assert_eq!(duel.attackers[0].refused.pop(), Some(Status::BadStatus.code()), "{header:?}");
    }
    duel.say(&sends(qpn, QKEY, 5, 10), together(&[short; 5]));
    duel.run(Span::from_millis(10), || true);
    assert!(duel.attackers[0].refused.is_empty(), "more than there are receives: it may try again");
    duel.say(&sends(qpn, QKEY + 1, 2, 100), together(&[short, long]));
    duel.run(Span::from_millis(10), || true);
    assert_eq!(duel.attackers[0].refused.pop(), Some(Status::BadDestQpn.code()));
    // By what comes then: one that is longer than told, fewer or more than told, and bytes beside.
    let wrong = [
        (sends(qpn, QKEY, 2, 99), together(&[short, long])),
        (sends(qpn, QKEY, 3, 100), together(&[short, long])),
        (sends(qpn, QKEY, 2, 10), together(&[short, short, long])),
        (sends(qpn, QKEY, 1, 100), together(&[short, long])),
        (sends(qpn, QKEY, 2, 100), [together(&[short, long]), vec![0]].concat()),
        (sends(qpn, QKEY, 2, 100), [together(&[short, long]), together(&[none])].concat()),
        (sends(qpn, QKEY, 2, 100), together(&[short, long])[..111].to_vec()),
        (sends(qpn, QKEY, 2, 100), vec![0xff; 100]),
    ];
    let drops = duel.card.port.rx_drops;
    for (n, (header, payload)) in (1..).zip(wrong) {
        duel.say(&header, payload);
        duel.run(Span::from_millis(10), || true);
        assert!(duel.attackers[0].refused.is_empty() && duel.poll().is_none(), "{header:?}");
        assert_eq!(duel.card.port.rx_drops, drops + n, "{header:?}");
    }
    assert!(duel.card.memory().0.iter().all(|b| *b == 0xee), "nothing was written");
    // All receives are there, in order.
    duel.say(&sends(qpn, QKEY, 4, 100), together(&[short, none, long, short]));
    duel.run(Span::from_millis(10), || true);
    let got: Vec<_> = std::iter::from_fn(|| duel.poll()).map(|done| (done.wr_id, done.status, done.byte_len)).collect();
    assert_eq!(got, [(0, Status::Ok, 10), (1, Status::Ok, 0), (2, Status::Ok, 100), (3, Status::Ok, 10)]);
    let memory = &duel.card.memory().0[REGION.start..];
    assert!(memory[..10] == *short && memory[10..200].iter().all(|b| *b == 0xee) && memory[200..300] == *long);
}
