//! Cards in memory, in virtual time: as many hosts as a test wants, and a wire that may lose, repeat and delay.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use srd_core::card::*;
use srd_core::*;

pub const QKEY: u32 = 0x1111_1111;

/// Memory of a host: one array. Addresses are its indices, shifted so that none is 0. If it becomes shorter, what is beyond is
/// gone: to read there is a panic.
#[derive(Debug)]
pub struct Ram(pub Vec<u8>);

pub const BASE: u64 = 0x10_0000;

impl HostMemory for Ram {
    type Region = usize;

    fn read<'m>(&'m self, &start: &'m usize, offset: u64, len: usize) -> &'m [u8] {
        &self.0[start + offset as usize..][..len]
    }

    fn recall(&self, &start: &usize, offset: u64, len: usize, into: &mut Vec<u8>) -> bool {
        let bytes = self.0.get(start + offset as usize..).and_then(|rest| rest.get(..len));
        bytes.inspect(|bytes| into.extend_from_slice(bytes)).is_some()
    }

    fn write(&mut self, &start: &usize, offset: u64, bytes: &[u8]) {
        self.0[start + offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// A host with one card, one protection domain and one completion queue.
pub struct Host<M: HostMemory> {
    pub endpoint: Endpoint,
    pub card: Card<M>,
    pub addr: SocketAddr,
    pub pd: PdId,
    pub cq: CqId,
    pub events: Vec<CardEvent>,
    /// One that is dead neither sends nor receives.
    pub alive: bool,
}

/// What becomes of a datagram.
#[derive(Clone, Copy)]
pub enum Fate {
    Arrives,
    Lost,
    Twice,
    Late(Span),
}

/// Decides about a datagram from one host to another.
pub type Wire = Box<dyn FnMut(usize, usize) -> Fate>;

/// From whom, by which port, to whom, and its bytes.
type Datagram = (usize, SourcePort, usize, Vec<u8>);

/// See the module documentation.
pub struct World<M: HostMemory> {
    pub now: Time,
    pub hosts: Vec<Host<M>>,
    pub wire: Wire,
    pub delay: Span,
    pub config: Config,
    pub options: CardOptions,
    in_transit: BTreeMap<(Time, u64), Datagram>,
    order: u64,
    batch: TxBatch,
}

pub fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (i / 250) as u8, (i % 250) as u8 + 1], 4000))
}

pub fn gid(i: usize) -> Gid {
    Gid::new(addr(i)).unwrap()
}

/// Everything that the newest generation can do.
pub fn options() -> CardOptions {
    CardOptions { profile: Profile::generation(0xefa3).unwrap(), ..CardOptions::default() }
}

pub fn cap() -> QpCap {
    QpCap { send_wr: 256, recv_wr: 256, send_sge: 2, recv_sge: 3, inline: 32 }
}

pub const ALL: Access = Access { local_write: true, remote_read: true, remote_write: true };

/// Pseudo-random numbers for networks and programs.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Loses, repeats and delays some of all datagrams.
pub fn bad_wire(seed: u64) -> Wire {
    let mut rng = Rng(seed);
    Box::new(move |_, _| match rng.below(20) {
        0 => Fate::Lost,
        1 => Fate::Twice,
        2..6 => Fate::Late(Span::from_nanos(rng.below(300_000))),
        _ => Fate::Arrives,
    })
}

fn host<M: HostMemory>(world: (&Config, CardOptions), i: usize, seed: u8, memory: M, now: Time) -> Host<M> {
    let endpoint = Endpoint::new(world.0.clone().check().unwrap(), addr(i), [seed; 32], now);
    // The same for each incarnation, so that a new one repeats the numbers of the old: nothing may depend on them.
    let mut card = Card::new(world.1, gid(i), memory, i as u64);
    let pd = card.alloc_pd().unwrap();
    let cq = card.create_cq(4096).unwrap();
    Host { endpoint, card, addr: addr(i), pd, cq, events: Vec::new(), alive: true }
}

impl World<Ram> {
    /// `n` hosts with 1 MiB of memory each, all of one kind.
    pub fn new(n: usize, options: CardOptions) -> World<Ram> {
        World::with(n, options, Config::default(), |_| Ram(vec![0; 1 << 20]))
    }

    /// Registers the whole memory of a host.
    pub fn mr(&mut self, i: usize) -> MrKeys {
        let len = self.hosts[i].card.memory().0.len() as u64;
        let host = &mut self.hosts[i];
        host.card.reg_mr(host.pd, 0, BASE, len, ALL).unwrap()
    }

    pub fn bytes(&mut self, i: usize) -> &mut Vec<u8> {
        &mut self.hosts[i].card.memory_mut().0
    }
}

