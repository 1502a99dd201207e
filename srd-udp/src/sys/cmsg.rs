//! Control messages: what travels beside the bytes of a datagram.
//!
//! Layout (Linux, all architectures with 8-byte `size_t` alignment or 4-byte on 32-bit systems):
//!
//! ```text
//! | length: size_t, header included | level: int | type: int | data | padding to size_t |
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use srd_core::Ecn;

/// Room for the control messages of one call. Aligned as the kernel wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; SIZE],
    len: usize,
}

/// More than all messages that the driver asks for take together (about 120 bytes).
const SIZE: usize = 256;
const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

const fn padded(len: usize) -> usize {
    len.next_multiple_of(WORD)
}

impl Control {
    /// No messages.
    pub(crate) const fn new() -> Control {
        Control { bytes: [0; SIZE], len: 0 }
    }

    /// The encoded messages.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All of the room, for the kernel to write into.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says how many bytes the kernel wrote.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(SIZE);
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let end = self.len + HEADER + data.len();
        let b = &mut self.bytes[self.len..];
        b[..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        b[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        b[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        b[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len = padded(end);
    }

    /// Cut the bytes into datagrams of `segment` bytes (segmentation offload).
    pub(crate) fn push_segment(&mut self, segment: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }

    /// Send with this ECN codepoint instead of the socket's, to an address of the family that `v6` tells.
    pub(crate) fn push_tos(&mut self, v6: bool, tos: i32) {
        let (level, kind) = if v6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        self.push(level, kind, &tos.to_ne_bytes());
    }

    /// Send from this local address.
    pub(crate) fn push_source(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                // in_pktinfo: interface index, local address (the source when sending), header address.
                let mut data = [0; 12];
                data[4..8].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            }
            IpAddr::V6(ip) => {
                // in6_pktinfo: address, interface index.
                let mut data = [0; 20];
                data[..16].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
            }
        }
    }

    /// What the kernel said about a received buffer. Unknown and malformed messages are skipped.
    pub(crate) fn arrival(&self) -> Arrival {
        let mut arrival = Arrival::default();
        let mut rest = self.bytes();
        while rest.len() >= HEADER {
            let len = usize::from_ne_bytes(*rest.first_chunk().expect("checked above"));
            if len < HEADER || len > rest.len() {
                break;
            }
            let level = int(&rest[WORD..]);
            let kind = int(&rest[WORD + 4..]);
            arrival.note(level, kind, &rest[HEADER..len]);
            rest = rest.get(padded(len)..).unwrap_or_default();
        }
        arrival
    }
}

/// The first four bytes as an `int`; 0 if there are fewer.
fn int(data: &[u8]) -> i32 {
    data.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b))
}

/// What the kernel said about a received buffer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Bytes of each datagram but the last, if several were coalesced.
    pub segment: Option<usize>,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Local address that the datagram was sent to.
    pub to: Option<IpAddr>,
    /// When it arrived, in nanoseconds on the real-time clock.
    pub realtime_ns: Option<u64>,
}

impl Arrival {
    fn note(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = usize::try_from(int(data)).ok().filter(|&n| n > 0),
            // One byte with IPv4, an int with IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.ecn = Ecn::of_traffic_class(data.first().copied().unwrap_or(0)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.ecn = Ecn::of_traffic_class(int(data) as u8),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The local address as routed (the second field), not the header's: they differ for broadcasts only.
                self.to = data.get(4..).and_then(|d| d.first_chunk::<4>()).map(|o| Ipv4Addr::from(*o).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.to = data.first_chunk::<16>().map(|o| Ipv6Addr::from(*o).into());
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                self.realtime_ns = timespec(data);
            }
            _ => {}
        }
    }
}

/// A `timespec` of two 64-bit or two 32-bit numbers, in nanoseconds.
fn timespec(data: &[u8]) -> Option<u64> {
    let (seconds, nanos): (i64, i64) = match data.len() {
        16.. => (i64::from_ne_bytes(*data.first_chunk()?), i64::from_ne_bytes(*data[8..].first_chunk()?)),
        8.. => (int(data).into(), int(&data[4..]).into()),
        _ => return None,
    };
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(nanos).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrival_reads_what_was_pushed() {
        let mut control = Control::new();
        control.push(libc::SOL_UDP, libc::UDP_GRO, &1400i32.to_ne_bytes());
        control.push(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        control.push_source("192.0.2.7".parse().expect("an address"));
        let time: Vec<u8> = [5i64, 7].iter().flat_map(|n| n.to_ne_bytes()).collect();
        control.push(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time);
        let expected = Arrival {
            segment: Some(1400),
            ecn: Ecn::Ce,
            to: Some("192.0.2.7".parse().expect("an address")),
            realtime_ns: Some(5_000_000_007),
        };
        assert_eq!(control.arrival(), expected);
    }

    #[test]
    fn arrival_v6() {
        let mut control = Control::new();
        control.push_tos(true, 2);
        control.push_source("2001:db8::7".parse().expect("an address"));
        let arrival = control.arrival();
        assert_eq!(arrival.ecn, Ecn::Ect);
        assert_eq!(arrival.to, Some("2001:db8::7".parse().expect("an address")));
    }

    #[test]
    fn arrival_survives_nonsense() {
        for len in 0..=SIZE {
            for fill in [0u8, 1, 0x1f, 0xff] {
                let mut control = Control::new();
                control.room().fill(fill);
                control.set_len(len);
                let _ = control.arrival();
            }
        }
    }
}
