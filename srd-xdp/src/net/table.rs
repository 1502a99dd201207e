//! Where frames to a destination go: route and neighbour, as the kernel knows them.
//!
//! Answers are kept until the kernel tells of a change, and what messages from the network have taught it no longer than it
//! keeps that itself. A destination that is not reached by a known neighbour through our interface has no [`Hop`]: the
//! kernel's own stack carries its datagrams, and thereby finds the neighbour, which we hear of.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use srd_core::{Span, Time};
use srd_udp::netlink::{self, Netlink};

use super::Links;
use super::link::MAX_TAGS;

/// The next hop of a destination, and how to address it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    /// Our address.
    pub(crate) source: IpAddr,
    pub(crate) from_mac: [u8; 6],
    pub(crate) to_mac: [u8; 6],
    pub(crate) tags: ArrayVec<[u8; 4], MAX_TAGS>,
    /// Largest IP packet, in bytes.
    pub(crate) mtu: u32,
}

/// Interface and address of a neighbour.
type Next = (u32, IpAddr);

/// A way through our interface.
#[derive(Clone, Debug)]
struct Route {
    hop: Hop,
    next: Next,
}

/// A neighbour's address, if it is known.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbour {
    mac: Option<[u8; 6]>,
    /// Nobody has confirmed it for long. The kernel does not see that we use it, so it has to be told; else it would neither
    /// ask the neighbour nor forget one that has gone.
    stale: bool,
}

/// What a route may depend on: destination, its scope, the source that is asked for.
type Key = (IpAddr, u32, Option<IpAddr>);

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Table {
    interface: u32,
    ask: Netlink,
    listen: Netlink,
    links: Links,
    routes: HashMap<Key, Option<Route>>,
    neighbours: HashMap<Next, Neighbour>,
    /// The time, as far as it has been told.
    now: Time,
    /// When the kernel forgets the first of what the routes say and it has learned.
    renew: Time,
    /// The last answer, until there is news: most bursts go where the one before went.
    last: Option<(Key, Hop)>,
}

// `RTNLGRP_` of `linux/rtnetlink.h`: links, neighbours, addresses, routes and rules of both families, next hops that routes
// have in common.
const GROUPS: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];
/// Destinations remembered at most; beyond, all are asked for again.
const MAX_ROUTES: usize = 8192;
/// In what the kernel counts the time that is left of a route (`USER_HZ`).
const TICK: Span = Span::from_millis(10);

impl Table {
    /// For frames that leave by this interface.
    pub(crate) fn open(interface: u32) -> io::Result<Table> {
        let listen = Netlink::listen(&GROUPS)?;
        let mut ask = Netlink::open()?;
        let links = Links::read(&mut ask)?;
        let (routes, neighbours) = (HashMap::new(), HashMap::new());
        let (now, renew) = (Time::ZERO, Time::NEVER);
        Ok(Table { interface, ask, listen, links, routes, neighbours, now, renew, last: None })
    }

    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// The next hop towards `to`, sending from `from` if the caller has a wish. `None`: leave it to the kernel.
    pub(crate) fn hop(&mut self, to: SocketAddr, from: Option<IpAddr>) -> Option<&Hop> {
        let scope = match to {
            SocketAddr::V6(to) => to.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let key = (to.ip(), scope, from);
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.last = self.find(key).map(|hop| (key, hop));
        }
        self.last.as_ref().map(|(_, hop)| hop)
    }

    fn find(&mut self, key: Key) -> Option<Hop> {
        if !self.routes.contains_key(&key) {
            if self.routes.len() >= MAX_ROUTES {
                self.routes.clear();
                self.neighbours.clear();
            }
            let route = self.ask_route(key);
            self.routes.insert(key, route);
        }
        let route = self.routes.get(&key)?.as_ref()?;
        let neighbour = match self.neighbours.get_mut(&route.next) {
            Some(neighbour) => neighbour,
            None => {
                let known = ask_neighbour(&mut self.ask, route.next).unwrap_or_default();
                self.neighbours.entry(route.next).or_insert(known)
            }
        };
        // Once: the kernel tells what it finds. If it may not be told (privileges were given up), what is sent now goes through
        // its own stack, and does the same.
        if std::mem::take(&mut neighbour.stale) && confirm(&mut self.ask, route.next).is_err() {
            return None;
        }
        Some(Hop { to_mac: neighbour.mac?, ..route.hop.clone() })
    }

