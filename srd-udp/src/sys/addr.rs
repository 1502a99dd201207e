//! Socket addresses in the kernel's format.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `sockaddr_in` or `sockaddr_in6`, as bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct RawAddr {
    bytes: [u8; V6_LEN],
    len: u32,
}

/// Size of `sockaddr_in`: family 2, port 2, address 4, padding 8.
const V4_LEN: usize = size_of::<libc::sockaddr_in>();
/// Size of `sockaddr_in6`: family 2, port 2, flow information 4, address 16, scope 4.
const V6_LEN: usize = size_of::<libc::sockaddr_in6>();
const _: () = assert!(V4_LEN == 16 && V6_LEN == 28 && align_of::<libc::sockaddr_in6>() <= 8);

impl RawAddr {
    /// Room for any address, to be filled by the kernel.
    pub(crate) const EMPTY: RawAddr = RawAddr { bytes: [0; V6_LEN], len: V6_LEN as u32 };

    /// The kernel's form of `addr`.
    pub(crate) fn new(addr: SocketAddr) -> RawAddr {
        let mut raw = RawAddr::EMPTY;
        let b = &mut raw.bytes;
        b[2..4].copy_from_slice(&addr.port().to_be_bytes());
        match addr {
            SocketAddr::V4(a) => {
                b[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
                b[4..8].copy_from_slice(&a.ip().octets());
                raw.len = V4_LEN as u32;
            }
            SocketAddr::V6(a) => {
                b[..2].copy_from_slice(&(libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
                b[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
                b[8..24].copy_from_slice(&a.ip().octets());
                b[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
            }
        }
        raw
    }

    /// The address that the kernel wrote; `None` for a family other than IPv4 and IPv6.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match i32::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => Some(SocketAddrV4::new(Ipv4Addr::new(b[4], b[5], b[6], b[7]), port).into()),
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(*b[8..].first_chunk::<16>()?);
                // Flow information stays out: it would make equal peers look different.
                let scope = u32::from_ne_bytes(*b[24..].first_chunk::<4>()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }

    /// Pointer to and length of the address, to be read by the kernel.
    pub(super) fn as_ptr(&self) -> (*const libc::c_void, u32) {
        (self.bytes.as_ptr().cast(), self.len)
    }

    /// Pointer to and size of the room, to be written by the kernel.
    pub(super) fn as_mut_ptr(&mut self) -> (*mut libc::c_void, u32) {
        (self.bytes.as_mut_ptr().cast(), V6_LEN as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_v4_and_v6() {
        for text in ["192.0.2.7:4791", "[2001:db8::1]:65535", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(RawAddr::new(addr).get(), Some(addr));
        }
        assert_eq!(RawAddr::EMPTY.get(), None);
    }
}
