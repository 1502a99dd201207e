//! Plans laid into a network: links, switches, and routes over all shortest paths, which each switch's hash spreads over.
//! Routes can be computed again without the cables that are known to be dead.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::{End, Net};
use crate::packet::{HostId, LinkId, SwitchId};
use crate::part::{Part, Queue};
use crate::plan::{Cable, Plan, Port, distances};

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
    fn links_from(&self, port: Port) -> Vec<LinkId> {
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
