//! What a bed consists of before it exists: nodes and the cables between them,
//! and the batches for `ip`, `tc` and `ethtool` that make them real.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Error, Rate};

/// Properties that all links of one kind share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) rate: Option<Rate>,
    pub(crate) queue_bytes: u32,
    pub(crate) mtu: u32,
    pub(crate) offload: bool,
    /// Of each end, for either direction.
    pub(crate) queues: u32,
}

impl Wire {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1_280..=65_535).contains(&self.mtu) {
            return Err(Error::invalid(format!("an MTU of {} is out of range: choose 1280 to 65535", self.mtu)));
        }
        let Some(rate) = self.rate else { return Ok(()) };
        if rate < Rate::bits(8_000) {
            return Err(Error::invalid(format!("a rate of {rate} is too low: choose at least 8kbit, or no limit")));
        }
        if rate > Rate::gbit(10_000) {
            return Err(Error::invalid(format!("a rate of {rate} is too high: choose at most 10000gbit, or no limit")));
        }
        if self.queue_bytes < self.frame() {
            let (queue, frame) = (self.queue_bytes, self.frame());
            return Err(Error::invalid(format!("a queue of {queue} bytes holds no frame: choose at least {frame}")));
        }
        Ok(())
    }

    /// Bytes that may leave at once: two frames, or what the rate carries in a
    /// millisecond, as the kernel's timer need not fire more often than that.
    pub(crate) fn burst(&self, rate: Rate) -> u64 {
        u64::from(2 * self.frame()).max(rate.bytes_per_second() / 1_000)
    }

    /// The largest frame with its Ethernet header.
    fn frame(&self) -> u32 {
        self.mtu + 14
    }
}

/// One end of a cable.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) device: String,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

#[derive(Clone, Debug)]
struct Cable {
    ends: [End; 2],
    /// Prefix lengths of the cable's subnet.
    prefix: (u8, u8),
    wire: Wire,
}

/// Nodes, cables and routes of a bed. Nodes are numbered in order of creation.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<PlannedNode>,
    cables: Vec<Cable>,
    /// Interfaces that are the first cable's ends, if that is not a virtual one.
    pub(crate) nics: Option<[String; 2]>,
}

/// One node, and what has to be typed to set it up.
#[derive(Debug)]
pub(crate) struct PlannedNode {
    pub(crate) name: String,
    pub(crate) is_router: bool,
    /// Routes, as arguments of `ip`.
    pub(crate) routes: Vec<String>,
}

impl Plan {
    pub(crate) fn node(&mut self, name: String, is_router: bool) -> usize {
        self.nodes.push(PlannedNode { name, is_router, routes: Vec::new() });
        self.nodes.len() - 1
    }

    pub(crate) fn cable(&mut self, a: End, b: End, prefix: (u8, u8), wire: Wire) {
        self.cables.push(Cable { ends: [a, b], prefix, wire });
    }

    pub(crate) fn route(&mut self, node: usize, route: String) {
        self.nodes[node].routes.push(route);
    }

    /// Lines for one `ip -batch` that makes all links; `namespace` maps nodes.
    pub(crate) fn links(&self, namespace: impl Fn(usize) -> String) -> String {
        let mut batch = String::new();
        for (number, Cable { ends, wire, .. }) in self.cables.iter().enumerate() {
            let side = |which: usize| {
                let (end, mac, mtu) = (&ends[which], mac(number, which), wire.mtu);
                (format!("{} address {mac} mtu {mtu}", end.device), namespace(end.node))
            };
            let ((a, a_space), (b, b_space)) = (side(0), side(1));
            match self.nics.as_ref().filter(|_| number == 0) {
                None => writeln!(batch, "link add dev {a} netns {a_space} type veth peer name {b} netns {b_space}"),
                Some(nics) => nics.iter().zip([(a, a_space), (b, b_space)]).try_for_each(|(nic, (settings, space))| {
                    writeln!(batch, "link set dev {nic} down\nlink set dev {nic} netns {space} name {settings}")
                }),
            }
            .expect("a string takes everything");
        }
        batch
    }

