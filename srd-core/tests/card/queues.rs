//! Receivers that are not ready, full queues, and chains of requests.

use srd_core::card::*;
use srd_core::*;

use crate::cards::*;

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

/// Two queue pairs of the first host have sent `each` messages to one of the second that has no receives.
fn crowd(each: u64) -> (Two, [u16; 2]) {
    let mut two = Two::new();
    two.assert_usable();
    let qpns = [0, 1].map(|_| two.world.qp(0, |init| init.cap.send_wr = 2048));
    two.qpn[1] = two.world.qp(1, |init| init.cap.recv_wr = 4096);
    for qpn in qpns {
        two.qpn[0] = qpn;
        (0..each).for_each(|wr_id| two.send(wr_id, 0, 100));
    }
    (two, qpns)
}

/// However many messages wait for receives of a queue pair, one of them tries. When it is taken, the others are not long in
/// coming, and meanwhile nobody else waits.
#[test]
fn of_those_that_wait_for_receives_one_tries() {
    let (mut two, _) = crowd(1000);
    let refusals = |two: &Two| two.world.hosts[0].endpoint.stats().rnr;
    two.world.run(Span::from_secs(1));
    let (first, start) = (refusals(&two), two.world.now);
    two.world.run(Span::from_secs(1));
    let each_second = refusals(&two) - first;
    assert!((100..=200).contains(&each_second), "{each_second} attempts in a second");
    let other = two.world.qp(1, |_| ());
    let waiting = std::mem::replace(&mut two.qpn[1], other);
    two.recv(5000, 0, 100);
    two.send(5000, 0, 100);
    assert_eq!((two.wait(0).wr_id, two.wait(1).wr_id), (5000, 5000), "another queue pair is ready");
    two.qpn[1] = waiting;
    // Receives that come one by one: each is taken after a while that is not much longer than the one before it.
    for wr_id in 0..100 {
        two.recv(wr_id, 0, 100);
        assert_eq!(two.world.wait(1, Span::from_millis(11)).wr_id, wr_id);
        two.world.run(Span::from_micros(200));
    }
    let few = refusals(&two) - first - each_second;
    assert!(few < 3000, "{few} attempts to deliver 100 messages");
    for wr_id in 100..2000 {
        two.recv(wr_id, 0, 100);
    }
    let before = two.world.now;
    for _ in 100..2000 {
        two.world.wait(1, Span::from_millis(11));
    }
    let took = two.world.now.since(before);
    assert!(took < Span::from_millis(15), "the rest took {took}");
    for _ in 0..2000 {
        assert_eq!(two.wait(0).status, Status::Ok);
    }
    assert!(two.world.now.since(start) < Span::from_secs(3));
}

/// Whatever becomes of the one that tries, another one does.
#[test]
fn another_one_tries_if_the_first_cannot() {
    for gone in [0, 1] {
        let (mut two, qpns) = crowd(10);
        two.world.run(Span::from_millis(100));
        // The queue pair of the one that tries, or the other.
        two.world.destroy_qp(0, qpns[gone]);
        (0..10).for_each(|wr_id| two.recv(wr_id, 0, 100));
        for _ in 0..10 {
            assert_eq!(two.world.wait(0, Span::from_millis(30)).status, Status::Ok);
        }
    }
    // The queue pair that they are for.
    let (mut two, _) = crowd(10);
    two.world.run(Span::from_millis(100));
    two.world.destroy_qp(1, two.qpn[1]);
    for _ in 0..20 {
        assert_eq!(two.world.wait(0, Span::from_millis(30)).status, Status::BadDestQpn);
    }
}

/// A long message that was taken is no reason for others to wait until it is here.
#[test]
fn others_follow_when_the_first_is_taken() {
    const LONG: u32 = 64 << 20;
    let memory = |_| Ram(vec![0; LONG as usize]);
    let mut two = Two::of(World::with(2, options(), Config::default(), memory));
    two.assert_usable();
    let write = two.write(0, Some(7));
    let all = two.sge(0, 0, LONG);
    two.post(1000, write, &[all]);
    two.world.run(Span::from_millis(50));
    (0..10).for_each(|wr_id| two.send(wr_id, 0, 100));
    two.world.run(Span::from_millis(50));
    (0..11).for_each(|wr_id| two.recv(wr_id, 0, 100));
    for _ in 0..10 {
        assert!(two.wait(0).wr_id < 1000);
    }
    assert_eq!(two.wait(0).wr_id, 1000);
}

/// Attempts that are counted are each message's own.
#[test]
fn those_with_few_attempts_do_not_wait_for_others() {
    let (mut two, _) = crowd(10);
    two.world.run(Span::from_millis(100));
    two.qpn[0] = two.world.new_qp(0, |_| ());
    two.world.up(0, two.qpn[0], Some(2));
    (100..120).for_each(|wr_id| two.send(wr_id, 0, 100));
    for _ in 0..20 {
        let done = two.world.wait(0, Span::from_millis(2));
        assert!(done.wr_id >= 100 && done.status == Status::Rnr, "{done:?}");
    }
    (0..20).for_each(|wr_id| two.recv(wr_id, 0, 100));
    for _ in 0..20 {
        assert_eq!(two.world.wait(0, Span::from_millis(30)).status, Status::Ok);
    }
}

/// All that was on its way then seems to have taken an hour.
#[test]
fn what_is_lost_after_a_machine_was_suspended_is_soon_sent_again() {
    let mut two = Two::new();
    two.assert_usable();
    (0..20).for_each(|wr_id| two.recv(wr_id, 0, 8000));
    (0..10).for_each(|wr_id| two.send(wr_id, 0, 8000));
    two.world.run(Span::from_micros(1));
    two.world.now += Span::from_secs(3600);
    for _ in 0..10 {
        assert_eq!(two.world.wait(0, Span::from_secs(1)).status, Status::Ok);
    }
    let mut first = true;
    two.world.wire =
        Box::new(move |_, to| if to == 1 && std::mem::take(&mut first) { Fate::Lost } else { Fate::Arrives });
    two.send(10, 0, 8000);
    assert_eq!(two.world.wait(0, Span::from_secs(10)).status, Status::Ok);
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

/// How many of the long transfers of one queue pair are done before the short one of another, posted last, is.
fn done_before(op: impl Fn(&Two) -> SendOp, len: u32) -> usize {
    const LONG: u64 = 200;
    let mut two = Two::new();
    two.assert_usable();
    let other = [0, 1].map(|i| two.world.qp(i, |_| ()));
    for wr_id in 0..LONG {
        let op = op(&two);
        two.post(wr_id, op, &[two.sge(0, 0, len)]);
    }
    two.qpn = other;
    let op = op(&two);
    two.post(LONG, op, &[two.sge(0, 0, 64)]);
    (0..).take_while(|_| two.wait(0).wr_id != LONG).count()
}

#[test]
fn a_queue_pair_does_not_wait_for_what_another_has_posted() {
    for len in [8192, 65_536] {
        let (writes, reads) = (done_before(|two| two.write(0, None), len), done_before(|two| two.read(0), len));
        assert!(writes < 50 && reads < 50, "{writes} writes and {reads} reads of {len} bytes were first");
    }
}
