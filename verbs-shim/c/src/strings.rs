//! Names of enumerations, and rates.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::export;

fn pick(names: &'static [&'static CStr], index: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(index).ok().and_then(|i| names.get(i)).unwrap_or(&unknown).as_ptr()
}

export!(
    "IBVERBS_1.1",
    fn ibv_node_type_str(node_type: c_int) -> *const c_char {
        const NAMES: &[&CStr] = &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ];
        pick(NAMES, node_type, c"unknown")
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_port_state_str(port_state: c_int) -> *const c_char {
        const NAMES: &[&CStr] = &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
        pick(NAMES, port_state, c"unknown")
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_event_type_str(event: c_int) -> *const c_char {
        const NAMES: &[&CStr] = &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
        ];
        pick(NAMES, event, c"unknown")
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_wc_status_str(status: c_int) -> *const c_char {
        const NAMES: &[&CStr] = &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ];
        pick(NAMES, status, c"unknown")
    }
);

/// `enum ibv_rate`, multiples of 2.5 Gbit/s (-1 where there is none), Mbit/s.
const RATES: &[(c_int, c_int, c_int)] = &[
    (2, 1, 2500),
    (3, 4, 10000),
    (4, 12, 30000),
    (5, 2, 5000),
    (6, 8, 20000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, -1, 14062),
    (12, -1, 56250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

export!(
    "IBVERBS_1.0",
    fn ibv_rate_to_mult(rate: c_int) -> c_int {
        RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
    }
);

export!(
    "IBVERBS_1.0",
    fn mult_to_ibv_rate(mult: c_int) -> c_int {
        RATES.iter().find(|r| r.1 == mult && mult > 0).map_or(0, |r| r.0)
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_rate_to_mbps(rate: c_int) -> c_int {
        RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
    }
);

export!(
    "IBVERBS_1.1",
    fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
        RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
    }
);
