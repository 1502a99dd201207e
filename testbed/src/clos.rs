//! The larger bed: hosts - leaves - spines.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::bed::{Bed, Node};
use crate::cable::{End, Plan, Wire};
use crate::host::Host;
use crate::tools::runs_here;
use crate::{CableStats, Direction, Error, LinkDrops, LinkStats, Moment, Rate, Traffic, impair, stats};

/// A two-tier network; removed when dropped.
///
/// Every leaf (top-of-rack switch) has a cable to every spine. Hosts are
/// numbered through: host `h` hangs off leaf `h / hosts_per_leaf`. Leaves
/// spread over the spines by a hash of addresses and ports.
#[derive(Debug)]
pub struct Clos {
    bed: Bed,
    shape: Shape,
    hosts: Vec<Host>,
}

/// Settings of a [`Clos`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClosBuilder {
    shape: Shape,
    host: Wire,
    spine_rate: Option<Rate>,
    ecmp_seed: Option<u32>,
    keep: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    leaves: usize,
    spines: usize,
    hosts_per_leaf: usize,
}

impl Clos {
    /// The defaults: 2 leaves, 4 spines, 2 hosts per leaf, no rate limits,
    /// queues of 65,536 bytes, MTU 1500, offload off (real frames).
    pub fn builder() -> ClosBuilder {
        ClosBuilder {
            shape: Shape { leaves: 2, spines: 4, hosts_per_leaf: 2 },
            host: Wire { rate: None, queue_bytes: 64 << 10, mtu: 1_500, offload: false, queues: 1 },
            spine_rate: None,
            ecmp_seed: None,
            keep: None,
        }
    }

    /// Takes hold of a bed that was built with [`ClosBuilder::keep`].
    ///
    /// # Errors
    /// If there is none of that name, or it is a pair.
    pub fn open(name: &str) -> Result<Self, Error> {
        let bed = Bed::open(name)?;
        let count = |kind| bed.nodes().iter().filter(|n| n.name.starts_with(kind)).count();
        let (hosts, leaves, spines) = (count('h'), count('l'), count('s'));
        if leaves == 0 && spines == 0 && hosts == 2 {
            return Err(Error::invalid(format!("the test bed `{name}` is a pair: it has no spines")));
        }
        let all = |kind: char, count: usize| count > 0 && (0..count).all(|index| bed.has(&format!("{kind}{index}")));
        if !(all('h', hosts) && all('l', leaves) && all('s', spines) && hosts.is_multiple_of(leaves)) {
            return Err(Error::Unfinished(name.to_owned()));
        }
        Ok(Self::around(bed, Shape { leaves, spines, hosts_per_leaf: hosts / leaves }))
    }

    fn around(bed: Bed, shape: Shape) -> Self {
        let host = |index| {
            let (v4, v6) = shape.host_addresses(index, HOST);
            Host { index, namespace: bed.node(&format!("h{index}")).namespace.clone(), v4, v6 }
        };
        Self { hosts: (0..shape.hosts()).map(host).collect(), bed, shape }
    }