    fn ask_route(&mut self, (to, scope, from): Key) -> Option<Route> {
        if to.is_multicast() || to.is_loopback() || to.is_unspecified() {
            return None;
        }
        let addr = match to {
            IpAddr::V4(_) => SocketAddr::new(to, 0),
            IpAddr::V6(to) => SocketAddrV6::new(to, 0, 0, scope).into(),
        };
        let question = netlink::route_to(addr, from);
        let answer = self.ask.route(question.clone()).ok()?;
        if answer.header.kind != RouteType::Unicast {
            return None;
        }
        let (mut out, mut next, mut source, mut mtu) = (None, to, from, netlink::mtu(&answer));
        if mtu.is_some()
            && let Ok(configured) = self.ask.configured_mtu(question)
        {
            mtu = configured;
        }
        for attribute in answer.attributes {
            match attribute {
                RouteAttribute::Oif(index) => out = Some(index),
                RouteAttribute::Gateway(address) => next = ip(&address)?,
                // An IPv4 route by an IPv6 neighbour.
                RouteAttribute::Via(_) | RouteAttribute::Encap(_) => return None,
                RouteAttribute::PrefSource(address) if source.is_none() => source = ip(&address),
                RouteAttribute::CacheInfo(info) if info.expires != 0 => {
                    let left = info.expires.cast_signed().max(1).cast_unsigned();
                    self.renew = self.renew.min(self.now + TICK * u64::from(left));
                }
                _ => {}
            }
        }
        let out = out?;
        let (base, tags) = self.links.base(out)?;
        let link = self.links.get(out)?;
        if base.index != self.interface || !base.up || !link.up {
            return None;
        }
        let mtu = mtu.unwrap_or(link.mtu).min(link.mtu);
        let hop = Hop { source: source?, from_mac: link.mac, to_mac: [0; 6], tags, mtu };
        Some(Route { hop, next: (out, next) })
    }

    /// Takes note of what the kernel has to tell. Returns whether addresses may have changed.
    pub(crate) fn follow(&mut self, now: Time) -> bool {
        self.now = now;
        if self.renew <= now {
            self.routes.clear();
            (self.renew, self.last) = (Time::NEVER, None);
        }
        let (mut changed, mut readdressed, mut unknown) = (false, false, false);
        let last = &mut self.last;
        let (links, interface) = (&self.links, self.interface);
        let neighbours = &mut self.neighbours;
        let news = self.listen.news(|message| {
            *last = None;
            match message {
                Some(RouteNetlinkMessage::NewNeighbour(message)) => {
                    let Some((next, news)) = neighbour(&message) else { return };
                    if let Some(known) = neighbours.get_mut(&next) {
                        *known = news;
                    }
                }
                Some(RouteNetlinkMessage::DelNeighbour(message)) => {
                    neighbour(&message).map(|(next, _)| neighbours.remove(&next));
                }
                Some(
                    RouteNetlinkMessage::NewRoute(_)
                    | RouteNetlinkMessage::DelRoute(_)
                    | RouteNetlinkMessage::NewRule(_)
                    | RouteNetlinkMessage::DelRule(_),
                ) => changed = true,
                // Of hosts with many containers, others' interfaces come and go all the time, and may take routes along.
                Some(RouteNetlinkMessage::NewLink(message) | RouteNetlinkMessage::DelLink(message)) => {
                    changed = true;
                    readdressed |= concerns(links, interface, &message);
                }
                Some(RouteNetlinkMessage::NewAddress(message) | RouteNetlinkMessage::DelAddress(message)) => {
                    changed = true;
                    readdressed |= links.is_on(message.header.index, interface);
                }
                Some(_) => readdressed = true,
                // Next hops, for one.
                None => unknown = true,
            }
        });
        if news.is_err() || unknown {
            // Some were lost, or may say anything.
            self.last = None;
            readdressed = true;
            self.neighbours.clear();
        }
        if changed || readdressed {
            self.routes.clear();
        }
        if readdressed && let Ok(links) = Links::read(&mut self.ask) {
            self.links = links;
        }
        readdressed
    }
}

impl AsFd for Table {
    /// Readable when there is something to follow.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listen.as_fd()
    }
}

/// Whether news of a link are of this interface, or of one that lies on it, or did.
fn concerns(links: &Links, interface: u32, news: &LinkMessage) -> bool {
    let parent =
        news.attributes.iter().find_map(|a| if let LinkAttribute::Link(index) = a { Some(*index) } else { None });
    [Some(news.header.index), parent].into_iter().flatten().any(|index| links.is_on(index, interface))
}

fn question((interface, ip): Next) -> NeighbourMessage {
    let mut question = NeighbourMessage::default();
    question.header.family = family(ip);
    question.header.ifindex = interface;
    let ip = match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    question.attributes.push(NeighbourAttribute::Destination(ip));
    question
}

fn ask_neighbour(ask: &mut Netlink, next: Next) -> Option<Neighbour> {
    match ask.get(RouteNetlinkMessage::GetNeighbour(question(next))) {
        Ok(RouteNetlinkMessage::NewNeighbour(answer)) => neighbour(&answer).map(|(_, known)| known),
        _ => None,
    }
}

