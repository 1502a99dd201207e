//! Clos networks of one, two and three tiers, of any radix and over-subscription.

use srd_core::Span;

use crate::plan::{Plan, Port};

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

    /// Cables in all.
    fn cables(&self) -> usize {
        let leaves = self.servers.div_ceil(self.per_leaf);
        let above_leaves = if self.tiers > 1 { leaves.saturating_mul(self.leaf_up) } else { 0 };
        let pods = if self.tiers > 2 { leaves.div_ceil(self.pod_leaves.max(1)) } else { 0 };
        let above_spines = pods.saturating_mul(self.spines).saturating_mul(self.spine_up);
        self.servers.saturating_add(above_leaves).saturating_add(above_spines)
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
        Plan::can_have(c.servers, c.cables())?;
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
        assert_eq!(Clos::fat_tree(16, 1_024, G, US).cables(), plan.cables.len());
        assert_eq!(plan.name(Port::Switch(plan.edge(1_023))), "leaf127");
        // Two hops within a leaf, four within a pod, six across: 12 us and 6 x 2 packets of 125 bytes at 100 Gb/s.
        let rtt = |to| plan.base_rtt(0, to, 125, 125);
        assert_eq!([rtt(1), rtt(8), rtt(1_023)].map(Span::as_nanos), [4_040, 8_080, 12_120]);
    }

    #[test]
    fn over_subscription_and_bundles() {
        let clos = Clos { leaf_up: 8, spines: 4, ..Clos::leaf_spine(4, 16, 4, G, US) };
        let plan = clos.plan().expect("valid");
        assert_eq!((plan.cables.len(), plan.cables_named("leaf0-spine1").len()), (clos.cables(), 2));
        assert_eq!(plan.cables_named("spine1").len(), 8);
        assert!(plan.cables_named("spine9").is_empty());
        let uneven = Clos { leaf_up: 6, ..clos }.plan().expect_err("6 over 4");
        assert!(uneven.contains("6 cables up"), "{uneven}");
        for (too_many, says) in [
            (Clos { leaf_up: usize::MAX, ..clos }, "cables, at most 131072"),
            (Clos { servers: 16_385, per_leaf: 16_385, ..clos }, "16385 servers, at most 16384"),
        ] {
            assert!(too_many.plan().expect_err(says).contains(says));
        }
        assert!(Clos { tiers: 4, ..clos }.plan().is_err() && Clos { servers: 0, ..clos }.plan().is_err());
    }
}
