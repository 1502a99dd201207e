//! Making the driver's sockets.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::BindError;
use crate::options::{Offload, UdpOptions};
use crate::sys;

/// ECT(0) in the traffic class.
const ECT0: u32 = 0b10;
/// Receive buffer of a socket that only sends: room for some ICMP reports.
const SEND_ONLY_RECV_BUFFER: usize = 4096;

/// What the main socket can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MainInfo {
    pub recv_buffer: usize,
    pub gro: bool,
    pub timestamps: bool,
}

/// The socket that receives everything, bound to `addr`.
pub(crate) fn open_main(addr: SocketAddr, options: &UdpOptions) -> Result<(Socket, MainInfo), BindError> {
    let socket = open(addr).map_err(|e| BindError::new("open", addr, e))?;
    let set_up = |socket: &Socket| -> io::Result<MainInfo> {
        let fd = socket.as_fd();
        if addr.is_ipv4() {
            socket.set_recv_tos_v4(true)?;
        } else {
            socket.set_recv_tclass_v6(true)?;
        }
        if addr.ip().is_unspecified() {
            let (level, name) = match addr {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            };
            sys::set_int(fd, level, name, 1)?;
        }
        size_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.recv_buffer);
        Ok(MainInfo {
            recv_buffer: socket.recv_buffer_size()?,
            gro: options.gro == Offload::Auto && sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok(),
            timestamps: options.timestamps == Offload::Auto
                && sys::set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).is_ok(),
        })
    };
    let info = set_up(&socket).map_err(|e| BindError::new("configure", addr, e))?;
    socket.bind(&addr.into()).map_err(|e| BindError::new("bind", addr, e))?;
    Ok((socket, info))
}

/// A socket that only sends, from the IP of `local` and a port of `range`, or any.
pub(crate) fn open_path(
    local: SocketAddr,
    range: Option<&RangeInclusive<u16>>,
    send_buffer: usize,
) -> io::Result<Socket> {
    let socket = open(local)?;
    let fd = socket.as_fd();
    // Never let the kernel fragment, nor believe the path MTU that ICMP messages claim: the core probes for itself.
    // With IP_RECVERR the kernel tells unconnected sockets about ICMP errors.
    if local.is_ipv4() {
        sys::set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        sys::set_int(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        socket.set_tos_v4(ECT0)?;
    } else {
        sys::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        sys::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
        sys::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        socket.set_tclass_v6(ECT0)?;
    }
    size_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_buffer);
    socket.set_recv_buffer_size(SEND_ONLY_RECV_BUFFER)?;
    let Some(range) = range else {
        socket.bind(&any_port(local).into())?;
        return Ok(socket);
    };
    // From a random place in the range onwards, so that neither restarts nor neighbours meet the same ports first.
    let (first, count) = (u32::from(*range.start()), range.len() as u32);
    let skip = getrandom::u32()? % count;
    let mut address = local;
    for i in 0..count {
        address.set_port((first + (skip + i) % count) as u16);
        match socket.bind(&address.into()) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            result => return result.map(|()| socket),
        }
    }
    Err(io::Error::other("all ports of the range for paths are in use"))
}

/// The MTU of the way from `local` to `to` as the kernel knows it, in bytes with headers.
pub(crate) fn route_mtu(local: SocketAddr, to: SocketAddr) -> io::Result<u32> {
    let socket = open(local)?;
    socket.bind(&any_port(local).into())?;
    socket.connect(&to.into())?;
    let (level, name) =
        if local.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mtu = sys::get_int(socket.as_fd(), level, name)?;
    u32::try_from(mtu).map_err(io::Error::other)
}

/// The same address, which may have a scope, with a port of the kernel's choice.
pub(crate) fn any_port(mut local: SocketAddr) -> SocketAddr {
    local.set_port(0);
    local
}

/// Whether the kernel knows segmentation offload at all (since Linux 4.18).
pub(crate) fn knows_gso(socket: &Socket) -> bool {
    sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

fn open(addr: SocketAddr) -> io::Result<Socket> {
    let socket = sys::spare_standard(Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Asks for a buffer of `size` bytes by privilege, else for as much as the kernel grants.
fn size_buffer(socket: &Socket, force: i32, plain: i32, size: usize) {
    // The kernel doubles the size for its own overhead.
    let size = i32::try_from(size).unwrap_or(i32::MAX) / 2;
    if sys::set_int(socket.as_fd(), libc::SOL_SOCKET, force, size).is_err() {
        let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, plain, size);
    }
}
