//! From command-line options to a bound driver and a checked configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use srd::udp::{BindError, UdpDriver, UdpOptions, WaitMode};
use srd::{CcChoice, CheckedConfig, Checksum, Config, MAX_DATAGRAM, Span};

use crate::driver::{AnyDriver, DriverArgs};
use crate::exit::{Exit, Fault, Result};
use crate::units;

/// Options of whatever speaks SRD.
#[derive(Args, Clone, Debug)]
pub(crate) struct TransportArgs {
    /// Paths (UDP source ports) per connection, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) paths: u16,
    /// How to wait: spin takes a core and is fastest, sleep is kind to others, adaptive spins for 50 us and then sleeps
    #[arg(long, value_enum, default_value_t = Mode::Adaptive)]
    pub(crate) mode: Mode,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// MTU to assume, 560 to 9264 bytes with IP and UDP headers [default: what the interface says]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(560..=9264))]
    pub(crate) mtu: Option<u16>,
    /// Bits per second of this host's link, if known, such as 25G: it is shared out among those who send here
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) link_rate: Option<u64>,
    /// Congestion control: 'delay', or 'fixed:RATE' in bits per second, such as fixed:10G
    #[arg(long, value_name = "CC", default_value = "delay", value_parser = units::congestion_control)]
    pub(crate) cc: CcChoice,
    /// Carry a CRC32C in every packet instead of relying on the UDP checksum
    #[arg(long)]
    pub(crate) checksum: bool,
    #[command(flatten)]
    pub(crate) driver: DriverArgs,
}

/// What to do while there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// Look again at once.
    Spin,
    /// Sleep until something arrives.
    Sleep,
    /// Look for a while, then sleep.
    Adaptive,
}

impl Mode {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Spin => "spin",
            Mode::Sleep => "sleep",
            Mode::Adaptive => "adaptive",
        }
    }
}

/// Time that the adaptive mode spins: about what a wake-up costs.
const ADAPTIVE_SPIN: Duration = Duration::from_micros(50);
/// IP and UDP headers.
const HEADERS_V4: u16 = 28;
/// IPv6 and UDP headers.
const HEADERS_V6: u16 = 48;

impl TransportArgs {
    /// The protocol's configuration for an endpoint at an address of `local`'s family.
    pub(crate) fn config(&self, local: SocketAddr, peer_timeout: Span) -> Result<CheckedConfig> {
        let plain = Config::default();
        let headers = if local.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let config = Config {
            paths: self.paths,
            path_pool: pool(self.paths),
            max_datagram: self.mtu.map_or(plain.max_datagram, |mtu| (mtu - headers).min(MAX_DATAGRAM)),
            cc: self.cc,
            checksum: if self.checksum { Checksum::Crc32c } else { Checksum::Udp },
            peer_timeout,
            link_rate: self.link_rate.map(|bits| bits / 8),
            keepalive: plain.keepalive.min(peer_timeout / 4),
            ..plain
        };
        tracing::debug!(?config, "configuration");
        config.check().map_err(|e| Fault::new(Exit::Usage, e))
    }

    /// Pins the process if asked to, and opens the driver.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<AnyDriver> {
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        let wait = match self.mode {
            Mode::Spin => WaitMode::Spin,
            Mode::Sleep => WaitMode::Sleep,
            Mode::Adaptive => WaitMode::Adaptive { spin: ADAPTIVE_SPIN },
        };
        let options = UdpOptions { source_ports: pool(self.paths), wait, mtu: self.mtu, ..UdpOptions::default() };
        self.driver.open(addr, options)
    }
}

/// Binds a UDP driver; what goes wrong is the set-up's fault.
pub(crate) fn bind(addr: SocketAddr, options: UdpOptions) -> Result<UdpDriver> {
    UdpDriver::bind(addr, options).map_err(|e: BindError| Fault::new(Exit::Setup, e))
}

/// A pool of source ports from which dead paths can be replaced for long.
pub(crate) fn pool(paths: u16) -> u16 {
    (4 * paths).max(Config::default().path_pool)
}

/// 32 bytes of chance from the operating system, for [`srd::Endpoint::new`].
pub(crate) fn seed() -> Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|e| Fault::setup(format_args!("the operating system has no random numbers to give: {e}")))?;
    Ok(seed)
}

