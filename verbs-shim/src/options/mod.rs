//! Options of the devices that programs see, from environment variables and from flags of `srd run`.
//!
//! [`OPTIONS`] is the one table of them. [`Options::from_env`] reads the environment, once per process;
//! [`Options::devices`] makes of it what [`Nic::open`](crate::Nic::open) takes.

mod address;
mod lines;
mod log;
mod runtime;
mod table;
#[cfg(test)]
mod tests;
pub mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{getegid, geteuid, getgid, getuid};
use srd_core::card::{CardOptions, Gid, Profile};
use srd_core::{Checksum, Config, ConfigError, MAX_DATAGRAM, Span};
use srd_udp::{UdpOptions, WaitMode};
use srd_xdp::{DriverChoice, XdpOptions};

pub(crate) use address::interface_of;
pub use address::{Addr, main_address, unsuited};
pub use log::Log;
pub use table::{CAPS, OPTIONS, Opt, find};

use crate::config::NicConfig;
use crate::faults::FaultSpec;

/// Whether packets carry checksums of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksums {
    /// If corruption is injected.
    Auto,
    /// Always.
    On,
    /// Never: then programs get to see what injected corruption does.
    Off,
}

/// Options that make sense, each for itself and all together.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses; empty for the host's main address.
    pub addrs: Vec<Addr>,
    /// Number of devices, at least that of the addresses; `None` for as many.
    pub devices: Option<u16>,
    /// Processing units of a device, a power of two in 1..=16.
    pub pus: u16,
    /// Driver.
    pub driver: DriverChoice,
    /// Receive queues of a device for AF_XDP, 1..=16; `None` for all that are free.
    pub xdp_queues: Option<u32>,
    /// Paths for each peer, 1..=256.
    pub paths: u16,
    /// Source ports of a device, `paths..=1024`; `None` for four times the paths, at least 64.
    pub path_pool: Option<u16>,
    /// UDP ports to use; `None` lets the kernel choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// MTU to assume, in bytes.
    pub mtu: Option<u16>,
    /// Upper limit of the rate to one peer, in bytes per second.
    pub rate: Option<u64>,
    /// Silence after which requests fail.
    pub peer_timeout: Span,
    /// Checksums.
    pub checksum: Checksums,
    /// How to wait.
    pub wait: WaitMode,
    /// What the devices claim to be.
    pub profile: Profile,
    /// RDMA needs an address handle at the target.
    pub strict_peers: bool,
    /// Programs may ask where queues are in memory, and use them there (`efadv_query_cq`, `efadv_query_qp_wqs`); only the C
    /// library has this.
    pub rings: bool,
    /// What goes wrong.
    pub fault: FaultSpec,
    /// Decides about faults.
    pub seed: u64,
    /// Whether the seed is a random one, because nobody has said it.
    pub seed_is_drawn: bool,
    /// The log.
    pub log: Log,
    /// Counters are published.
    pub counters: bool,
    /// Directory for counters and the like; `None` for the usual one, see [`Options::runtime_dir`].
    pub runtime_dir: Option<PathBuf>,
    /// The library; only the command uses it.
    pub library: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            addrs: Vec::new(),
            devices: None,
            pus: 1,
            driver: DriverChoice::Udp,
            xdp_queues: None,
            paths: 16,
            path_pool: None,
            ports: None,
            mtu: None,
            rate: None,
            peer_timeout: Config::default().peer_timeout,
            checksum: Checksums::Auto,
            wait: WaitMode::Adaptive { spin: Duration::from_micros(50) },
            profile: Profile::default(),
            strict_peers: true,
            rings: false,
            fault: FaultSpec::default(),
            seed: 0,
            seed_is_drawn: true,
            log: Log::default(),
            counters: true,
            runtime_dir: None,
            library: None,
        }
    }
}

/// Where a value came from, for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The command line.
    Flag,
    /// The environment.
    Environment,
}

/// What is wrong with the options, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct OptionError(String);

impl From<ConfigError> for OptionError {
    fn from(error: ConfigError) -> OptionError {
        OptionError(error.to_string())
    }
}

/// The names of variables begin with this.
const PREFIX: &str = "SRD_";
/// The names of the devices begin with this; the middle is the number of the device.
const NAME: (&str, &str) = ("rdmap", "s6");

impl Options {
    /// Options from the environment. An empty variable counts as none.
    ///
    /// # Errors
    /// A value makes no sense.
    pub fn from_env() -> Result<Options, OptionError> {
        Options::parse(from_env)
    }

