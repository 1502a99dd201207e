//! Plans of networks: servers, switches and cables, before there is a world to put them into.
//!
//! A plan says what is cabled to what; [`Cabling`] lays it into a [`Net`] and computes routes: all shortest paths, spread by
//! each switch's hash. Routes can be computed again without the cables that are known to be dead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use srd_core::Span;

use crate::link::{Part, Queue};
use crate::net::{End, Net};
use crate::packet::{HostId, LinkId, SwitchId};

/// One end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Port {
    /// A server, by its index.
    Server(usize),
    /// A switch, by its index.
    Switch(usize),
}

/// A cable: a link in each direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cable {
    /// One end.
    pub a: Port,
    /// The other.
    pub b: Port,
    /// Bits per second in each direction.
    pub rate: u64,
    /// Propagation delay, with that of the switch at its end.
    pub delay: Span,
    /// Share of packets lost at random, in millionths.
    pub loss_ppm: u32,
}

/// Buffers of switch ports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Buffers {
    /// Bytes per port; with a shared buffer, the most that one port may take.
    pub port: u64,
    /// Bytes that all ports of a switch share, and the hundredths of the free part that one port may take.
    pub shared: Option<(u64, u32)>,
    /// Queue length from which packets are marked, and from which all are.
    pub ecn: Option<(u64, u64)>,
    /// Bytes that wait at a server's own port.
    pub nic: u64,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Names of the servers.
    pub servers: Vec<String>,
    /// Names of the switches, those that servers are attached to first.
    pub switches: Vec<String>,
    /// All cables. A server has one.
    pub cables: Vec<Cable>,
}

/// What a Clos network is made of, tier by tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clos {
    /// Servers in all.
    pub servers: usize,
    /// 1, 2 or 3.
    pub tiers: u8,
    /// Servers per leaf switch.
    pub per_leaf: usize,
    /// Cables up from each leaf; they go round over the switches above.
    pub leaf_up: usize,
    /// Spines (of each pod, if there are three tiers).
    pub spines: usize,
    /// Leaves per pod; three tiers only.
    pub pod_leaves: usize,
    /// Cables up from each spine; three tiers only.
    pub spine_up: usize,
    /// Core switches; three tiers only.
    pub cores: usize,
    /// Rate of a server's cable and of those above the leaves and spines, bits per second.
    pub rates: [u64; 3],
    /// Delays likewise.
    pub delays: [Span; 3],
}

impl Clos {
    /// All servers on one switch.
    pub fn star(servers: usize, rate: u64, delay: Span) -> Clos {
        Clos {
            servers,
            tiers: 1,
            per_leaf: servers,
            leaf_up: 0,
            spines: 0,
            pod_leaves: 1,
            spine_up: 0,
            cores: 0,
            rates: [rate; 3],
            delays: [delay; 3],
        }
    }

    /// `leaves` leaf switches with `per_leaf` servers each, joined to `spines` by one cable each.
    pub fn leaf_spine(leaves: usize, per_leaf: usize, spines: usize, rate: u64, delay: Span) -> Clos {
        let star = Clos::star(leaves * per_leaf, rate, delay);
        Clos { tiers: 2, per_leaf, leaf_up: spines, spines, pod_leaves: leaves, ..star }
    }

    /// The three-tier fat tree of switches with `k` ports (Al-Fares et al., SIGCOMM 2008): k^3/4 servers, of which the
    /// first `servers` are there.
    pub fn fat_tree(k: usize, servers: usize, rate: u64, delay: Span) -> Clos {
        let half = k / 2;
        Clos {
            servers,
            tiers: 3,
            per_leaf: half,
            leaf_up: half,
            spines: half,
            pod_leaves: half,
            spine_up: half,
            cores: half * half,
            rates: [rate; 3],
            delays: [delay; 3],
        }
    }