    /// Lines for `ip -batch` inside one node: addresses, neighbours, routes.
    /// Neighbours are fixed, so no ARP delays or loses the first packets.
    pub(crate) fn addresses(&self, node: usize) -> String {
        let mut batch = vec!["link set lo up".to_owned()];
        for (cable, own, peer, peer_mac) in self.ends(node) {
            let (device, (v4, v6)) = (&own.device, cable.prefix);
            batch.push(format!("link set {device} up"));
            batch.push(format!("addr add {}/{v4} dev {device}", own.v4));
            batch.push(format!("addr add {}/{v6} dev {device} nodad", own.v6));
            batch.push(format!("neigh add {} lladdr {peer_mac} dev {device} nud permanent", peer.v4));
            batch.push(format!("neigh add {} lladdr {peer_mac} dev {device} nud permanent", peer.v6));
        }
        batch.extend(self.nodes[node].routes.iter().cloned());
        batch.join("\n") + "\n"
    }

    /// The node's IPv6 addresses.
    pub(crate) fn v6_addresses(&self, node: usize) -> impl Iterator<Item = Ipv6Addr> {
        self.ends(node).map(|(_, own, ..)| own.v6)
    }

    /// Lines for `tc -batch` inside one node: what it sends is shaped.
    pub(crate) fn queues(&self, node: usize) -> String {
        let mut batch = String::new();
        for (Cable { wire, .. }, own, ..) in self.ends(node) {
            let Some(rate) = wire.rate else { continue };
            let (device, burst, limit) = (&own.device, wire.burst(rate), wire.queue_bytes);
            writeln!(batch, "qdisc add dev {device} root tbf rate {rate} burst {burst} limit {limit}")
                .expect("a string takes everything");
        }
        batch
    }

    /// The node's devices that shall carry only real frames.
    pub(crate) fn without_offload(&self, node: usize) -> Vec<&str> {
        let ends = self.ends(node).filter(|(cable, ..)| !cable.wire.offload);
        ends.map(|(_, own, ..)| own.device.as_str()).collect()
    }

    /// The node's devices that shall have more queues than the one which virtual cables have.
    pub(crate) fn with_queues(&self, node: usize) -> Vec<(&str, u32)> {
        let ends = self.ends(node).filter(|(cable, ..)| cable.wire.queues > 1 && self.nics.is_none());
        ends.map(|(cable, own, ..)| (own.device.as_str(), cable.wire.queues)).collect()
    }

    /// The cables at a node: cable, this end, the other end and its MAC.
    fn ends(&self, node: usize) -> impl Iterator<Item = (&Cable, &End, &End, String)> {
        self.cables.iter().enumerate().flat_map(move |(number, cable)| {
            let at_node = (0..2).filter(move |side| cable.ends[*side].node == node);
            at_node.map(move |side| (cable, &cable.ends[side], &cable.ends[1 - side], mac(number, 1 - side)))
        })
    }
}

/// Locally administered; need only be unique within the bed.
fn mac(cable: usize, side: usize) -> String {
    let [.., a, b, c] = cable.to_be_bytes();
    format!("02:00:{side:02x}:{a:02x}:{b:02x}:{c:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Wire = Wire { rate: Some(Rate::mbit(10)), queue_bytes: 64_000, mtu: 1_500, offload: false, queues: 1 };

    #[test]
    fn check_refuses_what_cannot_work() {
        assert!(WIRE.check().is_ok());
        for wire in [
            Wire { mtu: 1_000, ..WIRE },
            Wire { mtu: 100_000, ..WIRE },
            Wire { rate: Some(Rate::bits(1)), ..WIRE },
            Wire { queue_bytes: 1_000, ..WIRE },
        ] {
            assert!(wire.check().is_err(), "{wire:?}");
        }
    }

    #[test]
    fn burst_covers_two_frames_or_a_millisecond() {
        assert_eq!(WIRE.burst(Rate::mbit(1)), 3_028);
        assert_eq!(WIRE.burst(Rate::gbit(1)), 125_000);
    }
}
