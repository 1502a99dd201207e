//! The small tools of rdma-core.

use super::super::case::{Case, Client, Network, Place};
use super::{DEVICE, after, all_well, everywhere};
use crate::process::Ended;

pub(super) fn cases() -> Vec<Case> {
    let tool = |command: &str| Case::solo(Client::IbvUtils, command);
    let mut cases = vec![
        tool("ibv_devices").verdict(|ended| {
            all_well(ended)?;
            let line = ended[0].said.lines().find(|line| line.trim_start().starts_with(DEVICE));
            let guid = line.and_then(|line| line.split_whitespace().nth(1)).ok_or("no device is listed")?;
            match guid.chars().all(|c| c == '0') {
                true => Err("the device has no GUID".to_owned()),
                false => Ok("ok".to_owned()),
            }
        }),
        tool("ibv_devinfo -v").verdict(devinfo),
        tool(&format!("timeout --preserve-status --signal=INT 5 ibv_asyncwatch -d {DEVICE}")).verdict(|ended| {
            let said = &ended[0].said;
            if said.contains("async event FD") && !ended[0].timed_out {
                Ok("ok".to_owned())
            } else {
                Err("it does not watch".to_owned())
            }
        }),
    ];
    // It has no way to notice a loss, so the network must be clean, or the card must repair it.
    cases.extend(everywhere(ud_pingpong, &[(Place::OneHost, Network::Clean), (Place::TwoHosts, Network::Clean)]));
    // EFA has no RC: to be refused, without a crash.
    cases.push(tool("ibv_rc_pingpong -g 0").verdict(|ended| match &ended[0] {
        end if end.said.contains("Couldn't create QP") => Ok("refused, as EFA does".to_owned()),
        _ => Err("an RC queue pair was not refused".to_owned()),
    }));
    cases
}

pub(super) fn ud_pingpong() -> Case {
    Case::duo(Client::IbvUtils, 18515, "ibv_ud_pingpong -g 0 -s 2048 -n 1000")
        .verdict(|ended| all_well(ended).map(|()| "ok".into()))
}

pub(super) fn devinfo(ended: &[Ended]) -> Result<String, String> {
    all_well(ended)?;
    let said = &ended[0].said;
    for (label, wanted) in [("vendor_id:", "0x1d0f"), ("state:", "PORT_ACTIVE (4)"), ("max_msg_sz:", "0x22e0")] {
        let found = after(said, label);
        if found != Some(wanted) {
            return Err(format!("{label} {} instead of {wanted}", found.unwrap_or("is missing")));
        }
    }
    match after(said, "GID[  0]:") {
        Some(gid) if gid.starts_with("fe80:") => Ok("ok".to_owned()),
        gid => Err(format!("GID 0 is {}", gid.unwrap_or("missing"))),
    }
}