impl<M: HostMemory> World<M> {
    pub fn with(n: usize, options: CardOptions, config: Config, memory: impl Fn(usize) -> M) -> World<M> {
        let now = Time::from_nanos(1_000_000);
        let hosts = (0..n).map(|i| host((&config, options), i, i as u8 + 1, memory(i), now)).collect();
        World {
            now,
            hosts,
            wire: Box::new(|_, _| Fate::Arrives),
            delay: Span::from_micros(10),
            config,
            options,
            in_transit: BTreeMap::new(),
            order: 0,
            batch: TxBatch::new(),
        }
    }

    /// Replaces a host by a new incarnation at the same address.
    pub fn restart(&mut self, i: usize, seed: u8, memory: M) {
        self.hosts[i] = host((&self.config, self.options), i, seed, memory, self.now);
    }

    /// A queue pair that is ready to send.
    pub fn qp(&mut self, i: usize, change: impl FnOnce(&mut QpInit)) -> u16 {
        let qpn = self.new_qp(i, change);
        self.up(i, qpn, None);
        qpn
    }

    pub fn new_qp(&mut self, i: usize, change: impl FnOnce(&mut QpInit)) -> u16 {
        let host = &mut self.hosts[i];
        let mut init = QpInit::new(QpType::Srd, host.pd, host.cq, cap());
        (init.ops, init.inline_write) = (SendOps { read: true, write: true }, true);
        change(&mut init);
        // Those that cannot write cannot do so inline.
        init.inline_write &= init.ops.write;
        host.card.create_qp(init).unwrap()
    }

    pub fn up(&mut self, i: usize, qpn: u16, rnr_retry: Option<u8>) {
        for change in QpModify::up_to_rts(QKEY, rnr_retry) {
            self.modify(i, qpn, change);
        }
    }

    pub fn modify(&mut self, i: usize, qpn: u16, change: QpModify) {
        let host = &mut self.hosts[i];
        host.card.modify_qp(&mut host.endpoint, qpn, &change).unwrap();
    }

    pub fn set_state(&mut self, i: usize, qpn: u16, state: QpState) {
        self.modify(i, qpn, QpModify::to(state));
    }

    pub fn ah(&mut self, i: usize, j: usize) -> u16 {
        self.try_ah(i, addr(j)).unwrap()
    }

    pub fn try_ah(&mut self, i: usize, to: SocketAddr) -> Result<u16, CardError> {
        let host = &mut self.hosts[i];
        host.card.create_ah(&mut host.endpoint, host.pd, Gid::new(to).unwrap(), 8972)
    }

    pub fn destroy_ah(&mut self, i: usize, ah: u16) {
        let host = &mut self.hosts[i];
        host.card.destroy_ah(&mut host.endpoint, host.pd, ah).unwrap();
    }

    pub fn destroy_qp(&mut self, i: usize, qpn: u16) {
        let host = &mut self.hosts[i];
        host.card.destroy_qp(&mut host.endpoint, qpn).unwrap();
    }

    pub fn dereg(&mut self, i: usize, lkey: u32) {
        let host = &mut self.hosts[i];
        host.card.dereg_mr(&mut host.endpoint, lkey).unwrap();
    }

    pub fn post(&mut self, i: usize, qpn: u16, wr: SendWr<'_>) -> Result<(), CardError> {
        let host = &mut self.hosts[i];
        host.card.post_send_all(&mut host.endpoint, self.now, qpn, &[wr])
    }

    pub fn recv(&mut self, i: usize, qpn: u16, wr_id: u64, sges: &[Sge]) {
        self.hosts[i].card.post_recv(qpn, wr_id, sges).unwrap();
    }

    pub fn poll(&mut self, i: usize) -> Option<Completion> {
        let host = &mut self.hosts[i];
        host.card.poll(host.cq)
    }

    /// The next completion of a host, which must come within `span`.
    pub fn wait(&mut self, i: usize, span: Span) -> Completion {
        let end = self.now + span;
        loop {
            if let Some(entry) = self.poll(i) {
                return entry;
            }
            assert!(self.step(end), "no completion within {span:?}");
        }
    }

    fn transmit(&mut self) {
        for i in 0..self.hosts.len() {
            if !self.hosts[i].alive {
                continue;
            }
            for _ in 0..1000 {
                let Host { endpoint, card, .. } = &mut self.hosts[i];
                if !endpoint.poll_transmit(self.now, card, &mut self.batch) {
                    break;
                }
                for burst in self.batch.bursts() {
                    let Some(to) = self.hosts.iter().position(|h| h.addr == burst.to) else { continue };
                    let mut bytes = Vec::new();
                    burst.copy_to(&self.hosts[i].card, &mut bytes);
                    for datagram in bytes.chunks(burst.segment) {
                        let (copies, extra) = match (self.wire)(i, to) {
                            Fate::Lost => (0, Span::ZERO),
                            Fate::Arrives => (1, Span::ZERO),
                            Fate::Twice => (2, Span::ZERO),
                            Fate::Late(by) => (1, by),
                        };
                        for copy in 0..copies {
                            self.order += 1;
                            let key = (self.now + self.delay + extra + self.delay * copy, self.order);
                            self.in_transit.insert(key, (i, burst.port, to, datagram.to_vec()));
                        }
                    }
                }
                self.batch.clear();
            }
        }
    }

