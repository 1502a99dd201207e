//! Ethernet, IP and UDP headers: written to frames, and read from them.
//!
//! ```text
//! | Ethernet 14 | VLAN tags 4 each | IPv4 20 (+ options when read) or IPv6 40 | UDP 8 | payload |
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use srd_core::Ecn;

use crate::checksum::{fold, sum};
use crate::net::Hop;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const V4: usize = 20;
const V6: usize = 40;
const UDP: usize = 8;
const MAX_HEADERS: usize = ETHERNET + 2 * TAG + V6 + UDP;

const TYPE_V4: u16 = 0x0800;
const TYPE_V6: u16 = 0x86dd;
const TYPE_TAGS: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_UDP: u8 = 17;
/// As Linux sends.
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;
const ECT0: u8 = 0b10;

/// The headers of a burst. Lengths and checksums are filled in per datagram.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    bytes: [u8; MAX_HEADERS],
    len: usize,
    /// Where the IP header begins.
    ip: usize,
    /// Sum of the IPv4 header, if it is one, with a length of zero.
    ip_sum: u64,
    /// Sum of the addresses and the protocol, for the checksum of the datagram.
    pseudo: u64,
    /// Sum of the ports.
    ports: u64,
}

impl Headers {
    /// From our port `port` to `to`; nothing if the families differ.
    pub(crate) fn new(hop: &Hop, port: u16, to: SocketAddr, ect: bool) -> Option<Headers> {
        let mut bytes = [0; MAX_HEADERS];
        bytes[..6].copy_from_slice(&hop.to_mac);
        bytes[6..12].copy_from_slice(&hop.from_mac);
        let mut at = 12;
        for tag in &hop.tags {
            bytes[at..at + TAG].copy_from_slice(tag);
            at += TAG;
        }
        let ip = at + 2;
        let tos = if ect { ECT0 } else { 0 };
        // Sums are of what is at hand: what has just been written in small pieces is slow to be read in large ones.
        let (udp, addresses) = match (hop.source, to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes[at..ip].copy_from_slice(&TYPE_V4.to_be_bytes());
                let header = &mut bytes[ip..ip + V4];
                header[0] = 0x45;
                header[1] = tos;
                header[6] = DONT_FRAGMENT;
                header[8] = TTL;
                header[9] = PROTOCOL_UDP;
                header[12..16].copy_from_slice(&from.octets());
                header[16..20].copy_from_slice(&to.octets());
                (ip + V4, sum(&from.octets()) + sum(&to.octets()))
            }
            (IpAddr::V6(from), IpAddr::V6(to_ip)) => {
                bytes[at..ip].copy_from_slice(&TYPE_V6.to_be_bytes());
                let header = &mut bytes[ip..ip + V6];
                // Switches that spread by flow label see a path as those do that spread by port.
                let label = u32::from(port).wrapping_mul(0x9e37_79b1) >> 12;
                header[..4].copy_from_slice(&(6 << 28 | u32::from(tos) << 20 | label).to_be_bytes());
                header[6] = PROTOCOL_UDP;
                header[7] = TTL;
                header[8..24].copy_from_slice(&from.octets());
                header[24..40].copy_from_slice(&to_ip.octets());
                (ip + V6, sum(&from.octets()) + sum(&to_ip.octets()))
            }
            _ => return None,
        };
        bytes[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
        bytes[udp + 2..udp + 4].copy_from_slice(&to.port().to_be_bytes());
        let fixed =
            [[0x45, tos], [DONT_FRAGMENT, 0], [TTL, PROTOCOL_UDP]].map(|word| u64::from(u16::from_ne_bytes(word)));
        Some(Headers {
            bytes,
            len: udp + UDP,
            ip,
            ip_sum: fixed.iter().sum::<u64>() + addresses,
            pseudo: addresses + u64::from(u16::from(PROTOCOL_UDP).to_be()),
            ports: u64::from(port.to_be()) + u64::from(to.port().to_be()),
        })
    }

    /// Bytes of all headers together; even.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the IP and UDP headers.
    pub(crate) fn ip_len(&self) -> usize {
        self.len - self.ip
    }

