//! ICMP messages that routers on the way would send, from hosts that are none:
//! what a host learns from them is not always true.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{Error, Host, tools};

/// Of the datagram that a message is about: its headers.
fn quoted(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    // As long as none of the datagrams that would get through.
    const LENGTH: u16 = 8_000;
    let mut quote = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0];
            header.extend(LENGTH.to_be_bytes());
            // Not to be fragmented, UDP.
            header.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
            header.extend(from.octets().iter().chain(&to.octets()));
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(LENGTH.to_be_bytes());
            header.extend([17, 64]);
            header.extend(from.octets().iter().chain(&to.octets()));
            header
        }
        _ => panic!("{from} and {to} are of different families"),
    };
    quote.extend([from.port(), to.port(), LENGTH, 0].iter().flat_map(|word| word.to_be_bytes()));
    quote
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

impl Host {
    /// Tells the sender of a UDP datagram from `from` to `to` that it was too
    /// long for a link with this MTU. The kernel at `from` believes it if there
    /// is a socket at that address, whoever says so.
    ///
    /// # Errors
    /// [`Error::Io`] if the bed is gone or the message cannot be sent.
    ///
    /// # Panics
    /// If the addresses are of different families.
    pub fn claim_too_long(&self, from: SocketAddr, to: SocketAddr, mtu: u16) -> Result<(), Error> {
        let [high, low] = mtu.to_be_bytes();
        // Type, code, checksum (of IPv6, the kernel computes it), MTU.
        let (domain, protocol, mut message) = match from {
            SocketAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, vec![3, 4, 0, 0, 0, 0, high, low]),
            SocketAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, vec![2, 0, 0, 0, 0, 0, high, low]),
        };
        message.extend(quoted(from, to));
        self.send_icmp(domain, protocol, from, message)
    }

    /// Tells the sender of a UDP datagram from `from` to `to`, both IPv4, that
    /// `gateway` is the better way. The kernel at `from` believes it if it comes
    /// from the gateway that it uses.
    ///
    /// # Errors
    /// As [`Host::claim_too_long`].
    ///
    /// # Panics
    /// If an address is not IPv4.
    pub fn redirect(&self, from: SocketAddr, to: SocketAddr, gateway: IpAddr) -> Result<(), Error> {
        let IpAddr::V4(gateway) = gateway else { panic!("{gateway} is not IPv4") };
        // Type, code (for a host), checksum.
        let mut message = vec![5, 1, 0, 0];
        message.extend(gateway.octets());
        message.extend(quoted(from, to));
        self.send_icmp(Domain::IPV4, Protocol::ICMPV4, from, message)
    }

    /// Waits until this host's kernel has learned something about the way to
    /// `to`, which it will forget; `false` if it does not within a minute.
    ///
    /// # Errors
    /// [`Error::Tool`] if there is no route, or no such host any more.
    pub fn learns_about(&self, to: IpAddr) -> Result<bool, Error> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let route = tools::run("ip", &["-n", &self.namespace, "route", "get", &to.to_string()], "")?;
            if route.contains("expires") || Instant::now() > end {
                return Ok(route.contains("expires"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn send_icmp(&self, domain: Domain, protocol: Protocol, to: SocketAddr, mut message: Vec<u8>) -> Result<(), Error> {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let send = || {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            // Raw sockets of IPv6 take no port.
            socket.send_to(&message, &SocketAddr::new(to.ip(), 0).into())
        };
        self.enter(send)?.map(drop).map_err(Error::io("send an ICMP message"))
    }
}
