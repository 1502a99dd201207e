//! Fuzz target `card`: a card and a peer that sends it whatever the input says, while its program does what the input says.
//!
//! Nothing may panic; no byte beside the registered region ever changes, none of the region while it is not registered; a
//! request completes once.

#![allow(unreachable_pub, reason = "the fuzz targets reach it")]

use std::collections::BTreeSet;

use srd_core::card::*;
use srd_core::*;

#[path = "hostile.rs"]
mod hostile;

use super::fuzzing::Input;
use hostile::*;

impl Input<'_> {
    /// A value that is nearly always the right one.
    fn or(&mut self, right: u64) -> u64 {
        match self.byte() {
            0..200 => right,
            200..225 => right.wrapping_add(u64::from(self.byte())),
            225..240 => right.wrapping_sub(u64::from(self.byte())),
            240..250 => u64::from_be_bytes([(); 8].map(|()| self.byte())),
            _ => right.rotate_left(32),
        }
    }

    /// A length, mostly below some packets, at most 40,000.
    fn len(&mut self) -> usize {
        let (a, b) = (self.byte() as usize, self.byte() as usize);
        [a, a * 20 + b, a * 150 + b][b % 3].min(40_000)
    }
}

const CANARY: u8 = 0xee;
/// What the program leaves in the region when it is not registered.
const MINE: u8 = 0x3d;

/// See the module documentation.
pub fn card(data: &[u8]) {
    let mut input = Input(data);
    let mut duel = Duel::new();
    let mut posted = BTreeSet::new();
    let mut next = 0;
    let mut asked: Vec<u32> = Vec::new();
    for _ in 0..300 {
        let Some(op) = input.op() else { break };
        let (qpn, rkey) = (duel.qpn, duel.keys.map_or(0, |k| k.rkey));
        match op % 16 {
            // What the peer says.
            0 | 1 if op & 32 != 0 => {
                let sends = vec![vec![op; input.byte().into()]; input.byte() as usize % 40];
                let sends: Vec<&[u8]> = sends.iter().map(Vec::as_slice).collect();
                let (count, longest) =
                    (input.or(sends.len() as u64), input.or(sends.first().map_or(0, |s| s.len() as u64)));
                let mut payload = together(&sends);
                if op & 16 != 0 && !payload.is_empty() {
                    let at = input.byte() as usize % payload.len();
                    payload[at] = input.byte();
                }
                duel.say(&hostile::sends(qpn, QKEY, count as u16, longest as u16), payload);
            }
            0 | 1 => {
                let mut header = send(input.or(qpn.into()) as u16, input.or(QKEY.into()) as u32);
                if op & 16 != 0 {
                    header[0] = input.byte();
                    header.extend([0; 4]);
                }
                let len = input.len();
                duel.say(&header, vec![op; len]);
            }
            2 | 3 => {
                let at = input.len() as u64;
                let (rkey, addr) = (input.or(rkey.into()) as u32, input.or(BASE + at));
                let mut header = write(qpn, QKEY, rkey, addr);
                if op & 16 != 0 {
                    header[0] = input.byte();
                    header.splice(9..9, [0; 4]);
                }
                let len = input.len();
                duel.say(&header, vec![op; len]);
            }
            4 => {
                let (at, len) = (input.len() as u64, input.len() as u64);
                let (rkey, addr) = (input.or(rkey.into()) as u32, input.or(BASE + at));
                let header = read(qpn, QKEY, rkey, addr, input.or(len) as u32, op.into());
                duel.say(&header, Vec::new());
            }
            5 | 6 => {
                let id = asked.get(input.byte() as usize % asked.len().max(1)).copied().unwrap_or(0);
                let (id, len) = (input.or(id.into()) as u32, input.len());
                // Most reads ask for this much.
                let len = if op & 16 != 0 { len } else { 9000 };
                duel.say(&self::data(id), vec![op; len]);
            }
            7 => {
                let id = asked.get(input.byte() as usize % asked.len().max(1)).copied().unwrap_or(0);
                duel.say(&fail(id, input.byte()), Vec::new());
            }
            8 => {
                let header: Vec<u8> = (0..input.byte() % 40).map(|_| input.byte()).collect();
                let len = input.len();
                duel.say(&header, vec![op; len]);
            }
            // What the program does.
            9 => {
                let (at, len) = (input.len(), input.len() as u32);
                let (sge, qpn) = (duel.sge(at, len), duel.qpn);
                if duel.card.post_recv(qpn, next, &[sge]).is_ok() {
                    posted.insert(next);
                }
                next += 1;
            }
            10 | 11 => {
                let (at, before) = (input.len() % 20_000, duel.card.query_qp(qpn).is_ok());
                let send = SendOp::Send { imm: None };
                let op = if op & 16 != 0 { send } else { SendOp::Read { addr: 0, rkey: 0 } };
                let sge = duel.sge(at, if op == send { 500 } else { 9000 });
                duel.post(next, op, sge);
                if before {
                    posted.insert(next);
                }
                next += 1;
            }
            12 => {
                duel.destroy_qp();
                // Silently, so whatever has not completed never will.
                while duel.poll().is_some() {}
                posted.clear();
                duel.new_qp();
            }
            13 if duel.keys.is_some() => {
                duel.deregister();
                duel.card.memory_mut().0[REGION].fill(MINE);
            }
            13 => duel.register(),
            14 => {
                let mask = input.byte();
                let mut n = 0u8;
                duel.run(Span::from_micros(50 + u64::from(input.byte()) * 10), || {
                    n = n.wrapping_add(1);
                    mask >> (n % 8) & 1 == 0
                });
            }
            _ => duel.run(Span::from_millis(input.byte().into()), || true),
        }
        while let Some(message) = duel.attackers[0].mailbox.poll_received() {
            asked.extend(read_id(&message.header));
        }
        while let Some(done) = duel.poll() {
            assert!(posted.remove(&done.wr_id), "{done:?} was not under way");
        }
        let registered = duel.keys.is_some();
        let memory = &duel.card.memory().0;
        assert!(memory[..REGION.start].iter().chain(&memory[REGION.end..]).all(|b| *b == CANARY), "beside the region");
        assert!(registered || memory[REGION].iter().all(|b| *b == MINE), "not registered");
    }
}
