//! The flow and topology files of the HPCC simulator for ns-3, which many others took over.

use simnet::{Cable, Plan, Port};
use srd::Span;

use super::{lines, number};
use crate::sim::quantity::{Duration, Rate};

/// A flow; nodes by their number in the topology.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: u64,
    pub(crate) start: Span,
}

/// Reads flows: a line with their number, then `source destination priority port bytes start_seconds`.
pub(crate) fn flows(text: &str) -> Result<Vec<Flow>, String> {
    let mut all = lines(text);
    let (line, head) = all.next().ok_or("the file is empty")?;
    let announced: usize = number(line, "the number of flows", head.first())?;
    let mut out = Vec::new();
    for (line, words) in all {
        if words.len() != 6 {
            return Err(format!("line {line}: {} words, a flow has 6", words.len()));
        }
        let seconds: f64 = number(line, "the start", words.get(5))?;
        if !(0.0..1e6).contains(&seconds) {
            return Err(format!("line {line}: the start is {seconds} seconds"));
        }
        out.push(Flow {
            from: number(line, "the source", words.first())?,
            to: number(line, "the destination", words.get(1))?,
            bytes: number(line, "the size", words.get(4))?,
            start: Span::from_secs_f64(seconds),
        });
    }
    if out.len() != announced {
        return Err(format!("{announced} flows are announced, {} are there", out.len()));
    }
    Ok(out)
}

/// Reads a topology: `nodes switches links`, the switches, then `a b rate delay error_rate` per link. Returns the plan and
/// the number of each server in the file.
pub(crate) fn topology(text: &str) -> Result<(Plan, Vec<usize>), String> {
    let mut all = lines(text);
    let (line, head) = all.next().ok_or("the file is empty")?;
    let [nodes, switches, links] =
        [0, 1, 2].map(|i| number::<usize>(line, "the number of nodes, switches or links", head.get(i)));
    let (nodes, switches, links) = (nodes?, switches?, links?);
    if head.len() != 3 {
        return Err(format!("line {line}: {} numbers, not 'nodes switches links'", head.len()));
    }
    // Each has a link.
    if nodes > Plan::MAX_CABLES {
        return Err(format!("line {line}: {nodes} nodes, at most {}", Plan::MAX_CABLES));
    }
    let mut is_switch = vec![false; nodes];
    let mut left = switches;
    while left > 0 {
        let (line, words) = all.next().ok_or("the list of switches is missing")?;
        for word in &words {
            let id: usize = number(line, "a switch", Some(word))?;
            *is_switch.get_mut(id).ok_or_else(|| format!("line {line}: switch {id} of {nodes} nodes"))? = true;
        }
        left = left.checked_sub(words.len()).ok_or_else(|| format!("line {line}: more than {switches} switches"))?;
    }
    let mut plan = Plan::default();
    let mut ports = Vec::with_capacity(nodes);
    let mut numbers = Vec::new();
    for (id, switch) in is_switch.iter().enumerate() {
        if *switch {
            ports.push(Port::Switch(plan.switches.len()));
            plan.switches.push(format!("s{id}"));
        } else {
            ports.push(Port::Server(plan.servers.len()));
            plan.servers.push(format!("n{id}"));
            numbers.push(id);
        }
    }
    for (line, words) in all {
        if !(4..=5).contains(&words.len()) {
            return Err(format!("line {line}: {} words, a link has 5", words.len()));
        }
        let port = |i: usize| {
            let id: usize = number(line, "an end", words.get(i))?;
            ports.get(id).copied().ok_or_else(|| format!("line {line}: node {id} of {nodes}"))
        };
        let error: f64 = if words.len() == 5 { number(line, "the error rate", words.get(4))? } else { 0.0 };
        if error != 0.0 && !(1e-6..=1.0).contains(&error) {
            return Err(format!("line {line}: an error rate of {error}, which is neither 0 nor within 0.000001 and 1"));
        }
        let at = |e: String| format!("line {line}: {e}");
        plan.cables.push(Cable {
            a: port(0)?,
            b: port(1)?,
            rate: Rate::parse(words[2]).map_err(at)?.0,
            delay: Duration::parse(words[3]).map_err(at)?.0,
            loss_ppm: (error * 1e6).round() as u32,
        });
    }
    if plan.cables.len() != links {
        return Err(format!("{links} links are announced, {} are there", plan.cables.len()));
    }
    // Where those of servers are first, nobody has to look for them.
    plan.cables.sort_by_key(|c| match (c.a, c.b) {
        (Port::Server(server), _) | (_, Port::Server(server)) => server,
        _ => usize::MAX,
    });
    Ok((plan, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGY: &str = "6 2 5\n4 5\n0 4 100Gbps 1us 0\n1 4 100Gbps 1us 0\n2 5 100Gbps 1us 0\n3 5 100Gbps 1us 0\n4 5 400Gbps 0.001ms 0.000001\n";

    #[test]
    fn flows_and_topology() {
        let flow = flows("1\n0 3 3 100 2000 0.000005\n").expect("valid");
        assert_eq!(flow, [Flow { from: 0, to: 3, bytes: 2_000, start: Span::from_micros(5) }]);
        let (plan, numbers) = topology(TOPOLOGY).expect("valid");
        plan.check().expect("all reach all");
        assert_eq!((numbers, plan.cables.len()), (vec![0, 1, 2, 3], 5));
        let core = plan.cables[4];
        assert_eq!((core.rate, core.delay, core.loss_ppm), (400_000_000_000, Span::from_micros(1), 1));
    }

    #[test]
    fn cables_of_servers_come_first() {
        let mut lines: Vec<&str> = TOPOLOGY.lines().collect();
        lines[2..].reverse();
        let (plan, _) = topology(&lines.join("\n")).expect("valid");
        let servers: Vec<Port> = plan.cables.iter().map(|c| c.a).collect();
        assert_eq!(servers[..4], [0, 1, 2, 3].map(Port::Server));
    }

    #[test]
    fn errors_say_the_line() {
        assert!(flows("2\n0 3 3 100 2000 0\n").expect_err("one only").contains("2 flows are announced"));
        assert!(flows("1\n0 3 3 100 2000\n").expect_err("five words").starts_with("line 2"));
        assert!(flows("1\n0 3 3 100 x 0\n").expect_err("no size").starts_with("line 2: the size is 'x'"));
        let error = |from: &str, to: &str| topology(&TOPOLOGY.replace(from, to)).expect_err("invalid");
        assert!(error("400Gbps", "fast").starts_with("line 7: 'fast' is no rate"));
        assert!(error("0.000001", "0.0000001").starts_with("line 7: an error rate of 0.0000001"));
        assert!(error("6 2 5", "6 2 6").contains("6 links are announced, 5"));
        assert!(error("6 2 5", "1000000000 2 5").contains("1000000000 nodes, at most 131072"));
        assert!(error("3 5 100", "9 5 100").starts_with("line 6: node 9 of 6"));
        assert!(error("4 5\n", "4 5 3\n").starts_with("line 2: more than 2 switches"));
    }
}
