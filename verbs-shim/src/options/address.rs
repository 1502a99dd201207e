//! Addresses of devices: what was asked for, and what the host has.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, SockaddrLike as _};
use srd_core::card::Gid;

use super::value::Parsed;

/// Address of a device, as asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Addr {
    /// An address, with a port; port 0 lets the kernel choose.
    At(SocketAddr),
    /// The first suitable address of an interface.
    Of(String),
}

/// A list of addresses, separated by commas.
pub(super) fn list(text: &str) -> Parsed<Vec<Addr>> {
    text.split(',').map(|one| parse(one.trim())).collect()
}

fn parse(text: &str) -> Parsed<Addr> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let addr = match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
        (Ok(addr), _) => addr,
        (_, Ok(ip)) => SocketAddr::new(ip, 0),
        _ if is_interface_name(text) => return Ok(Addr::Of(text.to_owned())),
        _ => return Err(format!("has '{text}', which is no IP, IP:PORT or interface")),
    };
    check(addr).map(|()| Addr::At(addr))
}

/// Whether the kernel would take it as the name of an interface.
fn is_interface_name(text: &str) -> bool {
    (1..16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic() && !b"/:,".contains(&b))
}

/// Whether a card can have this address.
fn check(addr: SocketAddr) -> Parsed<()> {
    // A card gets its port when it is opened.
    let port = if addr.port() == 0 { 1 } else { addr.port() };
    Gid::new(SocketAddr::new(addr.ip(), port)).map(|_| ()).map_err(|e| format!("cannot be used: {e}"))
}

impl Addr {
    /// The address as this host has it.
    ///
    /// # Errors
    /// There is no such interface, or it has no suitable address: the end of a sentence.
    pub fn resolve(&self) -> Parsed<SocketAddr> {
        match self {
            Addr::At(addr) if is_broadcast(addr.ip()) => Err(format!(
                "has {}, which is the broadcast address of a network; 'ip addr' lists addresses",
                addr.ip()
            )),
            Addr::At(addr) => Ok(*addr),
            Addr::Of(name) => {
                let all = interfaces();
                if !all.iter().any(|i| i.name == *name) {
                    return Err(format!("has '{name}', which is no interface of this host; 'ip addr' lists them"));
                }
                let own = || all.iter().filter(|i| i.name == *name);
                let ip = own().filter_map(Interface::usable).min_by_key(IpAddr::is_ipv6);
                ip.map(|ip| SocketAddr::new(ip, 0)).ok_or_else(|| match own().find_map(Interface::unsuited) {
                    Some(why) => format!("has interface {name}, whose address {why}"),
                    None => format!("has interface {name}, which is down or has no address that others can reach"),
                })
            }
        }
    }
}

/// The address under which others most probably reach this host: that of the default route, else the first one of an
/// interface that is up, else loopback.
pub fn main_address() -> IpAddr {
    let routed = routed_address().filter(|&ip| is_suitable(ip));
    let other =
        || interfaces().into_iter().filter(|i| !i.loopback).filter_map(|i| i.usable()).min_by_key(IpAddr::is_ipv6);
    routed.or_else(other).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The name of the interface that has an address.
pub(crate) fn interface_of(ip: IpAddr) -> Option<String> {
    interfaces().into_iter().find(|i| i.ip == Some(ip)).map(|i| i.name)
}

/// Why no address of this host is one for a device, if others may reach it at some: of the first of them.
pub fn unsuited() -> Option<String> {
    if !main_address().is_loopback() {
        return None;
    }
    interfaces().iter().filter(|i| !i.loopback).find_map(|i| Some(format!("that of {} {}", i.name, i.unsuited()?)))
}

/// Whether the kernel takes an address for that of all hosts of a network: sockets may be bound to it, but need leave to
/// send there. Nothing is sent.
fn is_broadcast(ip: IpAddr) -> bool {
    let connects = |broadcast: bool| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_broadcast(broadcast)?;
        socket.connect((ip, 9))
    };
    ip.is_ipv4() && connects(false).is_err() && connects(true).is_ok()
}

/// The address from which packets to the outside leave. Nothing is sent.
fn routed_address() -> Option<IpAddr> {
    // TEST-NET-1, which nobody has (RFC 5737).
    let outside = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(outside).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}

fn is_suitable(ip: IpAddr) -> bool {
    !ip.is_loopback() && check(SocketAddr::new(ip, 0)).is_ok()
}

/// An address of an interface.
struct Interface {
    name: String,
    up: bool,
    loopback: bool,
    ip: Option<IpAddr>,
}

impl Interface {
    fn usable(&self) -> Option<IpAddr> {
        let suits = |ip: &IpAddr| check(SocketAddr::new(*ip, 0)).is_ok();
        self.ip.filter(|_| self.up).filter(suits)
    }

    /// Why its address is none for a card, if others may reach the host there.
    fn unsuited(&self) -> Option<String> {
        let travels = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let ip = self.ip.filter(|_| self.up).filter(travels)?;
        check(SocketAddr::new(ip, 0)).err()
    }
}

fn interfaces() -> Vec<Interface> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let describe = |i: nix::ifaddrs::InterfaceAddress| {
        let ip = i.address.and_then(|a| match a.family()? {
            AddressFamily::Inet => a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip())),
            AddressFamily::Inet6 => a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())),
            _ => None,
        });
        let (up, loopback) = (i.flags.contains(InterfaceFlags::IFF_UP), i.flags.contains(InterfaceFlags::IFF_LOOPBACK));
        Interface { name: i.interface_name, up, loopback, ip }
    };
    all.map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_ports_and_interfaces() {
        let at = |text: &str| Addr::At(text.parse().unwrap());
        let got = list("10.0.0.1, 10.0.0.2:4000,::1,[::1],[::1]:7,eth0").unwrap();
        let [a, b, c, d, e] = ["10.0.0.1:0", "10.0.0.2:4000", "[::1]:0", "[::1]:0", "[::1]:7"].map(at);
        assert_eq!(got, [a, b, c, d, e, Addr::Of("eth0".into())]);
        for (text, says) in [
            ("", "no IP"),
            ("10.0.0.1,", "no IP"),
            ("10.0.0.1:99999", "no IP"),
            ("http://host", "no IP"),
            ("0.0.0.0", "not an address"),
            ("fe80::1", "link-local"),
        ] {
            let error = list(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn broadcast_addresses_are_no_devices() {
        let resolve = |text: &str| parse(text).unwrap().resolve();
        let error = resolve("127.255.255.255:7").unwrap_err();
        assert!(error.contains("127.255.255.255, which is the broadcast address"), "{error}");
        // Whether they are this host's is seen when the device is opened.
        for text in ["127.0.0.1", "127.1.2.3:4000", "::1", "192.0.2.77"] {
            assert!(resolve(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn interfaces_are_looked_up() {
        let lo = Addr::Of("lo".into()).resolve();
        assert!(
            lo.as_ref().is_ok_and(|addr| addr.ip().is_loopback())
                || !interfaces().iter().any(|i| i.name == "lo" && i.up)
        );
        let error = Addr::Of("no-such-if".into()).resolve().unwrap_err();
        assert!(error.contains("no interface of this host"), "{error}");
        assert!(Gid::new(SocketAddr::new(main_address(), 1)).is_ok());
        assert!(lo.is_err() || interface_of(Ipv4Addr::LOCALHOST.into()).as_deref() == Some("lo"));
    }
}