    /// The plan.
    ///
    /// # Errors
    /// What is wrong with the numbers, in a sentence.
    pub fn plan(&self) -> Result<Plan, String> {
        let c = *self;
        if c.servers == 0 || c.per_leaf == 0 {
            return Err("a network needs servers, and servers per leaf".into());
        }
        let mut plan = Plan { servers: (0..c.servers).map(|i| format!("h{i}")).collect(), ..Plan::default() };
        let leaves = c.servers.div_ceil(c.per_leaf);
        plan.switches.extend((0..leaves).map(|i| format!("leaf{i}")));
        for server in 0..c.servers {
            plan.cable(Port::Server(server), Port::Switch(server / c.per_leaf), c.rates[0], c.delays[0]);
        }
        match c.tiers {
            1 if leaves > 1 => return Err(format!("{} servers do not fit on one switch of {}", c.servers, c.per_leaf)),
            1 => {}
            2 => plan.tier(0..leaves, c.spines, c.leaf_up, "spine", c.rates[1], c.delays[1])?,
            3 => {
                if c.pod_leaves == 0 {
                    return Err("a network of three tiers needs leaves per pod".into());
                }
                let pods = leaves.div_ceil(c.pod_leaves);
                for pod in 0..pods {
                    let own = pod * c.pod_leaves..((pod + 1) * c.pod_leaves).min(leaves);
                    plan.tier(own, c.spines, c.leaf_up, &format!("pod{pod}.spine"), c.rates[1], c.delays[1])?;
                }
                plan.cores(leaves, pods, &c)?;
            }
            n => return Err(format!("{n} tiers; there are networks of 1, 2 and 3")),
        }
        Ok(plan)
    }
}

impl Plan {
    fn cable(&mut self, a: Port, b: Port, rate: u64, delay: Span) {
        self.cables.push(Cable { a, b, rate, delay, loss_ppm: 0 });
    }

    /// Adds `above` switches, and `up` cables to them from each of those below, in turn.
    fn tier(
        &mut self,
        below: std::ops::Range<usize>,
        above: usize,
        up: usize,
        name: &str,
        rate: u64,
        delay: Span,
    ) -> Result<(), String> {
        if above == 0 || up < above || !up.is_multiple_of(above) {
            return Err(format!("{up} cables up do not spread evenly over {above} switches above"));
        }
        let first = self.switches.len();
        self.switches.extend((0..above).map(|i| format!("{name}{i}")));
        for lower in below {
            for k in 0..up {
                self.cable(Port::Switch(lower), Port::Switch(first + k % above), rate, delay);
            }
        }
        Ok(())
    }

    /// Adds the top of a three-tier network: spine number s of every pod reaches the same group of cores.
    fn cores(&mut self, leaves: usize, pods: usize, c: &Clos) -> Result<(), String> {
        if c.cores == 0 || !c.cores.is_multiple_of(c.spines) {
            return Err(format!("{} cores do not spread evenly over the {} spines of a pod", c.cores, c.spines));
        }
        let group = c.cores / c.spines;
        if c.spine_up < group || !c.spine_up.is_multiple_of(group) {
            return Err(format!("{} cables up from a spine do not spread evenly over {group} cores", c.spine_up));
        }
        let first = self.switches.len();
        self.switches.extend((0..c.cores).map(|i| format!("core{i}")));
        for pod in 0..pods {
            for spine in 0..c.spines {
                for k in 0..c.spine_up {
                    let core = first + spine * group + k % group;
                    self.cable(
                        Port::Switch(leaves + pod * c.spines + spine),
                        Port::Switch(core),
                        c.rates[2],
                        c.delays[2],
                    );
                }
            }
        }
        Ok(())
    }

    /// The name of an end.
    pub fn name(&self, port: Port) -> &str {
        match port {
            Port::Server(i) => &self.servers[i],
            Port::Switch(i) => &self.switches[i],
        }
    }

    /// The end with this name.
    pub fn find(&self, name: &str) -> Option<Port> {
        let at = |names: &[String]| names.iter().position(|n| n == name);
        at(&self.servers).map(Port::Server).or_else(|| at(&self.switches).map(Port::Switch))
    }

