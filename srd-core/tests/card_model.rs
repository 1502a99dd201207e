//! Random programs of verbs calls on two cards over an adversarial network, against the simplest reference: a table of
//! what was posted.
//!
//! Each work request completes exactly once (not at all when its queue pair was destroyed); each message is delivered at
//! most once, into one receive, with its bytes; what completed well was delivered, what was turned away was not. Every
//! request has a slot of memory of its own, which is the program's again when it completes: it is overwritten then, and no
//! byte of it, or between slots, ever changes afterwards.

#[path = "support/cards.rs"]
mod cards;
#[path = "support/seeds.rs"]
mod seeds;

use std::collections::{BTreeMap, BTreeSet};

use cards::*;
use seeds::each_seed;
use srd_core::card::*;
use srd_core::*;

const SLOT: usize = 24_000;
const SLOTS: usize = 160;
/// Before and after each slot.
const GUARD: usize = 64;
/// What lies there.
const CANARY: u8 = 0xc5;
/// What the program puts into memory that is its own again.
const MINE: u8 = 0x3d;
const QPS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
}

#[derive(Clone, Debug)]
struct Request {
    from: usize,
    qpn: u16,
    to_qpn: u16,
    kind: Kind,
    len: usize,
    /// Where its bytes are, or go to: at home, and at the peer.
    local: usize,
    remote: usize,
    outcome: Option<Status>,
    delivered: u32,
    /// Its queue pair was destroyed: it does not complete.
    cancelled: bool,
}

#[derive(Clone, Debug)]
struct Receive {
    host: usize,
    qpn: u16,
    slot: usize,
    len: usize,
    done: bool,
    cancelled: bool,
}

struct Program {
    world: World<Ram>,
    rng: Rng,
    qps: [Vec<u16>; 2],
    ah: [u16; 2],
    /// Two regions per host: the lower half of its slots and the upper.
    keys: [[Option<MrKeys>; 2]; 2],
    requests: BTreeMap<u64, Request>,
    receives: BTreeMap<u64, Receive>,
    next: u64,
    /// Slots that are free, by host.
    free: [Vec<usize>; 2],
    /// Slots that are the program's again: nobody may write there.
    mine: [Vec<usize>; 2],
    /// Queue pairs that were reset: completions of theirs were forgotten.
    reset: BTreeSet<(usize, u16)>,
}

fn start_of(slot: usize) -> usize {
    slot * (SLOT + 2 * GUARD) + GUARD
}

