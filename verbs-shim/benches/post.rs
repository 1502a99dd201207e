//! What a send costs its program outside of the driver: posting an inline send and polling its completion, over a driver that
//! hands datagrams to another card in memory.
//!
//! Only the sender's calls are measured, so what the receiver does is not in the figure, and what the driver takes to move
//! datagrams is subtracted. The sender's share of packets and acknowledgements is in it, and so are its locks and its
//! readings of the clock. `batch` sends are posted before completions are polled.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use srd_core::{CcChoice, Config, Driver, Ecn, Gather, RxMeta, SourcePort, Time, TxBatch};
use verbs_shim::{
    Access, Completion, CqId, Nic, NicConfig, PdId, QpCap, QpInit, QpModify, QpType, RawRegion, SendData, SendOp,
    SendWr, Sge,
};

const QKEY: u32 = 1;
const DEPTH: u32 = 512;

type Queue = Arc<Mutex<VecDeque<(SourcePort, Vec<u8>)>>>;

/// A driver whose network is two queues.
struct Wire {
    start: Instant,
    addrs: [SocketAddr; 2],
    inbound: Queue,
    outbound: Queue,
    spare: Vec<Vec<u8>>,
    meter: Arc<Meter>,
}

/// The time that a driver takes.
struct Meter {
    nanos: AtomicU64,
    /// What reading the clock takes. Of the two readings around what is measured, the time of one is in the difference.
    clock: Duration,
}

impl Meter {
    fn new() -> Meter {
        const READINGS: u32 = 100_000;
        let began = Instant::now();
        for _ in 0..READINGS {
            black_box(Instant::now());
        }
        Meter { nanos: AtomicU64::new(0), clock: began.elapsed() / READINGS }
    }

    fn measure<T>(&self, run: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = run();
        let took = began.elapsed() + self.clock;
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// The time since the last call.
    fn take(&self) -> Duration {
        Duration::from_nanos(self.nanos.swap(0, Ordering::Relaxed))
    }
}

impl Driver for Wire {
    fn now(&mut self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64 + 1_000_000)
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> std::io::Result<usize> {
        let meter = self.meter.clone();
        let (arrived, now) = meter.measure(|| {
            let arrived = std::mem::take(&mut *self.inbound.lock().expect("no panic"));
            (arrived, self.now())
        });
        for (port, bytes) in &arrived {
            let from = SocketAddr::new(self.addrs[1].ip(), 50_000 + port.0);
            sink(&RxMeta { from, to: None, ecn: Ecn::Ect, at: now }, bytes);
        }
        meter.measure(|| {
            let n = arrived.len();
            self.spare.extend(arrived.into_iter().map(|d| d.1));
            self.spare.truncate(64);
            Ok(n)
        })
    }

    fn send(&mut self, batch: &TxBatch, mem: &dyn Gather) -> std::io::Result<()> {
        let meter = self.meter.clone();
        meter.measure(|| {
            let mut queue = self.outbound.lock().expect("no panic");
            for burst in batch.bursts() {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                burst.copy_to(mem, &mut bytes);
                if burst.segment >= bytes.len() {
                    queue.push_back((burst.port, bytes));
                } else {
                    queue.extend(bytes.chunks(burst.segment).map(|c| (burst.port, c.to_vec())));
                }
            }
            Ok(())
        })
    }

    fn wait(&mut self, _until: Option<Time>) -> std::io::Result<()> {
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    fn source_ports(&self) -> u16 {
        64
    }

    fn max_datagram(&mut self, _to: SocketAddr) -> u16 {
        8972
    }
}

struct Side {
    nic: Nic,
    qpn: u16,
    cq: CqId,
    pd: PdId,
    meter: Arc<Meter>,
}

fn pair() -> [Side; 2] {
    let (start, queues) = (Instant::now(), [Queue::default(), Queue::default()]);
    let addr = |i: usize| SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000));
    [0, 1].map(|i| {
        let meter = Arc::new(Meter::new());
        let wire = Wire {
            start,
            addrs: [addr(i), addr(1 - i)],
            inbound: queues[i].clone(),
            outbound: queues[1 - i].clone(),
            spare: Vec::new(),
            meter: meter.clone(),
        };
        let cc = CcChoice::Fixed { rate: 1 << 40, window: 2 << 20 };
        let mut config = NicConfig::at(addr(i));
        config.transport = Config { cc, ..Config::default() }.check().expect("a valid configuration");
        let nic = Nic::over(config, Box::new(wire), Vec::new(), Box::new(())).expect("a card");
        let (pd, cq) = (nic.alloc_pd().expect("room"), nic.create_cq(4 * DEPTH).expect("room"));
        let cap = QpCap { send_wr: DEPTH, recv_wr: 2 * DEPTH, send_sge: 1, recv_sge: 1, inline: 32 };
        let qpn = nic.create_qp(QpInit::new(QpType::Srd, pd, cq, cap)).expect("room");
        for change in QpModify::up_to_rts(QKEY, None) {
            nic.modify_qp(qpn, &change).expect("the way up");
        }
        Side { nic, qpn, cq, pd, meter }
    })
}

/// Sends `batch` messages and waits for them; returns what the sender's calls took outside of the driver.
fn round([a, b]: &[Side; 2], ah: u16, sge: Sge, batch: usize, entries: &mut [Completion]) -> Duration {
    let mut left = batch;
    a.meter.take();
    let began = Instant::now();
    for n in 0..batch as u64 {
        let data = SendData::Inline(black_box(b"sixteen bytes !!"));
        let op = SendOp::Send { imm: None };
        a.nic.post_send_all(a.qpn, &[SendWr { wr_id: n, op, ah, qpn: b.qpn, qkey: QKEY, data }]).expect("room");
    }
    let mut took = began.elapsed();
    while left > 0 {
        loop {
            let got = b.nic.poll_cq(b.cq, entries);
            if got == 0 {
                break;
            }
            for _ in 0..got {
                b.nic.post_recv(b.qpn, 0, &[sge]).expect("room");
            }
        }
        let began = Instant::now();
        left -= a.nic.poll_cq(a.cq, entries);
        took += began.elapsed();
    }
    took.saturating_sub(a.meter.take())
}

fn post_and_poll(c: &mut Criterion) {
    let sides = pair();
    let ah = sides[0].nic.create_ah(sides[0].pd, sides[1].nic.gid()).expect("a handle");
    // Messages have 16 bytes, so receives need a buffer.
    let mut memory = vec![0u8; 16];
    // SAFETY: the memory outlives the cards, which are the only ones to touch it.
    let region = unsafe { RawRegion::new(memory.as_mut_ptr(), memory.len()) };
    let access = Access { local_write: true, ..Access::default() };
    let base = memory.as_ptr() as u64;
    let keys = sides[1].nic.reg_mr(sides[1].pd, region, base, access).expect("a region");
    let sge = Sge { addr: base, len: 16, lkey: keys.lkey };
    for _ in 0..2 * DEPTH {
        sides[1].nic.post_recv(sides[1].qpn, 0, &[sge]).expect("room");
    }
    let mut entries = [Completion::default(); 64];
    let mut group = c.benchmark_group("inline send, post and poll, without the driver");
    for batch in [1, 16, 64, 256] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| round(&sides, ah, sge, batch, &mut entries)).sum());
        });
    }
    group.finish();
    drop(sides);
    drop(memory);
}

criterion_group!(benches, post_and_poll);
criterion_main!(benches);