    /// Whether every server has one cable, to a switch, and every other server can be reached.
    ///
    /// # Errors
    /// What is not so, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let mut cables = vec![0; self.servers.len()];
        for cable in &self.cables {
            for (end, other) in [(cable.a, cable.b), (cable.b, cable.a)] {
                match (end, other) {
                    (Port::Server(s), Port::Switch(_)) => cables[s] += 1,
                    (Port::Server(_), Port::Server(_)) => {
                        return Err(format!("{} and {} are cabled without a switch", self.name(end), self.name(other)));
                    }
                    _ => {}
                }
            }
        }
        if let Some(bad) = cables.iter().position(|n| *n != 1) {
            return Err(format!("server {} has {} cables, it must have 1", self.servers[bad], cables[bad]));
        }
        let distances = self.distances(self.edge(0), &BTreeSet::new());
        match (0..self.servers.len()).find(|s| distances[self.edge(*s)] == u32::MAX) {
            Some(lost) => Err(format!("{} cannot reach {}", self.servers[0], self.servers[lost])),
            None => Ok(()),
        }
    }

    /// The cable of a server.
    pub fn server_cable(&self, server: usize) -> &Cable {
        let own = |c: &&Cable| c.a == Port::Server(server) || c.b == Port::Server(server);
        // Plans made here have the servers' cables first.
        self.cables.get(server).filter(own).or_else(|| self.cables.iter().find(own)).expect("a server has a cable")
    }

    /// The switch that a server is attached to.
    pub fn edge(&self, server: usize) -> usize {
        let cable = self.server_cable(server);
        match (cable.a, cable.b) {
            (Port::Switch(s), _) | (_, Port::Switch(s)) => s,
            _ => unreachable!("a server's cable ends at a switch"),
        }
    }

    /// Cables between any two switches with these names, or all of one switch or server (`spine3`, `leaf0-spine3`).
    pub fn cables_named(&self, name: &str) -> Vec<usize> {
        let one = self.find(name);
        let both = name.split_once('-').and_then(|(a, b)| Some((self.find(a)?, self.find(b)?)));
        let wanted = |c: &Cable| match (one, both) {
            (Some(p), _) => c.a == p || c.b == p,
            (None, Some((p, q))) => (c.a == p && c.b == q) || (c.a == q && c.b == p),
            (None, None) => false,
        };
        (0..self.cables.len()).filter(|i| wanted(&self.cables[*i])).collect()
    }

    /// Hops from every switch to this one without the dead cables; `u32::MAX` where there is no way.
    fn distances(&self, to: usize, dead: &BTreeSet<usize>) -> Vec<u32> {
        distances(&self.neighbours(dead), to)
    }

    /// Per switch, its cables to other switches: (neighbour, cable).
    fn neighbours(&self, dead: &BTreeSet<usize>) -> Vec<Vec<(usize, usize)>> {
        let mut out = vec![Vec::new(); self.switches.len()];
        for (i, cable) in self.cables.iter().enumerate() {
            if let (Port::Switch(a), Port::Switch(b)) = (cable.a, cable.b)
                && !dead.contains(&i)
            {
                out[a].push((b, i));
                out[b].push((a, i));
            }
        }
        out
    }

    /// Base round-trip time between two servers for packets of these many bytes there and back, queues empty: propagation
    /// and store-and-forward over the shortest path.
    pub fn base_rtt(&self, from: usize, to: usize, there: u32, back: u32) -> Span {
        let distances = self.distances(self.edge(to), &BTreeSet::new());
        let mut path = vec![*self.server_cable(from), *self.server_cable(to)];
        let neighbours = self.neighbours(&BTreeSet::new());
        let mut at = self.edge(from);
        while distances[at] > 0 && distances[at] != u32::MAX {
            let &(next, cable) = neighbours[at].iter().find(|n| distances[n.0] < distances[at]).expect("a way down");
            path.push(self.cables[cable]);
            at = next;
        }
        let hop = |c: &Cable| {
            let bits = u64::from(there + back) * 8;
            c.delay * 2 + Span::from_nanos(bits * 1_000_000_000 / c.rate)
        };
        path.iter().map(hop).fold(Span::ZERO, |a, b| a + b)
    }
}

