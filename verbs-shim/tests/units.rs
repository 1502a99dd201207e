//! Cards of several processing units: what programs see is one card.

mod common;
#[path = "../../srd-core/tests/support/repeatable.rs"]
mod repeatable;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::{ALL, Side, init, qp};
use proptest::prelude::*;
use repeatable::repeatable;
use srd_core::Config;
use srd_core::card::UNKNOWN_AH;
use verbs_shim::{
    CardError, CardEvent, Completion, CqId, Gid, MrKeys, Nic, NicConfig, NicSink, PdId, RawRegion, SendData, SendOp,
    Sge, Status,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn config(units: u16) -> NicConfig {
    let mut config = NicConfig::at((Ipv4Addr::LOCALHOST, 0).into());
    // Fewer sockets for each unit, which take most of the time.
    (config.name, config.units, config.udp.source_ports) = ("test".into(), units, 4);
    config.transport = Config { paths: 2, path_pool: 4, ..Config::default() }.check().expect("it is valid");
    config
}

fn side(units: u16, qps: usize) -> Side {
    side_of(config(units), qps, Box::new(()))
}

fn side_of(config: NicConfig, qps: usize, sink: Box<dyn NicSink>) -> Side {
    Side::new(Nic::open(config, sink).expect("a card on loopback"), qps, vec![0; 1 << 16])
}

impl Side {
    /// Where messages for a queue pair go; units do not write to each other's places.
    fn place(&self, qpn: u16) -> Sge {
        self.sge(60_000 + 8 * usize::from(qpn % 16), 8)
    }
}

/// Polls all of these until there are so many completions of each.
fn wait(sides: &[(&Side, usize)]) -> Vec<Vec<Completion>> {
    let mut got: Vec<Vec<Completion>> = vec![Vec::new(); sides.len()];
    let end = Instant::now() + PATIENCE;
    while sides.iter().zip(&got).any(|((_, want), got)| got.len() < *want) {
        assert!(Instant::now() < end, "not all is done: {got:?}");
        for ((side, _), got) in sides.iter().zip(&mut got) {
            let mut out = [Completion::EMPTY; 8];
            let n = side.nic.poll_cq(side.cq, &mut out);
            got.extend(&out[..n]);
        }
    }
    got
}

#[test]
fn all_queue_pairs_of_all_units_reach_each_other() {
    for (a_units, b_units) in [(1, 2), (2, 1), (2, 2), (4, 2), (1, 16)] {
        let (a, b) = (side(a_units, 4), side(b_units, b_units.max(4).into()));
        every_pair(&a, &b);
    }
}

#[test]
fn a_card_reaches_all_units_of_itself() {
    for units in [2, 4] {
        let a = side(units, 2 * usize::from(units));
        every_pair(&a, &a);
    }
}

/// From each queue pair of one to each of the other: a send, a write and a read.
fn every_pair(a: &Side, b: &Side) {
    let own = std::ptr::eq(a, b);
    let units = |side: &Side| side.qpns.iter().map(|qpn| qpn % side.nic.gid().units()).collect::<BTreeSet<_>>().len();
    assert_eq!(units(a), usize::from(a.nic.gid().units()).min(a.qpns.len()), "{:?}", a.qpns);
    let (ah, back) = (a.ah(b), b.ah(a));
    let (pairs, mut sent) = (a.qpns.len() * b.qpns.len(), 0);
    for &to in &b.qpns {
        a.qpns.iter().for_each(|_| b.nic.post_recv(to, to.into(), &[b.place(to)]).unwrap());
    }
    for (k, &from) in a.qpns.iter().enumerate() {
        for &to in &b.qpns {
            a.post(from, ah, to, sent, SendOp::Send { imm: Some(from.into()) }, SendData::Inline(b"hello"));
            let addr = b.memory.as_ptr() as u64 + 1000 + 8 * sent;
            let mine = [a.sge(16 + 8 * sent as usize, 8)];
            a.post(from, ah, to, sent, SendOp::Write { addr, rkey: b.keys.rkey, imm: None }, SendData::Sges(&mine));
            sent += 1;
        }
        let end = [a.sge(32_768 + 64 * k, 64)];
        let addr = b.memory.as_ptr() as u64;
        a.post(from, ah, b.qpns[0], 999, SendOp::Read { addr, rkey: b.keys.rkey }, SendData::Sges(&end));
    }
    let at_a = 2 * pairs + a.qpns.len();
    let done = if own { wait(&[(a, at_a + pairs)]) } else { wait(&[(a, at_a), (b, pairs)]) };
    let (received, sends): (Vec<_>, Vec<_>) = done.into_iter().flatten().partition(|c| c.opcode.is_recv());
    assert!(sends.iter().chain(&received).all(|c| c.status == Status::Ok), "{sends:?} {received:?}");
    assert_eq!((sends.len(), received.len()), (at_a, pairs));
    let mut seen = BTreeSet::new();
    for c in received {
        assert_eq!((c.sgid, c.ah, c.imm, c.byte_len), (a.nic.gid(), back, Some(c.src_qpn.into()), 5));
        assert!(c.wr_id == u64::from(c.qpn) && seen.insert((c.src_qpn, c.qpn)), "{c:?}");
    }
    let counted = a.nic.counters();
    assert_eq!((counted.port.send_wrs, counted.port.rdma_write_wrs), (pairs as u64, pairs as u64));
    assert_eq!((counted.port.rdma_read_wrs, b.nic.counters().port.recv_wrs), (a.qpns.len() as u64, pairs as u64));
}

#[test]
fn strangers_are_told_by_the_address_of_their_card() {
    let (a, b) = (side(2, 2), side(2, 2));
    let ah = a.ah(&b);
    let addr = b.memory.as_ptr() as u64;
    let write = SendOp::Write { addr, rkey: b.keys.rkey, imm: None };
    let from_each = |status| {
        for &from in &a.qpns {
            let mine = [a.sge(0, 8)];
            a.post(from, ah, b.qpns[1], 1, write, SendData::Sges(&mine));
        }
        let done = wait(&[(&a, 2)]);
        assert!(done[0].iter().all(|c| c.status == status), "{done:?}");
    };
    // Nobody has introduced the units of `a` to those of `b`.
    from_each(Status::UnknownPeer);
    for &from in &a.qpns {
        b.nic.post_recv(b.qpns[0], 1, &[b.place(b.qpns[0])]).unwrap();
        a.post(from, ah, b.qpns[0], 2, SendOp::Send { imm: None }, SendData::Inline(b"x"));
    }
    let done = wait(&[(&a, 2), (&b, 2)]);
    assert!(done[1].iter().all(|c| (c.sgid, c.ah) == (a.nic.gid(), UNKNOWN_AH)), "{done:?}");
    // A handle for a card of one unit, where the other has its second, is another card's.
    let second = Gid::new(a.nic.gid().unit_addr(1).unwrap()).unwrap();
    let wrong = b.nic.create_ah(b.pd, second).unwrap();
    from_each(Status::UnknownPeer);
    let back = b.ah(&a);
    assert_ne!(back, wrong);
    from_each(Status::Ok);
    b.nic.post_recv(b.qpns[0], 1, &[b.place(b.qpns[0])]).unwrap();
    a.post(a.qpns[1], ah, b.qpns[0], 2, SendOp::Send { imm: None }, SendData::Inline(b"x"));
    let done = wait(&[(&a, 1), (&b, 1)]);
    assert_eq!((done[1][0].sgid, done[1][0].ah), (a.nic.gid(), back));
    b.nic.destroy_ah(b.pd, back).unwrap();
    from_each(Status::UnknownPeer);
}

/// A command, with what it is about as a number that is reduced to those that exist.
#[derive(Clone, Copy, Debug)]
enum Command {
    AllocPd,
    DeallocPd(usize),
    RegMr(usize),
    DeregMr(usize),
    CreateAh(usize, u16),
    DestroyAh(usize),
    CreateCq(u32),
    DestroyCq(usize),
    CreateQp(usize, usize),
    DestroyQp(usize),
}

fn command() -> impl Strategy<Value = Command> {
    use Command::*;
    let any = 0..8usize;
    prop_oneof![
        Just(AllocPd),
        any.clone().prop_map(DeallocPd),
        any.clone().prop_map(RegMr),
        any.clone().prop_map(DeregMr),
        (any.clone(), 1..6u16).prop_map(|(pd, port)| CreateAh(pd, port)),
        any.clone().prop_map(DestroyAh),
        (0..3u32).prop_map(CreateCq),
        any.clone().prop_map(DestroyCq),
        (any.clone(), any.clone()).prop_map(|(pd, cq)| CreateQp(pd, cq)),
        any.prop_map(DestroyQp),
    ]
}

/// What a program has, in the order in which it got it. Things that are gone stay: they are refused.
struct Program {
    nic: Nic,
    pds: Vec<PdId>,
    keys: Vec<MrKeys>,
    ahs: Vec<(PdId, u16)>,
    cqs: Vec<CqId>,
    qpns: Vec<u16>,
}

impl Program {
    fn new(units: u16) -> Program {
        let mut config = NicConfig { seed: Some(7), ..config(units) };
        let profile = &mut config.card.profile;
        (profile.max_pd, profile.max_mr, profile.max_ah, profile.max_cq, profile.max_qp) = (3, 4, 5, 3, 6);
        let nic = Nic::open(config, Box::new(())).expect("a card");
        Program { nic, pds: vec![], keys: vec![], ahs: vec![], cqs: vec![], qpns: vec![] }
    }

    /// Gives the command; returns what came of it, but for the number of a queue pair, which tells the unit.
    fn run(&mut self, command: Command) -> Result<u64, CardError> {
        fn pick<T: Copy>(from: &[T], k: usize) -> Option<T> {
            (!from.is_empty()).then(|| from[from.len() - 1 - k % from.len()])
        }
        let nic = &self.nic;
        let no_pd = PdId(77);
        match command {
            Command::AllocPd => nic.alloc_pd().map(|pd| {
                self.pds.push(pd);
                pd.0.into()
            }),
            Command::DeallocPd(k) => nic.dealloc_pd(pick(&self.pds, k).unwrap_or(no_pd)).map(|()| 0),
            Command::RegMr(k) => {
                // SAFETY: nothing touches a region of no bytes.
                let region = unsafe { RawRegion::new(std::ptr::dangling_mut(), 0) };
                nic.reg_mr(pick(&self.pds, k).unwrap_or(no_pd), region, 4096, ALL).map(|keys| {
                    self.keys.push(keys);
                    u64::from(keys.lkey) << 32 | u64::from(keys.rkey)
                })
            }
            Command::DeregMr(k) => nic.dereg_mr(pick(&self.keys, k).map_or(1, |keys| keys.lkey)).map(|()| 0),
            Command::CreateAh(k, port) => {
                let gid = Gid::with_units((Ipv4Addr::new(127, 0, 0, 9), 100 * port).into(), 1 << (port % 3)).unwrap();
                let pd = pick(&self.pds, k).unwrap_or(no_pd);
                nic.create_ah(pd, gid).map(|ah| {
                    self.ahs.push((pd, ah));
                    ah.into()
                })
            }
            Command::DestroyAh(k) => {
                let (pd, ah) = pick(&self.ahs, k).unwrap_or((no_pd, 0));
                nic.destroy_ah(pd, ah).map(|()| 0)
            }
            Command::CreateCq(depth) => nic.create_cq(depth).map(|cq| {
                self.cqs.push(cq);
                cq.0.into()
            }),
            Command::DestroyCq(k) => nic.destroy_cq(pick(&self.cqs, k).unwrap_or(CqId(77))).map(|()| 0),
            Command::CreateQp(pd, cq) => {
                let (pd, cq) = (pick(&self.pds, pd).unwrap_or(no_pd), pick(&self.cqs, cq).unwrap_or(CqId(77)));
                nic.create_qp(init(pd, cq)).map(|qpn| {
                    self.qpns.push(qpn);
                    0
                })
            }
            Command::DestroyQp(k) => nic.destroy_qp(pick(&self.qpns, k).unwrap_or(3)).map(|()| 0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..repeatable() })]

    /// `Nic` itself checks that its units give the same numbers.
    #[test]
    fn commands_come_out_as_on_a_card_of_one_unit(commands in prop::collection::vec(command(), 1..120)) {
        let mut programs = [1, 2, 4].map(Program::new);
        for command in commands {
            let [one, two, four] = programs.each_mut().map(|program| program.run(command));
            prop_assert_eq!((one, one), (two, four), "{:?}", command);
        }
        let [one, two, four] = programs.each_ref().map(|program| program.nic.counters().device);
        prop_assert_eq!((one, one), (two, four));
    }
}

#[test]
fn what_one_unit_refuses_is_undone_on_the_others() {
    let mut narrow = config(2);
    narrow.transport = Config { paths: 2, path_pool: 4, max_peers: 2, ..Config::default() }.check().unwrap();
    let b = side_of(narrow, 2, Box::new(()));
    let a = side(1, 1);
    // A stranger takes a place in the second unit, and keeps it while it sends.
    let busy = *b.qpns.iter().find(|qpn| *qpn % 2 == 1).unwrap();
    a.post(a.qpns[0], a.ah(&b), busy, 1, SendOp::Send { imm: None }, SendData::Inline(b"x"));
    let end = Instant::now() + PATIENCE;
    while b.nic.counters().transport.rnr + b.nic.counters().transport.connections_opened == 0 {
        assert!(Instant::now() < end, "nobody came");
        std::thread::yield_now();
    }
    let gid = |port, units| Gid::with_units((Ipv4Addr::new(127, 0, 0, 9), port).into(), units).unwrap();
    let before = b.nic.counters().device;
    assert!(matches!(b.nic.create_ah(b.pd, gid(700, 2)), Err(CardError::NoMemory(_))));
    let after = b.nic.counters().device;
    assert_eq!(after.create_ah_err, before.create_ah_err + 1);
    assert_eq!((after.cmds_err, after.submitted_cmds), (before.cmds_err + 1, before.submitted_cmds + 1));
    assert_eq!(after.completed_cmds, before.completed_cmds + 1);
    // There is room for a small one, under the number that was given back.
    assert_eq!(b.nic.create_ah(b.pd, gid(800, 1)), Ok(0));
    // Once the stranger is gone, the other one fits, too, after the small one.
    b.nic.destroy_ah(b.pd, 0).unwrap();
    drop(a);
    let end = Instant::now() + PATIENCE;
    while b.nic.create_ah(b.pd, gid(700, 2)) != Ok(0) {
        assert!(Instant::now() < end, "the place was not given back");
        std::thread::yield_now();
    }
    b.nic.destroy_ah(b.pd, 0).unwrap();
    b.qpns.iter().for_each(|&qpn| b.nic.destroy_qp(qpn).unwrap());
    b.nic.dereg_mr(b.keys.lkey).unwrap();
    b.nic.dealloc_pd(b.pd).unwrap();
}

/// Counts events of a card, and lets tests wait for them.
#[derive(Clone, Default)]
struct Events(Arc<(Mutex<[u32; 2]>, Condvar)>);

impl NicSink for Events {
    fn event(&self, event: CardEvent) {
        let which = match event {
            CardEvent::Completion(_) => 0,
            CardEvent::CqOverrun(_) => 1,
            _ => return,
        };
        self.0.0.lock().unwrap()[which] += 1;
        self.0.1.notify_all();
    }
}

impl Events {
    fn completions(&self) -> u32 {
        self.0.0.lock().unwrap()[0]
    }

    fn wait_for(&self, completions: u32) {
        let (events, changed) = &*self.0;
        let (events, _) = changed.wait_timeout_while(events.lock().unwrap(), PATIENCE, |e| e[0] < completions).unwrap();
        assert_eq!(events[0], completions, "told as often as it was asked for");
    }
}

#[test]
fn a_queue_of_several_units_tells_once_of_the_next_completion() {
    let events = Events::default();
    let b = side_of(config(4), 4, Box::new(events.clone()));
    let a = side(2, 2);
    let ah = a.ah(&b);
    const MESSAGES: usize = 3000;
    for &to in &b.qpns {
        (0..64).for_each(|_| b.nic.post_recv(to, to.into(), &[b.place(to)]).unwrap());
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut under_way = 0;
            let drain = |under_way: &mut usize, most: usize| {
                let end = Instant::now() + PATIENCE;
                while *under_way > most {
                    let mut out = [Completion::EMPTY; 16];
                    let n = a.nic.poll_cq(a.cq, &mut out);
                    assert!(out[..n].iter().all(|c| c.status == Status::Ok), "{out:?}");
                    *under_way -= n;
                    assert!(Instant::now() < end, "not delivered");
                }
            };
            for k in 0..MESSAGES {
                let to = b.qpns[(k * 7 + k / 5) % 4];
                a.post(a.qpns[k % 2], ah, to, 1, SendOp::Send { imm: None }, SendData::Inline(b"x"));
                under_way += 1;
                // Now and then the receiver has nothing and sleeps.
                drain(&mut under_way, if k % 50 == 0 { 0 } else { 40 });
            }
            drain(&mut under_way, 0);
        });
        let (mut received, mut asked) = (0, 0);
        while received < MESSAGES {
            b.nic.arm_cq(b.cq).unwrap();
            asked += 1;
            events.wait_for(asked);
            loop {
                let mut out = [Completion::EMPTY; 5];
                let n = b.nic.poll_cq(b.cq, &mut out);
                received += n;
                for c in &out[..n] {
                    b.nic.post_recv(c.qpn, c.wr_id, &[b.place(c.qpn)]).unwrap();
                }
                if n == 0 {
                    break;
                }
            }
        }
    });
    assert!(events.completions() > 10, "it slept now and then");
}

