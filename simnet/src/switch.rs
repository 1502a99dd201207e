//! Switches: a routing table and an ECMP hash with a seed of its own.

use crate::packet::{HostId, LinkId};
use crate::rng::mix;

/// A switch. It has no idea whether its links work: a dead one swallows what is hashed to it.
#[derive(Debug)]
pub struct Switch {
    seed: u64,
    /// For every destination host, the number of its group; the first one is empty.
    routes: Vec<u16>,
    /// Where in `members` a group starts and how long it is.
    groups: Vec<(u32, u32)>,
    members: Vec<LinkId>,
}

impl Switch {
    pub(crate) fn new(seed: u64) -> Switch {
        Switch { seed, routes: Vec::new(), groups: vec![(0, 0)], members: Vec::new() }
    }

    /// Sends what goes to any of `hosts` over one of `links`, chosen by the hash of addresses, ports and seed.
    ///
    /// # Panics
    /// If `links` is empty.
    pub fn route(&mut self, hosts: impl IntoIterator<Item = HostId>, links: &[LinkId]) {
        assert!(!links.is_empty(), "a route needs a link");
        let group = self.group(links);
        for host in hosts {
            let i = host.0 as usize;
            if self.routes.len() <= i {
                self.routes.resize(i + 1, 0);
            }
            self.routes[i] = group;
        }
    }

    /// Forgets all routes.
    pub fn clear_routes(&mut self) {
        self.routes.fill(0);
        self.groups.truncate(1);
        self.members.clear();
    }

    /// The group of these links; those that are used often are found at the end.
    fn group(&mut self, links: &[LinkId]) -> u16 {
        let same = |&(first, len): &(u32, u32)| &self.members[first as usize..(first + len) as usize] == links;
        let found = self.groups.iter().rposition(same).unwrap_or_else(|| {
            self.groups.push((self.members.len() as u32, links.len() as u32));
            self.members.extend_from_slice(links);
            self.groups.len() - 1
        });
        u16::try_from(found).expect("a switch has fewer than 65,536 groups of links")
    }

    /// Changes the seed, and with it the link of every flow.
    pub fn rehash(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub(crate) fn next(&self, to: HostId, flow: u64) -> Option<LinkId> {
        let &(first, len) = self.groups.get(usize::from(*self.routes.get(to.0 as usize)?))?;
        match len {
            0 => None,
            1 => Some(self.members[first as usize]),
            _ => {
                let hash = mix(flow ^ self.seed) >> 32;
                Some(self.members[first as usize + ((hash * u64::from(len)) >> 32) as usize])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Addr, flow_hash};

    fn flow(port: u16) -> u64 {
        flow_hash(Addr::of(HostId(0), port), Addr::of(HostId(1), 4791))
    }

    #[test]
    fn next_spreads_ports_evenly_and_changes_with_the_seed() {
        let mut switch = Switch::new(11);
        let links: Vec<LinkId> = (0..8).map(LinkId).collect();
        switch.route([HostId(1)], &links);
        let chosen: Vec<LinkId> = (0..8_000).map(|p| switch.next(HostId(1), flow(p)).expect("a route")).collect();
        for link in &links {
            let share = chosen.iter().filter(|l| *l == link).count();
            assert!((850..1_150).contains(&share), "{share} of 8000 ports on {link:?}");
        }
        switch.rehash(12);
        let moved = (0..8_000).filter(|p| switch.next(HostId(1), flow(*p)) != Some(chosen[usize::from(*p)])).count();
        assert!(moved > 6_500, "{moved} of 8000 flows moved");
    }

    #[test]
    fn next_without_a_route_is_none() {
        let mut switch = Switch::new(1);
        assert_eq!(switch.next(HostId(1), flow(1)), None);
        switch.route([HostId(5)], &[LinkId(0)]);
        assert_eq!(switch.next(HostId(1), flow(1)), None);
    }
}
