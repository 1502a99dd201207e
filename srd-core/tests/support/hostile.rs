//! A card, and a peer that speaks the transport well but says what it wants: any message header with any payload. More such
//! peers may join.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::net::SocketAddr;

use bytes::Bytes;
use srd_core::card::*;
use srd_core::*;

/// Memory of the victim: one array, of which a part is registered.
#[derive(Debug)]
pub struct Ram(pub Vec<u8>);

impl HostMemory for Ram {
    type Region = usize;

    fn read<'m>(&'m self, &start: &'m usize, offset: u64, len: usize) -> &'m [u8] {
        &self.0[start + offset as usize..][..len]
    }

    fn write(&mut self, &start: &usize, offset: u64, bytes: &[u8]) {
        self.0[start + offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// The registered part of the victim's memory; its address space begins at [`BASE`].
pub const REGION: std::ops::Range<usize> = 4096..36_864;
/// Address of the region's first byte.
pub const BASE: u64 = 0x7000_0000;
/// QKey of the victim's queue pair.
pub const QKEY: u32 = 0x1111_1111;

/// See the module documentation.
pub struct Duel {
    pub now: Time,
    pub card: Card<Ram>,
    pub pd: PdId,
    pub cq: CqId,
    pub qpn: u16,
    pub ah: u16,
    /// While the region is registered.
    pub keys: Option<MrKeys>,
    /// The first one is whom the victim knows.
    pub attackers: Vec<Attacker>,
    victim: Endpoint,
    batch: TxBatch,
}

/// One that says what it wants.
pub struct Attacker {
    pub mailbox: Mailbox,
    /// The codes by which the victim refused what it said.
    pub refused: Vec<u8>,
    endpoint: Endpoint,
}

fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

fn endpoint(i: usize, now: Time) -> Endpoint {
    let config = Config { max_datagram: 1400, max_partial_messages: 64, ..Config::default() };
    Endpoint::new(config.check().unwrap(), addr(i), [i as u8 + 1; 32], now)
}

impl Duel {
    pub fn new() -> Duel {
        let now = Time::from_nanos(1_000_000);
        let options = CardOptions { profile: Profile::generation(0xefa3).unwrap(), ..CardOptions::default() };
        let gid = |i| Gid::new(addr(i)).unwrap();
        let mut victim = endpoint(0, now);
        let mut card = Card::new(options, gid(0), Ram(vec![0xee; 40_960]), 1);
        let (pd, cq) = (card.alloc_pd().unwrap(), card.create_cq(1024).unwrap());
        let ah = card.create_ah(&mut victim, pd, gid(1), 1400).unwrap();
        let (attackers, batch) = (Vec::new(), TxBatch::new());
        let mut duel = Duel { now, card, pd, cq, qpn: 0, ah, keys: None, attackers, victim, batch };
        duel.add_attacker();
        duel.new_qp();
        duel.register();
        duel
    }

    /// Another attacker; its index.
    pub fn add_attacker(&mut self) -> usize {
        let endpoint = endpoint(self.attackers.len() + 1, self.now);
        self.attackers.push(Attacker { mailbox: Mailbox::new(1 << 20), refused: Vec::new(), endpoint });
        self.attackers.len() - 1
    }

    pub fn new_qp(&mut self) {
        let cap = QpCap { send_wr: 64, recv_wr: 64, send_sge: 2, recv_sge: 3, inline: 32 };
        let ops = SendOps { read: true, write: true };
        let init = QpInit { ops, ..QpInit::new(QpType::Srd, self.pd, self.cq, cap) };
        let Ok(qpn) = self.card.create_qp(init) else { return };
        for change in QpModify::up_to_rts(QKEY, Some(2)) {
            self.card.modify_qp(&mut self.victim, qpn, &change).unwrap();
        }
        self.qpn = qpn;
    }

    pub fn register(&mut self) {
        if self.keys.is_none() {
            let access = Access { local_write: true, remote_read: true, remote_write: true };
            self.keys = self.card.reg_mr(self.pd, REGION.start, BASE, REGION.len() as u64, access).ok();
        }
    }

    pub fn deregister(&mut self) {
        if let Some(keys) = self.keys.take() {
            self.card.dereg_mr(&mut self.victim, keys.lkey).unwrap();
        }
    }

    pub fn destroy_qp(&mut self) {
        let _ = self.card.destroy_qp(&mut self.victim, self.qpn);
    }

    pub fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { addr: BASE + at as u64, len, lkey: self.keys.map_or(7, |k| k.lkey) }
    }

    /// The victim asks the attacker for something, or sends it.
    pub fn post(&mut self, wr_id: u64, op: SendOp, sge: Sge) {
        let (ah, sges) = (self.ah, [sge]);
        let wr = SendWr { wr_id, op, ah, qpn: 1, qkey: 0, data: SendData::Sges(&sges) };
        let _ = self.card.post_send_all(&mut self.victim, self.now, self.qpn, &[wr]);
    }

    /// The first attacker says something.
    pub fn say(&mut self, header: &[u8], payload: Vec<u8>) {
        self.say_as(0, header, payload);
    }

    /// The attacker with this index says something.
    pub fn say_as(&mut self, index: usize, header: &[u8], payload: Vec<u8>) {
        let Attacker { mailbox, endpoint, .. } = &mut self.attackers[index];
        let len = payload.len() as u32;
        let peer = endpoint.peer(addr(0), 1400).unwrap();
        let token = mailbox.post(header, Bytes::from(payload));
        let out = Outbound { token, flow: 0, header_len: header.len() as u8, len, rnr: RnrRetry::Times(1) };
        if endpoint.send(self.now, peer, out).is_err() {
            mailbox.unpost(token);
        }
    }

    /// Moves datagrams for a while; those of attackers only as far as `passes` permits.
    pub fn run(&mut self, span: Span, mut passes: impl FnMut() -> bool) {
        let end = self.now + span;
        // The wire takes no time, so time goes on by itself.
        for _ in 0..10_000 {
            let Duel { card, attackers, victim, batch, now, .. } = self;
            let mut moved = victim.poll_transmit(*now, card, batch);
            for (to, datagram) in datagrams(batch, card) {
                let Some((_, to)) = (1..).zip(&mut *attackers).find(|(i, _)| addr(*i) == to) else { continue };
                to.endpoint.handle_datagram(*now, &meta(0, *now), &datagram, &mut to.mailbox);
            }
            for (i, Attacker { endpoint, mailbox, .. }) in (1..).zip(&mut *attackers) {
                moved |= endpoint.poll_transmit(*now, mailbox, batch);
                for (_, datagram) in datagrams(batch, mailbox) {
                    if passes() {
                        victim.handle_datagram(*now, &meta(i, *now), &datagram, card);
                    }
                }
            }
            victim.handle_timeout(*now, card);
            moved |= card.work(victim, *now);
            while card.poll_event().is_some() || card.poll_trouble().is_some() {}
            for Attacker { endpoint, mailbox, refused } in &mut *attackers {
                endpoint.handle_timeout(*now, mailbox);
                while let Some((_, outcome)) = mailbox.poll_completed() {
                    if let Err(Failure::Refused(code)) = outcome {
                        refused.push(code);
                    }
                }
            }
            if moved {
                *now += Span::from_nanos(100);
                continue;
            }
            let theirs = attackers.iter().map(|attacker| attacker.endpoint.poll_timeout());
            let next = theirs.chain([victim.poll_timeout(), Some(card.deadline())]);
            let next = next.flatten().min().unwrap_or(Time::NEVER);
            if next > end {
                *now = end;
                return;
            }
            *now = (*now + Span::from_nanos(100)).max(next);
        }
    }

    pub fn poll(&mut self) -> Option<Completion> {
        self.card.poll(self.cq)
    }
}

fn datagrams<G: Gather>(batch: &mut TxBatch, mem: &G) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut all = Vec::new();
    for burst in batch.bursts() {
        let mut bytes = Vec::new();
        burst.copy_to(mem, &mut bytes);
        all.extend(bytes.chunks(burst.segment).map(|datagram| (burst.to, datagram.to_vec())));
    }
    batch.clear();
    all
}

fn meta(from: usize, at: Time) -> RxMeta {
    RxMeta { from: addr(from), to: None, ecn: Ecn::Ect, at }
}

// ---- headers, written by hand: see `docs/protocol.md` section 13

fn route(kind: u8, qpn: u16, qkey: u32) -> Vec<u8> {
    [&[kind][..], &qpn.to_be_bytes(), &1u16.to_be_bytes(), &qkey.to_be_bytes()].concat()
}

pub fn send(qpn: u16, qkey: u32) -> Vec<u8> {
    route(0, qpn, qkey)
}

pub fn write(qpn: u16, qkey: u32, rkey: u32, addr: u64) -> Vec<u8> {
    [&route(1, qpn, qkey)[..], &rkey.to_be_bytes(), &addr.to_be_bytes()].concat()
}

pub fn read(qpn: u16, qkey: u32, rkey: u32, addr: u64, len: u32, id: u32) -> Vec<u8> {
    let tail = [rkey.to_be_bytes(), len.to_be_bytes(), id.to_be_bytes()];
    [&route(2, qpn, qkey)[..], &tail[0], &addr.to_be_bytes(), &tail[1], &tail[2]].concat()
}

pub fn data(id: u32) -> Vec<u8> {
    [&[3][..], &id.to_be_bytes()].concat()
}

pub fn fail(id: u32, status: u8) -> Vec<u8> {
    [&[4][..], &id.to_be_bytes(), &[status]].concat()
}

pub fn sends(qpn: u16, qkey: u32, count: u16, longest: u16) -> Vec<u8> {
    [&route(5, qpn, qkey)[..], &count.to_be_bytes(), &longest.to_be_bytes()].concat()
}

/// The payload of these sends.
pub fn together(sends: &[&[u8]]) -> Vec<u8> {
    sends.iter().flat_map(|send| [&(send.len() as u16).to_be_bytes()[..], send].concat()).collect()
}

/// The id of the read that a header asks for.
pub fn read_id(header: &[u8]) -> Option<u32> {
    let id = header.last_chunk::<4>()?;
    (header[0] == 2).then(|| u32::from_be_bytes(*id))
}
