//! Packets on their way, and the names of the things that they pass.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use srd_core::Ecn;

use crate::rng::mix;

/// A host: an index in the order in which hosts were added to the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// A switch: an index in the order in which switches were added to the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwitchId(pub u32);

/// A link, one direction of a cable: an index in the order in which links were added to the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

/// A packet's slot in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketId(pub(crate) u32);

/// The UDP port that every host listens on.
pub const MAIN_PORT: u16 = 4791;

/// Bytes that IPv4 and UDP add to a datagram, which count against a link's MTU.
pub const IP_UDP_OVERHEAD: u32 = 28;

/// Bytes that a datagram costs on the wire beside itself, unless a network has been told otherwise: IPv4 and UDP headers
/// (28), Ethernet header and check sequence (18), preamble and gap (20).
pub const WIRE_OVERHEAD: u32 = 66;

/// An IPv4 address and a UDP port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr {
    /// The address in host byte order.
    pub ip: u32,
    /// The port.
    pub port: u16,
}

/// Hosts live in 10.0.0.0/16, 250 per third byte.
const NET: u32 = 0x0a00_0000;
const PER_BLOCK: u32 = 250;

impl Addr {
    /// Hosts that have an address.
    pub const HOSTS: usize = 256 * PER_BLOCK as usize;

    /// The address of a host, with this port.
    pub fn of(host: HostId, port: u16) -> Addr {
        Addr { ip: NET + ((host.0 / PER_BLOCK) << 8) + host.0 % PER_BLOCK + 1, port }
    }

    /// The host that has this address. It need not exist.
    pub fn host(self) -> Option<HostId> {
        let low = self.ip & 0xff;
        if self.ip & 0xffff_0000 != NET || !(1..=PER_BLOCK).contains(&low) {
            return None;
        }
        Some(HostId(((self.ip >> 8) & 0xff) * PER_BLOCK + low - 1))
    }

    /// The IPv4 address and port of a socket address; `None` for IPv6, which the simulated network does not carry.
    pub fn from_socket(addr: SocketAddr) -> Option<Addr> {
        match addr.ip() {
            IpAddr::V4(ip) => Some(Addr { ip: u32::from(ip), port: addr.port() }),
            IpAddr::V6(_) => None,
        }
    }

    /// The same as a socket address.
    pub fn to_socket(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::from(self.ip)), self.port)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_socket(), f)
    }
}

/// What links and switches look at. The labels of all packets lie side by side, apart from what only hosts need, so that a
/// hop touches few bytes and most of those are still in the processor's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    /// Hash of addresses and ports, before any switch adds its seed.
    pub(crate) flow: u64,
    /// The host that has the destination address.
    pub(crate) to: HostId,
    /// Bytes of UDP payload.
    pub(crate) len: u32,
    /// ECN mark.
    pub(crate) ecn: Ecn,
    /// Whether a link changed its bytes.
    pub(crate) corrupted: bool,
}

/// A datagram in the network, as hosts see it; a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Packet {
    /// Serial number, unique in the world; copies get their own.
    pub serial: u64,
    /// Where it says it comes from.
    pub src: Addr,
    /// Where it goes.
    pub dst: Addr,
    /// The UDP payload, less what is carried by its length only.
    pub(crate) data: Vec<u8>,
    /// Stretches of zeros that are carried by their length: (offset in the payload, length), in order, empty ones last.
    gaps: [(u32, u32); 2],
}

const NO_GAPS: [(u32, u32); 2] = [(0, 0); 2];

impl Packet {
    /// Bytes of UDP payload.
    pub(crate) fn len(&self) -> u32 {
        self.data.len() as u32 + self.gaps.iter().map(|(_, len)| len).sum::<u32>()
    }

    /// Appends bytes to the UDP payload.
    pub fn put(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
    }

    /// Appends this many zeros to the UDP payload. The first and the second stretch of them cost no memory and no copying.
    pub fn put_zeros(&mut self, len: u32) {
        let end = self.len();
        match self.gaps.iter_mut().find(|(at, before)| *before == 0 || *at + *before == end) {
            Some(gap) if gap.1 == 0 => *gap = (end, len),
            Some(gap) => gap.1 += len,
            None => self.data.resize(self.data.len() + len as usize, 0),
        }
    }

    fn has_gaps(&self) -> bool {
        self.gaps[0].1 > 0
    }

    /// Calls `f` with the whole UDP payload. `zeros` is room for it, all zero before and after.
    pub(crate) fn with_payload(&self, zeros: &mut Vec<u8>, f: impl FnOnce(&[u8])) {
        if !self.has_gaps() {
            return f(&self.data);
        }
        let len = self.len() as usize;
        if zeros.len() < len {
            zeros.resize(len, 0);
        }
        self.for_each_run(|at, run| zeros[at..at + run.len()].copy_from_slice(run));
        f(&zeros[..len]);
        self.for_each_run(|at, run| zeros[at..at + run.len()].fill(0));
    }

    /// Calls `f` with the offset and the bytes of each stretch between two gaps.
    fn for_each_run(&self, mut f: impl FnMut(usize, &[u8])) {
        let (mut at, mut data) = (0, &self.data[..]);
        for &(gap, len) in self.gaps.iter().filter(|gap| gap.1 > 0) {
            let (run, rest) = data.split_at(gap as usize - at);
            f(at, run);
            (at, data) = ((gap + len) as usize, rest);
        }
        f(at, data);
    }
}