#[test]
fn units_take_turns_where_little_is_taken_at_a_time() {
    const EACH: u64 = 4;
    let a = side(4, 4);
    let own = a.ah(&a);
    for &qpn in &a.qpns {
        (0..EACH).for_each(|n| a.nic.post_recv(qpn, n, &[a.place(qpn)]).unwrap());
        (0..EACH).for_each(|n| a.post(qpn, own, qpn, n, SendOp::Send { imm: None }, SendData::Inline(b"x")));
    }
    let mut units = Vec::new();
    let end = Instant::now() + PATIENCE;
    while units.len() < a.qpns.len() * 2 * EACH as usize {
        assert!(Instant::now() < end, "{units:?}");
        let mut out = [Completion::EMPTY; 1];
        let n = a.nic.poll_cq(a.cq, &mut out);
        units.extend(out[..n].iter().map(|c| c.qpn % 4));
    }
    assert!(units.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4), "{units:?}");
}

#[test]
fn what_was_armed_first_tells_of_queue_pairs_that_came_later() {
    let events = Events::default();
    let b = side_of(config(4), 0, Box::new(events.clone()));
    b.nic.arm_cq(b.cq).unwrap();
    let qpns: Vec<u16> = (0..4).map(|_| qp(&b.nic, b.pd, b.cq)).collect();
    let own = b.ah(&b);
    for (k, &to) in (1..).zip(qpns.iter().rev()) {
        b.nic.post_recv(to, 1, &[b.place(to)]).unwrap();
        b.post(to, own, to, 2, SendOp::Send { imm: None }, SendData::Inline(b"x"));
        events.wait_for(k);
        wait(&[(&b, 2)]);
        b.nic.arm_cq(b.cq).unwrap();
    }
    // One of them goes and comes back, and the queue is armed still.
    b.nic.destroy_qp(qpns[2]).unwrap();
    let again = qp(&b.nic, b.pd, b.cq);
    assert_eq!(again % 4, qpns[2] % 4, "where there was none");
    b.nic.post_recv(again, 1, &[b.place(again)]).unwrap();
    b.post(qpns[0], own, again, 2, SendOp::Send { imm: None }, SendData::Inline(b"x"));
    events.wait_for(5);
    wait(&[(&b, 2)]);
}