fn distances(neighbours: &[Vec<(usize, usize)>], to: usize) -> Vec<u32> {
    let mut out = vec![u32::MAX; neighbours.len()];
    out[to] = 0;
    let mut queue = VecDeque::from([to]);
    while let Some(at) = queue.pop_front() {
        for &(next, _) in &neighbours[at] {
            if out[next] == u32::MAX {
                out[next] = out[at] + 1;
                queue.push_back(next);
            }
        }
    }
    out
}

/// A plan that was laid into a network.
#[derive(Clone, Debug)]
pub struct Cabling {
    /// The plan.
    pub plan: Plan,
    /// Per cable, the links from a to b and from b to a.
    pub links: Vec<(LinkId, LinkId)>,
    switches: Vec<SwitchId>,
    /// Per server, the hosts on it.
    hosts: Vec<Vec<HostId>>,
}

impl Cabling {
    /// Adds all switches and links of `plan`, and puts `hosts[s]` on server s: they share its cable.
    pub fn lay(net: &mut Net, plan: Plan, buffers: Buffers, hosts: Vec<Vec<HostId>>) -> Cabling {
        let switches: Vec<SwitchId> = plan.switches.iter().map(|_| net.add_switch()).collect();
        let mut links = Vec::with_capacity(plan.cables.len());
        for cable in &plan.cables {
            let mut lay = |from: Port, to: Port| {
                let end = match to {
                    Port::Switch(s) => End::Switch(switches[s]),
                    // Which of the server's hosts gets a packet, its address says.
                    Port::Server(s) => End::Host(hosts[s].first().copied().unwrap_or(HostId(u32::MAX))),
                };
                net.add_link(end, &parts(cable, from, &buffers))
            };
            let (there, back) = (lay(cable.a, cable.b), lay(cable.b, cable.a));
            for (end, up) in [(cable.a, there), (cable.b, back)] {
                if let Port::Server(s) = end {
                    hosts[s].iter().for_each(|h| net.set_uplink(*h, up));
                }
            }
            links.push((there, back));
        }
        let cabling = Cabling { plan, links, switches, hosts };
        if let Some((bytes, alpha)) = buffers.shared {
            for switch in 0..cabling.switches.len() {
                net.share_buffer(&cabling.links_from(Port::Switch(switch)), bytes, alpha);
            }
        }
        cabling.route(net, &BTreeSet::new());
        cabling
    }

