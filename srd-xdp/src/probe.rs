//! Whether a driver could be opened, found out without touching the interface.

use std::net::IpAddr;

use srd_udp::netlink::Netlink;

use crate::error::OpenError;
use crate::filter::{load, named};
use crate::lane;
use crate::net::Links;
use crate::options::XdpOptions;
use crate::sys::{self, Xsk};

/// What to expect of AF_XDP at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Prospect {
    /// Name of the interface.
    pub interface: String,
    /// Its receive queues: as many drivers can share it.
    pub queues: u32,
    /// It is one end of a virtual cable, and has no zero copy. Of other interfaces that is known only when a socket is bound.
    pub veth: bool,
    /// Bytes of memory that the packet buffers of a queue lock, with the defaults.
    pub locked_bytes: u64,
    /// Other drivers of ours are at the interface now.
    pub shared: bool,
}

/// Does all that opening a driver at `addr` does, except attaching the program and binding the sockets, which would
/// disturb the interface.
///
/// # Errors
/// What is missing or in the way, and what to do about it.
pub fn probe(addr: IpAddr, interface: Option<&str>) -> Result<Prospect, OpenError> {
    let mut ask = Netlink::open().map_err(OpenError::netlink)?;
    let links = Links::read(&mut ask).map_err(OpenError::netlink)?;
    let link = links.choose(addr, interface).map_err(OpenError::Interface)?;
    let queues = sys::queues(&link.name).map_err(|e| OpenError::os("ask for the queues", link, e))?;
    Xsk::exists().map_err(|e| OpenError::os("make an AF_XDP socket", link, e))?;
    load(link, None)?;
    if let Some(id) = link.program {
        named(id, link)?.map_err(|e| OpenError::os("look at the program", link, e))?;
    }
    let frame = lane::frame_size(link.mtu, !link.veth);
    Ok(Prospect {
        interface: link.name.clone(),
        queues,
        veth: link.veth,
        locked_bytes: lane::locked_bytes(frame, XdpOptions::default().frames),
        shared: link.program.is_some(),
    })
}
