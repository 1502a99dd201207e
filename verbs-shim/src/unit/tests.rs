//! A unit without a thread: what it does for the program, and what it leaves to the thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use srd_core::card::{CardEvent, QpCap, QpInit, QpModify, QpType, SendData, SendOp, SendWr, Sge};
use srd_core::{Ecn, Gather, RxMeta, Span, TxBatch};

use super::*;
use crate::nic::NicSink;

/// What the world outside of a unit does.
#[derive(Default)]
pub(crate) struct World {
    /// The time, in microseconds.
    now: AtomicU64,
    /// A datagram has arrived that means nothing.
    arrived: AtomicBool,
    /// Completion events that were told.
    told: AtomicU32,
    /// Is run in each turn.
    pub(crate) in_turn: parking_lot::Mutex<Option<Box<dyn FnMut() + Send>>>,
}

/// The driver and the sink of a unit in a world. Nobody receives what it sends.
struct Part(Arc<World>);

impl Driver for Part {
    fn now(&mut self) -> Time {
        Time::ZERO + Span::from_micros(self.0.now.load(Ordering::Relaxed))
    }

    fn recv(&mut self, sink: &mut dyn FnMut(&RxMeta, &[u8])) -> std::io::Result<usize> {
        if let Some(run) = &mut *self.0.in_turn.lock() {
            run();
        }
        let arrived = self.0.arrived.swap(false, Ordering::Relaxed);
        if arrived {
            sink(&RxMeta { from: self.local_addr(), to: None, ecn: Ecn::NotEct, at: self.now() }, b"nothing");
        }
        Ok(arrived.into())
    }

    fn send(&mut self, _: &TxBatch, _: &dyn Gather) -> std::io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<Time>) -> std::io::Result<()> {
        unreachable!("the thread waits otherwise")
    }

    fn local_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 4000).into()
    }

    fn source_ports(&self) -> u16 {
        1
    }

    fn max_datagram(&mut self, _: SocketAddr) -> u16 {
        1400
    }
}

impl NicSink for Part {
    fn event(&self, event: CardEvent) {
        self.0.told.fetch_add(u32::from(matches!(event, CardEvent::Completion(_))), Ordering::Relaxed);
    }
}

/// A unit with a queue pair, its completion queue, and an address handle for somebody.
pub(crate) struct Lone {
    pub(crate) pu: Arc<Pu>,
    pub(crate) world: Arc<World>,
    pub(crate) cq: CqId,
    qpn: u16,
    ah: u16,
}

impl Lone {
    pub(crate) fn new() -> Lone {
        let (addr, world) = ((Ipv4Addr::LOCALHOST, 4000).into(), Arc::new(World::default()));
        world.now.store(1000, Ordering::Relaxed);
        let config = NicConfig::at(addr);
        let common = Arc::new(Common::new(Box::new(Part(world.clone())), None, 1, 16));
        let (gid, unit) = (Gid::new(addr).expect("an address"), Unit::default());
        let pu = Pu::new(&config, gid, unit, Box::new(Part(world.clone())), [1; 32], 1, &common).expect("a unit");
        let made = pu.command(|engine| {
            let card = &mut engine.upper;
            let (pd, cq) = (card.alloc_pd()?, card.create_cq(16)?);
            let cap = QpCap { send_wr: 16, recv_wr: 16, send_sge: 1, recv_sge: 1, inline: 32 };
            let qpn = card.create_qp(QpInit::new(QpType::Srd, pd, cq, cap))?;
            for change in QpModify::up_to_rts(1, None) {
                card.modify_qp(&mut engine.endpoint, qpn, &change)?;
            }
            let somebody = Gid::new((Ipv4Addr::LOCALHOST, 4001).into()).expect("an address");
            Ok((cq, qpn, card.create_ah(&mut engine.endpoint, pd, somebody, 1400)?))
        });
        let (cq, qpn, ah) = made.expect("a new card has room");
        Lone { pu: Arc::new(pu), world, cq, qpn, ah }
    }

    /// The time goes on.
    fn pass(&self, us: u64) {
        self.world.now.fetch_add(us, Ordering::Relaxed);
    }

    /// The thread, if there were one, drives until it sleeps.
    pub(crate) fn fall_asleep(&self) {
        while !self.pu.shift.is_asleep() {
            assert!(self.pu.drive(true).is_ok());
        }
    }

