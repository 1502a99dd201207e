//! htsim's connection matrices (`.cm`) and topologies (`.topo`).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use simnet::experiment::Moment;
use simnet::{Clos, Plan};
use srd::Span;

use super::triggers::{Firing, Kind, Trigger};
use super::{lines, number};

/// A connection of a matrix.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Connection {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Payload; `None` for no end (size 0).
    pub(crate) bytes: Option<u64>,
    pub(crate) start: Span,
    /// Connections that must have got somewhere before.
    pub(crate) after: Vec<Firing>,
}

/// Reads a connection matrix. Returns the number of nodes and the connections.
pub(crate) fn matrix(text: &str) -> Result<(usize, Vec<Connection>), String> {
    let (mut nodes, mut announced) = (None, None);
    let mut connections: Vec<Connection> = Vec::new();
    let mut waits: Vec<(usize, u64)> = Vec::new();
    let mut triggers: BTreeMap<u64, Trigger> = BTreeMap::new();
    for (line, words) in lines(text) {
        match words[0].to_ascii_lowercase().as_str() {
            "nodes" => nodes = Some(number::<usize>(line, "the number of nodes", words.get(1))?),
            "connections" => announced = Some(number::<usize>(line, "the number of connections", words.get(1))?),
            "triggers" | "failures" => {}
            "failure" => {
                return Err(format!("line {line}: failures belong into the scenario: write a [[fault]] there"));
            }
            "trigger" => {
                let (mut id, mut kind, mut count) = (None, None, None);
                let mut rest = words[1..].iter();
                while let Some(word) = rest.next() {
                    match *word {
                        "id" => id = Some(number::<u64>(line, "the trigger's id", rest.next())?),
                        "oneshot" => kind = Some(Kind::Oneshot),
                        "multishot" => kind = Some(Kind::Multishot),
                        "barrier" => kind = Some(Kind::Barrier(None)),
                        "count" => count = Some(number::<u64>(line, "the count", rest.next())?),
                        other => return Err(format!("line {line}: a trigger has no '{other}'")),
                    }
                }
                let id = id.ok_or_else(|| format!("line {line}: the trigger has no id"))?;
                let kind = match kind {
                    Some(Kind::Barrier(_)) => Kind::Barrier(count),
                    Some(kind) => kind,
                    None => return Err(format!("line {line}: the trigger is no oneshot, multishot or barrier")),
                };
                triggers.entry(id).or_default().declared = Some((line, kind));
            }
            pair => {
                let this = connections.len();
                let (from, to) = pair.split_once("->").ok_or_else(|| {
                    format!("line {line}: '{}' is neither a header nor a connection 'S->D'", words[0])
                })?;
                let from = number(line, "the sender", Some(&from))?;
                let to = number(line, "the receiver", Some(&to))?;
                let mut c = Connection { from, to, bytes: None, start: Span::ZERO, after: Vec::new() };
                let mut has_size = false;
                let mut rest = words[1..].iter();
                while let Some(word) = rest.next() {
                    match *word {
                        // Picoseconds.
                        "start" => c.start = Span::from_nanos(number::<u64>(line, "the start", rest.next())? / 1_000),
                        "size" => {
                            has_size = true;
                            c.bytes = Some(number::<u64>(line, "the size", rest.next())?).filter(|b| *b > 0);
                        }
                        "id" | "prio" => drop(number::<u64>(line, word, rest.next())?),
                        "trigger" => {
                            let id = number(line, "the trigger", rest.next())?;
                            triggers.entry(id).or_default().starts.push(this);
                            waits.push((line, id));
                        }
                        "send_done_trigger" | "recv_done_trigger" => {
                            let id = number(line, "the trigger", rest.next())?;
                            let moment = if *word == "send_done_trigger" { Moment::Completed } else { Moment::Arrived };
                            triggers.entry(id).or_default().fired_by.push((this, moment));
                        }
                        other => return Err(format!("line {line}: a connection has no '{other}'")),
                    }
                }
                if !has_size {
                    return Err(format!("line {line}: the connection has no size"));
                }
                connections.push(c);
            }
        }
    }
    for (line, id) in waits {
        let trigger = &triggers[&id];
        if trigger.declared.is_none() {
            return Err(format!("line {line}: trigger {id} is declared nowhere"));
        }
        if trigger.fired_by.is_empty() {
            return Err(format!("line {line}: no connection fires trigger {id}"));
        }
    }
    for (id, trigger) in triggers.iter().filter(|(_, t)| !t.starts.is_empty()) {
        let Some((line, kind)) = trigger.declared else { continue };
        for (connection, after) in trigger.starts.iter().zip(trigger.waits(*id, line, kind)?) {
            connections[*connection].after = after;
        }
    }
    let nodes = nodes.ok_or("the header has no 'Nodes N'")?;
    if let Some(n) = announced.filter(|n| *n != connections.len()) {
        return Err(format!("{n} connections are announced, {} are there", connections.len()));
    }
    match connections.iter().find(|c| c.from >= nodes || c.to >= nodes) {
        Some(c) => Err(format!("connection {}->{} leaves the {nodes} nodes", c.from, c.to)),
        None => Ok((nodes, connections)),
    }
}