    /// The name in the bed's namespaces: `srdbed-<id>-h0`, `-l0`, `-s0`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.bed.id()
    }

    /// All hosts, in order.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host.
    ///
    /// # Panics
    /// If there is no host of that number.
    #[must_use]
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// How many leaves there are.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.shape.leaves
    }

    /// How many spines there are.
    #[must_use]
    pub fn spines(&self) -> usize {
        self.shape.spines
    }

    /// The leaf a host hangs off.
    #[must_use]
    pub fn leaf_of(&self, host: usize) -> usize {
        host / self.shape.hosts_per_leaf
    }

    /// Silently drops everything on one link in one direction. Neither end
    /// notices, and routing goes on using the link.
    ///
    /// # Errors
    /// If there is no such link, or `nft` fails.
    pub fn hole(&self, spine: usize, leaf: usize, direction: Direction) -> Result<(), Error> {
        self.impair(spine, leaf, direction, Traffic::All, 100.0)
    }

    /// The same from a moment on, for measurements that need to know exactly when.
    ///
    /// # Errors
    /// If there is no such link, or `nft` fails.
    pub fn hole_at(&self, moment: Moment, spine: usize, leaf: usize, direction: Direction) -> Result<(), Error> {
        self.check(spine, leaf)?;
        let (node, device) = self.receiver(spine, leaf, direction);
        impair::set(node, &device, Traffic::All, 100.0, Some(moment))
    }

    /// Makes a spine swallow everything, from and to every leaf.
    ///
    /// # Errors
    /// If there is no such spine, or `nft` fails.
    pub fn hole_spine(&self, spine: usize) -> Result<(), Error> {
        self.check(spine, 0)?;
        self.spine_links().try_for_each(|(leaf, direction)| self.hole(spine, leaf, direction))
    }

    /// The same from a moment on.
    ///
    /// # Errors
    /// If there is no such spine, or `nft` fails.
    pub fn hole_spine_at(&self, moment: Moment, spine: usize) -> Result<(), Error> {
        self.check(spine, 0)?;
        self.spine_links().try_for_each(|(leaf, direction)| self.hole_at(moment, spine, leaf, direction))
    }

    /// Loses a random share of the packets on one link in one direction.
    ///
    /// # Errors
    /// If there is no such link, `percent` is not within 0 to 100, or `nft` fails.
    pub fn loss(&self, spine: usize, leaf: usize, direction: Direction, percent: f64) -> Result<(), Error> {
        self.impair(spine, leaf, direction, Traffic::All, percent)
    }

    /// Loses a random share of the given traffic on one link in one direction,
    /// in place of the loss or hole set there before.
    ///
    /// # Errors
    /// If there is no such link, `percent` is not within 0 to 100, or `nft` fails.
    pub fn impair(
        &self,
        spine: usize,
        leaf: usize,
        direction: Direction,
        traffic: Traffic,
        percent: f64,
    ) -> Result<(), Error> {
        self.check(spine, leaf)?;
        let (node, device) = self.receiver(spine, leaf, direction);
        impair::set(node, &device, traffic, percent, None)
    }

    /// The same for the link between a host and its leaf.
    ///
    /// # Errors
    /// If there is no such host, `percent` is not within 0 to 100, or `nft` fails.
    pub fn impair_host(&self, host: usize, direction: Direction, traffic: Traffic, percent: f64) -> Result<(), Error> {
        let [_, (node, device)] = self.host_cable(host, direction)?;
        impair::set(node, &device, traffic, percent, None)
    }

    /// Undoes all losses and holes. Drop counts stay.
    ///
    /// # Errors
    /// If `nft` fails.
    pub fn heal(&self) -> Result<(), Error> {
        impair::heal(&self.bed)
    }

    /// What every leaf-spine link has carried, by leaf, spine and direction.
    /// Cheap (one file read per leaf and spine), so fit for sampling.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn link_stats(&self) -> Result<Vec<LinkStats>, Error> {
        let mut texts = BTreeMap::new();
        self.links()
            .map(|(leaf, spine, direction)| {
                let (node, device) = self.sender(spine, leaf, direction);
                if !texts.contains_key(&node.name) {
                    texts.insert(node.name.clone(), node.counters()?);
                }
                let (bytes, packets) = stats::sent(&texts[&node.name], &device)
                    .ok_or_else(|| Error::invalid(format!("{} has lost its device {device}", node.name)))?;
                Ok(LinkStats { spine, leaf, direction, bytes, packets })
            })
            .collect()
    }

    /// What was lost on every leaf-spine link, and what waits in queues. Starts
    /// two programs per leaf and spine, so not for tight sampling.
    ///
    /// # Errors
    /// If `nft` or `tc` fails.
    pub fn link_drops(&self) -> Result<Vec<LinkDrops>, Error> {
        let (mut taken, mut queues) = (BTreeMap::new(), BTreeMap::new());
        for node in self.bed.nodes().iter().filter(|n| !n.name.starts_with('h')) {
            for (device, packets) in impair::drops(node)? {
                taken.insert((node.name.clone(), device), packets);
            }
            for (device, overflow, backlog) in stats::queues(node)? {
                queues.insert((node.name.clone(), device), (overflow, backlog));
            }
        }
        let drops = self.links().map(|(leaf, spine, direction)| {
            let key = |(node, device): (&Node, String)| (node.name.clone(), device);
            let impaired = taken.get(&key(self.receiver(spine, leaf, direction))).copied().unwrap_or(0);
            let queue = queues.get(&key(self.sender(spine, leaf, direction))).copied();
            let (overflow, backlog_bytes) = queue.unwrap_or_default();
            LinkDrops { spine, leaf, direction, impaired, overflow, backlog_bytes }
        });
        Ok(drops.collect())
    }

    /// What the cable between a host and its leaf has carried and lost in one
    /// direction: downwards, `overflow` tells how an incast fares. Starts two
    /// programs.
    ///
    /// # Errors
    /// If there is no such host, or the counters cannot be read.
    pub fn host_stats(&self, host: usize, direction: Direction) -> Result<CableStats, Error> {
        let [sender, receiver] = self.host_cable(host, direction)?;
        CableStats::read((sender.0, &sender.1), (receiver.0, &receiver.1))
    }

    /// Removes the bed, also if it was built to be kept.
    pub fn remove(self) {
        self.bed.remove();
    }

    fn links(&self) -> impl Iterator<Item = (usize, usize, Direction)> + use<> {
        let Shape { leaves, spines, .. } = self.shape;
        let pairs = (0..leaves).flat_map(move |leaf| (0..spines).map(move |spine| (leaf, spine)));
        pairs.flat_map(|(leaf, spine)| Direction::BOTH.map(|direction| (leaf, spine, direction)))
    }

    /// A spine's links, as leaf and direction.
    fn spine_links(&self) -> impl Iterator<Item = (usize, Direction)> + use<> {
        (0..self.shape.leaves).flat_map(|leaf| Direction::BOTH.map(|direction| (leaf, direction)))
    }

    fn check(&self, spine: usize, leaf: usize) -> Result<(), Error> {
        let Shape { leaves, spines, .. } = self.shape;
        for (what, number, count) in [("spine", spine, spines), ("leaf", leaf, leaves)] {
            if number >= count {
                let last = count - 1;
                return Err(Error::invalid(format!("there is no {what} {number}: they are numbered 0 to {last}")));
            }
        }
        Ok(())
    }

    /// Both ends of a host's cable: the sending one, then the receiving one.
    fn host_cable(&self, host: usize, direction: Direction) -> Result<[(&Node, String); 2], Error> {
        if host >= self.hosts.len() {
            let last = self.hosts.len() - 1;
            return Err(Error::invalid(format!("there is no host {host}: they are numbered 0 to {last}")));
        }
        let lower = (self.bed.node(&format!("h{host}")), "eth0".to_owned());
        let upper = (self.bed.node(&format!("l{}", self.leaf_of(host))), format!("h{host}"));
        Ok(match direction {
            Direction::Up => [lower, upper],
            Direction::Down => [upper, lower],
        })
    }

    /// The end of a link that sends in this direction.
    fn sender(&self, spine: usize, leaf: usize, direction: Direction) -> (&Node, String) {
        match direction {
            Direction::Up => (self.bed.node(&format!("l{leaf}")), format!("s{spine}")),
            Direction::Down => (self.bed.node(&format!("s{spine}")), format!("l{leaf}")),
        }
    }

    /// The end of a link that receives in this direction.
    fn receiver(&self, spine: usize, leaf: usize, direction: Direction) -> (&Node, String) {
        match direction {
            Direction::Up => self.sender(spine, leaf, Direction::Down),
            Direction::Down => self.sender(spine, leaf, Direction::Up),
        }
    }
}