fn pin(cpu: usize) -> Result<()> {
    let me = Pid::from_raw(0);
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(me, &set)).map_err(|e| {
        let allowed = sched_getaffinity(me).map(|set| {
            (0..CpuSet::count())
                .filter(|&k| set.is_set(k).unwrap_or(false))
                .map(|k| k.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        });
        match allowed {
            Ok(list) => Fault::setup(format_args!("cannot run on CPU {cpu}; this process may use: {list}")),
            Err(_) => Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("cannot run on CPU {cpu}"))),
        }
    })
}

/// An IP address as given on the command line, with port 0. A link-local one names its interface: `fe80::1%eth0`.
pub(crate) fn ip(text: &str) -> std::result::Result<SocketAddr, String> {
    let (bare, zone) = text.split_once('%').map_or((text, None), |(bare, zone)| (bare, Some(zone)));
    let index = match zone {
        Some(zone) => {
            let index = zone.parse().ok().or_else(|| if_nametoindex(zone).ok());
            index.ok_or_else(|| format!("there is no interface '{zone}'; 'ip link' lists them"))?
        }
        None => 0,
    };
    match bare.parse() {
        Ok(IpAddr::V6(ip)) if ip.is_unicast_link_local() && index == 0 => {
            Err(format!("{ip} is link-local, which means nothing without its interface: {ip}%eth0, for example"))
        }
        Ok(IpAddr::V6(ip)) => {
            Ok(SocketAddrV6::new(ip, 0, 0, if ip.is_unicast_link_local() { index } else { 0 }).into())
        }
        Ok(ip) if zone.is_none() => Ok(SocketAddr::new(ip, 0)),
        _ => Err(format!("'{text}' is no IP address")),
    }
}

/// The same with an optional port.
pub(crate) fn ip_and_port(text: &str) -> std::result::Result<(SocketAddr, Option<u16>), String> {
    let (host, port) = split_port(text)?;
    let addr = ip(host).map_err(|e| format!("{e}; ADDR or ADDR:PORT is wanted, such as 10.0.0.1 or [::]:5000"))?;
    Ok((addr, port))
}

/// Takes the port off: `host:5000`, `::1`, `[::1]`, `[::1]:5000`.
fn split_port(text: &str) -> std::result::Result<(&str, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(|| format!("'{text}' has no ']'"))?,
        // Other IPv6 addresses have no port.
        None if text.matches(':').count() > 1 => (text, ""),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    let number = port.strip_prefix(':').and_then(|port| port.parse().ok());
    Ok((host, Some(number.ok_or_else(|| format!("'{port}' is no port number from 1 to 65535"))?)))
}

/// For whoever reads that an IPv6 address leads nowhere: without brackets, a port becomes its last part, and nothing else can
/// tell that it was meant as one.
pub(crate) fn port_hint(ip: IpAddr) -> String {
    let text = ip.to_string();
    let meant = text.rsplit_once(':').map(|(host, port)| format!("[{host}]:{port}"));
    match meant.as_deref().map(str::parse::<SocketAddrV6>) {
        Some(Ok(meant)) if meant.port() >= 1024 => format!(" (if {} is its port, write {meant})", meant.port()),
        _ => String::new(),
    }
}

/// A host with an optional port, as given on the command line: `host`, `host:port`, `10.0.0.1:5000`, `::1`, `[::1]:5000`,
/// `fe80::1%eth0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    host: String,
    port: Option<u16>,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Target, String> {
        let (host, port) = split_port(text)?;
        if host.contains([':', '%']) || text.starts_with('[') {
            ip(host).map_err(|e| format!("{e}; HOST:PORT is such as node:5000 or [::1]:5000"))?;
        }
        if host.is_empty() || host.contains(['[', ']', ' ', '/']) || port == Some(0) {
            return Err(format!("'{text}' is no HOST or HOST:PORT"));
        }
        Ok(Target { host: host.to_owned(), port })
    }
}

impl Target {
    /// Its port; `port` when it names none.
    pub(crate) fn port(&self, port: u16) -> u16 {
        self.port.unwrap_or(port)
    }

    /// The address to send to; `port` counts when the target names none.
    pub(crate) fn resolve(&self, port: u16) -> Result<SocketAddr> {
        let (host, port) = (&self.host, self.port(port));
        if let Ok(mut addr) = ip(host) {
            addr.set_port(port);
            return Ok(addr);
        }
        let found = (host.as_str(), port).to_socket_addrs().map_err(|e| {
            Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("cannot find the address of host '{host}'")))
        })?;
        found.min_by_key(SocketAddr::is_ipv6).ok_or_else(|| Fault::setup(format_args!("host '{host}' has no address")))
    }
}

