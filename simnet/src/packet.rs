//! Packets on their way, and the names of the things that they pass.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use srd_core::{Ecn, Time};

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

/// Bytes that a datagram costs on the wire beside itself: IPv4 and UDP headers (28), Ethernet header and check sequence
/// (18), preamble and gap (20).
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

/// A datagram in the network.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Serial number, unique in the world; copies get their own.
    pub serial: u64,
    /// Where it says it comes from.
    pub src: Addr,
    /// Where it goes.
    pub dst: Addr,
    /// The host that has the destination address.
    pub(crate) to: HostId,
    /// Hash of addresses and ports, before any switch adds its seed.
    pub(crate) flow: u64,
    /// ECN mark.
    pub ecn: Ecn,
    /// Whether a link changed its bytes.
    pub corrupted: bool,
    /// When it left its sender.
    pub sent: Time,
    /// The UDP payload.
    pub data: Vec<u8>,
}

impl Packet {
    /// Bytes that it occupies on a wire and in a queue.
    pub fn wire_bytes(&self) -> u32 {
        self.data.len() as u32 + WIRE_OVERHEAD
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
    slots: Vec<Packet>,
    free: Vec<PacketId>,
    serial: u64,
}

impl Arena {
    /// A new packet with an empty payload.
    pub(crate) fn alloc(&mut self, src: Addr, dst: Addr, to: HostId, ecn: Ecn, now: Time) -> PacketId {
        self.serial += 1;
        let (serial, flow) = (self.serial, flow_hash(src, dst));
        match self.free.pop() {
            Some(id) => {
                let p = &mut self.slots[id.0 as usize];
                p.data.clear();
                (p.serial, p.src, p.dst, p.to, p.flow, p.ecn) = (serial, src, dst, to, flow, ecn);
                (p.corrupted, p.sent) = (false, now);
                id
            }
            None => {
                let data = Vec::new();
                self.slots.push(Packet { serial, src, dst, to, flow, ecn, corrupted: false, sent: now, data });
                PacketId(self.slots.len() as u32 - 1)
            }
        }
    }

    /// A copy of a packet, with a serial number of its own.
    pub(crate) fn duplicate(&mut self, id: PacketId) -> PacketId {
        let p = self.get(id);
        let (src, dst, to, ecn, sent, corrupted) = (p.src, p.dst, p.to, p.ecn, p.sent, p.corrupted);
        let copy = self.alloc(src, dst, to, ecn, sent);
        let mut data = std::mem::take(&mut self.get_mut(copy).data);
        data.extend_from_slice(&self.get(id).data);
        let p = self.get_mut(copy);
        (p.data, p.corrupted) = (data, corrupted);
        copy
    }

    pub(crate) fn get(&self, id: PacketId) -> &Packet {
        &self.slots[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.slots[id.0 as usize]
    }

    /// Ends a packet's life.
    pub(crate) fn free(&mut self, id: PacketId) {
        self.free.push(id);
    }

    /// Packets alive.
    pub(crate) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
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
    fn arena_reuses_slots_and_copies_bytes() {
        let mut arena = Arena::default();
        let (src, dst) = (Addr::of(HostId(0), 1), Addr::of(HostId(1), 2));
        let a = arena.alloc(src, dst, HostId(1), Ecn::Ect, Time::ZERO);
        arena.get_mut(a).data.extend_from_slice(b"abc");
        let b = arena.duplicate(a);
        assert_eq!(arena.get(b).data, b"abc");
        assert_ne!(arena.get(a).serial, arena.get(b).serial);
        arena.free(a);
        let c = arena.alloc(dst, src, HostId(0), Ecn::NotEct, Time::ZERO);
        assert_eq!(c, a);
        assert!(arena.get(c).data.is_empty());
        assert_eq!(arena.live(), 2);
    }
}
