//! Short sends that travel as one message.

use srd_core::card::*;
use srd_core::*;

use crate::cards::*;

/// Bytes of each send.
const LEN: u32 = 64;

/// A pair that knows each other, and of which the first has payload to send.
fn two() -> Two {
    let mut two = Two::new();
    two.assert_usable();
    two.world.bytes(0).copy_from_slice(&pattern(3, 1 << 20));
    two
}

/// Posts sends with these numbers; all but the first wait for each other.
fn send(two: &mut Two, ids: std::ops::Range<u64>) {
    ids.for_each(|id| two.send(id, at(id), LEN));
}

fn recv(two: &mut Two, ids: std::ops::Range<u64>) {
    ids.for_each(|id| two.recv(id, at(id), LEN));
}

/// Where the message with this number lies.
fn at(id: u64) -> usize {
    id as usize * LEN as usize
}

/// Messages of the transport that were delivered to the second host.
fn messages(two: &Two) -> u64 {
    two.world.hosts[1].endpoint.stats().messages_received
}

/// The ids and statuses of all completions of a host within a second.
fn outcomes(two: &mut Two, host: usize) -> Vec<(u64, Status)> {
    two.world.run(Span::from_secs(1));
    std::iter::from_fn(|| two.world.poll(host)).map(|done| (done.wr_id, done.status)).collect()
}

/// These ids, all with one status.
fn all(ids: std::ops::Range<u64>, status: Status) -> Vec<(u64, Status)> {
    ids.map(|id| (id, status)).collect()
}

#[test]
fn sends_to_one_place_share_messages_and_end_each_by_itself() {
    let mut two = two();
    let (before, ports) = (messages(&two), [0, 1].map(|host| two.world.hosts[host].card.port));
    recv(&mut two, 0..200);
    send(&mut two, 0..200);
    assert_eq!(two.world.hosts[0].card.in_flight(), 200);
    two.world.run(Span::from_secs(1));
    assert_eq!(two.world.hosts[0].card.in_flight(), 0);
    let sent: Vec<Completion> = std::iter::from_fn(|| two.world.poll(0)).collect();
    let received: Vec<Completion> = std::iter::from_fn(|| two.world.poll(1)).collect();
    let ids = |done: &[Completion]| done.iter().map(|d| (d.wr_id, d.status)).collect::<Vec<_>>();
    assert_eq!((ids(&sent), ids(&received)), (all(0..200, Status::Ok), all(0..200, Status::Ok)));
    for done in &received {
        let origin = (done.opcode, done.byte_len, done.imm, done.unsolicited);
        assert_eq!(origin, (Opcode::Recv, LEN, None, false));
        assert_eq!((done.qpn, done.src_qpn, done.ah, done.sgid), (two.qpn[1], two.qpn[0], two.ah[1], gid(0)));
    }
    let bytes = two.world.bytes(0).clone();
    assert!(two.world.bytes(1)[..at(200)] == bytes[..at(200)]);
    assert!((2..=8).contains(&(messages(&two) - before)), "{} messages", messages(&two) - before);
    let [sender, receiver] = [0, 1].map(|host| two.world.hosts[host].card.port);
    assert_eq!((sender.send_wrs - ports[0].send_wrs, sender.send_bytes - ports[0].send_bytes), (200, at(200) as u64));
    assert_eq!(
        (receiver.recv_wrs - ports[1].recv_wrs, receiver.recv_bytes - ports[1].recv_bytes),
        (200, at(200) as u64)
    );
}

/// Of any length, down to none, and of several buffers.
#[test]
fn lengths_may_differ() {
    let mut two = two();
    let len = |id: u64| [0, 1, 63, 500, 512, 513, 3000][id as usize % 7];
    let place = |id: u64| id as usize * 3000;
    for id in 0..50 {
        let sges = [two.sge(1, place(id), len(id) / 3), two.sge(1, place(id) + len(id) as usize / 3, 3000)];
        two.world.recv(1, two.qpn[1], id, &sges);
    }
    let before = messages(&two);
    for id in 0..50 {
        let first = len(id) / 2;
        let sges = [two.sge(0, place(id), first), two.sge(0, place(id) + first as usize, len(id) - first)];
        two.post(id, SendOp::Send { imm: None }, &sges);
    }
    two.world.run(Span::from_secs(1));
    assert!(messages(&two) - before < 40);
    let bytes = two.world.bytes(0).clone();
    let mut got = Vec::new();
    while let Some(done) = two.world.poll(1) {
        got.push(done.byte_len);
        let (place, len) = (place(done.wr_id), done.byte_len as usize);
        // Which is which tells its first byte's place.
        let from = (0..50)
            .map(|id| id as usize * 3000)
            .find(|&from| bytes[from..][..len] == two.world.bytes(1)[place..][..len]);
        assert!(from.is_some(), "{done:?}");
    }
    let mut lens: Vec<u32> = (0..50).map(len).collect();
    got.sort_unstable();
    lens.sort_unstable();
    assert_eq!(got, lens);
    assert_eq!(outcomes(&mut two, 0).into_iter().filter(|(_, status)| *status == Status::Ok).count(), 50);
}