/// Makes the kernel ask whether the neighbour is still there.
fn confirm(ask: &mut Netlink, next: Next) -> io::Result<()> {
    let mut order = question(next);
    order.header.flags = NeighbourFlags::Use;
    ask.tell(RouteNetlinkMessage::NewNeighbour(order), NLM_F_REPLACE)
}

/// Interface and address of a neighbour, and what is known of it: its MAC while that is valid.
fn neighbour(message: &NeighbourMessage) -> Option<(Next, Neighbour)> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => address = Some(IpAddr::V6(*ip)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let state = message.header.state;
    let valid = matches!(state, Reachable | Stale | Delay | Probe | Permanent | Noarp);
    let known = Neighbour { mac: mac.filter(|_| valid), stale: state == Stale };
    Some(((message.header.ifindex, address?), known))
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use testbed::{Host, Pair};

    use super::*;

    fn ip(host: &Host, args: &str) -> String {
        let out = host.command("ip").args(args.split(' ')).output().expect("ip starts");
        assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }

    /// A table for the end of the cable on this host.
    fn table(host: &Host) -> Table {
        let open = || {
            let links = Links::read(&mut Netlink::open()?)?;
            let cable = links.choose(IpAddr::from([0; 4]), Some("eth0")).map_err(io::Error::other)?;
            Table::open(cable.index)
        };
        host.enter(open).expect("a host").expect("a table")
    }

    /// The kernel forgets a redirection after five minutes, and says nothing.
    #[test]
    fn what_the_network_has_said_is_forgotten_with_the_kernel() {
        let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
        let host = bed.host(0);
        let ip = |args: &str| ip(host, args);
        ip("route add 10.6.0.0/16 via 10.0.0.2");
        for i in [2, 9] {
            ip(&format!("neigh replace 10.0.0.{i} lladdr 02:00:00:00:00:0{i} dev eth0 nud permanent"));
        }
        let set = |name: &str, value: &str| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            host.enter(|| std::fs::write(path, value)).expect("a host").expect("a setting");
        };
        ["all", "eth0"].iter().for_each(|conf| set(&format!("conf/{conf}/accept_redirects"), "1"));
        ["all", "eth0"].iter().for_each(|conf| set(&format!("conf/{conf}/secure_redirects"), "0"));
        let socket = host.enter(|| UdpSocket::bind((host.addr(), 0))).expect("a host").expect("a port");
        let mut table = table(host);
        let to = SocketAddr::from(([10, 6, 0, 1], 4000));
        let start = Time::ZERO + Span::from_secs(7);
        table.follow(start);
        let mut next = |at: Span| {
            table.follow(start + at);
            table.hop(to, None).map(|hop| hop.to_mac[5])
        };
        bed.host(1).redirect(socket.local_addr().expect("bound"), to, [10, 0, 0, 9].into()).expect("a host");
        assert!(host.learns_about(to.ip()).expect("a host"));
        assert_eq!(next(Span::from_secs(1)), Some(9), "the kernel believes it");
        set("route/flush", "1");
        assert_eq!(next(Span::from_secs(302)), Some(2), "and has forgotten it");
    }
    /// Others' interfaces may come and go all the time. What they take along is noticed, and nothing else is looked at.
    #[test]
    fn news_of_other_interfaces_cost_little() {
        let Some(bed) = Pair::builder().mtu(1500).for_test() else { return };
        let host = bed.host(0);
        let ip = |args: &str| ip(host, args);
        // That the other end is there, the kernel notices when it has the time, and tells.
        assert!((0..10_000).any(|_| ip("link show dev eth0").contains("state UP")), "its link does not come up");
        let mut table = table(host);
        ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent");
        ip("link add other type veth peer name more");
        ip("addr add 10.9.0.1/24 dev other");
        ip("link set more up");
        ip("link set other up");
        ip("route add 10.6.0.0/16 via 10.0.0.2 metric 2");
        ip("route add 10.6.0.0/16 dev other metric 1");
        assert!(!table.follow(Time::ZERO), "nothing of ours");
        let to = SocketAddr::from(([10, 6, 0, 1], 4000));
        assert_eq!(table.hop(to, None), None, "not our way");
        ip("link set other down");
        assert!(!table.follow(Time::ZERO), "nothing of ours");
        assert_eq!(table.hop(to, None).map(|hop| hop.to_mac[5]), Some(2), "our way");
        ip("link del other");
        assert!(!table.follow(Time::ZERO), "nothing of ours");
        for change in ["addr add 10.0.0.77/24 dev eth0", "addr del 10.0.0.77/24 dev eth0", "link set eth0 mtu 1400"] {
            ip(change);
            assert!(table.follow(Time::ZERO), "{change}");
        }
        assert_eq!(table.hop(to, None).map(|hop| hop.mtu), Some(1400));
    }
}