#[test]
fn an_overrun_is_told_once() {
    let events = Events::default();
    let a = side_of(config(2), 0, Box::new(events.clone()));
    let own = a.ah(&a);
    for _ in 0..2 {
        let cq = a.nic.create_cq(4).unwrap();
        let qpns = [(); 2].map(|()| qp(&a.nic, a.pd, cq));
        let before = events.0.0.lock().unwrap()[1];
        // Each unit has room for all that the program asked for, and not for more.
        for &qpn in &qpns {
            (0..4).for_each(|_| a.post(qpn, own, 1, 1, SendOp::Send { imm: None }, SendData::Inline(b"x")));
        }
        let drained = |n: usize| {
            let mut out = [Completion::EMPTY; 16];
            let (end, mut got) = (Instant::now() + PATIENCE, 0);
            while got < n && Instant::now() < end {
                got += a.nic.poll_cq(cq, &mut out);
            }
            assert_eq!(got, n);
        };
        drained(8);
        assert_eq!(events.0.0.lock().unwrap()[1], before, "nothing was lost");
        // These complete, with an error, when they are posted.
        for &qpn in &qpns {
            (0..6).for_each(|_| a.post(qpn, own + 1, 1, 1, SendOp::Send { imm: None }, SendData::Inline(b"x")));
        }
        drained(8);
        qpns.iter().for_each(|&qpn| a.nic.destroy_qp(qpn).unwrap());
        a.nic.destroy_cq(cq).unwrap();
        assert_eq!(events.0.0.lock().unwrap()[1], before + 1, "told once, though both units lost entries");
    }
}