    /// Where the UDP header begins, from which the checksum counts.
    pub(crate) fn checksum_start(&self) -> u16 {
        (self.len - UDP) as u16
    }

    /// Writes the headers of a datagram whose payload has this length to the beginning of `out`, for the kernel or the device to
    /// complete the checksum, or for [`complete`](Self::complete). What is behind the headers is lost, so the payload comes
    /// later.
    ///
    /// # Panics
    /// If there is no room for the longest headers.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], payload: usize) {
        let (ip, udp) = (self.ip, self.len - UDP);
        let out: &mut [u8; MAX_HEADERS] = out.first_chunk_mut().expect("room for headers");
        // All of the array, as its length is known to the compiler.
        *out = self.bytes;
        let udp_len = ((UDP + payload) as u16).to_be();
        if udp - ip == V4 {
            let len = ((V4 + UDP + payload) as u16).to_be();
            out[ip + 2..ip + 4].copy_from_slice(&len.to_ne_bytes());
            let check = !fold(self.ip_sum + u64::from(len));
            out[ip + 10..ip + 12].copy_from_slice(&check.to_ne_bytes());
        } else {
            out[ip + 4..ip + 6].copy_from_slice(&udp_len.to_ne_bytes());
        }
        out[udp + 4..udp + 6].copy_from_slice(&udp_len.to_ne_bytes());
        out[udp + 6..udp + 8].copy_from_slice(&fold(self.pseudo + u64::from(udp_len)).to_ne_bytes());
    }

    /// Completes the checksum of a datagram whose payload has this length and [`sum`].
    #[inline]
    pub(crate) fn complete(&self, out: &mut [u8], payload: usize, payload_sum: u64) {
        let len_sum = u64::from(((UDP + payload) as u16).to_be());
        // The length counts twice: in the header and in the pseudo-header. 0 would mean that there is no checksum.
        let check = match !fold(self.pseudo + self.ports + 2 * len_sum + payload_sum) {
            0 => 0xffff,
            check => check,
        };
        out[self.len - 2..self.len].copy_from_slice(&check.to_ne_bytes());
    }
}

/// What a received frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parsed {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) ecn: Ecn,
    /// Where in the frame the payload is.
    pub(crate) payload: Range<usize>,
    /// The checksum covers only the pseudo-header.
    pub(crate) partial: bool,
}

/// Why a frame is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// Cut short, contradictory, from an address that no other host can have, or nothing that the XDP program lets through.
    Malformed,
    /// A checksum is wrong.
    Checksum,
}

/// Where frames come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Index of the interface: the scope of link-local senders.
    pub(crate) interface: u32,
    /// Senders on the same host leave checksums to hardware that is not there.
    pub(crate) partial_checksums: bool,
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Reads a frame and verifies its checksums.
///
/// # Errors
/// Why it cannot be taken.
pub(crate) fn parse(frame: &[u8], origin: Origin) -> Result<Parsed, Bad> {
    let (mut kind, mut ip) = (half(frame, 12).ok_or(Bad::Malformed)?, ETHERNET);
    for _ in 0..2 {
        if TYPE_TAGS.contains(&kind) {
            kind = half(frame, ip + 2).ok_or(Bad::Malformed)?;
            ip += TAG;
        }
    }
    let header = frame.get(ip..).unwrap_or_default();
    match kind {
        TYPE_V4 => parse_v4(frame, ip, header, origin),
        TYPE_V6 => parse_v6(frame, ip, header, origin),
        _ => Err(Bad::Malformed),
    }
}

/// Whether no other host can have this address. The kernel refuses such senders, too ('martians'): an answer would go to
/// programs on this host that trust whoever reaches them by it, or to a crowd.
fn is_nobody_v4(from: Ipv4Addr) -> bool {
    from.octets()[0] == 0 || from.is_loopback() || from.is_multicast() || from.is_broadcast()
}

/// The same.
fn is_nobody_v6(from: Ipv6Addr) -> bool {
    from.is_unspecified() || from.is_loopback() || from.is_multicast() || from.to_ipv4_mapped().is_some()
}

