//! Switches: a routing table and an ECMP hash with a seed of its own.

use crate::packet::{HostId, LinkId};
use crate::rng::mix;

/// A switch. It has no idea whether its links work: a dead one swallows what is hashed to it.
#[derive(Debug)]
pub struct Switch {
    seed: u64,
    /// For every destination host, where in `groups` its group begins; the first one is empty.
    routes: Vec<u32>,
    /// Groups of links, one after the other: how many they are, then their numbers. A packet finds all of it in one place.
    groups: Vec<u32>,
}

impl Switch {
    pub(crate) fn new(seed: u64) -> Switch {
        Switch { seed, routes: Vec::new(), groups: vec![0] }
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
    }

    /// Where the group of these links begins.
    fn group(&mut self, links: &[LinkId]) -> u32 {
        let mut at = 0;
        while let Some(&len) = self.groups.get(at) {
            let members = &self.groups[at + 1..][..len as usize];
            if members.iter().eq(links.iter().map(|l| &l.0)) {
                break;
            }
            at += 1 + len as usize;
        }
        if at == self.groups.len() {
            self.groups.push(links.len() as u32);
            self.groups.extend(links.iter().map(|l| l.0));
        }
        at as u32
    }

    /// Changes the seed, and with it the link of every flow.
    pub fn rehash(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub(crate) fn next(&self, to: HostId, flow: u64) -> Option<LinkId> {
        let group = &self.groups[*self.routes.get(to.0 as usize)? as usize..];
        let (&len, members) = group.split_first()?;
        let chosen = match len {
            0 => return None,
            1 => 0,
            _ => ((mix(flow ^ self.seed) >> 32) * u64::from(len)) >> 32,
        };
        Some(LinkId(members[chosen as usize]))
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
