//! What the fuzz targets do with their input. Shared by `fuzz/` and by the test that replays the committed corpus, so it
//! uses the public interface only.
//!
//! An input is a program for a small machine: one byte chooses an operation, the next bytes are its arguments. Missing
//! arguments count as zero, so every input means something and every prefix of it means its beginning.

#![allow(unreachable_pub, reason = "the fuzz targets reach it")]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use srd_core::*;

/// The input, read from the front.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn op(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.op().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n.min(self.0.len()));
        self.0 = tail;
        head
    }
}

fn seal(bytes: &mut Vec<u8>) {
    let sum = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

fn addr(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

fn rx(from: SocketAddr, at: Time) -> RxMeta {
    RxMeta { from, to: None, ecn: Ecn::Ect, at }
}

/// Target `decode`: the dissector, which decodes everything that the endpoint decodes.
pub fn decode(data: &[u8]) {
    let check = |bytes: &[u8]| match dissect(bytes) {
        Ok(line) => assert!(!line.is_empty() && !line.contains('\n')),
        Err(why) => assert!(!why.to_string().contains('\n')),
    };
    check(data);
    // Again with a checksum that is right, which mutation rarely finds.
    if data.len() >= 2 && data[1] & 1 != 0 {
        let mut sealed = data.to_vec();
        sealed.truncate(data.len().saturating_sub(4).max(2));
        seal(&mut sealed);
        check(&sealed);
    }
}

// ---- target `endpoint`

/// Who is at fault if a message is not what was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    len: u32,
    delivered: bool,
    done: bool,
}

/// All messages of a run, by the number that travels in their header.
#[derive(Debug, Default)]
struct Ledger(BTreeMap<u32, Sent>);

fn pattern(id: u32, offset: usize, byte: u8) -> u8 {
    byte ^ (id as usize * 31 + offset * 7 + offset / 251) as u8
}

/// An upper storey that checks what it is given.
#[derive(Debug)]
struct Memory {
    side: usize,
    /// Bytes to send: message `id` with length `len`. Token is the id.
    outgoing: BTreeMap<u64, (Vec<u8>, [u8; 4])>,
    incoming: Vec<Option<(u32, Vec<u8>, u32)>>,
    /// Messages that may be half here or unread; the rest is 'not ready'.
    room: usize,
    reading: bool,
    held: usize,
    delivered: Vec<(u32, Vec<u8>)>,
    completed: Vec<(u64, Result<(), Failure>)>,
}

impl Memory {
    fn new(side: usize) -> Memory {
        Memory {
            side,
            outgoing: BTreeMap::new(),
            incoming: Vec::new(),
            room: 8,
            reading: true,
            held: 0,
            delivered: Vec::new(),
            completed: Vec::new(),
        }
    }
}

impl Gather for Memory {
    fn payload(&self, token: Token, offset: u32, len: usize) -> &[u8] {
        // Scattered: never across a border of 1,000 bytes.
        let end = (offset as usize + len).min((offset as usize / 1000 + 1) * 1000);
        &self.outgoing[&token.0].0[offset as usize..end]
    }
}

impl Upper for Memory {
    fn header(&self, token: Token) -> &[u8] {
        &self.outgoing[&token.0].1
    }

    fn completed(&mut self, token: Token, outcome: Result<(), Failure>) {
        assert!(self.outgoing.remove(&token.0).is_some(), "message {} completed twice", token.0);
        self.completed.push((token.0, outcome));
    }

    fn place(&mut self, _: PeerId, header: &[u8], len: u32) -> Placement {
        let id = u32::from_be_bytes(header.try_into().expect("headers are four bytes"));
        if id % 16 == 15 {
            return Placement::Refuse(id as u8);
        }
        if self.held >= self.room && !self.reading {
            return Placement::NotReady;
        }
        self.held += 1;
        self.incoming.push(Some((id, vec![0xee; len as usize], 0)));
        Placement::Accept(PlaceToken(self.incoming.len() as u64 - 1))
    }

    fn write(&mut self, place: PlaceToken, offset: u32, bytes: &[u8]) {
        let (_, data, written) = self.incoming[place.0 as usize].as_mut().expect("a live place");
        data[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        *written += bytes.len() as u32;
    }

    fn placed(&mut self, place: PlaceToken) {
        let (id, data, written) = self.incoming[place.0 as usize].take().expect("placed once");
        assert!(written as usize >= data.len(), "message {id} placed before all of it was written");
        self.delivered.push((id, data));
    }

    fn abandoned(&mut self, place: PlaceToken) {
        self.incoming[place.0 as usize].take().expect("abandoned once");
        self.held -= 1;
    }
}

struct World {
    now: Time,
    ends: [(Endpoint, Memory); 2],
    ledger: Ledger,
    next_id: u32,
    seed: u8,
    /// Datagrams on their way to each side.
    wire: [VecDeque<Vec<u8>>; 2],
    /// Datagrams that were on the wire once.
    past: Vec<(usize, Vec<u8>)>,
    batch: TxBatch,
}

/// Datagrams that a direction of the wire holds; more are dropped.
const WIRE: usize = 256;
const PAST: usize = 128;

fn config() -> CheckedConfig {
    let config = Config {
        paths: 4,
        path_pool: 8,
        max_datagram: 1400,
        packet_window: 256,
        message_window: 64,
        max_partial_messages: 4,
        max_message: 20_000,
        send_queue: 64,
        max_peers: 4,
        idle_timeout: Span::from_millis(300),
        keepalive: Span::from_millis(100),
        peer_timeout: Span::from_millis(500),
        cc: CcChoice::Fixed { rate: 1 << 30, window: 32 * 1024 },
        checksum: Checksum::Crc32c,
        first_number: Some(u32::MAX - 40),
        ..Config::default()
    };
    config.check().expect("a valid configuration")
}

impl World {
    fn new() -> World {
        let now = Time::from_nanos(1_000_000);
        let end = |i: usize| (Endpoint::new(config(), addr(i), [i as u8 + 1; 32], now), Memory::new(i));
        World {
            now,
            ends: [end(0), end(1)],
            ledger: Ledger::default(),
            next_id: 0,
            seed: 10,
            wire: [VecDeque::new(), VecDeque::new()],
            past: Vec::new(),
            batch: TxBatch::new(),
        }
    }

    fn send(&mut self, from: usize, len: u32) {
        let (endpoint, memory) = &mut self.ends[from];
        let Some(peer) = endpoint.peer(addr(1 - from), 1400) else { return };
        let id = self.next_id;
        let data = (0..len as usize).map(|i| pattern(id, i, 0)).collect();
        memory.outgoing.insert(id.into(), (data, id.to_be_bytes()));
        let rnr = if id % 4 == 3 { RnrRetry::Times(2) } else { RnrRetry::Forever };
        let out = Outbound { token: Token(id.into()), flow: (id % 5) as u8, header_len: 4, len, rnr };
        if endpoint.send(self.now, peer, out).is_err() {
            memory.outgoing.remove(&u64::from(id));
            return;
        }
        self.next_id += 1;
        self.ledger.0.insert(id, Sent { from, len, delivered: false, done: false });
    }

    /// Moves up to `bursts` bursts from an endpoint to the wire. Says whether there were any.
    fn pump(&mut self, from: usize, bursts: usize) -> bool {
        let mut any = false;
        for _ in 0..bursts {
            let (endpoint, memory) = &mut self.ends[from];
            if !endpoint.poll_transmit(self.now, memory, &mut self.batch) {
                break;
            }
            any = true;
            for burst in self.batch.bursts() {
                let mut bytes = Vec::new();
                burst.copy_to(memory, &mut bytes);
                assert_eq!(bytes.len(), burst.len);
                for datagram in bytes.chunks(burst.segment) {
                    assert!(datagram.len() <= 1400, "datagram of {} bytes", datagram.len());
                    dissect(datagram).unwrap_or_else(|e| panic!("sent what nobody can read: {e}"));
                    if self.wire[1 - from].len() < WIRE {
                        self.wire[1 - from].push_back(datagram.to_vec());
                    }
                    if self.past.len() == PAST {
                        self.past.swap_remove(usize::from(datagram[datagram.len() - 1]) % PAST);
                    }
                    self.past.push((1 - from, datagram.to_vec()));
                }
            }
            self.batch.clear();
        }
        any
    }

    fn deliver(&mut self, to: usize, datagram: &[u8], port: u16) {
        let mut from = addr(1 - to);
        from.set_port(50_000 + port);
        let (endpoint, memory) = &mut self.ends[to];
        endpoint.handle_datagram(self.now, &rx(from, self.now), datagram, memory);
        self.audit(to);
    }

    fn timers(&mut self, side: usize) {
        let (endpoint, memory) = &mut self.ends[side];
        endpoint.handle_timeout(self.now, memory);
        self.audit(side);
    }

    fn restart(&mut self, side: usize) {
        self.seed += 1;
        self.ends[side] = (Endpoint::new(config(), addr(side), [self.seed; 32], self.now), Memory::new(side));
        for sent in self.ledger.0.values_mut().filter(|s| s.from == side) {
            sent.done = true;
        }
    }

    /// At most once, intact, and complete only when delivered.
    fn audit(&mut self, side: usize) {
        let memory = &mut self.ends[side].1;
        for (id, data) in memory.delivered.drain(..) {
            if memory.reading {
                memory.held -= 1;
            }
            let sent = self.ledger.0.get_mut(&id).expect("delivered what nobody sent");
            assert_eq!((sent.from, sent.len as usize), (1 - memory.side, data.len()), "message {id}");
            assert!(!sent.delivered, "message {id} delivered twice");
            assert!(data.iter().enumerate().all(|(i, &b)| pattern(id, i, b) == 0), "message {id} damaged");
            sent.delivered = true;
        }
        for (id, outcome) in memory.completed.drain(..) {
            let sent = self.ledger.0.get_mut(&(id as u32)).expect("completed what nobody sent");
            assert_eq!(sent.from, side);
            assert!(!sent.done, "message {id} completed twice");
            sent.done = true;
            match outcome {
                Ok(()) => assert!(sent.delivered, "message {id} completed but not delivered"),
                Err(Failure::Refused(status)) => assert_eq!(status, id as u8, "another message's status"),
                Err(Failure::NotReady) => assert!(!sent.delivered && id % 4 == 3, "message {id} was ready"),
                Err(_) => {}
            }
        }
        assert!(self.ends[side].0.peers().count() <= 4);
    }

    /// Time passes with a network that does its work.
    fn run(&mut self, span: Span) {
        let end = self.now + span;
        for _ in 0..20_000 {
            while self.pump(0, 64) | self.pump(1, 64) {
                for to in 0..2 {
                    while let Some(datagram) = self.wire[to].pop_front() {
                        self.deliver(to, &datagram, 1);
                    }
                }
                // A wire without delay would be a loop without time.
                self.now += Span::from_micros(1);
            }
            let next = self.ends.iter().filter_map(|e| e.0.poll_timeout()).min().unwrap_or(Time::NEVER);
            if next > end {
                break;
            }
            self.now = next.max(self.now + Span::from_micros(1));
            self.timers(0);
            self.timers(1);
        }
        self.now = self.now.max(end);
    }
}

/// Target `endpoint`: two endpoints, and an adversary who holds the wire between them.
pub fn endpoint(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..400 {
        let Some(op) = input.op() else { break };
        let side = usize::from(op >> 7);
        match op & 15 {
            0 => world.send(side, input.byte().into()),
            1 => world.send(side, u32::from(input.u16()) % 20_001),
            2 => drop(world.pump(side, 1 + usize::from(op >> 4 & 7))),
            3 => {
                for port in 0..=input.byte() % 64 {
                    let Some(datagram) = world.wire[side].pop_front() else { break };
                    world.deliver(side, &datagram, port.into());
                }
            }
            4 => {
                let n = world.wire[side].len().max(1);
                if let Some(datagram) = world.wire[side].remove(usize::from(input.byte()) % n) {
                    world.deliver(side, &datagram, 2);
                }
            }
            5 => drop(world.wire[side].pop_front()),
            6 => {
                let n = world.wire[side].len().max(1);
                if let Some(datagram) = world.wire[side].get(usize::from(input.byte()) % n).cloned() {
                    world.deliver(side, &datagram, 3);
                }
            }
            7 => {
                // Damage on the wire, of the next datagram: the checksum must notice.
                let (at, bits) = (input.u16(), input.byte().max(1));
                if let Some(mut datagram) = world.wire[side].pop_front() {
                    let at = usize::from(at) % datagram.len();
                    datagram[at] ^= bits;
                    world.deliver(side, &datagram, 4);
                }
            }
            8 => {
                let n = world.past.len().max(1);
                if let Some((to, datagram)) = world.past.get(usize::from(input.byte()) % n).cloned() {
                    world.deliver(to, &datagram, 5);
                }
            }
            9 => {
                let n = usize::from(input.byte());
                let garbage = input.bytes(n).to_vec();
                world.deliver(side, &garbage, 6);
            }
            10 => world.now += Span::from_nanos(1 << (input.byte() % 30)),
            11 => world.timers(side),
            12 if world.seed < 16 && op & 0x40 != 0 => world.restart(side),
            12 => {
                let memory = &mut world.ends[side].1;
                memory.reading = !memory.reading;
                if memory.reading {
                    memory.held = memory.incoming.iter().flatten().count();
                }
            }
            13 => {
                let now = world.now;
                world.ends[side].0.close(now);
            }
            14 => {
                // A truncated datagram.
                if let Some(datagram) = world.wire[side].pop_front() {
                    let len = usize::from(input.u16()) % datagram.len();
                    world.deliver(side, &datagram[..len], 7);
                }
            }
            _ => world.run(Span::from_micros(10 << (input.byte() % 12))),
        }
    }
    // The network heals: whatever was sent comes to an end. An endpoint that is closed lets its peer run into a timeout.
    for side in 0..2 {
        let memory = &mut world.ends[side].1;
        memory.reading = true;
        memory.held = memory.incoming.iter().flatten().count();
    }
    world.run(Span::from_secs(4));
    for (id, sent) in &world.ledger.0 {
        assert!(sent.done, "message {id} did not end: {sent:?} {:#?}", world.ends[sent.from].0.stats());
    }
}

// ---- target `garbage`

/// Target `garbage`: one endpoint, and strangers who know the format. The input says what they send; where it wants to, the
/// harness fills in what a stranger can learn by talking: the cookie and the connection id that were sent to him.
pub fn garbage(data: &[u8]) {
    let mut input = Input(data);
    let start = Time::from_nanos(1);
    let mut now = start;
    let config =
        Config { max_peers: 3, max_datagram: 1400, packet_window: 64, message_window: 64, ..Config::default() };
    let config =
        Config { max_message: 100_000, max_partial_messages: 4, peer_timeout: Span::from_millis(100), ..config };
    let mut endpoint = Endpoint::new(config.check().expect("valid"), addr(0), [7; 32], start);
    let mut mailbox = Mailbox::new(200_000);
    let mut batch = TxBatch::new();
    let (mut cookie, mut cid, mut first_pn) = ([0; 8], [0; 8], 0u32);
    let (mut received, mut sent) = (0, 0);
    for _ in 0..200 {
        let Some(op) = input.op() else { break };
        let from = SocketAddr::from(([10, 0, 1, op >> 6], 5000));
        let mut datagram = Vec::new();
        match op & 15 {
            0 => {
                let n = usize::from(input.byte());
                datagram.extend_from_slice(input.bytes(n));
            }
            1 => {
                // A handshake of the stranger with connection id 1.
                datagram.extend_from_slice(&[0x12, 1, 0x13, 0x88]);
                datagram.extend_from_slice(if op & 16 != 0 { &cookie } else { &[0; 8] });
                let tail = input.byte();
                datagram.extend_from_slice(&(u64::from(op >> 5)).to_be_bytes());
                datagram.extend_from_slice(&u64::from(tail & 3).to_be_bytes());
                datagram.extend_from_slice(&u32::from(tail >> 2 & 1).to_be_bytes());
                datagram.extend_from_slice(&[5, 120]);
                for v in [64u32, 64, 100_000, 4, 0, 0, 25] {
                    datagram.extend_from_slice(&v.to_be_bytes());
                }
                seal(&mut datagram);
            }
            2..=9 => {
                // A tracked packet on the connection, with frames from the input.
                let (span, pn) = (input.byte(), input.byte());
                datagram.extend_from_slice(&[0x10, op >> 4 & 2, 0, span]);
                datagram.extend_from_slice(&cid);
                datagram.extend_from_slice(&first_pn.wrapping_add(pn.into()).to_be_bytes());
                datagram.extend_from_slice(&u32::from(input.byte()).to_be_bytes());
                datagram.extend_from_slice(&[0x13, 0x88, input.byte()]);
                let n = usize::from(input.byte());
                datagram.extend_from_slice(input.bytes(n));
            }
            10 => {
                datagram.extend_from_slice(&[0x11, 0]);
                datagram.extend_from_slice(&cid);
                let n = usize::from(input.byte());
                datagram.extend_from_slice(input.bytes(n));
            }
            11 => {
                // Any packet with a checksum that is right.
                datagram.extend_from_slice(&[0x10 | (input.byte() & 15), 1]);
                let n = usize::from(input.byte());
                datagram.extend_from_slice(input.bytes(n));
                // The connection id comes after the span in tracked packets.
                let at = if datagram[0] == 0x10 { 4 } else { 2 };
                if op & 16 != 0 && datagram.len() >= at + 8 {
                    datagram[at..at + 8].copy_from_slice(&cid);
                }
                seal(&mut datagram);
            }
            12 => {
                now += Span::from_nanos(1 << (input.byte() % 30));
                endpoint.handle_timeout(now, &mut mailbox);
            }
            13 => first_pn = first_pn.wrapping_add(input.byte().into()),
            14 => drop(mailbox.poll_received()),
            _ => {
                // Something of our own is under way to the stranger.
                if let Some(peer) = endpoint.peer(from, 1400) {
                    let token = mailbox.post(&[1], vec![1; 300].into());
                    let out = Outbound { token, flow: 0, header_len: 1, len: 300, rnr: RnrRetry::Times(3) };
                    if endpoint.send(now, peer, out).is_err() {
                        mailbox.unpost(token);
                    }
                }
            }
        }
        let connected = endpoint.stats().connections_opened > 0;
        if !datagram.is_empty() {
            received += datagram.len();
            endpoint.handle_datagram(now, &rx(from, now), &datagram, &mut mailbox);
        }
        let mut answered = 0;
        for _ in 0..16 {
            if !endpoint.poll_transmit(now, &mut mailbox, &mut batch) {
                break;
            }
            for burst in batch.bursts() {
                answered += burst.len;
                let mut bytes = Vec::new();
                burst.copy_to(&mailbox, &mut bytes);
                match bytes[0] {
                    0x13 => cookie.copy_from_slice(&bytes[10..18]),
                    0x14 => cid.copy_from_slice(&bytes[10..18]),
                    _ => {}
                }
            }
            batch.clear();
        }
        sent += answered;
        if !connected && endpoint.stats().connections_opened == 0 && endpoint.peers().count() == 0 {
            assert!(answered <= datagram.len(), "{answered} bytes of answer to {}", datagram.len());
        }
        while mailbox.poll_completed().is_some() {}
        while endpoint.poll_event().is_some() {}
        assert!(mailbox.held() <= 200_000 && endpoint.peers().count() <= 3);
    }
    // With messages of our own and timers, answers are bounded by what timers allow; 200 operations cannot cause more.
    assert!(sent <= 8 * received + 2_000_000, "{sent} bytes sent for {received} received");
}
