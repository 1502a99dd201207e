//! The network: addresses, offloads, buffers, firewalls, equal-cost paths.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use serde_json::Value;
use srd::udp::{BindError, UdpDriver, UdpOptions};
use srd::xdp::DriverChoice;
use verbs_shim::options::unsuited;
use verbs_shim::{NicConfig, Options};

use super::{Finding, af_xdp, tool};
use crate::devices;
use crate::units::{memory, plural};

/// What to do where no socket can be opened.
const DESCRIPTORS: &str = "raise the limit of open files (ulimit -n)";

pub(super) fn check(options: &Options) -> Vec<Finding> {
    // The directory for counters is looked at elsewhere.
    let devices = match (Options { counters: false, ..options.clone() }).devices() {
        Ok(devices) => devices,
        Err(e) => {
            return vec![Finding::fail("address", e.to_string(), "choose another address with --addr (SRD_ADDR)")];
        }
    };
    let mut findings = Vec::new();
    let mut driver = None;
    for device in &devices {
        match address(device) {
            Ok((bound, finding)) => {
                driver.get_or_insert(bound);
                findings.push(finding);
            }
            Err(finding) => findings.push(finding),
        }
    }
    if let Some(driver) = driver {
        findings.extend(offloads(&driver, &devices[0].udp));
    }
    findings.extend(devices.first().into_iter().flat_map(|d| af_xdp::check(options, d.addr.ip(), devices.len())));
    findings.push(ports(options, &devices));
    findings.push(firewall());
    findings.push(equal_cost());
    findings
}

fn address(device: &NicConfig) -> Result<(UdpDriver, Finding), Finding> {
    let ip = device.addr.ip();
    let options = UdpOptions { source_port_range: None, ..device.udp.clone() };
    let driver = UdpDriver::bind(SocketAddr::new(ip, 0), options).map_err(|e| {
        let other = "choose another with --addr (SRD_ADDR)";
        let remedy = if matches!(e, BindError::Descriptors) { DESCRIPTORS } else { other };
        Finding::fail("address", format!("{}: {:#}", device.name, anyhow::Error::new(e)), remedy)
    })?;
    match devices::reaches_itself(ip) {
        Ok(true) => {}
        Ok(false) => {
            let found = format!("{}: UDP from {ip} to itself does not arrive", device.name);
            return Err(Finding::fail("address", found, devices::LOOPBACK));
        }
        Err(e) => {
            let found = format!("{}: no socket to try {ip} with: {e}", device.name);
            return Err(Finding::fail("address", found, DESCRIPTORS));
        }
    }
    let fixed = device.addr.port();
    let is_taken = |port: &u16| UdpSocket::bind((ip, *port)).is_err();
    if fixed != 0
        && let Some(taken) = (fixed..=fixed.saturating_add(device.units - 1)).find(is_taken)
    {
        let found = format!("{}: UDP port {taken} of {ip} is in use", device.name);
        let remedy = "nothing, or choose another: a device whose port is taken gets another one";
        return Ok((driver, Finding::warn("address", found, remedy)));
    }
    let finding = if ip.is_loopback() {
        let other = match unsuited() {
            Some(why) => format!("give the host another address: {why}"),
            None => "give the host an address, or name one with --addr (SRD_ADDR)".to_owned(),
        };
        let remedy = format!("nothing if all runs on this host; else {other}");
        Finding::warn("address", format!("{} is at {ip}, where other hosts do not reach it", device.name), remedy)
    } else {
        Finding::ok("address", format!("{} is at {ip}", device.name))
    };
    Ok((driver, finding))
}

fn offloads(driver: &UdpDriver, options: &UdpOptions) -> Vec<Finding> {
    let info = driver.info();
    let newer = "a kernel from 5.0 on has it; without it, bulk transfer costs several times the CPU";
    let gso = match info.gso_segments {
        Some(n) => Finding::ok("GSO", format!("the kernel segments bursts of up to {n} datagrams")),
        None => Finding::warn("GSO", "the kernel does not segment UDP", newer),
    };
    let gro = if info.gro {
        Finding::ok("GRO", "the kernel coalesces UDP")
    } else {
        Finding::warn("GRO", "the kernel does not coalesce UDP", newer)
    };
    let (got, asked) = (info.recv_buffer, options.recv_buffer);
    // The kernel counts its own overhead, too, and tells twice of what it was asked for.
    let buffer = if got >= asked {
        Finding::ok("buffers", format!("receive buffers of {}", memory(got as u64)))
    } else {
        let remedy =
            format!("as root: sysctl -w net.core.rmem_max={asked} (without it, bursts are lost and sent again)");
        Finding::warn(
            "buffers",
            format!("receive buffers of {} instead of {}", memory(got as u64), memory(asked as u64)),
            remedy,
        )
    };
    vec![gso, gro, buffer]
}