/// Nothing promises an order, but on a network that keeps it there is no reason to give it up.
#[test]
fn others_do_not_overtake_them() {
    let mut two = two();
    let kinds = |id: u64| [Some(id as u32), None, None, None, Some(id as u32), None][id as usize % 6];
    let len = |id: u64| if id % 7 == 3 { 3000 } else { 10 };
    for id in 0..100 {
        two.recv(id, id as usize * 3000, 3000);
        let sge = two.sge(0, 0, len(id));
        two.post(id, SendOp::Send { imm: kinds(id) }, &[sge]);
    }
    two.world.run(Span::from_secs(1));
    let got: Vec<_> =
        std::iter::from_fn(|| two.world.poll(1)).map(|done| (done.wr_id, done.imm, done.byte_len)).collect();
    assert_eq!(got, (0..100).map(|id| (id, kinds(id), len(id))).collect::<Vec<_>>());
}

#[test]
fn where_receives_are_too_few_each_waits_for_its_own() {
    let mut two = two();
    recv(&mut two, 0..4);
    send(&mut two, 0..10);
    assert_eq!(outcomes(&mut two, 1).len(), 4);
    assert_eq!(outcomes(&mut two, 0).len(), 4);
    recv(&mut two, 4..10);
    assert_eq!((outcomes(&mut two, 1).len(), outcomes(&mut two, 0).len()), (6, 6));
    // After a while they travel together again.
    recv(&mut two, 10..20);
    send(&mut two, 10..20);
    let before = messages(&two);
    assert_eq!((outcomes(&mut two, 1).len(), messages(&two) - before), (10, 10), "not at once");
    for _ in 0..20 {
        recv(&mut two, 0..100);
        send(&mut two, 0..100);
        outcomes(&mut two, 1);
        outcomes(&mut two, 0);
    }
    let before = messages(&two);
    recv(&mut two, 0..100);
    send(&mut two, 0..100);
    assert_eq!(outcomes(&mut two, 1).len(), 100);
    assert!(messages(&two) - before < 10);
}

#[test]
fn a_receiver_that_is_not_ready_fails_those_that_do_not_wait() {
    let mut two = two();
    two.qpn[0] = two.world.new_qp(0, |_| ());
    two.world.up(0, two.qpn[0], Some(0));
    recv(&mut two, 0..4);
    send(&mut two, 0..10);
    let ended = outcomes(&mut two, 0);
    let of = |status| ended.iter().filter(|(_, s)| *s == status).count();
    assert_eq!((of(Status::Ok), of(Status::Rnr), ended.len()), (4, 6, 10));
    assert_eq!(outcomes(&mut two, 1).len(), 4);
}

