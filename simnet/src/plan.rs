//! Plans of networks: servers, switches and cables, before there is a world to put them into.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use srd_core::Span;

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

impl Plan {
    /// Servers at most: with more, a run takes more memory and time than hosts have.
    pub const MAX_SERVERS: usize = 16_384;
    /// Cables at most.
    pub const MAX_CABLES: usize = 131_072;

    pub(crate) fn cable(&mut self, a: Port, b: Port, rate: u64, delay: Span) {
        self.cables.push(Cable { a, b, rate, delay, loss_ppm: 0 });
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

    /// Whether a network of so many is not too large.
    pub(crate) fn can_have(servers: usize, cables: usize) -> Result<(), String> {
        if servers > Plan::MAX_SERVERS {
            return Err(format!("{servers} servers, at most {}", Plan::MAX_SERVERS));
        }
        if cables > Plan::MAX_CABLES {
            return Err(format!("{cables} cables, at most {}", Plan::MAX_CABLES));
        }
        Ok(())
    }

    /// Whether it is not too large, every server has one cable, to a switch, and every other server can be reached.
    ///
    /// # Errors
    /// What is not so, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        Plan::can_have(self.servers.len(), self.cables.len())?;
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
    pub(crate) fn neighbours(&self, dead: &BTreeSet<usize>) -> Vec<Vec<(usize, usize)>> {
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

    /// See [`Ways::base_rtt`].
    pub fn base_rtt(&self, from: usize, to: usize, there: u32, back: u32) -> Span {
        Ways::of(self).base_rtt(from, to, there, back)
    }
}

/// Shortest ways between servers. Distances to a switch are worked out once, for all who ask for ways there.
#[derive(Debug)]
pub struct Ways<'a> {
    plan: &'a Plan,
    neighbours: Vec<Vec<(usize, usize)>>,
    /// Per switch that somebody asked for, the hops from every other one.
    distances: BTreeMap<usize, Vec<u32>>,
}

impl Ways<'_> {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Ways<'_> {
        Ways { plan, neighbours: plan.neighbours(&BTreeSet::new()), distances: BTreeMap::new() }
    }

    /// Base round-trip time between two servers for packets of these many bytes there and back, queues empty: propagation
    /// and store-and-forward over the shortest path.
    pub fn base_rtt(&mut self, from: usize, to: usize, there: u32, back: u32) -> Span {
        let Ways { plan, neighbours, distances } = self;
        let edge = plan.edge(to);
        let distances = distances.entry(edge).or_insert_with(|| self::distances(neighbours, edge));
        let hop = |c: &Cable| {
            let bits = u64::from(there + back) * 8;
            c.delay * 2 + Span::from_nanos(bits * 1_000_000_000 / c.rate)
        };
        let mut rtt = hop(plan.server_cable(from)) + hop(plan.server_cable(to));
        let mut at = plan.edge(from);
        while distances[at] > 0 && distances[at] != u32::MAX {
            let &(next, cable) = neighbours[at].iter().find(|n| distances[n.0] < distances[at]).expect("a way down");
            rtt = rtt + hop(&plan.cables[cable]);
            at = next;
        }
        rtt
    }
}

/// Hops from every switch to one of them; `u32::MAX` where there is no way.
pub(crate) fn distances(neighbours: &[Vec<(usize, usize)>], to: usize) -> Vec<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clos::Clos;

    const G: u64 = 100_000_000_000;
    const US: Span = Span::from_micros(1);

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
