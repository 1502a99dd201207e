//! Why a driver could not be made.

use std::io;
use std::net::SocketAddr;

/// Why [`UdpDriver::bind`](crate::UdpDriver::bind) failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// `EADDRINUSE`; with port 0, all that the kernel could have chosen.
    #[error("{}", in_use(.0))]
    InUse(SocketAddr),
    /// `EADDRNOTAVAIL`.
    #[error("{} is not an address of this host; choose one that `ip addr` lists", .0.ip())]
    NotLocal(SocketAddr),
    /// `EACCES` or `EPERM`.
    #[error("{}", not_permitted(.0))]
    Permission(SocketAddr),
    /// `EAFNOSUPPORT`.
    #[error("{}", no_family(.0))]
    Family(SocketAddr),
    /// Multicast, broadcast, IPv4-mapped, or link-local without an interface.
    #[error("{addr} cannot be used: {why}")]
    Unusable {
        /// The address.
        addr: SocketAddr,
        /// What is wrong with it.
        why: &'static str,
    },
    /// `EMFILE` or `ENFILE`.
    #[error("no file descriptor is free; raise the limit (`ulimit -n`) or close files")]
    Descriptors,
    /// An option is out of its range.
    #[error("option {option} {problem}")]
    Option {
        /// Name of the field of [`UdpOptions`](crate::UdpOptions).
        option: &'static str,
        /// Its value and what it must be.
        problem: String,
    },
    /// Anything else that the kernel refused.
    #[error("cannot {call} a UDP socket for {addr}")]
    Os {
        /// What was attempted.
        call: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn in_use(addr: &SocketAddr) -> String {
    let ip = addr.ip();
    match addr.port() {
        0 => format!(
            "all UDP ports of {ip} that the kernel chooses from are in use; widen the range (`sysctl net.ipv4.ip_local_port_range`) or stop programs that use them (see `ss -uanp`)"
        ),
        port => format!(
            "UDP port {port} of {ip} is in use; stop the program that uses it (see `ss -lunp`) or choose another port"
        ),
    }
}

fn not_permitted(addr: &SocketAddr) -> String {
    match addr.port() {
        1..1024 => format!("no permission to use {addr}; ports below 1024 need root or CAP_NET_BIND_SERVICE"),
        _ => format!(
            "no permission to use {addr}; a sandbox forbids it (seccomp, a security module such as SELinux, a BPF program of the cgroup), or the port is below `net.ipv4.ip_unprivileged_port_start`"
        ),
    }
}

fn no_family(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::V6(_) => {
            format!("this host does not support IPv6, and so not {addr}; use an IPv4 address or enable IPv6")
        }
        SocketAddr::V4(_) => format!(
            "this process may not use IPv4, and so not {addr}: a sandbox forbids it (RestrictAddressFamilies= of systemd), or the host has none"
        ),
    }
}

impl BindError {
    /// Sorts the kernel's answer to `call`, such as "bind", of a socket for an address.
    pub fn new(call: &'static str, addr: SocketAddr, source: io::Error) -> BindError {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => BindError::InUse(addr),
            Some(libc::EADDRNOTAVAIL) => BindError::NotLocal(addr),
            Some(libc::EACCES | libc::EPERM) => BindError::Permission(addr),
            Some(libc::EAFNOSUPPORT) => BindError::Family(addr),
            Some(libc::EMFILE | libc::ENFILE) => BindError::Descriptors,
            _ => BindError::Os { call, addr, source },
        }
    }

    /// With the kernel's answer, if that is not said already.
    pub(crate) fn whole(&self) -> String {
        match self {
            BindError::Os { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }

    /// Refuses addresses that no unicast socket can have.
    pub(crate) fn check(addr: SocketAddr) -> Result<(), BindError> {
        unusable(addr).map_or(Ok(()), |why| Err(BindError::Unusable { addr, why }))
    }
}

/// Why an address is not that of a single host, in the form that the kernel's unicast sockets know it by.
pub(crate) fn unusable(addr: SocketAddr) -> Option<&'static str> {
    match addr {
        SocketAddr::V4(a) if a.ip().is_broadcast() => Some("it is the broadcast address"),
        SocketAddr::V6(a) if a.ip().to_ipv4_mapped().is_some() => {
            Some("write the IPv4 address without the IPv6 prefix")
        }
        SocketAddr::V6(a) if a.ip().is_unicast_link_local() && a.scope_id() == 0 => {
            Some("a link-local address needs the number of its interface, as in fe80::1%2")
        }
        _ if addr.ip().is_multicast() => Some("it is a multicast address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_use_what_he_uses() {
        for (addr, remedy) in [("10.0.0.1:0", "a sandbox forbids it"), ("[::1]:0", "use an IPv4 address")] {
            let error = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
            let text = BindError::new("open", addr.parse().unwrap(), error).to_string();
            assert!(text.contains(addr) && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_port_is_blamed_only_if_it_is_privileged() {
        for (port, privileged) in [(0, false), (1, true), (1023, true), (1024, false), (28773, false)] {
            for code in [libc::EPERM, libc::EACCES] {
                let addr = SocketAddr::from(([10, 0, 0, 1], port));
                let text = BindError::new("bind", addr, io::Error::from_raw_os_error(code)).to_string();
                assert_eq!(text.contains("below 1024"), privileged, "{text}");
                assert_eq!(text.contains("sandbox"), !privileged, "{text}");
            }
        }
    }
}
