//! How many queues an interface has.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const GET_CHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Queue pairs of the interface, at least 1; 1 if its driver does not say.
///
/// # Errors
/// No descriptor is free.
pub(crate) fn queues(interface: &str) -> io::Result<u32> {
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this open descriptor, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut channels = Channels { cmd: GET_CHANNELS, ..Channels::default() };
    // SAFETY: ifreq is a plain C struct of integers, arrays and a union of such, for which all-zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()).take(libc::IFNAMSIZ - 1) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request outlives the call and holds a name that ends in zero and a pointer to exclusive memory of the
    // layout that the command wants; the kernel writes only there.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if rc < 0 {
        return Ok(1);
    }
    Ok((channels.combined + channels.rx.min(channels.tx)).max(1))
}