impl ClosBuilder {
    /// How many leaves (top-of-rack switches), 1 to 64. Default 2.
    pub fn leaves(mut self, count: usize) -> Self {
        self.shape.leaves = count;
        self
    }

    /// How many spines, 1 to 64. Default 4.
    pub fn spines(mut self, count: usize) -> Self {
        self.shape.spines = count;
        self
    }

    /// How many hosts hang off each leaf, 1 to 64. Default 2.
    pub fn hosts_per_leaf(mut self, count: usize) -> Self {
        self.shape.hosts_per_leaf = count;
        self
    }

    /// Limits each host's cable in both directions. Default no limit. Two
    /// cores carry about 500 Mbit/s of 1,500-byte frames with room to spare.
    pub fn host_rate(mut self, rate: impl Into<Option<Rate>>) -> Self {
        self.host.rate = rate.into();
        self
    }

    /// Limits each leaf-spine cable in both directions. Default no limit.
    pub fn spine_rate(mut self, rate: impl Into<Option<Rate>>) -> Self {
        self.spine_rate = rate.into();
        self
    }

    /// Bytes that may wait in front of each rate-limited cable. Default 65,536.
    pub fn queue_bytes(mut self, bytes: u32) -> Self {
        self.host.queue_bytes = bytes;
        self
    }

