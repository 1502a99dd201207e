//! perftest 4.5: bandwidth and latency of sends and reads over SRD, and of sends over UD.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, all_well, everywhere};
use crate::process::Ended;

/// Where every run goes: the others wait for a full one.
const ALWAYS: [(Place, Network); 2] = [(Place::OneHost, Network::Clean), (Place::TwoHosts, Network::Clean)];
/// Where each kind of run goes, and all of the less important: each network once.
pub(super) const FAULTY: [(Place, Network); 4] = [
    (Place::TwoHosts, Network::Clean),
    (Place::TwoHosts, Network::Loss),
    (Place::OneHost, Network::DeadPath),
    (Place::TwoHosts, Network::Adversarial),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |command: &str, always: &[(Place, Network)]| {
        cases.extend(everywhere(|| pair(command.to_owned()), always));
    };
    // Everything once over all networks.
    add("ib_send_bw -c SRD -s 4096 -n 2000", &[ALWAYS.as_slice(), &FAULTY].concat());
    add("ib_send_lat -c SRD -s 64 -n 1000", &FAULTY);
    add("ib_read_bw -c SRD -s 65536 -n 500", &[ALWAYS.as_slice(), &FAULTY].concat());
    add("ib_read_lat -c SRD -s 64 -n 1000", &FAULTY);
    add(
        "ib_send_bw -c UD -Q 1 -s 2048 -n 2000",
        &[(Place::OneHost, Network::Clean), (Place::TwoHosts, Network::Adversarial)],
    );
    add("ib_send_lat -c UD -s 64 -n 1000", &[(Place::TwoHosts, Network::Clean), (Place::OneHost, Network::DeadPath)]);
    // Sizes.
    add("ib_send_bw -c SRD -a -n 200", &ALWAYS);
    add("ib_send_lat -c SRD -a -n 200", &ALWAYS[1..]);
    for size in [2, 100, 8192, 8927, 8928] {
        add(&format!("ib_send_bw -c SRD -s {size} -n 500"), &ALWAYS[..usize::from(size == 8928)]);
    }
    add("ib_send_bw -c UD -Q 1 -a -n 200", &ALWAYS);
    add("ib_read_bw -c SRD -a -n 20", &ALWAYS);
    add("ib_read_lat -c SRD -a -n 20", &ALWAYS[1..]);
    add("ib_read_bw -c SRD -s 8388608 -n 10", &ALWAYS[1..]);
    // Queue pairs, depths, directions.
    add("ib_send_bw -c SRD -s 4096 -q 4 -n 1000", &ALWAYS[1..]);
    add("ib_read_bw -c SRD -s 16384 -q 4 -n 500", &ALWAYS[1..]);
    add("ib_send_bw -c SRD -s 4096 -q 4 -b -n 1000", &ALWAYS[..1]);
    add("ib_send_bw -c SRD -s 4096 -q 8 -b -n 1000", &[]);
    for depth in [1, 8, 128, 512] {
        let always = &ALWAYS[1..][..usize::from(depth != 8)];
        add(&format!("ib_send_bw -c SRD -s 4096 -t {depth} -n 1024"), always);
        add(
            &format!("ib_read_bw -c SRD -s 16384 -t {depth} -n 1024"),
            &always[..usize::from(depth == 512 && !always.is_empty())],
        );
    }
    add("ib_send_bw -c SRD -s 4096 -b -n 2000", &FAULTY[..2]);
    add("ib_read_bw -c SRD -s 65536 -b -n 500", &ALWAYS[1..]);
    add("ib_send_bw -c UD -Q 1 -s 2048 -b -n 1000", &ALWAYS[1..]);
    // Inline data, one list of work requests, completion events, and a while of it.
    add("ib_send_lat -c SRD -s 32 -I 32 -n 1000", &ALWAYS[1..]);
    add("ib_send_bw -c SRD -s 8192 -D 2", &ALWAYS[1..]);
    add("ib_read_bw -c SRD -s 8192 -D 2", &ALWAYS[..1]);
    // With events and a send queue of one, it takes for granted that its send completes before the answer is here; a shuffled
    // completion is later.
    let with_events = everywhere(|| pair("ib_send_lat -c UD -s 64 -e -n 500".to_owned()), &ALWAYS[..1]);
    cases.extend(with_events.into_iter().filter(|case| case.network != Network::Adversarial));
    // What this version of perftest refuses, and what EFA does.
    let refused =
        |command: &str, verdict| Case::solo(Client::Perftest, format!("{command} -x 0 -d {DEVICE}")).verdict(verdict);
    cases.push(refused("ib_write_bw -c SRD", |ended| {
        match ended[0].said.contains("SRD connection only possible in SEND/READ verbs") {
            true => Ok("refused by perftest 4.5".to_owned()),
            false => Err("perftest 4.5 is expected to refuse this".to_owned()),
        }
    }));
    let in_vain = |command: &str, verdict| {
        let case = Case::duo(Client::Perftest, 18515, format!("{command} -d {DEVICE} -F"));
        case.datagrams(0).verdict(verdict)
    };
    // The default is no GID at all; the program is told so, and does not hang.
    cases.push(in_vain("ib_send_lat -c SRD -s 64 -n 100", |ended| {
        says(ended, "Failed to create AH", "needs -x 0, as on EFA")
    }));
    cases.push(in_vain("ib_send_bw -c RC -x 0", |ended| says(ended, "Failed to create QP", "refused, as EFA does")));
    cases
}

/// A server and a client of perftest; the client measures.
pub(super) fn pair(command: String) -> Case {
    let command = format!("{command} -x 0 -d {DEVICE} -F");
    Case::duo(Client::Perftest, 18515, command).datagrams(8).verdict(measured)
}

/// The client, which ends first, does so by itself, and one of them says why.
pub(super) fn says(ended: &[Ended], why: &str, result: &str) -> Result<String, String> {
    match ended {
        _ if ended.last().is_none_or(|client| client.timed_out) => Err("it did not end by itself".to_owned()),
        _ if ended.iter().any(|e| e.said.contains(why)) => Ok(result.to_owned()),
        _ => Err(format!("it does not say '{why}'")),
    }
}

/// The client prints a line of figures for each size.
fn measured(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    let is_figure = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit()) && line.contains('.');
    match ended[1].said.lines().filter(is_figure).count() {
        0 => Err("the client has measured nothing".to_owned()),
        _ => Ok("ok".to_owned()),
    }
}
