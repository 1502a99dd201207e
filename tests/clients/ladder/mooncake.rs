//! Mooncake's transfer engine, whose wheels know RDMA with RC queue pairs only.

use super::super::case::{Case, Client};
use super::{DEVICE, all_well};

pub(super) fn cases() -> Vec<Case> {
    // It takes no device without its files, says so, and goes on.
    let program = format!("{{venv}}/bin/python {{dir}}/mooncake_check.py {DEVICE}");
    let case = Case::solo(Client::Mooncake, program).verdict(|ended| {
        all_well(ended)?;
        let said = |words: &str| ended[0].said.contains(words);
        match (
            said(&format!("Skipping unavailable device: {DEVICE}")),
            said("Found 0 HCAs"),
            said("TcpTransport: listen"),
        ) {
            (false, ..) => Err("it does not see the device".to_owned()),
            (true, true, true) if said("through Mooncake: ok") => Ok("declines the device, and uses TCP".to_owned()),
            _ => Err("it does not use TCP".to_owned()),
        }
    });
    vec![case.full_only(true)]
}