    /// The largest IP packet in bytes, 1,280 to 65,535. Default 1,500.
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.host.mtu = bytes;
        self
    }

    /// Off (the default): cables carry real frames with real checksums, so
    /// queues and losses are of frames. On: segments may cross in one piece of
    /// up to 64 KB, which is faster and less like a network.
    pub fn offload(mut self, on: bool) -> Self {
        self.host.offload = on;
        self
    }

    /// Makes the choice of spines repeatable: with the same seed and shape, the
    /// same ports take the same spines. Default: every bed differs. Needs
    /// Linux 6.11 or later.
    pub fn ecmp_seed(mut self, seed: u32) -> Self {
        self.ecmp_seed = Some(seed);
        self
    }

    /// Lets the bed outlive this process, until it is opened and removed. The
    /// name consists of 1 to 32 of `a-z`, `0-9` and `_`.
    pub fn keep(mut self, name: &str) -> Self {
        self.keep = Some(name.to_owned());
        self
    }

    /// Builds the bed.
    ///
    /// # Errors
    /// If a setting is out of range, or root, a program or a feature of the
    /// kernel is missing; nothing stays behind then.
    pub fn build(self) -> Result<Clos, Error> {
        let Shape { leaves, spines, hosts_per_leaf } = self.shape;
        for (what, count) in [("leaves", leaves), ("spines", spines), ("hosts per leaf", hosts_per_leaf)] {
            if !(1..=64).contains(&count) {
                return Err(Error::invalid(format!("{count} {what} are out of range: choose 1 to 64")));
            }
        }
        let spine_wire = Wire { rate: self.spine_rate, ..self.host };
        self.host.check()?;
        spine_wire.check()?;
        let plan = self.shape.plan(self.host, spine_wire);
        let bed = Bed::build(&plan, self.ecmp_seed, self.keep.as_deref())?;
        Ok(Clos::around(bed, self.shape))
    }

    /// Builds it for a test: `None`, after a note on standard error, where tests
    /// that need beds shall not run (see [`runs_here`]).
    ///
    /// # Panics
    /// If it cannot be built.
    #[must_use]
    pub fn for_test(self) -> Option<Clos> {
        runs_here().then(|| self.build().unwrap_or_else(|e| panic!("no test bed: {e}")))
    }
}

/// The last number of a host's address, and of its leaf's towards it.
const HOST: u8 = 2;
const GATEWAY: u8 = 1;

impl Shape {
    fn hosts(self) -> usize {
        self.leaves * self.hosts_per_leaf
    }

    /// Every host has a subnet of its own: `10.leaf.nth.0/24`, `fd00:leaf:nth::/64`.
    fn host_addresses(self, host: usize, last: u8) -> (Ipv4Addr, Ipv6Addr) {
        let (leaf, nth) = ((host / self.hosts_per_leaf) as u8, (host % self.hosts_per_leaf) as u8);
        let v6 = Ipv6Addr::new(0xfd00, leaf.into(), nth.into(), 0, 0, 0, 0, last.into());
        (Ipv4Addr::new(10, leaf, nth, last), v6)
    }