/// The unspecified address of the family of `peer`, any port.
pub(crate) fn any_port(peer: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// The local address, with port 0, from which datagrams to `peer` would leave this host. Asks the kernel whether they would at all,
/// because the protocol itself takes such trouble for loss and goes on trying.
pub(crate) fn check_route(peer: SocketAddr) -> Result<SocketAddr> {
    let told = UdpSocket::bind(any_port(peer)).and_then(|socket| {
        socket.connect(peer)?;
        let mut local = socket.local_addr()?;
        local.set_port(0);
        Ok(local)
    });
    told.map_err(|e| {
        use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, PermissionDenied};
        let what = match e.kind() {
            NetworkUnreachable | HostUnreachable => {
                format!("no route to {}; see 'ip route get {0}'{}", peer.ip(), port_hint(peer.ip()))
            }
            PermissionDenied => {
                format!("no permission to send to {peer}; it is a broadcast address or a firewall forbids it")
            }
            _ => format!("cannot send to {peer}"),
        };
        Fault::new(Exit::Setup, anyhow::Error::new(e).context(what))
    })
}

/// Whether the host of `peer` says that nothing listens there. An empty datagram of a connected socket brings the answer,
/// if the host gives one, as the error of a later call.
pub(crate) fn is_refused(peer: SocketAddr) -> bool {
    const PATIENCE: Duration = Duration::from_millis(100);
    let answer = UdpSocket::bind(any_port(peer)).and_then(|socket| {
        socket.connect(peer)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(&[])?;
        socket.recv(&mut [0; 64])
    });
    answer.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_and_without_port() {
        let target = |host: &str, port| Ok(Target { host: host.to_owned(), port });
        assert_eq!("10.0.0.1".parse(), target("10.0.0.1", None));
        assert_eq!("10.0.0.1:5000".parse(), target("10.0.0.1", Some(5000)));
        assert_eq!("node-3.lab:5000".parse(), target("node-3.lab", Some(5000)));
        assert_eq!("::1".parse(), target("::1", None));
        assert_eq!("[::1]".parse(), target("::1", None));
        assert_eq!("[::1]:5000".parse(), target("::1", Some(5000)));
        for text in
            ["", ":5000", "host:", "host:0", "host:70000", "a:b:c", "http://host", "[::1", "[::1]5000", "[host]"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_without_brackets_are_guessed() {
        let hint = |ip: &str| port_hint(ip.parse().expect(ip));
        assert_eq!(hint("::1:5000"), " (if 5000 is its port, write [::1]:5000)");
        assert_eq!(hint("2001:db8::7:5000"), " (if 5000 is its port, write [2001:db8::7]:5000)");
        for ip in ["::1", "::2", "fe80::1", "2001:db8::7:2", "2001:db8::7:a000", "1:2:3:4:5:6:7:5000", "10.0.0.1"] {
            assert_eq!(hint(ip), "", "{ip}");
        }
    }

    #[test]
    fn link_local_addresses_keep_their_interface() {
        let lo = if_nametoindex("lo").expect("an interface that every host has");
        let at = |port| SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().expect("an address"), port, 0, lo));
        for (text, port) in [("fe80::1%lo", 7), ("[fe80::1%lo]", 7), ("[fe80::1%lo]:8", 8)] {
            assert_eq!(text.parse::<Target>().expect(text).resolve(7).expect(text), at(port));
            assert_eq!(ip_and_port(text).expect(text).0, at(0));
        }
        assert_eq!(
            format!("[fe80::1%{lo}]:8").parse::<Target>().expect("a number").resolve(7).expect("an address"),
            at(8)
        );
        assert_eq!(ip("::1%lo"), Ok("[::1]:0".parse().expect("an address")), "it says nothing there");
        for (text, says) in [
            ("fe80::1", "fe80::1%eth0"),
            ("[fe80::1]:5000", "fe80::1%eth0"),
            ("fe80::1%no-such-if", "no interface 'no-such-if'"),
            ("10.0.0.1%lo", "no IP address"),
            ("host%lo", "no IP address"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