#[test]
fn objects_go_while_they_are_used() {
    let (a, b) = (side(2, 4), side(4, 4));
    for round in 0..20 {
        let (ah, keep) = (a.ah(&b), b.ah(&a));
        let addr = b.memory.as_ptr() as u64;
        let mut memory = vec![1; 40_000];
        // SAFETY: the vector outlives the registration.
        let region = unsafe { RawRegion::new(memory.as_mut_ptr(), memory.len()) };
        let keys = a.nic.reg_mr(a.pd, region, memory.as_ptr() as u64, ALL).unwrap();
        let extra = qp(&a.nic, a.pd, a.cq);
        let mut posted = 0;
        for k in 0..8 {
            for (part, &from) in (0..).zip(a.qpns.iter().chain([&extra])) {
                let sge = [Sge { addr: memory.as_ptr() as u64 + 8000 * part, len: 8000, lkey: keys.lkey }];
                let addr = addr + 8000 * (k as u64 % 4);
                let op = match k % 2 {
                    0 => SendOp::Write { addr, rkey: b.keys.rkey, imm: None },
                    _ => SendOp::Read { addr, rkey: b.keys.rkey },
                };
                a.post(from, ah, b.qpns[k % 4], 1, op, SendData::Sges(&sge));
                posted += usize::from(from != extra);
            }
        }
        let mut got = 0;
        let mut out = [Completion::EMPTY; 4];
        for _ in 0..round {
            let n = a.nic.poll_cq(a.cq, &mut out);
            got += out[..n].iter().filter(|c| c.qpn != extra).count();
        }
        // In another order each time.
        for step in 0..3 {
            match (step + round) % 3 {
                0 => a.nic.destroy_ah(a.pd, ah).unwrap(),
                1 => a.nic.dereg_mr(keys.lkey).unwrap(),
                _ => a.nic.destroy_qp(extra).unwrap(),
            }
        }
        // The card touches it no more.
        drop(memory);
        let end = Instant::now() + PATIENCE;
        while got < posted {
            let n = a.nic.poll_cq(a.cq, &mut out);
            assert!(out[..n].iter().all(|c| c.qpn != extra), "destroyed: {out:?}");
            got += n;
            assert!(Instant::now() < end, "{got} of {posted}");
        }
        b.nic.destroy_ah(b.pd, keep).unwrap();
    }
    a.qpns.iter().for_each(|&qpn| a.nic.destroy_qp(qpn).unwrap());
    a.nic.dereg_mr(a.keys.lkey).unwrap();
    a.nic.destroy_cq(a.cq).unwrap();
    a.nic.dealloc_pd(a.pd).unwrap();
}

