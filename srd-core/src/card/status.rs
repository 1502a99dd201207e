//! How work requests end: the device's completion statuses (`efa_io_defs.h` of the Linux EFA driver), under the numbers
//! that programs see as `vendor_err`.

/// The status of a completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// Send and write: the responder accepted it. Read: the data has landed.
    Ok = 0,
    /// The queue pair went to the error state, or the address handle was destroyed, before it was done.
    Flushed = 1,
    /// The card failed.
    QpInternal = 2,
    /// The queue pair was not created for this operation.
    UnsupportedOp = 3,
    /// No such address handle.
    InvalidAh = 4,
    /// A local buffer is not in a memory region of its key, or the region does not permit the access.
    InvalidLkey = 5,
    /// Longer than the device permits.
    LocalBadLength = 6,
    /// The remote key does not permit this access to this range.
    BadAddress = 7,
    /// The remote side lost its connection state while the request was under way.
    Abort = 8,
    /// No queue pair of this number takes messages there, or the QKey is wrong.
    BadDestQpn = 9,
    /// The receiver had no receive work request, in all permitted attempts.
    Rnr = 10,
    /// The receive buffer is shorter than the message.
    RemoteBadLength = 11,
    /// The receiver could not place the message (its own buffer is invalid).
    BadStatus = 12,
    /// The peer answered before, and then stopped.
    UnrespRemote = 13,
    /// The target of an RDMA operation has no address handle for the initiator.
    UnknownPeer = 14,
    /// The peer never answered.
    UnreachRemote = 15,
    /// Only one of the two queue pairs has unsolicited write receive.
    FeatureMismatch = 18,
}

/// What there is to say of a status.
#[derive(Clone, Copy, Debug)]
pub struct StatusInfo {
    /// The status.
    pub status: Status,
    /// The device's name for it, as libfabric and the driver spell it.
    pub name: &'static str,
    /// `enum ibv_wc_status` that programs get, by number.
    pub wc_status: u32,
    /// The same by name.
    pub wc_name: &'static str,
    /// What libfabric's efa provider makes of it.
    pub libfabric: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What usually causes it, most likely first.
    pub causes: &'static [&'static str],
    /// What to look at.
    pub remedies: &'static [&'static str],
}

impl Status {
    /// The number that programs see as `vendor_err`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status with this number.
    pub fn from_code(code: u8) -> Option<Status> {
        TABLE.iter().map(|info| info.status).find(|s| s.code() == code)
    }

    /// The status with this number in the mouth of a responder: what it cannot mean is a bad status.
    // [CARD-9]
    pub(super) fn from_peer(code: u8) -> Status {
        use Status::{BadAddress, BadDestQpn, BadStatus, FeatureMismatch, RemoteBadLength, UnknownPeer};
        let given = [BadAddress, BadDestQpn, RemoteBadLength, UnknownPeer, FeatureMismatch];
        given.into_iter().find(|s| s.code() == code).unwrap_or(BadStatus)
    }

    /// What there is to say of it.
    pub fn info(self) -> &'static StatusInfo {
        TABLE.iter().find(|info| info.status == self).expect("the table has every status")
    }

    /// Every status.
    pub fn all() -> impl Iterator<Item = Status> {
        TABLE.iter().map(|info| info.status)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.info().name, self.code())
    }
}