#[test]
fn what_is_wrong_with_one_is_its_own_fault() {
    // A buffer that is too short stays for one that fits.
    let mut two = two();
    (0..10).for_each(|id| two.recv(id, at(id), if id == 5 { LEN / 2 } else { LEN }));
    (0..10).for_each(|id| two.send(id, at(id), if id == 9 { LEN / 2 } else { LEN }));
    let ended = outcomes(&mut two, 0);
    let of = |status| ended.iter().filter(|(_, s)| *s == status).map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!((of(Status::Ok), of(Status::RemoteBadLength)), ([0, 1, 2, 3, 4, 9].into(), [5, 6, 7, 8].into()));

    // A buffer of a region that does not permit it.
    let mut two = self::two();
    let host = &mut two.world.hosts[1];
    let shut = host.card.reg_mr(host.pd, 0, BASE, 1 << 20, Access::default()).unwrap();
    (0..10).for_each(|id| {
        let keys = if id == 5 { shut } else { two.keys[1] };
        two.world.recv(1, two.qpn[1], id, &[sge(keys, at(id), LEN)]);
    });
    send(&mut two, 0..10);
    let ended = outcomes(&mut two, 0);
    assert_eq!(ended.iter().filter(|(_, s)| *s == Status::BadStatus).count(), 1);
    assert_eq!(ended.iter().filter(|(_, s)| *s == Status::Ok).count(), 9);
    let mut received = outcomes(&mut two, 1);
    received.sort_unstable_by_key(|(id, _)| *id);
    let mut expected = all(0..10, Status::Ok);
    expected[5].1 = Status::InvalidLkey;
    assert_eq!(received, expected);

    // Data that may not be read.
    let mut two = self::two();
    recv(&mut two, 0..10);
    for id in 0..10 {
        let mut sge = two.sge(0, at(id), LEN);
        sge.lkey ^= u32::from(id == 5 || id == 1);
        two.post(id, SendOp::Send { imm: None }, &[sge]);
    }
    let mut ended = outcomes(&mut two, 0);
    ended.sort_unstable_by_key(|(id, _)| *id);
    let mut expected = all(0..10, Status::Ok);
    (expected[1].1, expected[5].1) = (Status::InvalidLkey, Status::InvalidLkey);
    assert_eq!(ended, expected);
}

#[test]
fn a_destination_that_there_is_not_fails_them_all() {
    let mut two = two();
    two.qpn[1] ^= 0x8000;
    send(&mut two, 0..10);
    assert_eq!(outcomes(&mut two, 0), all(0..10, Status::BadDestQpn));
    assert_eq!(two.world.hosts[0].card.in_flight(), 0);
}

/// As many destinations in turn share nothing, but lose nothing either.
#[test]
fn those_for_different_places_travel_apart() {
    let mut two = two();
    let other = two.world.qp(1, |_| ());
    let (before, qpns) = (messages(&two), [two.qpn[1], other]);
    for id in 0..20 {
        two.qpn[1] = qpns[id as usize % 2];
        two.recv(id, at(id), LEN);
        two.send(id, at(id), LEN);
    }
    assert_eq!((outcomes(&mut two, 0).len(), outcomes(&mut two, 1).len()), (20, 20));
    assert_eq!(messages(&two) - before, 20);
}

#[test]
fn memory_may_change_as_soon_as_it_is_no_longer_needed() {
    let mut two = two();
    let bytes = two.world.bytes(0).clone();
    recv(&mut two, 0..10);
    send(&mut two, 0..10);
    two.world.dereg(0, two.keys[0].lkey);
    let ended = outcomes(&mut two, 0);
    assert!(ended.iter().all(|(id, status)| *status == if *id == 0 { Status::InvalidLkey } else { Status::Ok }));
    assert_eq!(outcomes(&mut two, 1).len(), 9, "they have been read");
    assert!((0..9).all(|k| two.world.bytes(1)[at(k)..at(k + 1)] == bytes[at(k + 1)..at(k + 2)]));
}

#[test]
fn whatever_ends_a_queue_pair_ends_them() {
    for on_the_way in [false, true] {
        let mut two = two();
        recv(&mut two, 0..10);
        send(&mut two, 0..10);
        if on_the_way {
            two.world.wire = Box::new(|_, _| Fate::Lost);
            two.world.run(Span::from_micros(100));
        }
        two.world.set_state(0, two.qpn[0], QpState::Err);
        assert_eq!(outcomes(&mut two, 0), all(0..10, Status::Flushed));
        assert_eq!(two.world.hosts[0].card.in_flight(), 0);
        assert_eq!(outcomes(&mut two, 1), []);
        two.world.wire = Box::new(|_, _| Fate::Arrives);
        two.qpn[0] = two.world.qp(0, |_| ());
        send(&mut two, 10..20);
        let gone = two.qpn[0];
        if on_the_way {
            two.world.run(Span::from_nanos(1));
        }
        two.world.destroy_qp(0, gone);
        assert_eq!(outcomes(&mut two, 0), []);
        two.qpn[0] = two.world.qp(0, |_| ());
        // What was on its way may have arrived.
        two.world.run(Span::from_secs(1));
        let taken = std::iter::from_fn(|| two.world.poll(1)).count() as u64;
        assert!(taken == if on_the_way { 10 } else { 0 } || taken == 0, "all or none: {taken}");
        let left = if taken == 0 { 0..10 } else { 20..30 };
        recv(&mut two, 20..30);
        send(&mut two, 20..30);
        assert_eq!(outcomes(&mut two, 0), all(20..30, Status::Ok));
        assert_eq!(outcomes(&mut two, 1), all(left, Status::Ok), "each receive is there once");
    }
}