    /// Options from values that `get` finds for each entry of the table.
    ///
    /// # Errors
    /// A value makes no sense, or `get` fails.
    pub fn parse(
        mut get: impl FnMut(&'static Opt) -> Result<Option<(Source, String)>, OptionError>,
    ) -> Result<Options, OptionError> {
        let mut options = Options::default();
        let mut given = BTreeMap::new();
        for option in OPTIONS {
            let Some((source, value)) = get(option)? else { continue };
            let shown = match source {
                Source::Flag => format!("--{} {value}", option.name),
                Source::Environment => format!("{}={value}", option.variable()),
            };
            (option.set)(&mut options, &value).map_err(|problem| OptionError(format!("{shown} {problem}")))?;
            given.insert(option.name, shown);
        }
        options.check(&given)?;
        if options.seed_is_drawn && !options.fault.is_empty() {
            // If there is no chance to be had, any number will do: it is told, and replays.
            options.seed = getrandom::u64().unwrap_or(1);
        }
        Ok(options)
    }

    /// What no option alone can know. Errors show options as they were `given`.
    fn check(&self, given: &BTreeMap<&str, String>) -> Result<(), OptionError> {
        let wrong = |text: String| Err(OptionError(text));
        let shown = |name: &'static str| given.get(name).map_or(name, String::as_str);
        let (devices, addrs) = (self.device_count(), self.addrs.len());
        if devices < addrs {
            return wrong(format!(
                "{} is less than there are addresses: {addrs} in {}; leave it out, or some of them",
                shown("devices"),
                shown("addr")
            ));
        }
        for addr in &self.addrs {
            let Addr::At(at) = addr else { continue };
            if at.port() != 0 && devices > addrs {
                return wrong(format!(
                    "{} has a port, but devices that share an address ({}) cannot share a port: leave out the port",
                    shown("addr"),
                    shown("devices")
                ));
            }
            // With any port that suits, if none is said.
            Gid::with_units(SocketAddr::new(at.ip(), at.port().max(1)), self.pus)
                .map_err(|e| OptionError(format!("{} and {} do not go together: {e}", shown("addr"), shown("pus"))))?;
        }
        if let Some((one, other)) = self.overlap() {
            let each = if self.pus == 1 { String::new() } else { format!(" ({} ports each)", self.pus) };
            return wrong(format!(
                "{} has {one} and {other}{each}, which overlap: give them other ports",
                shown("addr")
            ));
        }
        if self.path_pool.is_some_and(|pool| pool < self.paths) {
            return wrong(format!(
                "{} is less than the {} paths that are drawn from it; raise it",
                shown("path-pool"),
                self.paths
            ));
        }
        if let Some(range) = &self.ports {
            let (have, need) = (range.len(), devices * usize::from(self.pus) * (usize::from(self.pool()) + 1));
            if have < need {
                let who = if devices == 1 { "a device needs".to_owned() } else { format!("{devices} devices need") };
                return wrong(format!(
                    "{} has {have} ports, but {who} {need}; widen it, or lower path-pool (or pus)",
                    shown("ports")
                ));
            }
        }
        self.config(false).check()?;
        Ok(())
    }

    /// Two addresses that would have a port in common.
    fn overlap(&self) -> Option<(SocketAddr, SocketAddr)> {
        let fixed = self.addrs.iter().filter_map(|addr| match addr {
            Addr::At(at) if at.port() != 0 => Some(*at),
            _ => None,
        });
        let mut fixed: Vec<SocketAddr> = fixed.collect();
        fixed.sort();
        let near = |pair: &&[SocketAddr]| pair[0].ip() == pair[1].ip() && pair[1].port() - pair[0].port() < self.pus;
        fixed.windows(2).find(near).map(|pair| (pair[0], pair[1]))
    }

    fn device_count(&self) -> usize {
        self.devices.map_or(self.addrs.len().max(1), usize::from)
    }

    /// Source ports of each processing unit of a device.
    pub fn pool(&self) -> u16 {
        let all = self.path_pool.unwrap_or((4 * self.paths).clamp(64, 1024));
        (all / self.pus).max(self.paths)
    }

    /// Begins to log, tells of variables that look like options and are none, and the seed of faults if nobody has said it.
    ///
    /// # Errors
    /// The log cannot be written: a sentence.
    pub fn start_log(&self) -> Result<(), OptionError> {
        if self.log.start().map_err(OptionError)? {
            strange_variables().iter().for_each(|text| tracing::warn!("{text}"));
        }
        if !self.fault.is_empty() && self.seed_is_drawn {
            tracing::warn!("faults are injected ({}); SRD_SEED={} repeats them", self.fault, self.seed);
        }
        Ok(())
    }

    /// All devices, in the order of their names. Nothing is opened.
    ///
    /// # Errors
    /// An interface has no suitable address.
    pub fn devices(&self) -> Result<Vec<NicConfig>, OptionError> {
        let addrs: Vec<SocketAddr> = match &self.addrs[..] {
            [] => vec![SocketAddr::new(main_address(), 0)],
            addrs => addrs
                .iter()
                .map(Addr::resolve)
                .collect::<Result<_, _>>()
                .map_err(|e| OptionError(format!("--addr (SRD_ADDR) {e}")))?,
        };
        let counters = if self.counters { self.publish_in() } else { None };
        let device = |k: usize| {
            let config = self.device(k, addrs[k % addrs.len()])?;
            Ok(NicConfig { counters: counters.clone(), ..config })
        };
        (0..self.device_count()).map(device).collect()
    }

    /// Where counters go; nowhere if there is no place for them, because no program shall fail for that.
    fn publish_in(&self) -> Option<PathBuf> {
        self.runtime_dir().inspect_err(|e| tracing::warn!("counters are not published: {e}")).ok()
    }

    fn device(&self, index: usize, addr: SocketAddr) -> Result<NicConfig, OptionError> {
        // Each device has faults of its own.
        let seed = self.seed.wrapping_add(index as u64);
        Ok(NicConfig {
            name: format!("{}{index}{}", NAME.0, NAME.1),
            addr,
            units: self.pus,
            transport: self.config(addr.is_ipv6()).check()?,
            driver: self.driver,
            xdp_queues: self.xdp_queues.unwrap_or(XdpOptions::default().queues),
            udp: UdpOptions {
                source_ports: self.pool(),
                source_port_range: self.ports.clone(),
                wait: self.wait,
                mtu: self.mtu,
                ..UdpOptions::default()
            },
            card: CardOptions { profile: self.profile, strict_peers: self.strict_peers, faults: self.fault.card(seed) },
            faults: self.fault.plan().map(|plan| (plan, seed)),
            counters: None,
            seed: None,
        })
    }

    fn config(&self, ipv6: bool) -> Config {
        let plain = Config::default();
        let headers = if ipv6 { 48 } else { 28 };
        let checked = match self.checksum {
            Checksums::Auto => self.fault.corrupts(),
            Checksums::On => true,
            Checksums::Off => false,
        };
        Config {
            paths: self.paths,
            path_pool: self.pool(),
            max_datagram: self.mtu.map_or(plain.max_datagram, |mtu| (mtu - headers).min(MAX_DATAGRAM)),
            checksum: if checked { Checksum::Crc32c } else { Checksum::Udp },
            peer_timeout: self.peer_timeout,
            keepalive: plain.keepalive.min(self.peer_timeout / 4),
            link_rate: self.rate,
            // One for each handle, and each unit of a peer is one.
            max_peers: plain.max_peers.max(self.profile.max_ah) * u32::from(self.pus),
            ..plain
        }
    }

    /// The directory for counters and the like, made if need be: of this user, and nobody else may look into it.
    ///
    /// # Errors
    /// It cannot be made, or belongs to somebody else: a sentence.
    pub fn runtime_dir(&self) -> Result<PathBuf, OptionError> {
        runtime::make(self.runtime_dir.as_deref()).map_err(OptionError)
    }

    /// Directories in which counters may be found, whether they exist or not: for root, those of all users.
    pub fn runtime_dirs(&self) -> Vec<PathBuf> {
        runtime::all(self.runtime_dir.as_deref())
    }
}

/// Whether the process may do what its user may not (set-user-ID and the like). The environment is the user's then, and does not say
/// which files to write.
pub fn is_set_id() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// An option's value in the environment, if it has one there that counts.
///
/// # Errors
/// It is no text.
pub fn from_env(option: &'static Opt) -> Result<Option<(Source, String)>, OptionError> {
    let name = option.variable();
    if is_set_id() {
        return Ok(None);
    }
    match std::env::var_os(&name).filter(|value| !value.is_empty()).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some((Source::Environment, value))),
        Some(Err(value)) => Err(OptionError(format!("{name}={} is no text", value.to_string_lossy()))),
    }
}

