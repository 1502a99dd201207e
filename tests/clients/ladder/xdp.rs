//! A selection once more, over AF_XDP: between two hosts that both use it, and with kernel UDP at one of them.

use super::super::case::{Case, Network};
use super::again;
use crate::case::Client;

const BOTH: [&str; 2] = ["xdp", "xdp"];
const SERVER: [&str; 2] = ["xdp", "udp"];
const CLIENT: [&str; 2] = ["udp", "xdp"];

/// Client, beginning of the command, network, drivers of the two hosts.
const CASES: &[(Client, &str, Network, [&str; 2])] = &[
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -n 2000", Network::Clean, BOTH),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -n 2000", Network::Clean, SERVER),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -n 2000", Network::Clean, CLIENT),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -n 2000", Network::Loss, BOTH),
    (Client::Perftest, "ib_send_bw -c SRD -s 4096 -n 2000", Network::Adversarial, SERVER),
    (Client::Perftest, "ib_send_lat -c SRD -s 64 -n 1000", Network::Clean, BOTH),
    (Client::Perftest, "ib_send_lat -c UD -s 64 -n 1000", Network::Clean, CLIENT),
    (Client::Perftest, "ib_read_bw -c SRD -s 65536 -n 500", Network::Clean, BOTH),
    (Client::Perftest, "ib_read_bw -c SRD -s 65536 -n 500", Network::Clean, CLIENT),
    (Client::Libfabric, "fi_pingpong -p efa -e rdm -S 1 -I 200", Network::Clean, BOTH),
    (Client::Libfabric, "fi_pingpong -p efa -e rdm -S 4194304", Network::Clean, SERVER),
    (Client::Libfabric, "fi_pingpong -p efa -e dgram -S all", Network::Clean, CLIENT),
    (Client::OpenMpi, "mpirun -np 2", Network::Clean, BOTH),
    // On one host: what it sends to itself goes through the kernel, by the same driver.
    (Client::Pyverbs, "SRD_PROFILE=efa4", Network::Clean, BOTH),
];

pub(super) fn cases(all: &[Case]) -> Vec<Case> {
    let case = |&(client, command, network, drivers): &(Client, &str, Network, [&'static str; 2])| Case {
        drivers,
        ..again(all, client, command, network)
    };
    CASES.iter().map(case).collect()
}
