//! Programs of our own in C, for what no other client does.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, all_well, everywhere};
use crate::process::Ended;

const ALWAYS: [(Place, Network); 3] =
    [(Place::TwoHosts, Network::Clean), (Place::TwoHosts, Network::Loss), (Place::TwoHosts, Network::Adversarial)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Every operation, with the data checked the moment it is said to be complete, and looked at again later.
    for (op, rounds) in [("send", 500), ("read", 200), ("write", 500), ("imm", 200), ("unsolicited", 200)] {
        let pair = || {
            let command = format!("{{dir}}/rdma_pair {op} {rounds}");
            Case::duo(Client::Program, 18600, command).env("SRD_PROFILE", "efa3").datagrams(100).verdict(said_ok)
        };
        cases.extend(everywhere(pair, &ALWAYS));
    }
    // Order is not kept, as programs must know.
    let overtake = || {
        let command = "{dir}/rdma_pair overtake 100".to_owned();
        Case::duo(Client::Program, 18600, command).env("SRD_PROFILE", "efa3").datagrams(100).verdict(overtaken)
    };
    cases.extend(everywhere(overtake, &[(Place::TwoHosts, Network::Adversarial)]));
    for op in ["send", "read", "write", "imm", "unsolicited", "Read", "Write"] {
        let kill = Case::solo(Client::Program, format!("{{dir}}/killed {op}")).datagrams(20).verdict(said_ok);
        cases.push(kill.env("SRD_PROFILE", "efa3").env("SRD_PEER_TIMEOUT", "2s"));
    }
    let files = Case::solo(Client::Program, format!("sh {{dir}}/files.sh {DEVICE} {{dir}}/killed send")).device_files();
    cases.push(files.env("SRD_PEER_TIMEOUT", "2s").verdict(said_ok));
    let scale = |what: &str| Case::solo(Client::Program, format!("{{dir}}/scale {what}")).verdict(said_ok);
    cases.push(scale("qps 1000"));
    cases.push(scale("processes 64"));
    cases.push(scale("cycles 500"));
    cases.push(scale("cycles 10000").full_only(true).limit(600));
    cases
}

fn said_ok(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match ended.last().is_some_and(|end| end.said.trim_end().ends_with(": ok")) {
        true => Ok("ok".to_owned()),
        false => Err("it did not say that all is well".to_owned()),
    }
}

fn overtaken(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    match &ended[1].said {
        said if said.contains("was first in 0 of") => Err("nothing was ever overtaken".to_owned()),
        said if said.contains("was first in") => Ok("ok: short ones complete before long ones".to_owned()),
        _ => Err("it did not say how often".to_owned()),
    }
}