/// Whether there are enough ports for the devices of a process.
fn ports(options: &Options, devices: &[NicConfig]) -> Finding {
    let need = devices.len() * usize::from(options.pus) * (usize::from(options.pool()) + 1);
    if let Some(range) = &options.ports {
        let (first, last) = (range.start(), range.end());
        // AF_XDP is looked at elsewhere.
        let open = |device: &NicConfig| devices::open(NicConfig { driver: DriverChoice::Udp, ..device.clone() });
        let opened = devices.iter().map(open).collect::<Result<Vec<_>, _>>().map(drop);
        if let Err(fault) = opened {
            return Finding::fail("ports", fault.to_string(), "choose another range with --ports (SRD_PORTS)");
        }
        let ips: BTreeSet<IpAddr> = devices.iter().map(|device| device.addr.ip()).collect();
        let is_free = |port: &u16| ips.iter().all(|&ip| UdpSocket::bind((ip, *port)).is_ok());
        let free = range.clone().filter(is_free).count();
        if free < need {
            let found = format!(
                "{free} of UDP {first} to {last} are free, and a process wants {need}: it would have fewer paths"
            );
            let remedy = "stop what uses them ('ss -lun'), or choose another range with --ports (SRD_PORTS)";
            return Finding::warn("ports", found, remedy);
        }
        let processes = plural(free / need, "process", "processes");
        return Finding::ok("ports", format!("{free} of UDP {first} to {last} are free: enough for {processes}"));
    }
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let limits: Vec<usize> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let &[first, last] = &limits[..] else { return Finding::ok("ports", "the kernel chooses them") };
    let have = (last + 1).saturating_sub(first);
    let found = format!(
        "the kernel chooses from UDP {first} to {last}: enough for {}",
        plural(have / need, "process", "processes")
    );
    if have < need {
        Finding::fail(
            "ports",
            found,
            "as root: sysctl -w net.ipv4.ip_local_port_range='32768 60999', or lower --path-pool",
        )
    } else {
        Finding::ok("ports", found)
    }
}

fn firewall() -> Finding {
    let remedy = "let UDP pass between the hosts, in both directions; --ports FIRST-LAST (SRD_PORTS) limits which";
    let rules = tool::output(Command::new("nft").args(["-j", "list", "ruleset"]));
    let Some(rules) = rules.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
        let found = "its rules cannot be seen (that takes root and nft)";
        return Finding::ok("firewall", format!("{found}; if peers are unreachable: {remedy}"));
    };
    let chains = rules["nftables"].as_array().into_iter().flatten().filter_map(|o| o.get("chain"));
    let drops: Vec<String> = chains
        .filter(|c| c["policy"] == "drop" && (c["hook"] == "input" || c["hook"] == "output"))
        .map(|c| format!("{} {}", c["table"].as_str().unwrap_or("?"), c["name"].as_str().unwrap_or("?")))
        .collect();
    if drops.is_empty() {
        Finding::ok(
            "firewall",
            "no chain of nftables drops by default; security groups of a cloud are not seen from here",
        )
    } else {
        Finding::warn("firewall", format!("these chains drop what no rule accepts: {}", drops.join(", ")), remedy)
    }
}

/// Whether this host itself spreads flows over routes of equal cost by port.
fn equal_cost() -> Finding {
    let routes = tool::output(Command::new("ip").args(["-j", "route", "show"]));
    let routes = routes.and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or(Value::Null);
    let several =
        routes.as_array().into_iter().flatten().any(|r| r["nexthops"].as_array().is_some_and(|n| n.len() > 1));
    let policy = std::fs::read_to_string("/proc/sys/net/ipv4/fib_multipath_hash_policy").unwrap_or_default();
    match (several, policy.trim()) {
        (false, _) => Finding::ok(
            "paths",
            "this host has one route to each destination; switches spread paths if they hash UDP ports (layer 3+4)",
        ),
        (true, "0") => Finding::warn(
            "paths",
            "this host has routes of equal cost, and chooses by address only: all paths are one",
            "as root: sysctl -w net.ipv4.fib_multipath_hash_policy=1",
        ),
        (true, _) => Finding::ok("paths", "this host spreads paths over its routes of equal cost"),
    }
}
