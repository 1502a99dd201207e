//! Addresses of cards: a GID holds all that is needed to reach one, over IPv4 or IPv6.
//!
//! ```text
//! IPv4   fe80 0000 0000 0000 020U AAAA AAAA PPPP    address A, port P, 2^U processing units
//! IPv6   AAAA AAAA AAAA AAAA AAAA AAPP PPAA AAAA    the address, with the port in bytes 11 and 12
//! ```
//!
//! A card of several processing units has as many ports, from P on: unit i is at P + i, and it has the queue pairs whose
//! number modulo the number of units is i. So whoever has GID and queue pair number knows where to send.
//!
//! Over IPv6 the port takes the place of the bytes `ff fe` in an interface identifier that was made from a MAC address
//! (RFC 4291, appendix A), or of two zero bytes in one that was not; the universal bit tells which. Other addresses do not
//! fit into a GID.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address of a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

/// Why an address cannot be a card's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    /// Not the address of one host.
    #[error("{0} is not an address at which others reach this host; choose one of an interface")]
    NotUnicast(IpAddr),
    /// Its scope does not travel.
    #[error("{0} is link-local, which means nothing without an interface; choose a global or unique local address")]
    LinkLocal(Ipv6Addr),
    /// No room for the port.
    #[error(
        "{0} does not fit into a GID together with a port: choose an address whose interface identifier was made from a \
         MAC address (it has ff:fe in the middle), or has zeros there (like 2001:db8::17)"
    )]
    NoRoom(Ipv6Addr),
    /// Port 0.
    #[error("port 0 reaches nobody")]
    NoPort,
    /// A number of processing units that no card has.
    #[error("{0} processing units: a card has 1, 2, 4, 8 or 16")]
    Units(u16),
    /// No room for the number of processing units.
    #[error(
        "{0} is an IPv6 address, and its GID has no room for the number of processing units: use IPv4, or one unit and \
         more devices"
    )]
    UnitsOverV6(Ipv6Addr),
    /// The ports of the processing units go beyond the last one.
    #[error("{units} processing units need as many ports, and {port} is too close to 65535; choose a lower one")]
    LastPort {
        /// The first port.
        port: u16,
        /// The number of units.
        units: u16,
    },
}

/// Most processing units of a card.
pub const MAX_UNITS: u16 = 16;

/// Which processing unit of a card. The default is the only one of a card that has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unit {
    /// Logarithm of the number of units.
    bits: u8,
    index: u8,
}

impl Unit {
    /// Unit `index` of so many; `None` if no card has this.
    pub fn new(index: u16, units: u16) -> Option<Unit> {
        let possible = units.is_power_of_two() && units <= MAX_UNITS && index < units;
        possible.then(|| Unit { bits: units.trailing_zeros() as u8, index: index as u8 })
    }

    /// Its number, from 0.
    pub fn index(self) -> u16 {
        self.index.into()
    }

    /// Logarithm of the number of units that its card has, which is the number of low bits of a queue pair's number that
    /// tell the unit.
    pub(super) fn bits(self) -> u32 {
        self.bits.into()
    }

    /// Which flow the messages of a queue pair of this unit are: without the bits that all of its queue pairs have in common,
    /// or these would share few turns.
    pub(super) fn flow_of(self, qpn: u16) -> u8 {
        (qpn >> self.bits) as u8
    }

    /// What it tells its peers of itself.
    pub(super) fn tag(self) -> u8 {
        self.bits << 4 | self.index
    }

    /// What a peer tells of itself; `None` if it makes no sense.
    fn from_tag(tag: u8) -> Option<Unit> {
        Unit::new((tag & 0xf).into(), 1u16.checked_shl((tag >> 4).into())?)
    }
}

const V4_PREFIX: [u8; 9] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02];
/// The universal/local bit of an interface identifier.
const UNIVERSAL: u8 = 0x02;

impl Gid {
    /// The GID of the card at `addr`, which has one processing unit.
    ///
    /// # Errors
    /// The address cannot be a card's.
    pub fn new(addr: SocketAddr) -> Result<Gid, GidError> {
        Gid::with_units(addr, 1)
    }