fn parse_v4(frame: &[u8], ip: usize, header: &[u8], origin: Origin) -> Result<Parsed, Bad> {
    let fixed: &[u8; V4] = header.first_chunk().ok_or(Bad::Malformed)?;
    let header_len = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff;
    if fixed[0] >> 4 != 4 || header_len < V4 || total < header_len || fragment != 0 || fixed[9] != PROTOCOL_UDP {
        return Err(Bad::Malformed);
    }
    if fold(sum(header.get(..header_len).ok_or(Bad::Malformed)?)) != 0xffff {
        return Err(Bad::Checksum);
    }
    let [from, to] = [12, 16].map(|at| Ipv4Addr::from(*fixed[at..].first_chunk::<4>().expect("within the header")));
    if is_nobody_v4(from) || from == to {
        return Err(Bad::Malformed);
    }
    let udp = ip + header_len..ip + total;
    let addresses = sum(&fixed[12..20]);
    let (ports, payload, partial) = parse_udp(frame, udp, addresses, true, origin)?;
    let [from, to] = [(from, ports[0]), (to, ports[1])].map(SocketAddr::from);
    Ok(Parsed { from, to, ecn: Ecn::of_traffic_class(fixed[1]), payload, partial })
}

fn parse_v6(frame: &[u8], ip: usize, header: &[u8], origin: Origin) -> Result<Parsed, Bad> {
    let fixed: &[u8; V6] = header.first_chunk().ok_or(Bad::Malformed)?;
    let payload_len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if fixed[0] >> 4 != 6 || fixed[6] != PROTOCOL_UDP {
        return Err(Bad::Malformed);
    }
    let [from, to] = [8, 24].map(|at| Ipv6Addr::from(*fixed[at..].first_chunk::<16>().expect("within the header")));
    if is_nobody_v6(from) || from == to {
        return Err(Bad::Malformed);
    }
    let udp = ip + V6..ip + V6 + payload_len;
    let addresses = sum(&fixed[8..40]);
    let (ports, payload, partial) = parse_udp(frame, udp, addresses, false, origin)?;
    let scope = |ip: Ipv6Addr| if ip.is_unicast_link_local() { origin.interface } else { 0 };
    let [from, to] =
        [(from, ports[0]), (to, ports[1])].map(|(ip, port)| SocketAddrV6::new(ip, port, 0, scope(ip)).into());
    Ok(Parsed { from, to, ecn: Ecn::of_traffic_class(fixed[0] << 4 | fixed[1] >> 4), payload, partial })
}

/// Ports, payload, and whether the checksum is partial.
fn parse_udp(
    frame: &[u8],
    at: Range<usize>,
    addresses: u64,
    may_lack_checksum: bool,
    origin: Origin,
) -> Result<([u16; 2], Range<usize>, bool), Bad> {
    let datagram = frame.get(at.clone()).ok_or(Bad::Malformed)?;
    let header: &[u8; UDP] = datagram.first_chunk().ok_or(Bad::Malformed)?;
    let word = |i: usize| u16::from_be_bytes([header[i], header[i + 1]]);
    let len = usize::from(word(4));
    let datagram = datagram.get(..len).filter(|_| len >= UDP).ok_or(Bad::Malformed)?;
    let (ports, payload) = ([word(0), word(2)], at.start + UDP..at.start + len);
    if ports[0] == 0 {
        return Err(Bad::Malformed);
    }
    let check = u16::from_ne_bytes([header[6], header[7]]);
    if check == 0 {
        // Without a checksum: IPv4 permits it, and so does the kernel.
        return if may_lack_checksum { Ok((ports, payload, false)) } else { Err(Bad::Checksum) };
    }
    let pseudo = addresses + u64::from(u16::from(PROTOCOL_UDP).to_be()) + u64::from((len as u16).to_be());
    // This first, as it costs least.
    if origin.partial_checksums && check == fold(pseudo) {
        Ok((ports, payload, true))
    } else if fold(pseudo + sum(datagram)) == 0xffff {
        Ok((ports, payload, false))
    } else {
        Err(Bad::Checksum)
    }
}

#[cfg(test)]
mod tests;
