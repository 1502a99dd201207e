//! Debian's UCX, which knows nothing of EFA.

use super::super::case::{Case, Client};
use super::DEVICE;

pub(super) fn cases() -> Vec<Case> {
    // It sees the device, wants more of a queue pair than EFA has, says so, and goes on.
    let info = Case::solo(Client::Ucx, "ucx_info -d").device_files().verdict(|ended| {
        ended[0].check("program")?;
        let said = &ended[0].said;
        let device = said.contains(&format!("Device: {DEVICE}:1"));
        let refused = said.contains("failed to create UD QP") && said.contains("< failed to open interface >");
        let others = said.contains("Transport: tcp");
        match (device, refused, others) {
            (true, true, true) => Ok("declines the device, as on EFA".to_owned()),
            (false, ..) => Err("it does not see the device".to_owned()),
            (_, false, _) => Err("it was not refused more than EFA has".to_owned()),
            (.., false) => Err("its other transports are gone".to_owned()),
        }
    });
    vec![info]
}
