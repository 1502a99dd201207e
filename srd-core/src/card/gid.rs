//! Addresses of cards: a GID holds all that is needed to reach one, over IPv4 or IPv6.
//!
//! ```text
//! IPv4   fe80 0000 0000 0000 0200 AAAA AAAA PPPP    address A, port P
//! IPv6   AAAA AAAA AAAA AAAA AAAA AAPP PPAA AAAA    the address, with the port in bytes 11 and 12
//! ```
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
}

const V4_PREFIX: [u8; 10] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0];
/// The universal/local bit of an interface identifier.
const UNIVERSAL: u8 = 0x02;

impl Gid {
    /// The GID of the card at `addr`.
    ///
    /// # Errors
    /// The address cannot be a card's.
    // [CARD-14]
    pub fn new(addr: SocketAddr) -> Result<Gid, GidError> {
        if addr.port() == 0 {
            return Err(GidError::NoPort);
        }
        let ip = addr.ip();
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(GidError::NotUnicast(ip));
        }
        let port = addr.port().to_be_bytes();
        let mut b = [0; 16];
        match ip {
            IpAddr::V4(v4) => {
                b[..10].copy_from_slice(&V4_PREFIX);
                b[10..14].copy_from_slice(&v4.octets());
                b[14..].copy_from_slice(&port);
            }
            IpAddr::V6(v6) => {
                if v6.is_unicast_link_local() {
                    return Err(GidError::LinkLocal(v6));
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

    /// Where the card is reached; `None` if this is no card's GID.
    pub fn addr(&self) -> Option<SocketAddr> {
        let b = &self.0;
        let (ip, port) = if b[..10] == V4_PREFIX {
            let ip = Ipv4Addr::new(b[10], b[11], b[12], b[13]);
            (IpAddr::V4(ip), [b[14], b[15]])
        } else {
            let mut octets = *b;
            octets[11..13].copy_from_slice(&filler(b[8]));
            (IpAddr::V6(Ipv6Addr::from(octets)), [b[11], b[12]])
        };
        let addr = SocketAddr::new(ip, u16::from_be_bytes(port));
        // Only what would have been made counts.
        (Gid::new(addr).ok()? == *self).then_some(addr)
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
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(Gid::default().addr(), None);
        assert_eq!(Gid([0xff; 16]).addr(), None);
    }

    proptest! {
        #[test]
        fn no_two_gids_mean_one_address(bytes: [u8; 16]) {
            let gid = Gid(bytes);
            if let Some(addr) = gid.addr() {
                prop_assert_eq!(Gid::new(addr), Ok(gid));
            }
        }
    }
}