    /// Both ends of a fabric link: 172.16.0.0/12 cut into /31, `fd01:spine:leaf::/64`.
    fn link_addresses(self, spine: usize, leaf: usize) -> [(Ipv4Addr, Ipv6Addr); 2] {
        let [.., high, low] = (2 * (spine * self.leaves + leaf)).to_be_bytes();
        let v6 = |last| Ipv6Addr::new(0xfd01, spine as u16, leaf as u16, 0, 0, 0, 0, last);
        [(Ipv4Addr::new(172, 16, high, low), v6(1)), (Ipv4Addr::new(172, 16, high, low + 1), v6(2))]
    }

    fn plan(self, host_wire: Wire, spine_wire: Wire) -> Plan {
        let mut plan = Plan::default();
        let spines: Vec<usize> = (0..self.spines).map(|spine| plan.node(format!("s{spine}"), true)).collect();
        let leaves: Vec<usize> = (0..self.leaves).map(|leaf| plan.node(format!("l{leaf}"), true)).collect();
        for (leaf, &leaf_node) in leaves.iter().enumerate() {
            let (mut hops, mut hops6) = (String::new(), String::new());
            for (spine, &spine_node) in spines.iter().enumerate() {
                let [at_leaf, at_spine] = self.link_addresses(spine, leaf);
                hops += &format!(" nexthop via {} dev s{spine}", at_spine.0);
                hops6 += &format!(" nexthop via {} dev s{spine}", at_spine.1);
                plan.route(spine_node, format!("route add 10.{leaf}.0.0/16 via {}", at_leaf.0));
                plan.route(spine_node, format!("route add fd00:{leaf:x}::/32 via {}", at_leaf.1));
                let lower = End { node: leaf_node, device: format!("s{spine}"), v4: at_leaf.0, v6: at_leaf.1 };
                let upper = End { node: spine_node, device: format!("l{leaf}"), v4: at_spine.0, v6: at_spine.1 };
                plan.cable(lower, upper, (31, 64), spine_wire);
            }
            plan.route(leaf_node, format!("route add 10.0.0.0/8{hops}"));
            plan.route(leaf_node, format!("route add fd00::/16{hops6}"));
        }
        for host in 0..self.hosts() {
            let (own, gateway) = (self.host_addresses(host, HOST), self.host_addresses(host, GATEWAY));
            let node = plan.node(format!("h{host}"), false);
            let upper = End {
                node: leaves[host / self.hosts_per_leaf],
                device: format!("h{host}"),
                v4: gateway.0,
                v6: gateway.1,
            };
            plan.cable(End { node, device: "eth0".into(), v4: own.0, v6: own.1 }, upper, (24, 64), host_wire);
            plan.route(node, format!("route add default via {}", gateway.0));
            plan.route(node, format!("route add fd00::/8 via {}", gateway.1));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique() {
        let shape = Shape { leaves: 64, spines: 64, hosts_per_leaf: 64 };
        let hosts = (0..shape.hosts()).flat_map(|h| [HOST, GATEWAY].map(|last| shape.host_addresses(h, last)));
        let links = (0..64).flat_map(|spine| (0..64).flat_map(move |leaf| shape.link_addresses(spine, leaf)));
        let mut all: Vec<_> = hosts.chain(links).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup_by_key(|(v4, _)| *v4);
        assert_eq!(all.len(), count);
        all.dedup_by_key(|(_, v6)| *v6);
        assert_eq!(all.len(), count);
    }

    #[test]
    fn build_refuses_shapes_out_of_range() {
        for builder in [Clos::builder().leaves(0), Clos::builder().spines(65), Clos::builder().hosts_per_leaf(0)] {
            assert!(builder.build().unwrap_err().to_string().contains("choose 1 to 64"));
        }
    }
}
