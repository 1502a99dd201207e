//! Topologies: how hosts, switches and links are put together.

use crate::host::{HostSpec, Node};
use crate::net::End;
use crate::packet::{HostId, LinkId, SwitchId};
use crate::part::Part;
use crate::world::World;

/// A network of hosts on leaf switches with parallel paths between the leaves.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    /// The hosts in the order in which they were given.
    pub hosts: Vec<HostId>,
    /// Per host, the link from it to its switch.
    pub up: Vec<LinkId>,
    /// Per host, the link from its switch to it.
    pub down: Vec<LinkId>,
    /// Per host, the number of its leaf switch.
    pub leaf: Vec<usize>,
    /// Per path and leaf, the link that leaves the leaf on this path.
    pub rise: Vec<Vec<LinkId>>,
    /// Per path and leaf, the link that reaches the leaf on this path.
    pub fall: Vec<Vec<LinkId>>,
    /// The switches, leaves first.
    pub switches: Vec<SwitchId>,
}

impl Fabric {
    /// Number of parallel paths between leaves; zero if there is one switch only.
    pub fn paths(&self) -> usize {
        self.rise.len()
    }

    /// The links of a path in both directions, each once.
    pub fn path(&self, path: usize) -> Vec<LinkId> {
        let mut links: Vec<LinkId> = self.rise[path].iter().chain(&self.fall[path]).copied().collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// The link of a path that carries what `host` sends.
    pub fn path_from(&self, path: usize, host: HostId) -> LinkId {
        self.rise[path][self.leaf[host.0 as usize]]
    }

    /// The link of a path that carries what is sent to `host`.
    pub fn path_to(&self, path: usize, host: HostId) -> LinkId {
        self.fall[path][self.leaf[host.0 as usize]]
    }

    /// All links between switches, each once.
    pub fn core(&self) -> Vec<LinkId> {
        let mut links: Vec<LinkId> = (0..self.paths()).flat_map(|p| self.path(p)).collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// All links.
    pub fn all(&self) -> Vec<LinkId> {
        let mut links = self.core();
        links.extend(self.up.iter().chain(&self.down));
        links
    }

    /// Adds a host on a leaf, without routes.
    fn attach<N: Node>(&mut self, world: &mut World<N>, leaf: usize, (spec, node): (HostSpec, N), edge: &[Part]) {
        let host = world.add_host(spec, node);
        let net = world.net_mut();
        let up = net.add_link(End::Switch(self.switches[leaf]), edge);
        let down = net.add_link(End::Host(host), edge);
        net.set_uplink(host, up);
        net.switch_mut(self.switches[leaf]).route([host], &[down]);
        self.hosts.push(host);
        self.up.push(up);
        self.down.push(down);
        self.leaf.push(leaf);
    }

    /// The hosts on this leaf, or those not on it.
    fn on_leaf(&self, leaf: usize, on: bool) -> Vec<HostId> {
        self.hosts.iter().zip(&self.leaf).filter(|(_, l)| (**l == leaf) == on).map(|(h, _)| *h).collect()
    }
}

/// All hosts on one switch. `edge` are the parts of every link; give it a queue for the switch's ports and the hosts'.
pub fn star<N: Node>(world: &mut World<N>, nodes: impl IntoIterator<Item = (HostSpec, N)>, edge: &[Part]) -> Fabric {
    let mut fabric = Fabric { switches: vec![world.net_mut().add_switch()], ..Fabric::default() };
    for node in nodes {
        fabric.attach(world, 0, node, edge);
    }
    fabric
}

/// Two switches with `paths` parallel links between them, `middle` each, and hosts on either side.
///
/// # Panics
/// If `paths` is zero.
pub fn dumbbell<N: Node>(
    world: &mut World<N>,
    left: impl IntoIterator<Item = (HostSpec, N)>,
    right: impl IntoIterator<Item = (HostSpec, N)>,
    paths: usize,
    edge: &[Part],
    middle: &[Part],
) -> Fabric {
    assert!(paths > 0, "a dumbbell without a path in the middle");
    let net = world.net_mut();
    let switches = vec![net.add_switch(), net.add_switch()];
    let mut fabric = Fabric { switches, ..Fabric::default() };
    for node in left {
        fabric.attach(world, 0, node, edge);
    }
    for node in right {
        fabric.attach(world, 1, node, edge);
    }
    let net = world.net_mut();
    for _ in 0..paths {
        let there = net.add_link(End::Switch(fabric.switches[1]), middle);
        let back = net.add_link(End::Switch(fabric.switches[0]), middle);
        fabric.rise.push(vec![there, back]);
        fabric.fall.push(vec![back, there]);
    }
    for leaf in 0..2 {
        let links: Vec<LinkId> = fabric.rise.iter().map(|path| path[leaf]).collect();
        net.switch_mut(fabric.switches[leaf]).route(fabric.on_leaf(leaf, false), &links);
    }
    fabric
}

/// Two hosts with `paths` parallel links between their switches: the smallest network with many paths.
pub fn pair<N: Node>(
    world: &mut World<N>,
    a: (HostSpec, N),
    b: (HostSpec, N),
    paths: usize,
    edge: &[Part],
    middle: &[Part],
) -> Fabric {
    dumbbell(world, [a], [b], paths, edge, middle)
}

/// `leaves` leaf switches, each joined to `spines` spine switches by one link per direction; hosts are put on the leaves
/// in blocks of equal size, in order.
///
/// # Panics
/// If there are no leaves or no spines.
pub fn leaf_spine<N: Node>(
    world: &mut World<N>,
    nodes: Vec<(HostSpec, N)>,
    leaves: usize,
    spines: usize,
    edge: &[Part],
    core: &[Part],
) -> Fabric {
    assert!(leaves > 0 && spines > 0, "{leaves} leaves, {spines} spines");
    let net = world.net_mut();
    let switches = (0..leaves + spines).map(|_| net.add_switch()).collect();
    let mut fabric = Fabric { switches, ..Fabric::default() };
    let per_leaf = nodes.len().div_ceil(leaves).max(1);
    for (i, node) in nodes.into_iter().enumerate() {
        fabric.attach(world, i / per_leaf, node, edge);
    }
    let net = world.net_mut();
    for spine in 0..spines {
        let spine = fabric.switches[leaves + spine];
        let (mut rise, mut fall) = (Vec::new(), Vec::new());
        for leaf in 0..leaves {
            rise.push(net.add_link(End::Switch(spine), core));
            let down = net.add_link(End::Switch(fabric.switches[leaf]), core);
            net.switch_mut(spine).route(fabric.on_leaf(leaf, true), &[down]);
            fall.push(down);
        }
        fabric.rise.push(rise);
        fabric.fall.push(fall);
    }
    for leaf in 0..leaves {
        let links: Vec<LinkId> = fabric.rise.iter().map(|path| path[leaf]).collect();
        net.switch_mut(fabric.switches[leaf]).route(fabric.on_leaf(leaf, false), &links);
    }
    fabric
}