    /// Runs to the next event, but not beyond `end`. Says whether there was one.
    pub fn step(&mut self, end: Time) -> bool {
        self.transmit();
        let mut next = self.in_transit.keys().next().map_or(Time::NEVER, |k| k.0);
        for host in self.hosts.iter().filter(|h| h.alive) {
            next = next.min(host.endpoint.poll_timeout().unwrap_or(Time::NEVER)).min(host.card.deadline());
        }
        if next > end {
            self.now = end;
            return false;
        }
        self.now = self.now.max(next);
        while let Some(entry) = self.in_transit.first_entry()
            && entry.key().0 <= self.now
        {
            let (i, port, to, bytes) = entry.remove();
            let mut from = addr(i);
            from.set_port(50_000 + port.0);
            let meta = RxMeta { from, to: None, ecn: Ecn::Ect, at: self.now };
            let host = &mut self.hosts[to];
            if host.alive {
                host.endpoint.handle_datagram(self.now, &meta, &bytes, &mut host.card);
            }
        }
        for host in self.hosts.iter_mut().filter(|h| h.alive) {
            host.endpoint.handle_timeout(self.now, &mut host.card);
            host.card.work(&mut host.endpoint, self.now);
            while let Some(event) = host.card.poll_event() {
                host.events.push(event);
            }
        }
        true
    }

    pub fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.step(end) {}
    }
}

/// A buffer at an index of the host's memory.
pub fn sge(keys: MrKeys, at: usize, len: u32) -> Sge {
    Sge { addr: BASE + at as u64, len, lkey: keys.lkey }
}

/// A payload that tells which message it is.
pub fn pattern(id: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (id as usize * 31 + i * 7 + i / 251) as u8).collect()
}

/// The usual pair: queue pairs, address handles both ways, all memory registered.
pub struct Two {
    pub world: World<Ram>,
    pub qpn: [u16; 2],
    pub ah: [u16; 2],
    pub keys: [MrKeys; 2],
}

impl Two {
    pub fn new() -> Two {
        Two::with(options())
    }

    pub fn with(options: CardOptions) -> Two {
        Two::of(World::new(2, options))
    }

    /// Of a world of two hosts that have nothing yet.
    pub fn of(mut world: World<Ram>) -> Two {
        let qpn = [world.qp(0, |_| ()), world.qp(1, |_| ())];
        let ah = [world.ah(0, 1), world.ah(1, 0)];
        let keys = [world.mr(0), world.mr(1)];
        Two { world, qpn, ah, keys }
    }

    /// Posts at the first host, to the second.
    pub fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.try_post(wr_id, op, SendData::Sges(sges)).unwrap();
    }

    pub fn try_post(&mut self, wr_id: u64, op: SendOp, data: SendData<'_>) -> Result<(), CardError> {
        let wr = SendWr { wr_id, op, ah: self.ah[0], qpn: self.qpn[1], qkey: QKEY, data };
        self.world.post(0, self.qpn[0], wr)
    }

    pub fn send(&mut self, wr_id: u64, at: usize, len: u32) {
        let sge = self.sge(0, at, len);
        self.post(wr_id, SendOp::Send { imm: None }, &[sge]);
    }

    pub fn recv(&mut self, wr_id: u64, at: usize, len: u32) {
        let sge = self.sge(1, at, len);
        self.world.recv(1, self.qpn[1], wr_id, &[sge]);
    }

    pub fn sge(&self, i: usize, at: usize, len: u32) -> Sge {
        sge(self.keys[i], at, len)
    }

    pub fn wait(&mut self, i: usize) -> Completion {
        self.world.wait(i, Span::from_secs(20))
    }

    /// An operation on the second host's memory.
    pub fn write(&self, at: usize, imm: Option<u32>) -> SendOp {
        SendOp::Write { addr: BASE + at as u64, rkey: self.keys[1].rkey, imm }
    }

    pub fn read(&self, at: usize) -> SendOp {
        SendOp::Read { addr: BASE + at as u64, rkey: self.keys[1].rkey }
    }

    /// That the first host's queue pair still works.
    pub fn assert_usable(&mut self) {
        self.assert_usable_after(&[]);
    }

    /// The same; these receives may be left from before, and be taken first.
    pub fn assert_usable_after(&mut self, left: &[u64]) {
        assert_eq!(self.world.hosts[0].card.query_qp(self.qpn[0]).unwrap().state, QpState::Rts);
        self.recv(900, 0, 100);
        self.send(901, 0, 10);
        let done = self.wait(0);
        assert_eq!((done.wr_id, done.status), (901, Status::Ok));
        let got = self.wait(1).wr_id;
        assert!(got == 900 || left.contains(&got), "{got}");
    }
}