#[test]
fn those_that_never_left_leave_nothing_behind() {
    let mut two = two();
    recv(&mut two, 0..10);
    let other = two.world.qp(0, |_| ());
    send(&mut two, 0..10);
    two.world.destroy_qp(0, two.qpn[0]);
    two.qpn[0] = other;
    send(&mut two, 20..30);
    assert_eq!(two.world.hosts[0].card.in_flight(), 10);
    assert_eq!((outcomes(&mut two, 0), outcomes(&mut two, 1)), (all(20..30, Status::Ok), all(0..10, Status::Ok)));
    assert!(two.world.bytes(1)[..at(10)] == pattern(3, 1 << 20)[at(20)..at(30)]);
}

#[test]
fn a_peer_that_starts_again_gets_none_that_waited_for_its_predecessor() {
    let mut two = two();
    two.world.restart(1, 9, Ram(vec![0; 1 << 20]));
    let (keys, to, ah) = (two.world.mr(1), two.world.qp(1, |_| ()), two.world.ah(1, 0));
    assert_eq!(to, two.qpn[1], "the numbers are the same");
    (two.keys[1], two.ah[1]) = (keys, ah);
    two.qpn[0] = two.world.qp(0, |init| init.cap.send_wr = 2048);
    recv(&mut two, 0..200);
    let (mut posted, mut ended) = (0, Vec::new());
    let end = two.world.now + Span::from_secs(10);
    while ended.is_empty() {
        send(&mut two, posted..posted + 2);
        posted += 2;
        // Nobody runs for a while, so they wait when something arrives.
        two.world.now += two.world.delay;
        assert!(two.world.step(end));
        ended.extend(std::iter::from_fn(|| two.world.poll(0)).map(|done| (done.wr_id, done.status)));
    }
    ended.sort_unstable_by_key(|(id, _)| *id);
    assert!(posted > 2);
    assert_eq!(ended, all(0..posted, Status::Abort));
    assert_eq!(outcomes(&mut two, 1), []);
}

#[test]
fn a_queue_pair_that_pauses_sends_what_was_posted_before() {
    let mut two = two();
    recv(&mut two, 0..10);
    send(&mut two, 0..5);
    two.world.set_state(0, two.qpn[0], QpState::Sqd);
    send(&mut two, 5..10);
    assert_eq!(outcomes(&mut two, 0), all(0..5, Status::Ok));
    two.world.set_state(0, two.qpn[0], QpState::Rts);
    assert_eq!(outcomes(&mut two, 0), all(5..10, Status::Ok));
    assert_eq!(outcomes(&mut two, 1), all(0..10, Status::Ok));
}

#[test]
fn a_peer_that_is_silent_fails_them_all() {
    let mut two = two();
    two.world.wire = Box::new(|_, _| Fate::Lost);
    send(&mut two, 0..10);
    two.world.run(Span::from_secs(20));
    assert_eq!(outcomes(&mut two, 0), all(0..10, Status::UnrespRemote));
}

/// Sends of which the first fragments have arrived: datagrams have become shorter since they were packed.
fn half_here() -> Two {
    let mut two = two();
    recv(&mut two, 0..100);
    send(&mut two, 0..60);
    let endpoint = &mut two.world.hosts[0].endpoint;
    let peers: Vec<PeerId> = endpoint.peers().collect();
    peers.into_iter().for_each(|peer| endpoint.set_link_datagram(peer, MIN_DATAGRAM));
    let mut passed = 0;
    two.world.wire = Box::new(move |from, _| {
        passed += 1;
        if from == 0 && passed > 3 { Fate::Lost } else { Fate::Arrives }
    });
    two.world.run(Span::from_micros(200));
    two.world.bytes(1).fill(0);
    two
}

#[test]
fn of_those_that_are_half_here_none_is_delivered() {
    let mut two = half_here();
    assert_eq!(two.world.poll(1).map(|done| done.wr_id), Some(0), "the first travelled alone");
    assert!(two.world.poll(1).is_none());
    // Their sender is gone, for ever.
    two.world.hosts[0].alive = false;
    two.world.run(Span::from_secs(30));
    assert!(two.world.poll(1).is_none());
    two.world.restart(0, 9, Ram(vec![7; 1 << 20]));
    (two.keys[0], two.ah[0], two.qpn[0]) = (two.world.mr(0), two.world.ah(0, 1), two.world.qp(0, |_| ()));
    two.world.wire = Box::new(|_, _| Fate::Arrives);
    send(&mut two, 0..99);
    assert_eq!(outcomes(&mut two, 1), all(1..100, Status::Ok), "the receives are back, in order");
}

