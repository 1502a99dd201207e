//! AF_XDP: whether `--driver xdp` would work. That is bad only if it is asked for.

use std::fs;
use std::net::IpAddr;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit};
use srd::xdp::{DriverChoice, Prospect, XdpOptions, probe};
use verbs_shim::Options;

use super::{Finding, tool};
use crate::units::{memory, plural};

const NAME: &str = "AF_XDP";
/// Number of the capability to lock memory without limit (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// For so many devices, the first of which is at this address.
pub(super) fn check(options: &Options, ip: IpAddr, devices: usize) -> Vec<Finding> {
    let mut findings = vec![prospect(options, ip, devices)];
    if options.driver != DriverChoice::Udp {
        findings.extend(ipsec());
    }
    findings
}

fn prospect(options: &Options, ip: IpAddr, devices: usize) -> Finding {
    let (choice, pus) = (options.driver, usize::from(options.pus));
    match probe(ip, None) {
        Ok(Prospect { interface, queues, veth, locked_bytes, .. }) => {
            let copies = if veth { "; the kernel copies there, so --driver auto takes kernel UDP" } else { "" };
            let found = format!(
                "--driver xdp works at {interface}, which has {}{copies}",
                plural(queues as usize, "receive queue", "receive queues")
            );
            let drivers = devices * pus;
            if choice == DriverChoice::Xdp && drivers > queues as usize {
                let remedy = format!("ethtool -L {interface} combined {drivers}, and --xdp-queues {pus}");
                let of = if pus > 1 { format!(" of {pus} processing units") } else { String::new() };
                return Finding::fail(
                    NAME,
                    format!("{found}: too few for {}{of}", plural(devices, "device", "devices")),
                    remedy,
                );
            }
            let per_driver = options.xdp_queues.unwrap_or(XdpOptions::default().queues);
            let taken = u64::from(queues).min(drivers as u64 * u64::from(per_driver));
            let (need, have) = (taken * locked_bytes, lockable());
            if choice != DriverChoice::Udp && have < need {
                let limit = format!("{} may be locked, and packet buffers take up to {}", memory(have), memory(need));
                let remedy = "raise the limit (ulimit -l, or CAP_IPC_LOCK), or use fewer queues: --xdp-queues";
                return Finding::warn(NAME, format!("{found}; {limit}"), remedy);
            }
            Finding::ok(NAME, found)
        }
        Err(e) if choice == DriverChoice::Xdp => {
            let remedy = "give it what it needs (docs/xdp.md), or use kernel UDP: --driver udp (SRD_DRIVER)";
            Finding::fail(NAME, format!("{:#}", anyhow::Error::new(e)), remedy)
        }
        Err(e) => Finding::ok(NAME, format!("not to be had, and not needed: {:#}", anyhow::Error::new(e))),
    }
}

/// Bytes of memory that this process may lock.
fn lockable() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    if effective & 1 << CAP_IPC_LOCK != 0 {
        return u64::MAX;
    }
    getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft)
}

/// Policies are applied by the network stack that AF_XDP bypasses.
fn ipsec() -> Option<Finding> {
    let policies = tool::output(Command::new("ip").args(["xfrm", "policy", "list", "dir", "out"]))?;
    (!policies.trim().is_empty()).then(|| {
        Finding::warn(
            "IPsec",
            "this host has policies for outgoing packets, and what goes by AF_XDP is not encrypted",
            "use kernel UDP where that matters: --driver udp (SRD_DRIVER)",
        )
    })
}
