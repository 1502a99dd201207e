//! Tests of fault injection, over a driver in memory.

use super::*;

/// A driver in memory: keeps what is sent, hands out what it is told to, and its clock stands still.
#[derive(Default)]
struct Tape {
    now: Time,
    sent: Vec<(SourcePort, Vec<u8>)>,
    bursts: usize,
    incoming: Vec<Vec<u8>>,
    waited: Vec<Option<Time>>,
}

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

impl Driver for Tape {
    fn now(&mut self) -> Time {
        self.now
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> io::Result<usize> {
        let meta = RxMeta { from: PEER, to: None, ecn: crate::Ecn::NotEct, at: self.now };
        let n = self.incoming.len();
        self.incoming.drain(..).for_each(|d| sink(&meta, &d));
        Ok(n)
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> io::Result<()> {
        for burst in batch.bursts() {
            self.bursts += 1;
            let mut bytes = Vec::new();
            burst.copy_to(mem, &mut bytes);
            assert_eq!(bytes.len(), burst.len);
            self.sent.extend(bytes.chunks(burst.segment).map(|d| (burst.port, d.to_vec())));
        }
        Ok(())
    }

    fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        self.waited.push(until);
        if let Some(t) = until {
            self.now = self.now.max(t);
        }
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        PEER
    }

    fn source_ports(&self) -> u16 {
        4
    }

    fn max_datagram(&mut self, _: SocketAddr) -> u16 {
        1472
    }
}

/// `n` datagrams of 8 bytes that begin with their number, and one of 3, as one burst.
fn burst(port: u16, first: u32, n: u32) -> TxBatch {
    let mut bytes = Vec::new();
    for k in first..first + n {
        bytes.extend_from_slice(&k.to_be_bytes());
        bytes.extend_from_slice(&[0xaa; 4]);
    }
    bytes.extend_from_slice(b"end");
    let mut batch = TxBatch::new();
    let mut burst = batch.burst(PEER, SourcePort(port), 8);
    burst.inline(&bytes);
    burst.finish();
    batch
}

fn numbers(sent: &[(SourcePort, Vec<u8>)]) -> Vec<u32> {
    sent.iter().filter(|(_, d)| d.len() == 8).map(|(_, d)| u32::from_be_bytes([d[0], d[1], d[2], d[3]])).collect()
}

fn run(faults: Faults, seed: u64) -> Faulty<Tape> {
    let mut driver = Faulty::new(Tape::default(), faults, seed);
    for k in 0..100 {
        driver.send(&burst(0, k * 100, 100), &NoPayload).expect("send");
    }
    driver
}

#[test]
fn no_faults_bursts_pass_unchanged() {
    let driver = run(Faults::default(), 1);
    assert_eq!(numbers(&driver.inner.sent), (0..10_000).collect::<Vec<_>>());
    assert_eq!(driver.inner.bursts, 100);
    assert_eq!(driver.counts(), FaultCounts { offered: 10_100, ..FaultCounts::default() });
}

#[test]
fn loss_share_is_kept_and_the_rest_stays_in_order() {
    let driver = run(Faults { loss: Share::percent(10), ..Faults::default() }, 2);
    let lost = driver.counts().lost;
    assert!((900..1_130).contains(&lost), "{lost} of 10,100 lost");
    assert_eq!(driver.inner.sent.len() as u64, 10_100 - lost);
    assert!(numbers(&driver.inner.sent).is_sorted());
    assert!(driver.inner.sent.iter().all(|(_, d)| d.len() == 8 || d == b"end"));
}

#[test]
fn same_seed_same_faults() {
    let faults = Faults {
        loss: Share::percent(5),
        duplicate: Share::percent(5),
        corrupt: Share::percent(5),
        delay: Share::percent(5),
        ..Faults::default()
    };
    let (a, b, c) = (run(faults, 3), run(faults, 3), run(faults, 4));
    assert!(a.inner.sent == b.inner.sent, "{:?} against {:?}", a.counts(), b.counts());
    assert!(a.inner.sent != c.inner.sent, "two seeds, one outcome");
}

#[test]
fn second_fault_does_not_move_the_first() {
    let loss = Faults { loss: Share::percent(5), ..Faults::default() };
    let both = Faults { delay: Share::percent(20), duplicate: Share::percent(20), ..loss };
    let (a, mut b) = (run(loss, 5), run(both, 5));
    b.inner.now = Time::ZERO + both.delay_max;
    b.wait(None).expect("wait");
    let mut all = numbers(&b.inner.sent);
    all.sort_unstable();
    all.dedup();
    assert!(numbers(&a.inner.sent) == all, "{:?} against {:?}", a.counts(), b.counts());
}

#[test]
fn duplicate_every_datagram_twice() {
    let driver = run(Faults { duplicate: Share::ALWAYS, ..Faults::default() }, 6);
    let mut all = numbers(&driver.inner.sent);
    all.sort_unstable();
    assert_eq!(all, (0..20_000).map(|k| k / 2).collect::<Vec<_>>());
}

#[test]
fn corrupt_exactly_one_bit_differs() {
    let clean = run(Faults::default(), 7);
    let driver = run(Faults { corrupt: Share::ALWAYS, ..Faults::default() }, 7);
    for ((_, a), (_, b)) in clean.inner.sent.iter().zip(&driver.inner.sent) {
        let bits: u32 = a.iter().zip(b).map(|(x, y)| (x ^ y).count_ones()).sum();
        assert_eq!((a.len(), bits), (b.len(), 1));
    }
}

#[test]
fn delay_released_by_the_clock_in_order_of_release() {
    let faults = Faults { delay: Share::ALWAYS, ..Faults::default() };
    let mut driver = Faulty::new(Tape::default(), faults, 8);
    driver.send(&burst(0, 0, 50), &NoPayload).expect("send");
    assert_eq!(driver.inner.sent.len(), 0);
    driver.inner.now = Time::ZERO + faults.delay_min - Span::from_nanos(1);
    assert_eq!(driver.recv(&mut |_, _| ()).expect("recv"), 0);
    assert_eq!(driver.inner.sent.len(), 0);
    driver.wait(None).expect("wait");
    let first = driver.inner.waited[0].expect("a held datagram bounds the wait");
    assert!(first >= Time::ZERO + faults.delay_min);
    assert_eq!(driver.inner.sent.len(), 1);
    driver.inner.now = Time::ZERO + faults.delay_max;
    assert_eq!(driver.recv(&mut |_, _| ()).expect("recv"), 0);
    assert_eq!(driver.inner.sent.len(), 51);
    assert!(!numbers(&driver.inner.sent).is_sorted(), "random delays reorder");
}

#[test]
fn delay_holds_a_bounded_number() {
    let faults = Faults { delay: Share::ALWAYS, max_held: 10, ..Faults::default() };
    let driver = run(faults, 9);
    assert_eq!(driver.held.len(), 10);
    assert_eq!(driver.inner.sent.len(), 10_100 - 10);
}

#[test]
fn black_hole_only_its_ports_and_only_in_its_time() {
    let mut driver = Faulty::new(Tape::default(), Faults::default(), 10);
    let (from, until) = (Time::from_nanos(100), Time::from_nanos(200));
    let what = Where::Ports(vec![SourcePort(1), SourcePort(3)]);
    driver.black_hole(BlackHole { what, way: Way::Out, from, until });
    for now in [99, 100, 199, 200] {
        driver.inner.now = Time::from_nanos(now);
        for port in 0..4 {
            driver.send(&burst(port, now as u32, 1), &NoPayload).expect("send");
        }
    }
    let through = |port| {
        let of_port: Vec<_> = driver.inner.sent.iter().filter(|(p, _)| *p == SourcePort(port)).cloned().collect();
        numbers(&of_port)
    };
    assert_eq!([through(0), through(2)], [[99, 100, 199, 200]; 2]);
    assert_eq!([through(1), through(3)], [[99, 200]; 2]);
    assert_eq!(driver.counts().swallowed, 8);
}

#[test]
fn recv_loss_share_is_kept() {
    let faults = Faults { recv_loss: Share::percent(50), ..Faults::default() };
    let mut driver = Faulty::new(Tape::default(), faults, 11);
    driver.inner.incoming = vec![vec![1]; 1000];
    let mut got = 0;
    driver.recv(&mut |_, _| got += 1).expect("recv");
    assert!((400..600).contains(&got), "{got} of 1,000 arrived");
    assert_eq!(driver.counts().recv_lost, 1000 - got);
}

#[test]
fn black_hole_of_a_host_in_each_direction() {
    for (way, sent, got) in [(Way::Out, 0, 1), (Way::In, 2, 0), (Way::Both, 0, 0)] {
        for what in [Where::All, Where::Host(PEER.ip()), Where::Peer(PEER)] {
            let mut driver = Faulty::new(Tape::default(), Faults::default(), 12);
            driver.black_hole(BlackHole { what, way, from: Time::ZERO, until: Time::NEVER });
            driver.send(&burst(0, 0, 1), &NoPayload).expect("send");
            driver.inner.incoming = vec![vec![1]];
            let mut received = 0;
            driver.recv(&mut |_, _| received += 1).expect("recv");
            assert_eq!((driver.inner.sent.len(), received), (sent, got), "{way:?}");
        }
    }
}

#[test]
fn black_hole_of_another_host_takes_nothing() {
    let other: SocketAddr = "192.0.2.1:7".parse().expect("an address");
    let mut driver = Faulty::new(Tape::default(), Faults::default(), 13);
    for what in [Where::Host(other.ip()), Where::Peer(other), Where::Peer(SocketAddr::new(PEER.ip(), 8))] {
        driver.black_hole(BlackHole { what, way: Way::Out, from: Time::ZERO, until: Time::NEVER });
    }
    driver.send(&burst(0, 0, 1), &NoPayload).expect("send");
    assert_eq!(driver.inner.sent.len(), 2);
}

#[test]
fn plan_changes_when_its_time_has_come_counted_from_the_start() {
    let start = Span::from_secs(100);
    let at = |ms| Time::ZERO + Span::from_millis(ms);
    let all = Faults { loss: Share::ALWAYS, ..Faults::default() };
    let hole = BlackHole { from: at(40), until: at(50), ..BlackHole::path(SourcePort(0), Time::ZERO) };
    let changes = vec![(at(30), Faults::default()), (at(20), all)];
    let plan = FaultPlan { first: Faults::default(), changes, holes: vec![hole] };
    let mut driver = Faulty::with_plan(Tape { now: Time::ZERO + start, ..Tape::default() }, plan, 14);
    for (ms, arrive) in [(0, true), (19, true), (20, false), (29, false), (30, true), (40, false), (50, true)] {
        driver.inner.now = at(ms) + start;
        driver.inner.sent.clear();
        driver.send(&burst(0, 0, 1), &NoPayload).expect("send");
        assert_eq!(driver.inner.sent.len(), if arrive { 2 } else { 0 }, "after {ms} ms");
    }
}

#[test]
fn paths_are_numbered_in_the_order_of_their_first_use() {
    let mut driver = Faulty::new(Tape::default(), Faults::default(), 15);
    let what = Where::Paths(vec![1]);
    driver.black_hole(BlackHole { what, way: Way::Both, from: Time::ZERO, until: Time::NEVER });
    for port in [9, 2, 9, 5, 2] {
        driver.send(&burst(port, 0, 1), &NoPayload).expect("send");
    }
    let ports: Vec<u16> = driver.inner.sent.iter().filter(|(_, d)| d.len() == 8).map(|(p, _)| p.0).collect();
    assert_eq!(ports, [9, 9, 5], "the second port in use is dead");
}
