//! Interfaces, and which of them to use.

use std::io;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use srd_udp::netlink::Netlink;

/// An interface.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) ethernet: bool,
    pub(crate) up: bool,
    pub(crate) veth: bool,
    /// It sends and receives by other interfaces. A native program runs in their drivers, and what it takes there cannot go
    /// to a socket that is bound here.
    pub(crate) bond: bool,
    /// For an interface of a VLAN: that it lies on, and the tag (protocol and number) that its frames carry.
    pub(crate) vlan: Option<(u32, [u8; 4])>,
    /// Id of the XDP program that is attached.
    pub(crate) program: Option<u32>,
    /// It is attached behind the device's driver, on socket buffers.
    pub(crate) generic: bool,
}

/// Most tags of a frame.
pub(crate) const MAX_TAGS: usize = 2;

/// What a frame says before the IP packet, if it is for an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Door {
    pub(crate) mac: [u8; 6],
    /// Outermost first.
    pub(crate) tags: ArrayVec<[u8; 4], MAX_TAGS>,
}

/// All interfaces and their addresses.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Links {
    all: Vec<Link>,
    addresses: Vec<(u32, IpAddr)>,
}

impl Links {
    pub(crate) fn read(netlink: &mut Netlink) -> io::Result<Links> {
        let mut links = Links::default();
        netlink.list(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(link) = message {
                links.all.push(Link::new(&link));
            }
        })?;
        netlink.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
            if let RouteNetlinkMessage::NewAddress(address) = message {
                let found = |a: &AddressAttribute| match a {
                    AddressAttribute::Local(ip) => Some(*ip),
                    _ => None,
                };
                let other = |a: &AddressAttribute| match a {
                    AddressAttribute::Address(ip) => Some(*ip),
                    _ => None,
                };
                // At a point-to-point interface `Address` is the other end's.
                let attributes = &address.attributes;
                let ip = attributes.iter().find_map(found).or_else(|| attributes.iter().find_map(other));
                links.addresses.extend(ip.map(|ip| (address.header.index, ip)));
            }
        })?;
        Ok(links)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Link> {
        self.all.iter().find(|link| link.index == index)
    }

    /// The interface that carries the frames of this one, and their tags, outermost first.
    pub(crate) fn base(&self, index: u32) -> Option<(&Link, ArrayVec<[u8; 4], MAX_TAGS>)> {
        let mut tags = ArrayVec::new();
        let mut link = self.get(index)?;
        while let Some((parent, tag)) = link.vlan {
            tags.try_insert(0, tag).ok()?;
            link = self.get(parent)?;
        }
        Some((link, tags))
    }

    /// Addresses of this interface and of the VLANs on it, and how frames get there. (A link-local address of a VLAN is left
    /// out: in a received datagram it does not say which VLAN is meant.)
    pub(crate) fn addresses(&self, base: u32) -> impl Iterator<Item = (IpAddr, Door)> {
        self.addresses.iter().filter_map(move |&(index, ip)| {
            let (link, tags) = self.base(index)?;
            let ours = link.index == base && (tags.is_empty() || !is_link_local(&ip));
            let mac = self.get(index)?.mac;
            ours.then_some((ip, Door { mac, tags }))
        })
    }

    /// As if this address were that of a VLAN on an interface, for kernels without VLAN devices.
    #[cfg(test)]
    pub(crate) fn move_to_vlan(&mut self, ip: IpAddr, interface: u32, tags: &[[u8; 4]]) {
        let mac = self.get(interface).map_or([0; 6], |link| link.mac);
        let mut at = interface;
        for (i, &tag) in tags.iter().enumerate() {
            let (parent, index) = (at, 1_000 + i as u32);
            self.all.push(Link { index, mac, vlan: Some((parent, tag)), ..Link::default() });
            at = index;
        }
        self.addresses.iter_mut().filter(|(_, own)| *own == ip).for_each(|(index, _)| *index = at);
    }

    /// Whether frames of the interface are carried by this one.
    pub(crate) fn is_on(&self, index: u32, base: u32) -> bool {
        self.base(index).is_some_and(|(link, _)| link.index == base)
    }

    /// The interface to use at `local`, by name or by itself.
    ///
    /// # Errors
    /// What to do instead.
    pub(crate) fn choose(&self, local: IpAddr, name: Option<&str>) -> Result<&Link, String> {
        let usable: Vec<&Link> = self.all.iter().filter(|l| l.ethernet && l.vlan.is_none()).collect();
        let list = |links: &[&Link]| links.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(name) = name {
            let link = self.all.iter().find(|l| l.name == name);
            let link = link.ok_or_else(|| format!("there is no interface {name}; there are: {}", list(&usable)))?;
            let base = self.base(link.index).map(|(base, _)| base);
            return base.filter(|l| l.ethernet).ok_or_else(|| format!("{name} is no Ethernet interface"));
        }
        let carries = |link: &&&Link| {
            link.up
                && self.addresses(link.index).any(|(ip, _)| ip == local || local.is_unspecified() && same(&ip, &local))
        };
        let found: Vec<&Link> = usable.iter().filter(carries).copied().collect();
        match found[..] {
            [one] => Ok(one),
            [] if local.is_loopback() => Err("the loopback interface has no frames to bypass the kernel with".into()),
            [] if local.is_unspecified() => Err("no Ethernet interface with an address is up".into()),
            [] => Err(format!("no Ethernet interface that is up has the address {local}")),
            _ => Err(format!("several interfaces would do, name one of: {}", list(&found))),
        }
    }
}