    /// The program sends nothing to somebody. Returns the time of posting.
    fn post(&self) -> Time {
        self.pu.post(1, |engine, now| self.send(engine, now))
    }

    fn send(&self, engine: &mut CardEngine, now: Time) -> Time {
        let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(b""));
        let wr = SendWr { wr_id: 1, op, ah: self.ah, qpn: self.qpn, qkey: 1, data };
        engine.upper.post_send_all(&mut engine.endpoint, now, self.qpn, &[wr]).expect("there is room");
        now
    }

    /// The program polls. Says whether nothing has happened for long.
    fn is_bored(&self) -> bool {
        self.pu.poll::<true>(self.cq, &mut [Completion::EMPTY; 1]).1
    }

    /// The program polls until nothing has happened for long.
    fn become_bored(&self) {
        let bored = (0..10_000).any(|_| {
            self.pass(1);
            self.is_bored()
        });
        assert!(bored);
    }
}

#[test]
fn whoever_posts_while_the_thread_sleeps_wakes_it_and_looks_at_the_clock() {
    let lone = Lone::new();
    lone.fall_asleep();
    lone.pass(7_000_000);
    let posted = lone.post();
    assert_eq!(posted, Time::ZERO + Span::from_micros(7_001_000));
    assert!(!lone.pu.shift.is_asleep());
}

/// The thread does not hear of it: the packet that woke it is read when it looks.
#[test]
fn whoever_polls_while_the_thread_sleeps_wakes_it_if_it_would_sleep_too_long() {
    let lone = Lone::new();
    lone.fall_asleep();
    lone.is_bored();
    assert!(lone.pu.shift.is_asleep(), "there is nothing to do");
    // As the answer to what a packet asks.
    let mut engine = lone.pu.lock();
    let now = engine.now;
    lone.send(&mut engine, now);
    drop(engine);
    assert!(lone.pu.shift.is_asleep());
    lone.is_bored();
    assert!(!lone.pu.shift.is_asleep(), "an answer is to come, or it goes again");
    lone.fall_asleep();
    lone.is_bored();
    assert!(lone.pu.shift.is_asleep(), "it knows");
}

#[test]
fn what_happened_while_the_program_polled_another_queue_is_told_at_once() {
    let lone = Lone::new();
    let other = lone.pu.command(|engine| engine.upper.create_cq(16)).expect("there is room");
    lone.pu.arm(lone.cq).expect("it is there");
    let own = lone.pu.command(|engine| {
        let CardEngine { endpoint, upper, .. } = engine;
        let gid = upper.gid();
        let ah = upper.create_ah(endpoint, srd_core::card::PdId(0), gid, 1400)?;
        upper.post_recv(lone.qpn, 2, &[Sge::default()])?;
        Ok(ah)
    });
    let lone = Lone { ah: own.expect("there is room"), ..lone };
    lone.post();
    assert_eq!(lone.world.told.load(Ordering::Relaxed), 0);
    assert_eq!(lone.pu.poll::<true>(other, &mut [Completion::EMPTY; 1]).0, 0);
    assert_eq!(lone.world.told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_program_is_patient_again_after_anything_has_happened() {
    let lone = Lone::new();
    lone.become_bored();
    assert!(lone.is_bored());
    lone.world.arrived.store(true, Ordering::Relaxed);
    assert!(!lone.is_bored() && !lone.is_bored(), "a datagram");
    lone.become_bored();
    lone.post();
    assert!(!lone.is_bored() && !lone.is_bored(), "it posted");
    lone.become_bored();
}

#[test]
fn counters_are_to_be_published_after_a_turn_or_a_command() {
    let lone = Lone::new();
    lone.pu.publish();
    assert!(!lone.pu.is_unpublished());
    lone.world.arrived.store(true, Ordering::Relaxed);
    assert!(lone.pu.drive(true).is_ok());
    assert!(lone.pu.is_unpublished(), "a datagram");
    lone.pu.publish();
    assert!(!lone.pu.is_unpublished());
    lone.pu.command(|engine| engine.upper.alloc_pd()).expect("there is room");
    assert!(lone.pu.is_unpublished(), "a command");
}