fn half(slot: usize) -> usize {
    usize::from(slot >= SLOTS / 2)
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut rng = Rng(seed);
        let config = Config {
            paths: [1, 4, 4][rng.below(3) as usize],
            path_pool: 16,
            max_datagram: [MIN_DATAGRAM, 1400, 1400, 8972][rng.below(4) as usize],
            packet_window: [64, 1024][rng.below(2) as usize],
            message_window: 64,
            max_partial_messages: [1, 2, 16, 16][rng.below(4) as usize],
            first_number: Some(u32::MAX - 30),
            ..Config::default()
        };
        let mut options = options();
        if rng.one_in(4) {
            options.faults.shuffle = 1 + rng.below(20) as u32;
        }
        if rng.one_in(4) {
            options.faults.rnr = Share::per_million(200_000);
        }
        let size = start_of(SLOTS);
        let world = World::with(2, options, config, |_| Ram(vec![CANARY; size]));
        let mut program = Program {
            world,
            rng,
            qps: Default::default(),
            ah: [0; 2],
            keys: Default::default(),
            requests: BTreeMap::new(),
            receives: BTreeMap::new(),
            next: 1,
            free: [0, 1].map(|_| (0..SLOTS).rev().collect()),
            mine: Default::default(),
            reset: BTreeSet::new(),
        };
        for host in 0..2 {
            program.ah[host] = program.world.ah(host, 1 - host);
            for _ in 0..QPS {
                program.new_qp(host);
            }
            for half in 0..2 {
                program.register(host, half);
            }
        }
        program
    }

    fn new_qp(&mut self, host: usize) {
        let rnr = self.rng.below(9).min(7) as u8;
        let qpn = self.world.new_qp(host, |_| ());
        self.world.up(host, qpn, Some(rnr));
        self.qps[host].push(qpn);
    }

    /// Memory of one half of the slots, guards and all.
    fn register(&mut self, host: usize, half: usize) {
        let start = start_of(half * SLOTS / 2) - GUARD;
        let len = start_of(SLOTS / 2) - GUARD;
        let h = &mut self.world.hosts[host];
        self.keys[host][half] = h.card.reg_mr(h.pd, start, BASE + start as u64, len as u64, ALL).ok();
    }

    fn sge(&self, host: usize, slot: usize, len: usize) -> Option<Sge> {
        let keys = self.keys[host][half(slot)]?;
        Some(sge(keys, start_of(slot), len as u32))
    }

    fn len(&mut self) -> usize {
        let max = match self.rng.below(4) {
            0 => 30,
            1 => 1500,
            2 => 8000,
            _ => SLOT as u64 - 8,
        };
        self.rng.below(max) as usize + 8
    }

    fn fill(&mut self, host: usize, slot: usize, bytes: &[u8]) {
        self.world.bytes(host)[start_of(slot)..][..bytes.len()].copy_from_slice(bytes);
    }

    fn post(&mut self, from: usize) {
        let kind = [Kind::Send, Kind::Send, Kind::Write, Kind::WriteImm, Kind::Read][self.rng.below(5) as usize];
        let mut len = self.len();
        if kind == Kind::Send {
            len = len.min(8928);
        }
        let (qpn, to_qpn) = (self.pick(from), self.pick(1 - from));
        let imm = kind == Kind::WriteImm || kind == Kind::Send && self.rng.one_in(2);
        self.post_one(from, qpn, to_qpn, kind, len, imm);
    }

    /// Short sends to one place, which may travel together, and sometimes receives for them.
    fn post_flurry(&mut self, from: usize) {
        let (qpn, to_qpn) = (self.pick(from), self.pick(1 - from));
        let ready = self.rng.one_in(2);
        for _ in 0..2 + self.rng.below(14) {
            let max = if self.rng.one_in(8) { 600 } else { 100 };
            let len = 8 + self.rng.below(max) as usize;
            self.post_one(from, qpn, to_qpn, Kind::Send, len, false);
            if ready {
                self.post_receive_to(1 - from, to_qpn);
            }
        }
    }

    fn post_one(&mut self, from: usize, qpn: u16, to_qpn: u16, kind: Kind, len: usize, imm: bool) {
        let (id, to) = (self.next, 1 - from);
        let (Some(local), Some(remote)) = (self.free[from].pop(), self.free[to].pop()) else { return };
        let mut bytes = pattern(id, len);
        if kind == Kind::Send {
            bytes[..8].copy_from_slice(&id.to_be_bytes());
        }
        match kind {
            Kind::Read => self.fill(to, remote, &bytes),
            _ => self.fill(from, local, &bytes),
        }
        let addr = BASE + start_of(remote) as u64;
        let rkey = self.keys[to][half(remote)].map_or(0, |k| k.rkey);
        let op = match kind {
            Kind::Send => SendOp::Send { imm: imm.then_some(id as u32) },
            Kind::Write | Kind::WriteImm => SendOp::Write { addr, rkey, imm: imm.then_some(id as u32) },
            Kind::Read => SendOp::Read { addr, rkey },
        };
        // Without a region, a key that is none.
        let sge = self.sge(from, local, len).unwrap_or(Sge { addr: BASE, len: len as u32, lkey: 1 });
        let (ah, sges) = (self.ah[from], [sge]);
        let inline = len <= 32 && kind != Kind::Read;
        let data = if inline { SendData::Inline(&bytes) } else { SendData::Sges(&sges) };
        let wr = SendWr { wr_id: id, op, ah, qpn: to_qpn, qkey: QKEY, data };
        if self.world.post(from, qpn, wr).is_err() {
            self.free[from].push(local);
            self.free[to].push(remote);
            return;
        }
        self.next += 1;
        let request =
            Request { from, qpn, to_qpn, kind, len, local, remote, outcome: None, delivered: 0, cancelled: false };
        self.requests.insert(id, request);
    }

    fn pick(&mut self, host: usize) -> u16 {
        let n = self.qps[host].len() as u64;
        self.qps[host][self.rng.below(n) as usize]
    }

    fn post_receive(&mut self, host: usize) {
        let qpn = self.pick(host);
        self.post_receive_to(host, qpn);
    }

    fn post_receive_to(&mut self, host: usize, qpn: u16) {
        let len = if self.rng.one_in(5) { self.len().min(8928) } else { 8928 };
        let Some(slot) = self.free[host].pop() else { return };
        let sges = match self.sge(host, slot, len) {
            // Two parts, so that messages are scattered.
            Some(all) => [Sge { len: all.len / 2, ..all }, {
                let first = all.len / 2;
                Sge { addr: all.addr + u64::from(first), len: all.len - first, ..all }
            }],
            None => [Sge { addr: BASE, len: len as u32, lkey: 1 }, Sge { addr: BASE, len: 0, lkey: 1 }],
        };
        if self.world.hosts[host].card.post_recv(qpn, self.next, &sges).is_err() {
            return self.free[host].push(slot);
        }
        self.receives.insert(self.next, Receive { host, qpn, slot, len, done: false, cancelled: false });
        self.next += 1;
    }

    /// The memory is the program's again.
    fn take_back(&mut self, host: usize, slot: usize) {
        self.world.bytes(host)[start_of(slot)..][..SLOT].fill(MINE);
        if !self.mine[host].contains(&slot) {
            self.mine[host].push(slot);
        }
    }

    fn poll(&mut self, host: usize) {
        while let Some(done) = self.world.poll(host) {
            if done.opcode.is_recv() {
                self.received(host, &done);
            } else {
                self.sent(host, &done);
            }
        }
    }

    fn sent(&mut self, host: usize, done: &Completion) {
        let request = self.requests.get_mut(&done.wr_id).expect("one of ours");
        assert!(request.from == host && request.qpn == done.qpn, "{done:?} {request:?}");
        assert!(!request.cancelled, "{done:?} of a queue pair that is gone");
        assert_eq!(request.outcome.replace(done.status), None, "{done:?} again");
        let request = request.clone();
        if done.status == Status::Ok {
            let want = pattern(done.wr_id, request.len);
            let (at, slot) = match request.kind {
                Kind::Read => (host, request.local),
                Kind::Write | Kind::WriteImm => (1 - host, request.remote),
                Kind::Send => return self.take_back(host, request.local),
            };
            let got = &self.world.bytes(at)[start_of(slot)..][..request.len];
            // The target's memory may be its program's again, which is marked.
            assert!(got == want || self.mine[at].contains(&slot), "{done:?}: not there: {request:?}");
        }
        self.take_back(host, request.local);
    }

    fn received(&mut self, host: usize, done: &Completion) {
        let receive = self.receives.get_mut(&done.wr_id).expect("one of ours");
        assert!(receive.host == host && receive.qpn == done.qpn, "{done:?} {receive:?}");
        assert!(!receive.done && !receive.cancelled, "{done:?} again: {receive:?}");
        receive.done = true;
        let receive = receive.clone();
        // A completion that the fault injector held back may be older than the program's word that the memory is its own.
        let overwritten = done.opcode == Opcode::Recv && self.mine[host].contains(&receive.slot);
        assert!(!overwritten || done.status != Status::Ok || self.world.options.faults.shuffle > 0, "{done:?}");
        if done.status == Status::Ok && !overwritten {
            let len = done.byte_len as usize;
            let bytes = self.world.bytes(host)[start_of(receive.slot)..][..len.min(receive.len)].to_vec();
            let id = match done.opcode {
                Opcode::Recv => {
                    assert!(len <= receive.len);
                    u64::from_be_bytes(*bytes.first_chunk().expect("at least 8 bytes"))
                }
                _ => u64::from(done.imm.expect("an immediate")),
            };
            let request = self.requests.get_mut(&id).unwrap_or_else(|| panic!("message {id} was never sent"));
            assert!(
                request.from == 1 - host && request.to_qpn == done.qpn && request.len == len,
                "{done:?} {request:?}"
            );
            request.delivered += 1;
            assert_eq!(request.delivered, 1, "message {id} again");
            let turned_away = [Status::Rnr, Status::RemoteBadLength, Status::BadDestQpn, Status::BadStatus];
            assert!(request.outcome.is_none_or(|s| !turned_away.contains(&s)), "{id} was turned away: {request:?}");
            match done.opcode {
                Opcode::Recv => assert!(bytes[8..] == pattern(id, len)[8..], "message {id} damaged"),
                _ => {
                    let (slot, want) = (request.remote, pattern(id, len));
                    let gone = self.mine[host].contains(&slot);
                    let got = &self.world.bytes(host)[start_of(slot)..][..len];
                    assert!(got == want || gone, "write {id} damaged");
                }
            }
        }
        self.take_back(host, receive.slot);
    }

    fn destroy_qp(&mut self, host: usize) {
        let at = self.rng.below(self.qps[host].len() as u64) as usize;
        let qpn = self.qps[host].remove(at);
        self.poll(host);
        if self.rng.one_in(2) {
            self.world.destroy_qp(host, qpn);
        } else {
            self.world.set_state(host, qpn, QpState::Err);
            self.poll(host);
            self.settled(host, qpn);
            self.world.destroy_qp(host, qpn);
        }
        self.cancel(host, qpn);
        self.new_qp(host);
    }

    fn reset_qp(&mut self, host: usize) {
        let qpn = self.pick(host);
        self.poll(host);
        self.world.set_state(host, qpn, QpState::Reset);
        self.cancel(host, qpn);
        self.reset.insert((host, qpn));
        let rnr = self.rng.below(9).min(7) as u8;
        self.world.up(host, qpn, Some(rnr));
    }

    /// Nothing that was posted to a queue pair completes any more.
    fn cancel(&mut self, host: usize, qpn: u16) {
        let mut slots = Vec::new();
        for request in self.requests.values_mut().filter(|r| r.from == host && r.qpn == qpn) {
            request.cancelled = true;
            if request.outcome.is_none() {
                slots.push(request.local);
            }
        }
        for receive in self.receives.values_mut().filter(|r| r.host == host && r.qpn == qpn) {
            receive.cancelled = true;
            if !receive.done {
                slots.push(receive.slot);
            }
        }
        slots.into_iter().for_each(|slot| self.take_back(host, slot));
    }

    /// Everything of a queue pair in the error state has completed (unless the fault injector holds completions back).
    fn settled(&self, host: usize, qpn: u16) {
        if self.world.options.faults.shuffle > 0 {
            return;
        }
        for (id, r) in self.requests.iter().filter(|(_, r)| r.from == host && r.qpn == qpn && !r.cancelled) {
            assert!(r.outcome.is_some(), "{id} was not flushed: {r:?}");
        }
        for (id, r) in self.receives.iter().filter(|(_, r)| r.host == host && r.qpn == qpn && !r.cancelled) {
            assert!(r.done, "{id} was not flushed: {r:?}");
        }
    }

    /// Withdraws a region: all that is in it is the program's at once.
    fn deregister(&mut self, host: usize) {
        let half = self.rng.below(2) as usize;
        let Some(keys) = self.keys[host][half].take() else { return self.register(host, half) };
        self.world.dereg(host, keys.lkey);
        self.poll(host);
        let used: Vec<usize> = (half * SLOTS / 2..(half + 1) * SLOTS / 2)
            .filter(|slot| !self.free[host].contains(slot) && !self.mine[host].contains(slot))
            .collect();
        used.into_iter().for_each(|slot| self.take_back(host, slot));
    }

    fn step(&mut self) {
        let host = self.rng.below(2) as usize;
        match self.rng.below(48) {
            0..16 => self.post(host),
            16..26 => self.post_receive(host),
            26..33 => {
                let most = [50, 1000, 20_000][self.rng.below(3) as usize];
                let span = Span::from_micros(self.rng.below(most));
                self.world.run(span);
            }
            33..36 => self.poll(host),
            36 => self.destroy_qp(host),
            37 => self.deregister(host),
            38 => {
                let ah = self.ah[host];
                self.world.destroy_ah(host, ah);
                self.ah[host] = self.world.ah(host, 1 - host);
            }
            39 => {
                // Long enough, now and then, for both sides to give up.
                let one_way = self.rng.below(3) as usize;
                self.world.wire = Box::new(move |from, _| if from == one_way { Fate::Arrives } else { Fate::Lost });
                let span = Span::from_millis(self.rng.below(8000));
                self.world.run(span);
                self.world.wire = Box::new(|_, _| Fate::Arrives);
            }
            40 => self.reset_qp(host),
            41 => {
                // Nobody runs, as in a machine that is suspended.
                self.world.now += Span::from_millis(self.rng.below(20_000));
            }
            43..47 => self.post_flurry(host),
            42 => {
                let max = 512 + self.rng.below(9000) as u16;
                let endpoint = &mut self.world.hosts[host].endpoint;
                let peers: Vec<PeerId> = endpoint.peers().collect();
                peers.into_iter().for_each(|peer| endpoint.set_link_datagram(peer, max));
            }
            _ => {
                let seed = self.rng.next();
                self.world.wire = if self.rng.one_in(3) { Box::new(|_, _| Fate::Arrives) } else { bad_wire(seed) };
            }
        }
    }

    fn check_memory(&mut self) {
        for host in 0..2 {
            let mine = std::mem::take(&mut self.mine[host]);
            let bytes = self.world.bytes(host);
            for slot in 0..SLOTS {
                let start = start_of(slot);
                let guards = [&bytes[start - GUARD..start], &bytes[start + SLOT..start + SLOT + GUARD]];
                assert!(guards.concat().iter().all(|b| *b == CANARY), "host {host}: touched beside slot {slot}");
            }
            for &slot in &mine {
                let changed = bytes[start_of(slot)..][..SLOT].iter().position(|b| *b != MINE);
                assert_eq!(changed, None, "host {host}: slot {slot} was touched after its request had ended");
            }
            self.mine[host] = mine;
        }
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        self.world.wire = Box::new(|_, _| Fate::Arrives);
        for host in 0..2 {
            for half in 0..2 {
                if self.keys[host][half].is_none() {
                    self.register(host, half);
                }
            }
        }
        let end = self.world.now + Span::from_secs(30);
        loop {
            (0..2).for_each(|host| self.poll(host));
            let open = self.requests.values().filter(|r| !r.cancelled && r.outcome.is_none()).count();
            if open == 0 {
                break;
            }
            // Receives of no bytes of their own, for whoever waits for one.
            for host in 0..2 {
                for qpn in self.qps[host].clone() {
                    let posted = self.receives.values().filter(|r| r.qpn == qpn && !r.done && !r.cancelled).count();
                    if posted == 0
                        && let Some(slot) = self.free[host].pop().or_else(|| self.mine[host].pop())
                    {
                        let len = SLOT;
                        let sge = self.sge(host, slot, len).expect("registered");
                        self.world.recv(host, qpn, self.next, &[sge]);
                        let receive = Receive { host, qpn, slot, len, done: false, cancelled: false };
                        self.receives.insert(self.next, receive);
                        self.next += 1;
                    }
                }
            }
            let more = self.world.step(end);
            let left = || self.requests.iter().filter(|(_, r)| !r.cancelled && r.outcome.is_none()).collect::<Vec<_>>();
            assert!(more, "never completed: {:?}", left());
        }
        self.world.run(Span::from_secs(1));
        // What is left in the receive queues comes back whole.
        for host in 0..2 {
            self.poll(host);
            for qpn in self.qps[host].clone() {
                self.world.set_state(host, qpn, QpState::Err);
            }
            self.world.run(Span::from_millis(10));
            self.poll(host);
        }
        for (id, r) in self.receives.iter().filter(|(_, r)| !r.cancelled) {
            assert!(r.done, "receive {id} is lost: {r:?}");
        }
        for (id, r) in &self.requests {
            let tells = matches!(r.kind, Kind::Send | Kind::WriteImm);
            if r.outcome == Some(Status::Ok) && tells {
                // The receiver may have destroyed its queue pair, or reset it, with the completion in it.
                let alive = self.qps[1 - r.from].contains(&r.to_qpn) && !self.reset.contains(&(1 - r.from, r.to_qpn));
                let held = self.world.options.faults.shuffle > 0;
                assert!(r.delivered == 1 || !alive || held, "{id} completed, but was not delivered: {r:?}");
            }
        }
        self.check_memory();
    }
}

fn run(seed: u64) {
    let mut program = Program::new(seed);
    let steps = 20 + program.rng.below(200);
    for n in 0..steps {
        program.step();
        if n % 16 == 0 {
            program.check_memory();
        }
    }
    program.finish();
}

/// `SRD_CARD_SEED` replays one world, `SRD_CARD_SEEDS` asks for more of them.
#[test]
fn random_programs_agree_with_the_table_of_what_they_posted() {
    each_seed("SRD_CARD", "card_model", 1..151, run);
}
