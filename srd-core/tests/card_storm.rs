//! Cards that come and go, with queue pairs that are reset and receives that are scarce: whatever happens, each request ends, and
//! then there is rest.
//!
//! What is delivered is the business of `card_model.rs`. Here nothing may be stuck, nothing may spin, and nothing may be left.

#[path = "support/cards.rs"]
mod cards;
#[path = "support/seeds.rs"]
mod seeds;

use std::collections::BTreeSet;

use cards::*;
use seeds::each_seed;
use srd_core::card::*;
use srd_core::*;

const HOSTS: usize = 3;
const QPS: usize = 2;
const MEMORY: usize = 1 << 20;
/// Longer than it takes to find out that a peer is dead, and to wait for one that may not be.
const PATIENCE: Span = Span::from_secs(60);

/// What a program knows of its card.
#[derive(Default)]
struct Program {
    qps: Vec<u16>,
    ahs: Vec<u16>,
    keys: Option<MrKeys>,
    /// Requests under way, with their queue pairs.
    open: BTreeSet<(u16, u64)>,
}

struct Storm {
    world: World<Ram>,
    rng: Rng,
    programs: [Program; HOSTS],
    next: u64,
    restarts: u8,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut rng = Rng(seed);
        let config = Config {
            paths: [1, 4][rng.below(2) as usize],
            path_pool: 16,
            max_datagram: [MIN_DATAGRAM, 1400, 8972][rng.below(3) as usize],
            packet_window: [64, 4096][rng.below(2) as usize],
            message_window: [64, 16384][rng.below(2) as usize],
            max_partial_messages: [1, 3, 1024][rng.below(3) as usize],
            send_queue: [8, 65536][rng.below(2) as usize],
            idle_timeout: [Span::from_millis(100), Span::from_secs(60)][rng.below(2) as usize],
            first_number: rng.one_in(2).then_some(u32::MAX - 30),
            ..Config::default()
        };
        let world = World::with(HOSTS, options(), config, |_| Ram(vec![0; MEMORY]));
        let mut storm = Storm { world, rng, programs: Default::default(), next: 0, restarts: 100 };
        (0..HOSTS).for_each(|host| storm.begin(host));
        storm
    }

    fn begin(&mut self, host: usize) {
        let ahs = (0..HOSTS).map(|other| self.world.ah(host, other)).collect();
        let keys = Some(self.world.mr(host));
        self.programs[host] = Program { ahs, keys, ..Program::default() };
        (0..QPS).for_each(|_| self.new_qp(host));
    }

    fn new_qp(&mut self, host: usize) {
        let qpn = self.world.new_qp(host, |init| init.cap = QpCap { send_wr: 64, recv_wr: 4, ..cap() });
        self.up(host, qpn);
        self.programs[host].qps.push(qpn);
    }

    fn up(&mut self, host: usize, qpn: u16) {
        let rnr = if self.rng.one_in(3) { self.rng.below(7) as u8 } else { RNR_INFINITE };
        self.world.up(host, qpn, Some(rnr));
    }

    fn pick(&mut self, host: usize) -> u16 {
        self.programs[host].qps[self.rng.below(QPS as u64) as usize]
    }

    fn post(&mut self, host: usize) {
        let other = self.rng.below(HOSTS as u64) as usize;
        let (qpn, to) = (self.pick(host), self.pick(other));
        let len = [0, 0, 30, 3000, 8928, 200_000][self.rng.below(6) as usize];
        let (addr, rkey) = (BASE, self.programs[other].keys.expect("registered").rkey);
        let op = match self.rng.below(5) {
            0 => SendOp::Read { addr, rkey },
            1 => SendOp::Write { addr, rkey, imm: None },
            2 => SendOp::Write { addr, rkey, imm: Some(7) },
            _ => SendOp::Send { imm: None },
        };
        let len = if matches!(op, SendOp::Send { .. }) { len.min(8928) } else { len };
        let at = self.rng.below(MEMORY as u64 / 2) as usize;
        let sges = [sge(self.programs[host].keys.expect("registered"), at, len)];
        for _ in 0..1 + self.rng.below(20) {
            let wr_id = self.next;
            let data = SendData::Sges(&sges);
            let wr = SendWr { wr_id, op, ah: self.programs[host].ahs[other], qpn: to, qkey: QKEY, data };
            if self.world.post(host, qpn, wr).is_ok() {
                self.programs[host].open.insert((qpn, wr_id));
                self.next += 1;
            }
        }
    }

    fn post_receive(&mut self, host: usize, qpn: u16) {
        let sges = [sge(self.programs[host].keys.expect("registered"), MEMORY / 2, 8928)];
        // There may be no room.
        let _ = self.world.hosts[host].card.post_recv(qpn, u64::MAX, &sges);
    }

    fn poll(&mut self, host: usize) {
        while let Some(done) = self.world.poll(host) {
            let known = self.programs[host].open.remove(&(done.qpn, done.wr_id));
            assert!(known != done.opcode.is_recv(), "{done:?} of none, or again");
        }
    }

    /// Nothing of the queue pair completes any more.
    fn cancel(&mut self, host: usize, qpn: u16) {
        self.programs[host].open.retain(|(of, _)| *of != qpn);
    }

    fn step(&mut self) {
        let host = self.rng.below(HOSTS as u64) as usize;
        let qpn = self.pick(host);
        match self.rng.below(40) {
            0..12 => self.post(host),
            12..18 => self.post_receive(host, qpn),
            18..26 => {
                let most = [50, 1000, 20_000][self.rng.below(3) as usize];
                let span = Span::from_micros(self.rng.below(most));
                self.world.run(span);
            }
            26..30 => self.poll(host),
            30 => {
                self.world.set_state(host, qpn, QpState::Err);
                self.poll(host);
                assert!(self.programs[host].open.iter().all(|(of, _)| *of != qpn), "all of it was flushed");
                self.world.set_state(host, qpn, QpState::Reset);
                self.up(host, qpn);
            }
            31 => {
                self.world.set_state(host, qpn, QpState::Reset);
                self.cancel(host, qpn);
                self.up(host, qpn);
            }
            32 => {
                self.world.destroy_qp(host, qpn);
                self.cancel(host, qpn);
                self.programs[host].qps.retain(|of| *of != qpn);
                self.new_qp(host);
            }
            33 => {
                let other = self.rng.below(HOSTS as u64) as usize;
                let ah = self.programs[host].ahs[other];
                self.world.destroy_ah(host, ah);
                self.programs[host].ahs[other] = self.world.ah(host, other);
            }
            34 => {
                // Another program at the same address. The old one said good-bye, or died.
                if self.rng.one_in(2) {
                    let (now, old) = (self.world.now, &mut self.world.hosts[host]);
                    old.endpoint.abort(now, &mut old.card);
                    self.world.run(Span::from_micros(1));
                }
                self.world.restart(host, self.restarts, Ram(vec![0; MEMORY]));
                self.restarts += 1;
                self.begin(host);
            }
            35 => {
                let (deaf, all) = (self.rng.below(HOSTS as u64) as usize, self.rng.one_in(2));
                let lost = move |from, to| to == deaf || all && from == deaf;
                self.world.wire = Box::new(move |from, to| if lost(from, to) { Fate::Lost } else { Fate::Arrives });
                let span = Span::from_millis(self.rng.below(8000));
                self.world.run(span);
                self.world.wire = Box::new(|_, _| Fate::Arrives);
            }
            36 => self.world.now += Span::from_millis(self.rng.below(20_000)),
            37 => {
                let key = self.programs[host].keys.expect("registered").lkey;
                self.world.dereg(host, key);
                self.programs[host].keys = Some(self.world.mr(host));
            }
            _ => {
                let seed = self.rng.next();
                self.world.wire = if self.rng.one_in(3) { Box::new(|_, _| Fate::Arrives) } else { bad_wire(seed) };
            }
        }
    }

    /// From now on there are receives for all, if not many at a time.
    fn finish(&mut self) {
        self.world.wire = Box::new(|_, _| Fate::Arrives);
        let end = self.world.now + PATIENCE;
        loop {
            for host in 0..HOSTS {
                self.poll(host);
                for qpn in self.programs[host].qps.clone() {
                    self.post_receive(host, qpn);
                }
            }
            let left: Vec<_> = self.programs.iter().map(|program| &program.open).collect();
            if left.iter().all(|open| open.is_empty()) {
                break;
            }
            let left = format!("{left:?}");
            assert!(self.world.step(end), "these are stuck: {left}");
        }
        // What is left of reads that were given up: requests to peers that are gone, and answers.
        self.world.run(Span::from_secs(10));
        for host in &self.world.hosts {
            assert_eq!(host.card.in_flight(), 0, "messages are left");
            for peer in host.endpoint.peers() {
                assert_eq!(host.endpoint.peer_stats(peer).messages, 0, "messages are left");
            }
        }
        // Keep-alives, and good-byes of those that are idle.
        let end = self.world.now + Span::from_secs(1);
        let steps = (0..).find(|_| !self.world.step(end)).expect("a number");
        assert!(steps < 500, "{steps} events in an idle second");
    }
}

fn run(seed: u64) {
    let mut storm = Storm::new(seed);
    let steps = 20 + storm.rng.below(200);
    (0..steps).for_each(|_| storm.step());
    storm.finish();
}

/// `SRD_STORM_SEED` replays one world, `SRD_STORM_SEEDS` asks for more of them.
#[test]
fn whatever_happens_each_request_ends_and_then_there_is_rest() {
    each_seed("SRD_STORM", "card_storm", 1..101, run);
}