    /// The GID of the card whose processing units are at `addr` and the ports that follow.
    ///
    /// # Errors
    /// The address cannot be a card's, or that of a card with so many units.
    // [CARD-14, CARD-15]
    pub fn with_units(addr: SocketAddr, units: u16) -> Result<Gid, GidError> {
        if addr.port() == 0 {
            return Err(GidError::NoPort);
        }
        let last = Unit::new(units.wrapping_sub(1), units).ok_or(GidError::Units(units))?;
        if addr.port().checked_add(last.index()).is_none() {
            return Err(GidError::LastPort { port: addr.port(), units });
        }
        let ip = addr.ip();
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(GidError::NotUnicast(ip));
        }
        let port = addr.port().to_be_bytes();
        let mut b = [0; 16];
        match ip {
            IpAddr::V4(v4) => {
                b[..9].copy_from_slice(&V4_PREFIX);
                b[9] = last.bits;
                b[10..14].copy_from_slice(&v4.octets());
                b[14..].copy_from_slice(&port);
            }
            IpAddr::V6(v6) => {
                if v6.is_unicast_link_local() {
                    return Err(GidError::LinkLocal(v6));
                }
                if units > 1 {
                    return Err(GidError::UnitsOverV6(v6));
                }
                b = v6.octets();
                if b[11..13] != filler(b[8]) {
                    return Err(GidError::NoRoom(v6));
                }
                b[11..13].copy_from_slice(&port);
            }
        }
        Ok(Gid(b))
    }

    /// Where the card is reached, which is where its first processing unit is; `None` if this is no card's GID.
    pub fn addr(&self) -> Option<SocketAddr> {
        let b = &self.0;
        let (ip, port, units) = if b[..9] == V4_PREFIX {
            let ip = Ipv4Addr::new(b[10], b[11], b[12], b[13]);
            (IpAddr::V4(ip), [b[14], b[15]], 1u16.checked_shl(b[9].into())?)
        } else {
            let mut octets = *b;
            octets[11..13].copy_from_slice(&filler(b[8]));
            (IpAddr::V6(Ipv6Addr::from(octets)), [b[11], b[12]], 1)
        };
        let addr = SocketAddr::new(ip, u16::from_be_bytes(port));
        // Only what would have been made counts.
        (Gid::with_units(addr, units).ok()? == *self).then_some(addr)
    }

    /// The number of processing units of the card; 1 if this is no card's GID.
    pub fn units(&self) -> u16 {
        if self.0[..9] == V4_PREFIX && self.addr().is_some() { 1 << self.0[9] } else { 1 }
    }

    /// Where processing unit `index` of the card is reached; `None` if there is none.
    pub fn unit_addr(&self, index: u16) -> Option<SocketAddr> {
        let mut addr = self.addr().filter(|_| index < self.units())?;
        addr.set_port(addr.port() + index);
        Some(addr)
    }

    /// The GID of the card that has a processing unit at `addr`, which says `tag` of itself. What makes no sense is taken for
    /// a card of one unit.
    // [CARD-16]
    pub(super) fn of_peer(addr: SocketAddr, tag: u8) -> Option<Gid> {
        let of_unit = |unit: Unit| {
            let first = addr.port().checked_sub(unit.index())?;
            Gid::with_units(SocketAddr::new(addr.ip(), first), 1 << unit.bits).ok()
        };
        Unit::from_tag(tag).and_then(of_unit).or_else(|| Gid::new(addr).ok())
    }
}

