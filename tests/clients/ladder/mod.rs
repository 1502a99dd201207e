//! The clients, from the simplest to whole stacks.

mod debian13;
mod ibv;
mod libfabric;
mod mooncake;
mod mpi;
mod nixl;
mod perftest;
mod program;
mod pus;
pub(crate) mod pyverbs;
mod ucx;
mod xdp;

use super::case::{Case, Client, Network, Place};
use super::process::Ended;

/// Name of the device.
pub(crate) const DEVICE: &str = "rdmap0s6";

/// Everything that is tried.
pub(crate) fn all() -> Vec<Case> {
    let over_udp: Vec<Case> = [
        ibv::cases(),
        pyverbs::cases(),
        perftest::cases(),
        libfabric::cases(),
        mpi::cases(),
        ucx::cases(),
        nixl::cases(),
        mooncake::cases(),
        program::cases(),
        debian13::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let over_xdp = xdp::cases(&over_udp);
    let over_units = pus::cases(&over_udp);
    [over_udp, over_xdp, over_units].concat()
}

/// A case in all places and over all networks. Some run only when everything is wanted.
fn everywhere(make: impl Fn() -> Case, always: &[(Place, Network)]) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in [Place::OneHost, Place::TwoHosts] {
        for network in [Network::Clean, Network::Loss, Network::DeadPath, Network::Adversarial] {
            let full_only = !always.contains(&(place, network));
            cases.push(Case { place, network, ..make() }.full_only(full_only));
        }
    }
    cases
}

/// The first case of a client over a network whose command begins so, to be run once more in another way.
fn again(all: &[Case], client: Client, command: &str, network: Network) -> Case {
    let place = if client == Client::Pyverbs { Place::OneHost } else { Place::TwoHosts };
    let is_meant = |case: &&Case| {
        case.client == client && case.network == network && case.place == place && case.command().starts_with(command)
    };
    let found = all.iter().find(is_meant).unwrap_or_else(|| panic!("no case '{command}' to run again"));
    found.clone().full_only(false)
}

/// All programs ended well.
fn all_well(ended: &[Ended]) -> Result<(), String> {
    match ended {
        [server, client] => client.check("client").and_then(|()| server.check("server")),
        [program] => program.check("program"),
        _ => Err("nothing ran".to_owned()),
    }
}

/// The words after `label` in the output, up to the end of the line.
fn after<'a>(said: &'a str, label: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.trim_start().strip_prefix(label)).map(str::trim)
}