const GBPS: u64 = 1_000_000_000;
/// Longest latency: one second.
const LONGEST_NS: u64 = 1_000_000_000;

/// One tier of a topology file.
#[derive(Clone, Copy, Default)]
struct Tier {
    /// Bits per second.
    rate: Option<u64>,
    down: Option<usize>,
    up: Option<usize>,
    bundle: Option<usize>,
    link_ns: u64,
    switch_ns: u64,
}

/// A number of a topology that must be in a range.
fn within(line: usize, what: &str, word: Option<&&str>, range: RangeInclusive<u64>) -> Result<u64, String> {
    let n = number(line, what, word)?;
    if range.contains(&n) {
        Ok(n)
    } else {
        Err(format!("line {line}: {what} is {n}, not within {} and {}", range.start(), range.end()))
    }
}

/// Reads a topology.
pub(crate) fn topology(text: &str) -> Result<Clos, String> {
    let (mut nodes, mut tier_count, mut pod) = (None, None, None);
    let mut tiers = [Tier::default(); 3];
    let mut current = None;
    for (line, words) in lines(text) {
        let value = words.get(1);
        let key = words[0].to_ascii_lowercase();
        if words.len() != 2 {
            return Err(format!("line {line}: not a name and a number"));
        }
        match key.as_str() {
            "nodes" => {
                nodes = Some(within(line, "the number of nodes", value, 1..=Plan::MAX_SERVERS as u64)? as usize);
            }
            "tiers" => tier_count = Some(number::<usize>(line, "the number of tiers", value)?),
            "podsize" => pod = Some(number::<usize>(line, "the pod size", value)?),
            "tier" => {
                let n = number::<usize>(line, "the tier", value)?;
                current = Some(n).filter(|n| *n < 3);
                if current.is_none() {
                    return Err(format!("line {line}: tier {n}; there are 0, 1 and 2"));
                }
            }
            _ => {
                let tier = &mut tiers
                    [current.ok_or_else(|| format!("line {line}: '{}' stands before the first 'Tier'", words[0]))?];
                let within = |range| within(line, words[0], value, range);
                let ports = || within(0..=Plan::MAX_CABLES as u64).map(|n| Some(n as usize));
                match key.as_str() {
                    "downlink_speed_gbps" => tier.rate = Some(within(1..=u64::MAX / GBPS)? * GBPS),
                    "radix_down" => tier.down = ports()?,
                    "radix_up" => tier.up = ports()?,
                    "bundle" => tier.bundle = ports()?,
                    "downlink_latency_ns" => tier.link_ns = within(0..=LONGEST_NS)?,
                    "switch_latency_ns" => tier.switch_ns = within(0..=LONGEST_NS)?,
                    // Follows from the radices; buffers are the scenario's.
                    "oversubscribed" | "queue_size_up" | "queue_size_down" | "queue_up" | "queue_down" => {}
                    _ => return Err(format!("line {line}: '{}' is no property of a tier", words[0])),
                }
            }
        }
    }
    let nodes = nodes.ok_or("'Nodes' is missing")?;
    let count = tier_count.ok_or("'Tiers' is missing")?;
    let pod = pod.unwrap_or(nodes);
    if !(2..=3).contains(&count) || pod == 0 {
        return Err(format!("{count} tiers and pods of {pod}; there are topologies of 2 and 3 tiers"));
    }
    let need = |what: Option<usize>, name: &str, tier: usize| {
        what.filter(|n| *n > 0).ok_or_else(|| format!("tier {tier} has no {name}"))
    };
    let per_leaf = need(tiers[0].down, "Radix_Down", 0)?;
    let leaf_up = need(tiers[0].up, "Radix_Up", 0)?;
    let spines = leaf_up / tiers[1].bundle.unwrap_or(1).max(1);
    let (mut spine_up, mut cores) = (0, 0);
    if count == 3 {
        spine_up = need(tiers[1].up, "Radix_Up", 1)?;
        cores = nodes / pod * spines * spine_up / need(tiers[2].down, "Radix_Down", 2)?;
    }
    let mut rates = [0; 3];
    for (tier, rate) in rates.iter_mut().enumerate().take(count) {
        *rate = tiers[tier].rate.ok_or_else(|| format!("tier {tier} has no Downlink_speed_Gbps"))?;
    }
    // A packet passes a switch by two of its cables, each of which has half of the switch's latency.
    let mut below = 0;
    let delays = tiers.map(|t| {
        let switches = std::mem::replace(&mut below, t.switch_ns) + t.switch_ns;
        Span::from_nanos(t.link_ns + switches / 2)
    });
    let pod_leaves = (pod / per_leaf).max(1);
    Ok(Clos {
        servers: nodes,
        tiers: count as u8,
        per_leaf,
        leaf_up,
        spines,
        pod_leaves,
        spine_up,
        cores,
        rates,
        delays,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_with_a_chain_and_a_barrier() {
        let text = "Nodes 4\nConnections 4\nTriggers 2\n0->1 id 1 start 5000000 size 2000000 send_done_trigger 1\n\
                    1->2 id 2 size 100 trigger 1 recv_done_trigger 2\n3->2 size 0 start 0 send_done_trigger 2 prio 1\n\
                    2->0 trigger 2 size 8\ntrigger id 1 oneshot\ntrigger id 2 barrier count 2 # both\n";
        let (nodes, c) = matrix(text).expect("valid");
        assert_eq!((nodes, c.len()), (4, 4));
        assert_eq!((c[0].start, c[0].bytes), (Span::from_micros(5), Some(2_000_000)));
        assert_eq!(c[1].after, [(0, Moment::Completed)]);
        assert_eq!(c[2].bytes, None);
        assert_eq!(c[3].after, [(1, Moment::Arrived), (2, Moment::Completed)]);
    }

    #[test]
    fn matrix_errors_say_the_line() {
        let error = |text: &str| matrix(text).expect_err("invalid");
        assert!(error("Nodes 2\n0->1 start x size 5\n").starts_with("line 2: the start is 'x'"));
        assert!(error("Nodes 2\n0-1 size 5\n").starts_with("line 2: '0-1' is neither"));
        assert!(error("Nodes 2\n0->1 start 0\n").starts_with("line 2: the connection has no size"));
        assert!(error("Nodes 2\n0->1 size 5 trigger 3\n").contains("trigger 3 is declared nowhere"));
        assert!(error("Nodes 2\nConnections 2\n0->1 size 5\n").contains("2 connections are announced, 1"));
        assert!(error("Nodes 2\n0->7 size 5\n").contains("leaves the 2 nodes"));
        assert!(error("0->1 size 5\n").contains("Nodes N"));
        assert!(error("Nodes 2\n0->1 size 5\ntrigger id 1\n").starts_with("line 3: the trigger is no oneshot"));
        let twice =
            "Nodes 2\n0->1 size 5 send_done_trigger 1\n1->0 size 5 send_done_trigger 1\n0->1 size 5 trigger 1\n";
        assert!(error(&format!("{twice}trigger id 1 oneshot\n")).starts_with("line 5: oneshot trigger 1 is fired 2"));
        assert!(error(&format!("{twice}trigger id 1 barrier count 3\n")).starts_with("line 5: barrier trigger 1 has"));
        assert!(error("Nodes 2\nfailure switch_type TOR\n").contains("[[fault]]"));
    }

    #[test]
    fn a_topology_of_three_tiers() {
        let text = "Nodes 1024\nTiers 3\nPodsize 64\nTier 0\nDownlink_speed_Gbps 100\nRadix_Up 8\nRadix_Down 8\n\
                    Downlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 8\nRadix_Up 8\nBundle 1\n\
                    Downlink_Latency_ns 1000\nTier 2\nDownlink_speed_Gbps 100\nRadix_Down 16\nDownlink_Latency_ns 1000\n";
        let clos = topology(text).expect("valid");
        assert_eq!(clos, Clos::fat_tree(16, 1_024, 100_000_000_000, Span::from_micros(1)));
        clos.plan().and_then(|p| p.check()).expect("it can be built");
    }

    #[test]
    fn each_switch_on_the_way_counts_once() {
        let text = "Nodes 16\nTiers 3\nPodsize 4\nTier 0\nDownlink_speed_Gbps 100\nRadix_Up 2\nRadix_Down 2\n\
                    Downlink_Latency_ns 1000\nSwitch_Latency_ns 100\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\n\
                    Radix_Up 2\nDownlink_Latency_ns 2000\nSwitch_Latency_ns 200\nTier 2\nDownlink_speed_Gbps 100\n\
                    Radix_Down 4\nDownlink_Latency_ns 4000\nSwitch_Latency_ns 400\n";
        let plan = topology(text).and_then(|clos| clos.plan()).expect("valid");
        let rtts = [1, 2, 4].map(|to| plan.base_rtt(0, to, 0, 0).as_nanos());
        let one_way = [2_000 + 100, 6_000 + 400, 14_000 + 1_000];
        assert_eq!(rtts, one_way.map(|ns| 2 * ns));
    }

    #[test]
    fn topology_errors_say_what_is_missing() {
        let error = |text: &str| topology(text).expect_err("invalid");
        assert!(error("Nodes 4\nRadix_Up 2\n").starts_with("line 2: 'Radix_Up' stands before"));
        assert!(error("Nodes 4\nTiers 2\nTier 0\nRadix_Down 2\n").contains("tier 0 has no Radix_Up"));
        assert!(error("Nodes 4\nTiers 2\nTier 3\n").starts_with("line 3"));
        assert!(error("Nodes 4\nTiers 2\nTier 0\nColour 3\n").contains("no property"));
        assert!(error("Nodes 16385\n").starts_with("line 1: the number of nodes is 16385, not within 1 and 16384"));
        for bad in ["Downlink_speed_Gbps 0", "Downlink_speed_Gbps 18446744074", "Radix_Up 131073", "Radix_Down -1"] {
            let name = bad.split(' ').next().expect("a name");
            let says = format!("line 4: {name} is ");
            assert!(error(&format!("Nodes 4\nTiers 2\nTier 0\n{bad}\n")).starts_with(&says), "{bad}");
        }
        let late = "Nodes 4\nTiers 2\nTier 0\nSwitch_Latency_ns 18446744073709551615\n";
        assert!(error(late).starts_with("line 4: Switch_Latency_ns is "));
        assert!(error("Nodes 4\nTiers 2\nTier 0\nRadix_Down 2\nRadix_Up 2\n").contains("Downlink_speed_Gbps"));
    }
}