/// Variables of the environment that look like options and are none: a sentence on each.
pub fn strange_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut found: Vec<String> = names.filter_map(|name| strange(&name)).collect();
    found.sort();
    found
}

/// What is strange about a variable, if it looks like an option and is none.
fn strange(name: &str) -> Option<String> {
    let own = name.strip_prefix(PREFIX).filter(|own| !own.starts_with("SIM_"))?;
    let known: Vec<String> = OPTIONS.iter().map(Opt::variable).collect();
    if known.iter().any(|k| k == name) {
        return None;
    }
    let distance = |known: &&String| strsim::damerau_levenshtein(name, known);
    // The more letters, the more of them may be wrong.
    let meant = known.iter().min_by_key(distance).filter(|k| distance(k) <= own.len().div_ceil(4));
    let hint = meant.map_or(String::new(), |meant| format!("; do you mean {meant}?"));
    Some(format!("{name} is no option of srd{hint}"))
}

fn profile(text: &str) -> Result<Profile, String> {
    let known = Profile::GENERATIONS.map(|id| format!("{id:x}"));
    let wanted = text.to_ascii_lowercase();
    let wanted = wanted.strip_prefix("0x").unwrap_or(&wanted);
    let id = Profile::GENERATIONS.into_iter().zip(&known).find(|(_, name)| *name == wanted).map(|(id, _)| id);
    id.and_then(Profile::generation).ok_or_else(|| format!("must be one of {}", known.join(", ")))
}
