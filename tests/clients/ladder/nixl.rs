//! NIXL, which moves caches between inference servers: over the SRD transport of the UCX that its wheel brings.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, all_well, everywhere};
use crate::process::Ended;

const ALWAYS: [(Place, Network); 2] = [(Place::TwoHosts, Network::Clean), (Place::TwoHosts, Network::Adversarial)];

pub(super) fn cases() -> Vec<Case> {
    let make = || {
        let case = Case::duo(Client::Nixl, 18516, "{venv}/bin/python {dir}/nixl_check.py UCX").device_file();
        let case = case.env("SRD_PROFILE", "efa3").env("UCX_TLS", "srd,self");
        // Ten transfers of 1 MiB each way, in bursts of up to 64 KiB.
        case.env("UCX_NET_DEVICES", format!("{DEVICE}:1")).datagrams(300).limit(120).verdict(said_ok)
    };
    everywhere(make, &ALWAYS)
}

fn said_ok(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match ended[1].said.lines().any(|line| line.ends_with("through UCX: ok")) {
        true => Ok("ok".to_owned()),
        false => Err("the client did not say that all is well".to_owned()),
    }
}
