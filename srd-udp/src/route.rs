//! What the first hop towards a peer carries.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteType};

use crate::netlink::{self, Netlink};
use crate::socket;

/// The MTU of the first hop from `local` to `to`, in bytes with headers: that of the route, else of the interface.
///
/// What messages from the network have taught the kernel about the rest of the way does not count: such a message may be
/// forged, and is forgotten by the kernel after minutes, but not by a connection that began with it. The core finds out for
/// itself what a way carries.
///
/// # Errors
/// There is no route.
pub(crate) fn mtu(local: SocketAddr, to: SocketAddr) -> io::Result<u32> {
    let mtu = socket::route_mtu(local, to)?;
    // Without netlink (containers may forbid it) the kernel's word has to do.
    Ok(unlearned(local, to, mtu).ok().flatten().unwrap_or(mtu))
}

/// What the MTU would be if the kernel had not learned of `mtu`; `None` if it has not.
fn unlearned(local: SocketAddr, to: SocketAddr, mtu: u32) -> io::Result<Option<u32>> {
    let mut ask = Netlink::open()?;
    let from = Some(local.ip()).filter(|ip| !ip.is_unspecified());
    let question = netlink::route_to(to, from);
    let route = ask.route(question.clone())?;
    // If it says something else than the socket does, it is not the socket's: rules may look at ports and users.
    if route.header.kind != RouteType::Unicast || netlink::mtu(&route) != Some(mtu) {
        return Ok(None);
    }
    let configured = ask.configured_mtu(question)?;
    if configured.is_some() {
        return Ok(configured);
    }
    let out =
        route.attributes.iter().find_map(|a| if let RouteAttribute::Oif(index) = a { Some(*index) } else { None });
    let index = out.ok_or(io::ErrorKind::NotFound)?;
    interface_mtu(&mut ask, index, to.ip()).map(Some)
}

/// The MTU of an interface for the family of `to`: routers may announce one for IPv6.
fn interface_mtu(ask: &mut Netlink, index: u32, to: IpAddr) -> io::Result<u32> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    let RouteNetlinkMessage::NewLink(link) = ask.get(RouteNetlinkMessage::GetLink(question))? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mtu = link.attributes.iter().find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None });
    let mtu = mtu.ok_or(io::ErrorKind::NotFound)?;
    if to.is_ipv4() {
        return Ok(mtu);
    }
    let specs =
        link.attributes.iter().find_map(|a| if let LinkAttribute::AfSpecUnspec(s) = a { Some(s) } else { None });
    let v6 = specs.into_iter().flatten().find_map(|s| if let AfSpecUnspec::Inet6(v6) = s { Some(v6) } else { None });
    let conf =
        v6.into_iter().flatten().find_map(|a| if let AfSpecInet6::DevConf(conf) = a { Some(conf) } else { None });
    Ok(conf.and_then(|conf| u32::try_from(conf.mtu6).ok()).map_or(mtu, |mtu6| mtu6.min(mtu)))
}