fn same(a: &IpAddr, b: &IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// Whether it says nothing without the interface.
pub(crate) fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Link {
    fn new(message: &LinkMessage) -> Link {
        let header = &message.header;
        let mut link = Link {
            index: header.index,
            ethernet: header.link_layer_type == LinkLayerType::Ether,
            up: header.flags.contains(LinkFlags::Up),
            ..Link::default()
        };
        let (mut parent, mut tag) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Link(index) => parent = Some(*index),
                LinkAttribute::Address(mac) => link.mac = mac.first_chunk().copied().unwrap_or_default(),
                LinkAttribute::Xdp(xdp) => {
                    link.program = xdp.iter().find_map(|x| match x {
                        LinkXdp::ProgId(id) => Some(*id),
                        _ => None,
                    });
                    link.generic = xdp.contains(&LinkXdp::Attached(XdpAttached::SocketBuffer));
                }
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => {
                                link.veth = *kind == InfoKind::Veth;
                                link.bond = *kind == InfoKind::Bond;
                            }
                            LinkInfo::Data(InfoData::Vlan(vlan)) => tag = Some(vlan_tag(vlan)),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link.vlan = parent.zip(tag);
        link
    }
}

/// Protocol and number, as they stand in a frame.
fn vlan_tag(infos: &[InfoVlan]) -> [u8; 4] {
    let (mut protocol, mut id) = (0x8100, 0);
    for info in infos {
        match info {
            InfoVlan::Id(n) => id = *n,
            InfoVlan::Protocol(p) => protocol = u16::from(*p),
            _ => {}
        }
    }
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), id.to_be_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkHeader, VlanProtocol};

    use super::*;

    /// A link as the kernel tells of it.
    fn told(index: u32, name: &str, attributes: Vec<LinkAttribute>) -> Link {
        let mut message = LinkMessage::default();
        message.header =
            LinkHeader { index, link_layer_type: LinkLayerType::Ether, flags: LinkFlags::Up, ..LinkHeader::default() };
        message.attributes = [vec![LinkAttribute::IfName(name.into()), LinkAttribute::Mtu(1500)], attributes].concat();
        Link::new(&message)
    }

    fn vlan(parent: u32, id: u16, protocol: VlanProtocol) -> Vec<LinkAttribute> {
        let data = InfoData::Vlan(vec![InfoVlan::Id(id), InfoVlan::Protocol(protocol)]);
        let info = vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(data)];
        vec![LinkAttribute::Link(parent), LinkAttribute::LinkInfo(info)]
    }

    fn links() -> Links {
        let veth = vec![LinkAttribute::Link(9), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)])];
        let all = vec![
            told(1, "eth0", veth),
            told(2, "eth0.7", vlan(1, 7, VlanProtocol::Ieee8021Q)),
            told(3, "eth0.ad5", vlan(1, 5, VlanProtocol::Ieee8021Ad)),
            told(4, "eth0.5.8", vlan(3, 8, VlanProtocol::Ieee8021Q)),
            told(5, "eth0.5.8.9", vlan(4, 9, VlanProtocol::Ieee8021Q)),
        ];
        let addresses = [(1, "10.0.0.1"), (2, "10.7.0.1"), (4, "10.8.0.1"), (2, "fe80::7"), (1, "fe80::1")];
        Links { all, addresses: addresses.map(|(index, ip)| (index, ip.parse().expect("an address"))).into() }
    }

    #[test]
    fn vlans_lead_to_what_they_lie_on_and_to_their_tags() {
        let links = links();
        let base = |index| links.base(index).map(|(link, tags)| (link.name.as_str(), tags.to_vec()));
        assert_eq!(base(1), Some(("eth0", vec![])), "the other end of a cable is no VLAN");
        assert_eq!(base(2), Some(("eth0", vec![[0x81, 0, 0, 7]])));
        assert_eq!(base(4), Some(("eth0", vec![[0x88, 0xa8, 0, 5], [0x81, 0, 0, 8]])), "the outer one first");
        assert_eq!(base(5), None, "three tags");
    }

    #[test]
    fn addresses_of_vlans_belong_to_what_they_lie_on() {
        let links = links();
        let text = |ips: Vec<IpAddr>| ips.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = text(links.addresses(1).map(|(ip, _)| ip).collect());
        assert_eq!(all, ["10.0.0.1", "10.7.0.1", "10.8.0.1", "fe80::1"], "but link-local ones");
        let door = |ip: &str| links.addresses(1).find(|(a, _)| a.to_string() == ip).map(|(_, door)| door.tags.to_vec());
        assert_eq!(door("10.0.0.1"), Some(vec![]));
        assert_eq!(door("10.8.0.1"), Some(vec![[0x88, 0xa8, 0, 5], [0x81, 0, 0, 8]]));
        let chosen = |ip: &str, name| links.choose(ip.parse().expect("an address"), name).map(|l| l.name.as_str());
        assert_eq!(chosen("10.8.0.1", None), Ok("eth0"));
        assert_eq!(chosen("10.7.0.1", Some("eth0.7")), Ok("eth0"));
    }
}