/// Holds the lock of a unit while a completion is told, until it is let go.
#[derive(Clone, Default)]
struct Hold {
    holds: Arc<AtomicBool>,
    free: Arc<AtomicBool>,
}

impl NicSink for Hold {
    fn event(&self, event: CardEvent) {
        if matches!(event, CardEvent::Completion(_)) {
            self.holds.store(true, Ordering::SeqCst);
            let end = Instant::now() + PATIENCE;
            while !self.free.load(Ordering::SeqCst) {
                assert!(Instant::now() < end, "nobody goes on");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_unit_goes_on_while_another_one_is_held_up() {
    let hold = Hold::default();
    let a = side_of(config(2), 1, Box::new(hold.clone()));
    let own = a.ah(&a);
    let other_cq = a.nic.create_cq(64).unwrap();
    let other = qp(&a.nic, a.pd, other_cq);
    assert_ne!(other % 2, a.qpns[0] % 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The completion holds this unit up, in whichever thread it comes.
            a.nic.arm_cq(a.cq).unwrap();
            a.post(a.qpns[0], own, 1, 1, SendOp::Send { imm: None }, SendData::Inline(b"x"));
            wait(&[(&a, 1)]);
        });
        let end = Instant::now() + PATIENCE;
        while !hold.holds.load(Ordering::SeqCst) {
            assert!(Instant::now() < end, "not held up");
            std::thread::yield_now();
        }
        for k in 0..1000 {
            a.nic.post_recv(other, k, &[a.place(other)]).unwrap();
            a.post(other, own, other, k, SendOp::Send { imm: None }, SendData::Inline(b"x"));
            let mut got = 0;
            while got < 2 {
                got += a.nic.poll_cq(other_cq, &mut [Completion::EMPTY; 2]);
                assert!(Instant::now() < end, "held up as well");
            }
        }
        hold.free.store(true, Ordering::SeqCst);
    });
}

#[test]
fn an_address_that_cannot_be_used_is_told_by_each_number_of_units() {
    // For documentation (RFC 5737): nobody has it.
    let at = |units| NicConfig { addr: (Ipv4Addr::new(192, 0, 2, 77), 0).into(), ..config(units) };
    for units in [1, 2] {
        let refused = Nic::open(at(units), Box::new(())).err().map(|error| error.whole());
        assert!(
            refused.as_ref().is_some_and(|text| text.contains("is not an address of this host")),
            "{units}: {refused:?}"
        );
    }
}

#[test]
fn ports_are_a_block_wherever_there_is_one() {
    // At an address of its own, where nobody else takes ports meanwhile.
    let here = Ipv4Addr::new(127, 0, 0, 77);
    let config = |units| NicConfig { addr: (here, 0).into(), ..config(units) };
    let taken = UdpSocket::bind((here, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    // The second unit would be there.
    let mut wanted = config(2);
    wanted.addr.set_port(at.port() - 1);
    let nic = Nic::open(wanted, Box::new(())).unwrap();
    let gid = nic.gid();
    assert!(gid.units() == 2 && gid.addr() != Some((here, at.port() - 1).into()), "{gid}");
    // Where it was before it is again.
    drop(nic);
    let again = Nic::open(NicConfig { addr: gid.addr().unwrap(), ..config(2) }, Box::new(())).unwrap();
    assert_eq!(again.gid(), gid);
    assert_eq!(Nic::open(NicConfig { addr: gid.addr().unwrap(), ..config(1) }, Box::new(())).unwrap().gid().units(), 1);
    // In a range that has no port to spare.
    let range = (20_000..30_000).step_by(40).map(|first| first..=first + 19).find_map(|range| {
        let mut config = config(4);
        config.udp.source_port_range = Some(range.clone());
        Nic::open(config, Box::new(())).ok().map(|nic| (range, nic.gid()))
    });
    let (range, gid) = range.expect("twenty free ports somewhere");
    assert!((0..4).all(|unit| range.contains(&gid.unit_addr(unit).unwrap().port())), "{gid}");
    let error = Nic::open(NicConfig { addr: "[::1]:0".parse().unwrap(), ..config(2) }, Box::new(())).unwrap_err();
    assert!(error.to_string().contains("use IPv4"), "{error}");
    let error = Nic::open(config(3), Box::new(())).unwrap_err();
    assert!(error.to_string().contains("1, 2, 4, 8 or 16"), "{error}");
}

#[test]
fn counters_are_those_of_all_units() {
    use verbs_shim::counters::Registry;

    let dir = tempfile::tempdir().expect("a directory");
    let a = side_of(NicConfig { counters: Some(dir.path().to_owned()), ..config(4) }, 4, Box::new(()));
    let (b, registry) = (side(2, 2), Registry::new([dir.path()]));
    let ah = a.ah(&b);
    for &from in &a.qpns {
        b.nic.post_recv(b.qpns[0], 1, &[b.place(b.qpns[0])]).unwrap();
        a.post(from, ah, b.qpns[0], 1, SendOp::Send { imm: None }, SendData::Inline(b"four"));
    }
    wait(&[(&a, 4), (&b, 4)]);
    let published = || {
        let mut device = registry.devices().pop().expect("the device is there");
        let mut value = |name| *device.total.get_mut(name).expect("a counter");
        (device.processes.len(), value("send_wrs"), value("send_bytes"), value("submitted_cmds"))
    };
    // A domain, a queue, a region, an address handle, four queue pairs and three steps of each.
    let want = (4, 16, 4 + 4 + 12);
    let end = Instant::now() + PATIENCE;
    while published() != (1, want.0, want.1, want.2) {
        assert!(Instant::now() < end, "{:?}", published());
        std::thread::yield_now();
    }
    drop(a.nic);
    assert_eq!(published(), (0, want.0, want.1, want.2));
}