/// The hash that all switches start from.
pub(crate) fn flow_hash(src: Addr, dst: Addr) -> u64 {
    let a = u64::from(src.ip) << 32 | u64::from(dst.ip);
    let b = u64::from(src.port) << 16 | u64::from(dst.port);
    mix(mix(a) ^ b)
}

/// Owns all packets in the network and keeps the buffers of those that are gone.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    labels: Vec<Label>,
    packets: Vec<Packet>,
    free: Vec<PacketId>,
    serial: u64,
}

impl Arena {
    /// A new packet whose payload `fill` writes.
    pub(crate) fn alloc(
        &mut self,
        src: Addr,
        dst: Addr,
        to: HostId,
        ecn: Ecn,
        fill: impl FnOnce(&mut Packet),
    ) -> PacketId {
        self.serial += 1;
        let serial = self.serial;
        let mut label = Label { flow: flow_hash(src, dst), to, len: 0, ecn, corrupted: false };
        let id = self.free.pop().unwrap_or_else(|| {
            self.labels.push(label);
            self.packets.push(Packet { serial, src, dst, data: Vec::new(), gaps: NO_GAPS });
            PacketId(self.packets.len() as u32 - 1)
        });
        let p = self.get_mut(id);
        p.data.clear();
        (p.serial, p.src, p.dst, p.gaps) = (serial, src, dst, NO_GAPS);
        fill(p);
        label.len = p.len();
        *self.label_mut(id) = label;
        id
    }

    /// A copy of a packet, with a serial number of its own.
    pub(crate) fn duplicate(&mut self, id: PacketId) -> PacketId {
        let (label, p) = (*self.label(id), self.get(id).clone());
        let copy = self.alloc(p.src, p.dst, label.to, label.ecn, |copy| (copy.data, copy.gaps) = (p.data, p.gaps));
        self.label_mut(copy).corrupted = label.corrupted;
        copy
    }

    pub(crate) fn label(&self, id: PacketId) -> &Label {
        &self.labels[id.0 as usize]
    }

    pub(crate) fn label_mut(&mut self, id: PacketId) -> &mut Label {
        &mut self.labels[id.0 as usize]
    }

    pub(crate) fn get(&self, id: PacketId) -> &Packet {
        &self.packets[id.0 as usize]
    }

    fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.packets[id.0 as usize]
    }

    /// Changes the bytes of a packet's payload.
    pub(crate) fn corrupt(&mut self, id: PacketId, change: impl FnOnce(&mut Vec<u8>)) {
        let p = self.get_mut(id);
        let before = p.data.len();
        change(&mut p.data);
        if p.has_gaps() {
            // Gaps stay where they are, so the bytes between them must, too.
            p.data.resize(before, 0);
        }
        let len = p.len();
        let label = self.label_mut(id);
        (label.len, label.corrupted) = (len, true);
    }

    /// Ends a packet's life.
    pub(crate) fn free(&mut self, id: PacketId) {
        self.free.push(id);
    }

    /// Packets alive.
    pub(crate) fn live(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for h in [0, 1, 249, 250, 1_000, 63_000] {
            let addr = Addr::of(HostId(h), 9);
            assert_eq!(addr.host(), Some(HostId(h)));
            assert_eq!(Addr::from_socket(addr.to_socket()), Some(addr));
        }
        assert_eq!(Addr { ip: 0xc0a8_0001, port: 1 }.host(), None);
        assert_eq!(format!("{:?}", Addr::of(HostId(251), 80)), "10.0.1.2:80");
    }

    #[test]
    fn gaps_come_back_as_zeros() {
        let mut arena = Arena::default();
        let id = arena.alloc(Addr::of(HostId(0), 1), Addr::of(HostId(1), 2), HostId(1), Ecn::Ect, |p| {
            p.put(b"ab");
            p.put_zeros(2);
            p.put_zeros(1);
            p.put(b"c");
            p.put_zeros(1);
            p.put(b"d");
            p.put_zeros(2);
        });
        let p = arena.get(id);
        assert_eq!((arena.label(id).len, &p.data[..], p.gaps), (10, &b"abcd\0\0"[..], [(2, 3), (6, 1)]));
        let mut zeros = Vec::new();
        for _ in 0..2 {
            p.with_payload(&mut zeros, |bytes| assert_eq!(bytes, b"ab\0\0\0c\0d\0\0"));
        }
        assert!(zeros.iter().all(|b| *b == 0));
    }

    #[test]
    fn arena_reuses_slots_and_copies_bytes() {
        let mut arena = Arena::default();
        let (src, dst) = (Addr::of(HostId(0), 1), Addr::of(HostId(1), 2));
        let a = arena.alloc(src, dst, HostId(1), Ecn::Ect, |p| p.put(b"abc"));
        let b = arena.duplicate(a);
        assert_eq!(arena.get(b).data, b"abc");
        assert_ne!(arena.get(a).serial, arena.get(b).serial);
        arena.free(a);
        let c = arena.alloc(dst, src, HostId(0), Ecn::NotEct, |_| ());
        assert_eq!(c, a);
        assert!(arena.get(c).data.is_empty());
        assert_eq!(arena.live(), 2);
    }
}
