//! Objects: their numbers, what they depend on, and how many there can be.

use srd_core::card::*;
use srd_core::*;

use crate::cards::*;

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