    /// The links that leave a switch or server.
    pub fn links_from(&self, port: Port) -> Vec<LinkId> {
        let cables = self.plan.cables.iter().zip(&self.links);
        cables
            .filter_map(|(c, l)| {
                if c.a == port {
                    Some(l.0)
                } else if c.b == port {
                    Some(l.1)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Gives all switches the shortest paths over all cables but those that are known to be `dead`.
    pub fn route(&self, net: &mut Net, dead: &BTreeSet<usize>) {
        let neighbours = self.plan.neighbours(dead);
        let mut servers_on: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for server in 0..self.plan.servers.len() {
            servers_on.entry(self.plan.edge(server)).or_default().push(server);
        }
        self.switches.iter().for_each(|s| net.switch_mut(*s).clear_routes());
        for (i, (cable, links)) in self.plan.cables.iter().zip(&self.links).enumerate() {
            let (server, switch, down) = match (cable.a, cable.b) {
                (Port::Server(server), Port::Switch(switch)) => (server, switch, links.1),
                (Port::Switch(switch), Port::Server(server)) => (server, switch, links.0),
                _ => continue,
            };
            if !dead.contains(&i) {
                net.switch_mut(self.switches[switch]).route(self.hosts[server].iter().copied(), &[down]);
            }
        }
        let mut group = Vec::new();
        for (edge, servers) in &servers_on {
            let distances = distances(&neighbours, *edge);
            let hosts = || servers.iter().flat_map(|s| self.hosts[*s].iter().copied());
            for (switch, out) in neighbours.iter().enumerate() {
                if switch == *edge || distances[switch] == u32::MAX {
                    continue;
                }
                group.clear();
                for &(next, cable) in out {
                    if distances[next] < distances[switch] {
                        let (there, back) = self.links[cable];
                        group.push(if self.plan.cables[cable].a == Port::Switch(switch) { there } else { back });
                    }
                }
                net.switch_mut(self.switches[switch]).route(hosts(), &group);
            }
        }
    }

    /// Gives all switches the same hash seed: what one tier splits, the next does not split again.
    pub fn polarise(&self, net: &mut Net, seed: u64) {
        self.switches.iter().for_each(|s| net.switch_mut(*s).rehash(seed));
    }

    /// The world's number of a switch of the plan.
    pub fn switch(&self, switch: usize) -> SwitchId {
        self.switches[switch]
    }

    /// Name of a link: its ends.
    pub fn link_name(&self, cable: usize, back: bool) -> String {
        let Cable { a, b, .. } = self.plan.cables[cable];
        let (from, to) = if back { (b, a) } else { (a, b) };
        format!("{}->{}", self.plan.name(from), self.plan.name(to))
    }
}

fn queue(rate: u64, buffers: &Buffers) -> Queue {
    let (ecn, ramp) = buffers.ecn.map_or((u64::MAX, 0), |(from, to)| (from, to.saturating_sub(from)));
    Queue { rate, limit: buffers.port, ecn, ramp }
}

fn parts(cable: &Cable, from: Port, buffers: &Buffers) -> Vec<Part> {
    let queue = match from {
        Port::Server(_) => Queue { rate: cable.rate, limit: buffers.nic, ecn: u64::MAX, ramp: 0 },
        Port::Switch(_) => queue(cable.rate, buffers),
    };
    let mut parts = vec![Part::Queue(queue), Part::Delay(cable.delay)];
    if cable.loss_ppm > 0 {
        parts.push(Part::Loss(cable.loss_ppm));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 100_000_000_000;
    const US: Span = Span::from_micros(1);

    #[test]
    fn a_fat_tree_has_the_textbook_numbers() {
        let plan = Clos::fat_tree(16, 1_024, G, US).plan().expect("valid");
        plan.check().expect("all reach all");
        assert_eq!((plan.servers.len(), plan.switches.len(), plan.cables.len()), (1_024, 320, 3 * 1_024));
        assert_eq!(plan.name(Port::Switch(plan.edge(1_023))), "leaf127");
        // Two hops within a leaf, four within a pod, six across: 12 us and 6 x 2 packets of 125 bytes at 100 Gb/s.
        let rtt = |to| plan.base_rtt(0, to, 125, 125);
        assert_eq!([rtt(1), rtt(8), rtt(1_023)].map(Span::as_nanos), [4_040, 8_080, 12_120]);
    }

    #[test]
    fn over_subscription_and_bundles() {
        let clos = Clos { leaf_up: 8, spines: 4, ..Clos::leaf_spine(4, 16, 4, G, US) };
        let plan = clos.plan().expect("valid");
        assert_eq!(plan.cables_named("leaf0-spine1").len(), 2);
        assert_eq!(plan.cables_named("spine1").len(), 8);
        assert!(plan.cables_named("spine9").is_empty());
        let uneven = Clos { leaf_up: 6, ..clos }.plan().expect_err("6 over 4");
        assert!(uneven.contains("6 cables up"), "{uneven}");
        assert!(Clos { tiers: 4, ..clos }.plan().is_err() && Clos { servers: 0, ..clos }.plan().is_err());
    }

    #[test]
    fn check_finds_what_is_not_cabled() {
        let mut plan = Clos::leaf_spine(2, 2, 1, G, US).plan().expect("valid");
        plan.check().expect("valid");
        plan.cables.retain(|c| c.a != Port::Switch(1));
        assert!(plan.check().expect_err("leaf1 is alone").contains("cannot reach h2"));
        plan.cables.retain(|c| c.a != Port::Server(3));
        assert!(plan.check().expect_err("h3 has no cable").contains("h3 has 0 cables"));
    }
}