static TABLE: [StatusInfo; 17] = [
    StatusInfo {
        status: Status::Ok,
        name: "OK",
        wc_status: 0,
        wc_name: "IBV_WC_SUCCESS",
        libfabric: "0",
        meaning: "done: the responder accepted the message or write, or the data of the read has landed",
        causes: &[],
        remedies: &[],
    },
    StatusInfo {
        status: Status::Flushed,
        name: "FLUSHED",
        wc_status: 5,
        wc_name: "IBV_WC_WR_FLUSH_ERR",
        libfabric: "FI_ECANCELED",
        meaning: "given up locally before it was done; it may or may not have been delivered",
        causes: &[
            "the queue pair was moved to the error state",
            "the address handle of the request was destroyed while the request was under way",
            "the device has failed, and has logged why: a program that closes descriptors which are not its own closes the \
             device's, too",
        ],
        remedies: &[
            "wait for the completions of an address handle before destroying it",
            "become a daemon before you open the device",
        ],
    },
    StatusInfo {
        status: Status::QpInternal,
        name: "LOCAL_ERROR_QP_INTERNAL_ERROR",
        wc_status: 2,
        wc_name: "IBV_WC_LOC_QP_OP_ERR",
        libfabric: "FI_EINVAL",
        meaning: "the card failed",
        causes: &["a fault was injected", "a defect of the card"],
        remedies: &["look for an injected fault in SRD_FAULT; otherwise report it with the log"],
    },
    StatusInfo {
        status: Status::UnsupportedOp,
        name: "LOCAL_ERROR_UNSUPPORTED_OP",
        wc_status: 2,
        wc_name: "IBV_WC_LOC_QP_OP_ERR",
        libfabric: "FI_EINVAL",
        meaning: "the queue pair or the device does not support this operation",
        causes: &[
            "the queue pair was created without the operation in send_ops_flags",
            "the device's generation has no RDMA read or write",
        ],
        remedies: &["ask efadv_query_device for the capabilities", "choose a newer profile (SRD_PROFILE)"],
    },
    StatusInfo {
        status: Status::InvalidAh,
        name: "LOCAL_ERROR_INVALID_AH",
        wc_status: 2,
        wc_name: "IBV_WC_LOC_QP_OP_ERR",
        libfabric: "FI_EINVAL",
        meaning: "the address handle does not exist in the protection domain of the queue pair",
        causes: &["it was destroyed before the request was posted", "it belongs to another protection domain"],
        remedies: &["create the address handle in the queue pair's protection domain, destroy it last"],
    },
    StatusInfo {
        status: Status::InvalidLkey,
        name: "LOCAL_ERROR_INVALID_LKEY",
        wc_status: 4,
        wc_name: "IBV_WC_LOC_PROT_ERR",
        libfabric: "FI_EINVAL",
        meaning: "a local buffer is not covered by a memory region of its lkey",
        causes: &[
            "the region was deregistered before the request was done",
            "the range leaves the region",
            "the region belongs to another protection domain",
            "it receives (or reads into) a region without IBV_ACCESS_LOCAL_WRITE",
        ],
        remedies: &["keep regions registered until all their completions were polled"],
    },
    StatusInfo {
        status: Status::LocalBadLength,
        name: "LOCAL_ERROR_BAD_LENGTH",
        wc_status: 1,
        wc_name: "IBV_WC_LOC_LEN_ERR",
        libfabric: "FI_EMSGSIZE",
        meaning: "longer than the device or the peer permits; nothing was sent",
        causes: &[
            "a send of more than max_msg_sz: SRD does not segment sends",
            "an RDMA operation of more than max_rdma_size",
        ],
        remedies: &["split the message, or use RDMA for what is longer"],
    },
    StatusInfo {
        status: Status::BadAddress,
        name: "REMOTE_ERROR_BAD_ADDRESS",
        wc_status: 10,
        wc_name: "IBV_WC_REM_ACCESS_ERR",
        libfabric: "FI_EINVAL",
        meaning: "the remote memory may not be accessed like this; no byte was written or disclosed",
        causes: &[
            "the remote region was deregistered",
            "the range leaves the remote region",
            "the region lacks IBV_ACCESS_REMOTE_READ or IBV_ACCESS_REMOTE_WRITE",
            "the rkey belongs to another protection domain, or is an lkey",
        ],
        remedies: &["compare address, length and rkey with what the peer registered"],
    },
    StatusInfo {
        status: Status::Abort,
        name: "REMOTE_ERROR_ABORT",
        wc_status: 16,
        wc_name: "IBV_WC_REM_ABORT_ERR",
        libfabric: "FI_ECONNABORTED",
        meaning: "the remote side reset the connection; the request may or may not have been delivered",
        causes: &["the peer's process was restarted", "the peer closed its device"],
        remedies: &["look at the peer's log; exchange addresses anew and send again"],
    },
    StatusInfo {
        status: Status::BadDestQpn,
        name: "REMOTE_ERROR_BAD_DEST_QPN",
        wc_status: 15,
        wc_name: "IBV_WC_REM_INV_RD_REQ_ERR",
        libfabric: "FI_ENOTCONN",
        meaning: "no such queue pair takes messages at the peer",
        causes: &[
            "it was destroyed, or never existed",
            "the peer closed its device, or its process ended in good order",
            "it is in a state below RTR, or in the error state",
            "the QKey is not the queue pair's",
            "the queue pair is of the other type (UD instead of SRD)",
        ],
        remedies: &["exchange queue pair numbers after the peer reached RTR, and again when it restarts"],
    },
    StatusInfo {
        status: Status::Rnr,
        name: "REMOTE_ERROR_RNR",
        wc_status: 13,
        wc_name: "IBV_WC_RNR_RETRY_EXC_ERR",
        libfabric: "FI_ENORX",
        meaning: "the receiver had no receive work request in all permitted attempts; the message was not delivered",
        causes: &["the receiver posts too few receives, or too late", "rnr_retry is small"],
        remedies: &["post receives ahead", "set rnr_retry to 7 (for ever), or send again later"],
    },
    StatusInfo {
        status: Status::RemoteBadLength,
        name: "REMOTE_ERROR_BAD_LENGTH",
        wc_status: 9,
        wc_name: "IBV_WC_REM_INV_REQ_ERR",
        libfabric: "FI_EMSGSIZE",
        meaning: "the receive buffer at the peer is shorter than the message, which was not delivered",
        causes: &["sender and receiver do not agree on message sizes"],
        remedies: &["post receive buffers of the longest message"],
    },
    StatusInfo {
        status: Status::BadStatus,
        name: "REMOTE_ERROR_BAD_STATUS",
        wc_status: 7,
        wc_name: "IBV_WC_BAD_RESP_ERR",
        libfabric: "FI_EREMOTEIO",
        meaning: "the receiver could not place the message",
        causes: &["the receive buffer at the peer is not covered by a valid memory region"],
        remedies: &["look at the receive completions of the peer: one has status 5"],
    },
    StatusInfo {
        status: Status::UnrespRemote,
        name: "LOCAL_ERROR_UNRESP_REMOTE",
        wc_status: 20,
        wc_name: "IBV_WC_RESP_TIMEOUT_ERR",
        libfabric: "FI_ECONNABORTED",
        meaning: "the peer answered before and then not for the peer timeout; the request may have been delivered",
        causes: &[
            "the peer's process was killed or is stopped",
            "the peer's host or the network between went down, on all paths",
            "the peer's host is too busy to run it (a kernel may not run a process for seconds)",
        ],
        remedies: &[
            "see whether the peer's process lives",
            "srd stat: are packets still received from anyone?",
            "give the peer a core of its own, or switch kernel.sched_autogroup_enabled off where other programs run at nice 19",
        ],
    },
    StatusInfo {
        status: Status::UnknownPeer,
        name: "REMOTE_ERROR_UNKNOWN_PEER",
        wc_status: 11,
        wc_name: "IBV_WC_REM_OP_ERR",
        libfabric: "FI_ENOTCONN",
        meaning: "the target of the RDMA operation has no address handle for us, and EFA requires one",
        causes: &["the target never created an address handle (libfabric: fi_av_insert) for the initiator"],
        remedies: &[
            "create an address handle for the initiator at the target before the first RDMA operation",
            "SRD_STRICT_PEERS=off relaxes the rule (real EFA does not)",
        ],
    },
    StatusInfo {
        status: Status::UnreachRemote,
        name: "LOCAL_ERROR_UNREACH_REMOTE",
        wc_status: 20,
        wc_name: "IBV_WC_RESP_TIMEOUT_ERR",
        libfabric: "FI_EHOSTUNREACH",
        meaning: "the peer never answered; nothing was delivered",
        causes: &[
            "nothing runs at the address in the GID (the peer's process ended, or the GID is stale)",
            "a firewall or security group drops UDP between the hosts",
            "no route to the host",
        ],
        remedies: &["srd doctor on both hosts", "check that the GID is the peer's current one"],
    },
    StatusInfo {
        status: Status::FeatureMismatch,
        name: "REMOTE_ERROR_FEATURE_MISMATCH",
        wc_status: 9,
        wc_name: "IBV_WC_REM_INV_REQ_ERR",
        libfabric: "FI_EINVAL",
        meaning: "one of the two queue pairs has unsolicited write receive and the other has not",
        causes: &["a write with immediate between queue pairs created with different flags"],
        remedies: &["create both queue pairs with EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, or neither"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_and_names_are_unique() {
        for status in Status::all() {
            assert_eq!(Status::from_code(status.code()), Some(status));
            assert_eq!(status.info().status, status);
        }
        for code in [16, 17, 19, 255] {
            assert_eq!(Status::from_code(code), None);
        }
        let names: std::collections::BTreeSet<_> = TABLE.iter().map(|i| i.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }
}
