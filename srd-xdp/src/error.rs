//! Why a driver could not be made.

use std::io;

use crate::net::Link;

/// Why [`XdpDriver::open`](crate::XdpDriver::open) failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The UDP driver below could not be made.
    #[error(transparent)]
    Udp(#[from] srd_udp::BindError),
    /// No interface fits the address.
    #[error("AF_XDP has no interface to use: {0}")]
    Interface(String),
    /// `EPERM`.
    #[error("no permission to {call}; AF_XDP needs root, or the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF")]
    Permission {
        /// What was attempted.
        call: &'static str,
    },
    /// Another process has our program there, and only a privileged one may join it.
    #[error("another process uses AF_XDP at {interface}; to share its program, CAP_SYS_ADMIN is needed, too")]
    NotShared {
        /// The interface.
        interface: String,
    },
    /// There is an XDP program of somebody else.
    #[error(
        "the XDP program '{program}' (id {id}) is at {interface} already; stop the program that holds it, or detach it ('ip link set dev {interface} xdp off'), or use another interface"
    )]
    Foreign {
        /// The interface.
        interface: String,
        /// Name of the program.
        program: String,
        /// Its id.
        id: u32,
    },
    /// All queues are bound to sockets already.
    #[error(
        "no free receive queue at {interface}: all {queues} belong to other AF_XDP sockets; give the interface more queues ('ethtool -L {interface} combined N') and each program some of them (--xdp-queues), or stop the other program"
    )]
    QueuesTaken {
        /// The interface.
        interface: String,
        /// Its queues.
        queues: u32,
    },
    /// Zero copy was asked for.
    #[error("{interface} has no zero copy, and where the kernel copies, UDP with segmentation offload is faster")]
    NoZeroCopy {
        /// The interface.
        interface: String,
    },
    /// `ENOMEM` or `ENOBUFS`: locked memory.
    #[error(
        "not enough locked memory for {bytes} bytes of packet buffers; raise the limit ('ulimit -l', or CAP_IPC_LOCK), or use fewer queues (--xdp-queues)"
    )]
    Memory {
        /// What was asked for, for all queues together.
        bytes: u64,
    },
    /// `EMFILE` or `ENFILE`.
    #[error("no file descriptor is free for AF_XDP; raise the limit (`ulimit -n`) or close files")]
    Descriptors,
    /// The kernel does not know AF_XDP.
    #[error("this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use kernel UDP")]
    NoKernelSupport,
    /// An option is out of its range.
    #[error("option {option} {problem}")]
    Option {
        /// Name of the field of [`XdpOptions`](crate::XdpOptions).
        option: &'static str,
        /// Its value and what it must be.
        problem: String,
    },
    /// Anything else that the kernel refused.
    #[error("cannot {call} at {interface}")]
    Os {
        /// What was attempted.
        call: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Sorts the kernel's answer to `call`.
    pub(crate) fn os(call: &'static str, link: &Link, source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Permission { call },
            Some(libc::EMFILE | libc::ENFILE) => OpenError::Descriptors,
            Some(libc::EAFNOSUPPORT) => OpenError::NoKernelSupport,
            _ => OpenError::Os { call, interface: link.name.clone(), source },
        }
    }

    /// Sorts netlink's answer, before there is an interface.
    pub(crate) fn netlink(source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => OpenError::Descriptors,
            _ => OpenError::Os { call: "ask netlink", interface: "this host".into(), source },
        }
    }
}
