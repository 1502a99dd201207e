//! Debian's libfabric: its efa provider, with endpoints that keep datagrams and reliable ones.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, all_well, everywhere};

const ALWAYS: [(Place, Network); 2] = [(Place::OneHost, Network::Clean), (Place::TwoHosts, Network::Clean)];
const FAULTY: [(Place, Network); 4] = [
    (Place::TwoHosts, Network::Clean),
    (Place::OneHost, Network::Loss),
    (Place::TwoHosts, Network::DeadPath),
    (Place::TwoHosts, Network::Adversarial),
];

pub(super) fn cases() -> Vec<Case> {
    let info = Case::solo(Client::Libfabric, "fi_info -p efa").verdict(|ended| {
        all_well(ended)?;
        for domain in ["rdm", "dgrm"] {
            if !ended[0].said.contains(&format!("domain: {DEVICE}-{domain}")) {
                return Err(format!("the domain {DEVICE}-{domain} is missing"));
            }
        }
        Ok("ok".to_owned())
    });
    let mut cases = vec![info];
    let mut add = |options: &str, always: &[(Place, Network)]| cases.extend(everywhere(|| pair(options), always));
    add("-e rdm -S all -I 20", &[ALWAYS.as_slice(), &FAULTY].concat());
    add("-e rdm -S 1 -I 200", &ALWAYS[1..]);
    add("-e rdm -S 4194304 -I 10", &[ALWAYS.as_slice(), &FAULTY].concat());
    add("-e dgram -S all -I 20", &ALWAYS);
    add(
        "-e dgram -S 1024 -I 500",
        &[ALWAYS[1], (Place::TwoHosts, Network::Loss), (Place::OneHost, Network::Adversarial)],
    );
    // Device RDMA: the receiver reads long messages.
    let reads = || pair("-e rdm -S 1048576 -I 20").env("FI_EFA_USE_DEVICE_RDMA", "1");
    cases.extend(everywhere(reads, &[ALWAYS.as_slice(), &FAULTY[1..3]].concat()));
    cases
}

/// A server and a client. Every byte is checked. Without -S all sizes that the provider admits are tried.
pub(super) fn pair(options: &str) -> Case {
    let command = format!("fi_pingpong -p efa {options} -c");
    Case::duo(Client::Libfabric, 47592, command).datagrams(20).verdict(|ended| {
        all_well(ended)?;
        match ended[1]
            .said
            .lines()
            .filter(|line| line.contains("=0%") || line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
            .count()
        {
            0 => Err("the client has measured nothing".to_owned()),
            _ => Ok("ok".to_owned()),
        }
    })
}