#[test]
fn a_region_that_goes_takes_only_its_receives() {
    let mut two = half_here();
    two.world.poll(1).expect("the first travelled alone");
    two.world.wire = Box::new(|_, _| Fate::Arrives);
    two.world.dereg(1, two.keys[1].lkey);
    // All receives that were taken were in it. The others are found to be so one by one.
    let flushed: Vec<_> = std::iter::from_fn(|| two.world.poll(1)).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(flushed, all(1..60, Status::InvalidLkey));
    two.keys[1] = two.world.mr(1);
    let ended = outcomes(&mut two, 0);
    assert_eq!(ended.iter().filter(|(_, status)| *status == Status::BadStatus).count(), 40);
    assert!(two.world.bytes(1).iter().all(|b| *b == 0), "nothing was written");
    recv(&mut two, 200..219);
    assert_eq!(ended.len() + outcomes(&mut two, 0).len(), 60);
    let received = outcomes(&mut two, 1);
    assert_eq!(received.iter().filter(|(_, status)| *status == Status::Ok).count(), 19);
}

#[test]
fn a_queue_pair_that_goes_takes_its_receives_with_it() {
    let mut two = half_here();
    two.world.poll(1).expect("the first travelled alone");
    two.world.wire = Box::new(|_, _| Fate::Arrives);
    two.world.set_state(1, two.qpn[1], QpState::Err);
    let mut flushed: Vec<_> = std::iter::from_fn(|| two.world.poll(1)).map(|done| (done.wr_id, done.status)).collect();
    flushed.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(flushed, all(1..100, Status::Flushed));
    assert_eq!(outcomes(&mut two, 0), [all(0..1, Status::Ok), all(1..60, Status::BadDestQpn)].concat());
}

/// Each of them has its own chance to find no receive.
#[test]
fn injected_faults_hit_each_by_itself() {
    let mut options = options();
    options.faults.rnr = Share::percent(50);
    let mut two = Two::with(options);
    two.qpn[0] = two.world.new_qp(0, |_| ());
    two.world.up(0, two.qpn[0], Some(0));
    recv(&mut two, 0..200);
    send(&mut two, 0..200);
    let ended = outcomes(&mut two, 0);
    let failed = ended.iter().filter(|(_, status)| *status == Status::Rnr).count();
    assert!(ended.len() == 200 && (60..140).contains(&failed), "{failed} of {}", ended.len());

    let mut options = self::options();
    options.faults.force = Some(ForcedStatus { every: 5, status: Status::Rnr.code() });
    let mut two = Two::with(options);
    recv(&mut two, 0..200);
    send(&mut two, 0..200);
    let failed = outcomes(&mut two, 0).iter().filter(|(_, status)| *status == Status::Rnr).count();
    assert_eq!(failed, 40);
}

/// A receiver whose queue holds fewer receives than may be under way, and whose program looks after it now and then.
#[test]
fn with_few_receives_all_arrive_nevertheless() {
    for receives in [8, 64, 100] {
        let mut two = two();
        two.qpn[0] = two.world.qp(0, |init| init.cap.send_wr = 512);
        recv(&mut two, 0..receives);
        let (mut posted, mut sent, mut received, mut polls_at) = (0, 0, 0, two.world.now);
        let end = two.world.now + Span::from_secs(10);
        while received < 20_000 || sent < 20_000 {
            while posted < 20_000 && posted - sent < 512 {
                two.send(posted % 1000, at(posted % 1000), LEN);
                posted += 1;
            }
            assert!(two.world.step(end), "{receives}: {posted} posted, {sent} sent, {received} received");
            while let Some(done) = two.world.poll(0) {
                assert_eq!(done.status, Status::Ok);
                sent += 1;
            }
            if two.world.now < polls_at {
                continue;
            }
            polls_at = two.world.now + Span::from_micros(100);
            while let Some(done) = two.world.poll(1) {
                received += 1;
                two.recv(done.wr_id, at(done.wr_id), LEN);
            }
        }
    }
}