fn filler(first: u8) -> [u8; 2] {
    if first & UNIVERSAL != 0 { [0xff, 0xfe] } else { [0, 0] }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use crate::repeatable::repeatable;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn queue_pairs_of_a_unit_are_different_flows() {
        for units in [1, 2, 16] {
            for index in 0..units {
                let unit = Unit::new(index, units).unwrap();
                // As they are numbered: the slot, and below it the unit.
                let flows: std::collections::BTreeSet<u8> =
                    (0..32).map(|slot| unit.flow_of(slot * units + index) % 32).collect();
                assert_eq!(flows.len(), 32, "unit {index} of {units}");
            }
        }
    }

    #[test]
    fn addresses_come_back() {
        for addr in
            ["10.1.2.3:4791", "127.0.0.1:1", "[::1]:65535", "[fd00::211:22ff:fe33:4455]:18515", "[2001:db8::17]:9"]
        {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(Gid::new(addr).unwrap().addr(), Some(addr));
        }
    }

    #[test]
    fn what_others_cannot_reach_is_refused() {
        for (addr, want) in [
            ("0.0.0.0:1", "not an address"),
            ("224.0.0.1:1", "not an address"),
            ("[::]:1", "not an address"),
            ("10.0.0.1:0", "port 0"),
            ("[fe80::1]:1", "link-local"),
            ("[2001:db8::a123:4567:89ab]:1", "does not fit"),
        ] {
            let error = Gid::new(addr.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(want), "{addr}: {error}");
        }
        for (addr, units, want) in [
            ("10.0.0.1:7", 3, "1, 2, 4, 8 or 16"),
            ("10.0.0.1:7", 0, "1, 2, 4, 8 or 16"),
            ("10.0.0.1:7", 32, "1, 2, 4, 8 or 16"),
            ("10.0.0.1:65534", 4, "too close"),
            ("[2001:db8::17]:9", 2, "no room for the number of processing units"),
        ] {
            let error = Gid::with_units(addr.parse().unwrap(), units).unwrap_err().to_string();
            assert!(error.contains(want), "{addr}: {error}");
        }
        assert_eq!(Gid::default().addr(), None);
        assert_eq!(Gid([0xff; 16]).addr(), None);
    }

    proptest! {
        #![proptest_config(repeatable())]

        #[test]
        fn no_two_gids_mean_one_address(bytes: [u8; 16]) {
            let gid = Gid(bytes);
            if let Some(addr) = gid.addr() {
                prop_assert_eq!(Gid::with_units(addr, gid.units()), Ok(gid));
            }
        }

        #[test]
        fn what_begins_like_a_gid_is_one_or_none(unit_bits: u8, ip: [u8; 4], port: u16) {
            let mut bytes = [0; 16];
            bytes[..9].copy_from_slice(&V4_PREFIX);
            bytes[9] = unit_bits;
            bytes[10..14].copy_from_slice(&ip);
            bytes[14..].copy_from_slice(&port.to_be_bytes());
            let gid = Gid(bytes);
            match gid.addr() {
                Some(addr) => {
                    prop_assert!(unit_bits <= 4 && u32::from(port) + (1 << unit_bits) <= 1 << 16);
                    prop_assert_eq!((addr.ip(), addr.port(), gid.units()), (ip.into(), port, 1 << unit_bits));
                }
                None => prop_assert_eq!((gid.units(), gid.unit_addr(0)), (1, None)),
            }
        }

        #[test]
        fn every_unit_leads_to_the_card(port in 1..=u16::MAX, bits in 0..=4u16, wanted: u16, tag: u8) {
            let addr = SocketAddr::new(Ipv4Addr::new(10, 1, 2, 3).into(), port);
            let units = 1 << bits;
            let Ok(gid) = Gid::with_units(addr, units) else {
                prop_assert!(u32::from(port) + u32::from(units) > 1 << 16);
                return Ok(());
            };
            let index = wanted % units;
            let unit = Unit::new(index, units).unwrap();
            let at = gid.unit_addr(index).unwrap();
            prop_assert_eq!((at.ip(), at.port()), (addr.ip(), port + index));
            prop_assert_eq!(Unit::from_tag(unit.tag()), Some(unit));
            prop_assert_eq!(Gid::of_peer(at, unit.tag()), Some(gid));
            prop_assert_eq!(gid.unit_addr(units), None);
            // Whatever a peer says, it is the GID of a card of which its address is a unit.
            let claimed = Gid::of_peer(addr, tag).unwrap();
            prop_assert!((0..claimed.units()).any(|i| claimed.unit_addr(i) == Some(addr)));
        }
    }
}
