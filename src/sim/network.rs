//! From a scenario's network to a plan, its buffers and its faults.

use std::collections::BTreeMap;
use std::path::Path;

use simnet::experiment::{Fault, Trouble};
use simnet::{Buffers, Clos, Plan, Port};
use srd::Span;

use super::formats::{hpcc, htsim};
use super::scenario::{self, FaultKind, Network, NetworkKind, as_written};

/// Largest radix of a fat tree's switches.
const MAX_RADIX: usize = 512;
/// A fault that comes more often is a mistake.
const MAX_TIMES: u64 = 100_000;
/// Faults of all cables together, each time counted: more are too many to schedule.
const MAX_FAULTS: usize = 1_000_000;

/// A plan and, for topologies of ns-3, the number of each server in the file.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) numbers: Option<Vec<usize>>,
}

/// Reads a file that a scenario names, relative to the scenario's own place.
pub(super) fn read(base: &Path, file: &str) -> Result<String, String> {
    let path = base.join(file);
    std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// The plan.
pub(super) fn plan(n: &Network, base: &Path) -> Result<Planned, String> {
    allowed(n)?;
    if !(576..=9_244).contains(&n.mtu) {
        return Err(format!("network.mtu is {}, not within 576 and 9244", n.mtu));
    }
    let need = |value: Option<usize>, name: &str| match value {
        Some(0) => Err(format!("network.{name} is 0, at least 1")),
        Some(n) => Ok(n),
        None => Err(format!("network.{name} is missing: a network of this kind needs it")),
    };
    let file = || n.file.as_deref().ok_or_else(|| "network.file is missing".to_owned());
    let rates = [n.rate, n.spine_rate.unwrap_or(n.rate), n.core_rate.or(n.spine_rate).unwrap_or(n.rate)].map(|r| r.0);
    let delays = [n.delay.0; 3];
    let clos = match n.kind {
        NetworkKind::Star => Clos::star(need(n.hosts, "hosts")?, n.rate.0, n.delay.0),
        NetworkKind::LeafSpine => {
            let (hosts, leaves, spines) =
                (need(n.hosts, "hosts")?, need(n.leaves, "leaves")?, need(n.spines, "spines")?);
            let per_leaf = hosts.div_ceil(leaves);
            let filled = hosts.div_ceil(per_leaf);
            if filled != leaves {
                return Err(format!(
                    "network.hosts is {hosts}, and {per_leaf} on each leaf fill {filled} leaves, not the {leaves} of \
                     network.leaves: change one of them"
                ));
            }
            let clos = Clos::leaf_spine(leaves, per_leaf, spines, n.rate.0, n.delay.0);
            Clos { servers: hosts, leaf_up: n.uplinks.unwrap_or(spines), rates, delays, ..clos }
        }
        NetworkKind::FatTree => {
            let k = need(n.radix, "radix")?;
            if k % 2 == 1 || !(4..=MAX_RADIX).contains(&k) {
                return Err(format!(
                    "network.radix is {k}; a fat tree needs switches of an even radix from 4 to {MAX_RADIX}"
                ));
            }
            let hosts = n.hosts.unwrap_or(k * k * k / 4);
            let clos = Clos::fat_tree(k, hosts, n.rate.0, n.delay.0);
            let leaf_up = n.uplinks.unwrap_or(clos.leaf_up);
            let spines = n.spines.unwrap_or(leaf_up);
            let spine_up = n.spine_uplinks.unwrap_or(clos.spine_up);
            let clos = Clos { leaf_up, spines, spine_up, cores: n.cores.unwrap_or(spines * spine_up), rates, ..clos };
            if hosts > k * k * k / 4 {
                return Err(format!("network.hosts is {hosts}, a fat tree of radix {k} has {}", k * k * k / 4));
            }
            clos
        }
        NetworkKind::Htsim => htsim::topology(&read(base, file()?)?)
            .map_err(|e| format!("{}: {e}", n.file.as_deref().unwrap_or_default()))?,
        NetworkKind::Hpcc => {
            let file = file()?;
            let (plan, numbers) = hpcc::topology(&read(base, file)?).map_err(|e| format!("{file}: {e}"))?;
            return Ok(Planned { plan, numbers: Some(numbers) });
        }
    };
    if clos.servers > Plan::MAX_SERVERS {
        return Err(format!("network.hosts is {}, at most {}", clos.servers, Plan::MAX_SERVERS));
    }
    Ok(Planned { plan: clos.plan().map_err(|e| format!("network: {e}"))?, numbers: None })
}

/// Says what a network of this kind has no use for, so that nothing is ignored in silence.
fn allowed(n: &Network) -> Result<(), String> {
    use NetworkKind::{FatTree, Hpcc, Htsim, LeafSpine, Star};
    let fields: [(&str, bool, &[NetworkKind]); 10] = [
        ("hosts", n.hosts.is_some(), &[Star, LeafSpine, FatTree]),
        ("leaves", n.leaves.is_some(), &[LeafSpine]),
        ("spines", n.spines.is_some(), &[LeafSpine, FatTree]),
        ("uplinks", n.uplinks.is_some(), &[LeafSpine, FatTree]),
        ("radix", n.radix.is_some(), &[FatTree]),
        ("spine_uplinks", n.spine_uplinks.is_some(), &[FatTree]),
        ("cores", n.cores.is_some(), &[FatTree]),
        ("spine_rate", n.spine_rate.is_some(), &[LeafSpine, FatTree]),
        ("core_rate", n.core_rate.is_some(), &[FatTree]),
        ("file", n.file.is_some(), &[Htsim, Hpcc]),
    ];
    match fields.iter().find(|(_, there, kinds)| *there && !kinds.contains(&n.kind)) {
        Some((name, ..)) => Err(format!("network.{name} means nothing in a network of kind {}", as_written(n.kind))),
        None => Ok(()),
    }
}

pub(super) fn buffers(n: &Network) -> Result<Buffers, String> {
    let alpha = n.shared_alpha.unwrap_or(1.0);
    if !(0.01..=100.0).contains(&alpha) {
        return Err(format!("network.shared_alpha is {alpha}, not within 0.01 and 100"));
    }
    if n.shared_alpha.is_some() && n.shared_buffer.is_none() {
        return Err("network.shared_alpha means nothing without network.shared_buffer".into());
    }
    let ecn = n.ecn.map(|(from, to)| (from.0, to.0));
    if let Some((from, to)) = ecn.filter(|(from, to)| from > to) {
        return Err(format!("network.ecn begins at {from} bytes and ends at {to}"));
    }
    let percent = (alpha * 100.0).round() as u32;
    Ok(Buffers { port: n.buffer.0, shared: n.shared_buffer.map(|s| (s.0, percent)), ecn, nic: n.nic_buffer.0 })
}

/// The faults; one that comes again and again becomes many, until the run ends at `limit` unless told otherwise.
pub(super) fn faults(plan: &Plan, lines: &[scenario::Fault], limit: Span) -> Result<Vec<Fault>, String> {
    let (mut out, mut total) = (Vec::new(), 0usize);
    for (i, line) in lines.iter().enumerate() {
        let at = |e: String| format!("fault {i}: {e}");
        let trouble = match (line.kind, line.rate, line.loss_percent, line.noticed_after) {
            (FaultKind::Dead, None, None, notice) => Trouble::Dead(notice.map(|n| n.0)),
            (FaultKind::Slow, Some(rate), None, None) => Trouble::Slow(rate.0),
            (FaultKind::Lossy, None, Some(p), None) if p == 0.0 || (1e-4..=100.0).contains(&p) => {
                Trouble::Lossy((p * 1e4).round() as u32)
            }
            (FaultKind::Dead, ..) => return Err(at("a dead cable has no rate and no loss_percent".into())),
            (FaultKind::Slow, ..) => return Err(at("a slow cable needs a rate, and nothing else".into())),
            (FaultKind::Lossy, ..) => {
                return Err(at("a lossy cable needs a loss_percent of 0, or 0.0001 to 100, and nothing else".into()));
            }
        };
        let length = line.until.map(|u| u.0.as_nanos().checked_sub(line.at.0.as_nanos()).filter(|n| *n > 0));
        if length == Some(None) {
            return Err(at("it ends before it begins".into()));
        }
        let length = length.flatten().map(Span::from_nanos);
        let (every, times) = match (line.every, line.times) {
            (None, None) => (Span::ZERO, 1),
            (_, Some(0)) => return Err(at("times is 0, at least 1".into())),
            (Some(every), times) if length.is_some_and(|l| l < every.0) => {
                let left = limit.as_nanos().saturating_sub(line.at.0.as_nanos());
                (every.0, times.map_or(left.div_ceil(every.0.as_nanos()).max(1), u64::from))
            }
            _ => return Err(at("what comes again needs 'every', and 'until' less than that after 'at'".into())),
        };
        if times > MAX_TIMES {
            return Err(at(format!(
                "it comes {times} times, at most {MAX_TIMES}: give fewer 'times' or a longer 'every'"
            )));
        }
        if line.on.is_empty() {
            return Err(at("'on' is empty: name cables or switches, such as 'spine3' or 'leaf0-spine3'".into()));
        }
        // One fault for all of them, so that routing learns of a switch at once, not of each of its cables.
        let mut on: BTreeMap<(bool, bool), Vec<usize>> = BTreeMap::new();
        for name in &line.on {
            let cables = find(plan, name).ok_or_else(|| {
                at(format!("there is no '{name}'; write 'spine3', 'leaf0-spine3' or 'leaf0->spine3'"))
            })?;
            total = total.saturating_add(cables.len().saturating_mul(times as usize));
            cables.into_iter().for_each(|(cable, directions)| on.entry(directions).or_default().push(cable));
        }
        if total > MAX_FAULTS {
            return Err(at(format!(
                "more than {MAX_FAULTS} faults of cables in all: give fewer 'times' or names in 'on'"
            )));
        }
        for k in 0..times {
            let from = line.at.0 + every * k;
            let until = length.map(|l| from + l);
            for (directions, cables) in &on {
                out.push(Fault { cables: cables.clone(), directions: *directions, trouble, from, until });
            }
        }
    }
    Ok(out)
}

/// The cables of a name, each with the directions that it speaks of.
fn find(plan: &Plan, name: &str) -> Option<Vec<(usize, (bool, bool))>> {
    let (cables, from) = match name.split_once("->") {
        Some((a, b)) => (plan.cables_named(&format!("{a}-{b}")), Some(plan.find(a)?)),
        None => (plan.cables_named(name), None),
    };
    let direction = |c: usize| {
        let cable = &plan.cables[c];
        let is = |port: Port| from.is_none_or(|f| f == port);
        (c, (is(cable.a), is(cable.b)))
    };
    (!cables.is_empty()).then(|| cables.into_iter().map(direction).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scenario::Scenario;

    fn scenario(network: &str, rest: &str) -> Scenario {
        Scenario::parse(&format!("title = \"t\"\n[network]\n{network}\n[[traffic]]\nkind = \"incast\"\n{rest}"))
            .expect("it can be read")
    }

    #[test]
    fn what_a_kind_does_not_know_is_refused() {
        let error = |network: &str| plan(&scenario(network, "").network, Path::new(".")).err().expect("invalid");
        assert!(error("kind = \"star\"\nhosts = 4\nleaves = 2").contains("network.leaves means nothing"));
        assert!(error("kind = \"star\"").contains("network.hosts is missing"));
        assert!(error("kind = \"star\"\nhosts = 0").contains("network.hosts is 0, at least 1"));
        assert!(error("kind = \"star\"\nhosts = 100000000").contains("network.hosts is 100000000, at most 16384"));
        assert!(error("kind = \"fat-tree\"\nradix = 128").contains("network.hosts is 524288, at most 16384"));
        assert!(error("kind = \"fat-tree\"\nradix = 10000000").contains("radix from 4 to 512"));
        let bundles = "kind = \"leaf-spine\"\nhosts = 49\nleaves = 7\nspines = 4\nuplinks = 100000";
        assert!(error(bundles).contains("700049 cables, at most 131072"));
        assert!(error("kind = \"fat-tree\"\nradix = 7").contains("even radix"));
        assert!(error("kind = \"fat-tree\"\nradix = 4\nhosts = 17").contains("has 16"));
        assert!(error("kind = \"leaf-spine\"\nhosts = 8\nleaves = 2\nspines = 4\nuplinks = 6").contains("6 cables up"));
        assert!(error("kind = \"htsim\"\nfile = \"nowhere.topo\"").contains("cannot read"));
    }

    #[test]
    fn faults_find_their_cables() {
        let network = "kind = \"leaf-spine\"\nhosts = 8\nleaves = 2\nspines = 4";
        let faults = |fault: &str| {
            let s = scenario(network, &format!("[[fault]]\n{fault}"));
            faults(&plan(&s.network, Path::new(".")).expect("valid").plan, &s.fault, s.limit.0)
        };
        let all = faults("kind = \"dead\"\nat = \"1us\"\non = [\"spine3\", \"leaf0->spine1\"]").expect("valid");
        let found: Vec<_> = all.iter().map(|f| (f.directions, f.cables.len())).collect();
        assert_eq!(found, [((true, false), 1), ((true, true), 2)], "a switch dies as a whole");
        let back = faults("kind = \"dead\"\nat = \"1us\"\non = [\"spine1->leaf0\"]").expect("valid");
        assert_eq!(back[0].directions, (false, true));
        let flapping =
            "kind = \"dead\"\nat = \"1us\"\nuntil = \"3us\"\nevery = \"10us\"\ntimes = 3\non = [\"leaf1-spine0\"]";
        let all = faults(flapping).expect("valid");
        assert_eq!(all.iter().map(|f| f.from.as_nanos()).collect::<Vec<_>>(), [1_000, 11_000, 21_000]);
        // Until the end of the run, after 100 ms.
        assert_eq!(faults(&flapping.replace("times = 3\n", "")).map(|all| all.len()), Ok(10_000));
        let often = "fault 0: it comes 100001 times, at most 100000";
        assert!(faults(&flapping.replace("times = 3", "times = 100001")).expect_err(often).starts_with(often));
        assert!(faults(&flapping.replace("times = 3", "times = 0")).expect_err("none").contains("times is 0"));
        let spines = ["\"spine0\", \"spine1\""; 300].join(", ");
        let many = flapping.replace("times = 3", "times = 1000").replace("\"leaf1-spine0\"", &spines);
        assert!(
            faults(&many).expect_err("too many").contains("more than 1000000"),
            "{:?}",
            faults(&many).map(|f| f.len())
        );
        for (bad, expected) in [
            ("kind = \"dead\"\nat = \"1us\"\non = []", "'on' is empty"),
            ("kind = \"dead\"\nat = \"1us\"\non = [\"spine9\"]", "there is no 'spine9'"),
            ("kind = \"slow\"\nat = \"1us\"\non = [\"spine1\"]", "needs a rate"),
            ("kind = \"lossy\"\nat = \"1us\"\nloss_percent = 101\non = [\"spine1\"]", "0.0001 to 100"),
            ("kind = \"lossy\"\nat = \"1us\"\nloss_percent = 0.00001\non = [\"spine1\"]", "0.0001 to 100"),
            ("kind = \"dead\"\nat = \"2us\"\nuntil = \"1us\"\non = [\"spine1\"]", "ends before"),
            ("kind = \"dead\"\nat = \"2us\"\nevery = \"1us\"\non = [\"spine1\"]", "comes again"),
        ] {
            assert!(faults(bad).expect_err(expected).contains(expected));
        }
    }
}
