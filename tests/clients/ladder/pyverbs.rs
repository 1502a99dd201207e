//! rdma-core's own tests, as shipped, through pyverbs.

use super::super::case::{Case, Client};
use super::DEVICE;
use crate::process::Ended;

/// Why tests are skipped: the end of pyverbs' own reason or a part of it, and ours. Real EFA skips them all, too.
pub(crate) const REASONS: &[(&str, &str)] = &[
    ("MLX5", "for another vendor's hardware"),
    ("Device memory is not supported", "EFA has no device memory"),
    ("No ODP caps", "EFA offers no on-demand paging here"),
    ("doesn't have net interface", "rdma_cm needs RoCE or IP over InfiniBand, EFA devices have no network interface"),
    ("dev/dri/renderD128", "needs a GPU at /dev/dri, and then RC queue pairs"),
    ("Atomic operations are not supported", "EFA has no atomics"),
    (
        "Create SRD QPEx is not supported",
        "draws its operations by chance, also RDMA, which the first generation does not have",
    ),
    ("Create QP type 2 is not supported", "EFA has no RC queue pairs"),
    ("with MW access is not supported", "EFA has no memory windows"),
    ("Create memory window", "EFA has no memory windows"),
    ("on Ethernet link layer", "EFA is no Ethernet device for raw packets"),
    ("Extended QP is not supported on this device", "asks for an RC queue pair, which EFA does not have"),
    ("access flags 258", "asks for writes that can be flushed, which EFA does not have, for an RC queue pair"),
    (
        "Create custom mr with additional access flags",
        "asks for access that this generation does not have; those of qpex and shared_pd for an RC queue pair",
    ),
    ("Create XRCD is not supported", "EFA has no XRC"),
    ("Extended CQ is not supported", "asks for timestamps or tag matching, which EFA does not have"),
    ("Parent Domain is not supported", "libefa of this version has no parent domains"),
    ("huge pages of size 2M", "needs huge pages, and then RC queue pairs"),
    ("cuda-python", "needs a GPU, and then RC queue pairs"),
    ("PCI device must be passed", "for another vendor's hardware"),
    ("Create UC QP", "EFA has no UC queue pairs"),
    ("Create RC QP", "EFA has no RC queue pairs"),
    ("Create UD QP", "the test draws operations at random; those that EFA does not have are refused"),
    ("Resize CQ is not supported", "EFA cannot resize completion queues"),
    (
        "Reg MR with access (3) is not supported",
        "asks for remote write, and then to register a region anew, which EFA cannot",
    ),
    ("Reg MR with access (9) is not supported", "asks for remote atomics, which EFA does not have"),
    ("Query device real time is not supported", "EFA has no clock"),
    ("skip RoCE test", "EFA is not RoCE"),
    ("Create SRQ is not supported", "EFA has no shared receive queues"),
    ("All gid indices populated", "EFA has one GID, and it is set"),
    ("No supported port is up", "for another vendor's hardware"),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![suite("efa1"), suite("efa4")];
    cases.extend(["efa0", "efa2", "efa3"].map(|generation| suite(generation).full_only(true)));
    cases
}

/// All tests, on a device of a generation.
pub(super) fn suite(generation: &str) -> Case {
    let case = Case::solo(Client::Pyverbs, format!("sh {{dir}}/pyverbs.sh {DEVICE}"));
    case.env("SRD_PROFILE", generation).verdict(verdict)
}

/// Tests that were skipped, with the reason that pyverbs gave.
pub(crate) fn skipped(said: &str) -> Vec<(String, String)> {
    let mut test = "";
    let mut skipped = Vec::new();
    for line in said.lines() {
        // test_name (tests.module.Class.test_name) [... verdict], with the verdict on a later line if there is a comment
        if let Some((_, rest)) = line.split_once(" (tests.").filter(|(name, _)| name.starts_with("test_")) {
            test = rest.split(')').next().unwrap_or_default();
        }
        if let Some((_, reason)) = line.split_once("... skipped ") {
            skipped.push((test.to_owned(), reason.trim_matches(['\'', '"']).to_owned()));
        }
    }
    skipped
}

fn verdict(ended: &[Ended]) -> Result<String, String> {
    ended[0].check("test suite")?;
    let said = &ended[0].said;
    let run: usize = said
        .lines()
        .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
        .ok_or("the suite did not say how many tests it ran")?;
    let skipped = skipped(said);
    for (test, reason) in &skipped {
        if !REASONS.iter().any(|(part, _)| reason.contains(part)) {
            return Err(format!("{test} was skipped for a reason that is not known to be EFA's: {reason}"));
        }
    }
    // Some tests draw at random what EFA does not have, so it is 59 to 61.
    match run - skipped.len() {
        55.. => Ok(format!("ok: of {run}, none fails ([skips](pyverbs-skips.md))")),
        passed => Err(format!("only {passed} tests passed, the others were skipped")),
    }
}
