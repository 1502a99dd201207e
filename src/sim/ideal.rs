//! Ideal completion times, of payload and nothing else.

use std::collections::BTreeMap;

use simnet::experiment::{FlowSpec, Transport};
use simnet::{Plan, Port, Ways};

use super::scenario::Ideal;

/// Bytes of an acknowledgement.
pub(super) const ACK: u32 = 100;

/// A cut that flows cross: a server's cable or all cables up from an edge switch, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    FromServer(usize),
    ToServer(usize),
    FromEdge(usize),
    ToEdge(usize),
}

/// Ideal completion time of every flow in microseconds; `None` for one without an end, or with background traffic that leaves it
/// nothing of a cut.
///
/// *Share*: the busiest cut that the flow crosses carries payload of all its flows at its full rate, less what background
/// traffic of a constant rate takes; a flow without an end has carried as much as the largest by then. *Alone*: the slowest cut
/// carries its payload, its last packet passes the other cables, and the acknowledgement comes back. Neither can be shorter than
/// the application takes to make the data.
pub(super) fn flows(plan: &Plan, flows: &[FlowSpec], ideal: Ideal, mtu: u32) -> Vec<Option<f64>> {
    let cuts = Cuts::of(plan);
    let mut loads: BTreeMap<Cut, Load> = BTreeMap::new();
    for f in flows {
        for cut in cuts.crossed(f) {
            loads.entry(cut).or_default().add(f);
        }
    }
    let mut ways = Ways::of(plan);
    let mut each = |f: &FlowSpec| {
        let bytes = f.bytes?;
        let bits = bytes as f64 * 8.0;
        let crossed = cuts.crossed(f);
        let seconds = match ideal {
            Ideal::Share => {
                let times = crossed.iter().map(|c| loads[c].seconds(cuts.capacity(*c), bits));
                times.fold(0.0, f64::max)
            }
            Ideal::Alone => {
                let mut rtt = |packet: u32| ways.base_rtt(f.from.0, f.to.0, packet, ACK).as_secs_f64();
                let (small, large) = (rtt(0), rtt(mtu));
                // A packet is stored and forwarded by every cable, but for the one where it is the last of the payload so far.
                let arrives = |so_far: u64, packet: u64| {
                    let (so_far, packet) = (so_far as f64 * 8.0, packet as f64);
                    let slowest = crossed.iter().map(|c| so_far / cuts.capacity(*c) - packet * 8.0 / cuts.cable(*c));
                    slowest.fold(f64::MIN, f64::max) + small + (large - small) * packet / f64::from(mtu)
                };
                let full = u64::from(mtu);
                let rest = bytes % full;
                if bytes > full && rest > 0 && cuts.has_ways(f) && arrives(bytes, rest) < arrives(full, full) {
                    // The rest overtakes all full packets, so they do not wait for it.
                    arrives(bytes - rest, full)
                } else {
                    arrives(bytes, bytes.min(full))
                }
            }
        };
        let made = f.rate.map_or(0.0, |rate| bits / rate as f64);
        Some(seconds.max(made) * 1e6).filter(|us| us.is_finite())
    };
    flows.iter().map(&mut each).collect()
}

/// What flows ask of a cut.
#[derive(Clone, Default)]
struct Load {
    /// Bits of all foreground flows with an end, and of the largest of them.
    bits: f64,
    largest: f64,
    /// Foreground flows without an end: what their applications make in a second, if that is bounded.
    endless: Vec<f64>,
    /// Bits per second of constant background traffic.
    taken: f64,
}

impl Load {
    fn add(&mut self, f: &FlowSpec) {
        match (f.background, f.transport, f.rate, f.bytes) {
            (true, Transport::Constant { .. }, Some(rate), _) => self.taken += rate as f64,
            (false, _, _, Some(bytes)) => {
                let bits = bytes as f64 * 8.0;
                (self.bits, self.largest) = (self.bits + bits, self.largest.max(bits));
            }
            (false, _, rate, None) => self.endless.push(rate.map_or(f64::MAX, |rate| rate as f64)),
            _ => {}
        }
    }

    /// Seconds for all of it; for `bits`, those of a flow in the background, if there is nothing else.
    fn seconds(&self, capacity: f64, bits: f64) -> f64 {
        let (all, largest) = if self.bits > 0.0 { (self.bits, self.largest) } else { (bits, bits) };
        let (mut taken, mut endless) = (self.taken, self.endless.clone());
        if capacity <= taken {
            return f64::INFINITY;
        }
        loop {
            let time = (all + endless.len() as f64 * largest) / (capacity - taken);
            // Those that make less than their share leave the rest to the others.
            let slow: f64 = endless.extract_if(.., |rate| *rate * time < largest).sum();
            if slow == 0.0 {
                return time;
            }
            taken += slow;
        }
    }
}

/// Capacities of all cuts.
struct Cuts<'a> {
    plan: &'a Plan,
    edges: Vec<usize>,
    server: Vec<f64>,
    edge: Vec<f64>,
    /// The slowest of an edge switch's cables up.
    uplink: Vec<f64>,
}

impl Cuts<'_> {
    fn of(plan: &Plan) -> Cuts<'_> {
        let servers = plan.servers.len();
        let mut edge = vec![0.0; plan.switches.len()];
        let mut uplink = vec![f64::MAX; plan.switches.len()];
        for cable in &plan.cables {
            if let (Port::Switch(a), Port::Switch(b)) = (cable.a, cable.b) {
                for switch in [a, b] {
                    edge[switch] += cable.rate as f64;
                    uplink[switch] = uplink[switch].min(cable.rate as f64);
                }
            }
        }
        let server = (0..servers).map(|s| plan.server_cable(s).rate as f64).collect();
        Cuts { plan, edges: (0..servers).map(|s| plan.edge(s)).collect(), server, edge, uplink }
    }

    fn crossed(&self, f: &FlowSpec) -> Vec<Cut> {
        debug_assert!(f.from.0 < self.plan.servers.len());
        let mut out = vec![Cut::FromServer(f.from.0), Cut::ToServer(f.to.0)];
        if self.has_ways(f) {
            out.extend([Cut::FromEdge(self.edges[f.from.0]), Cut::ToEdge(self.edges[f.to.0])]);
        }
        out
    }

    /// Whether packets of a flow may overtake each other.
    fn has_ways(&self, f: &FlowSpec) -> bool {
        self.edges[f.from.0] != self.edges[f.to.0]
    }

    fn capacity(&self, cut: Cut) -> f64 {
        match cut {
            Cut::FromServer(s) | Cut::ToServer(s) => self.server[s],
            Cut::FromEdge(e) | Cut::ToEdge(e) => self.edge[e],
        }
    }

    /// The rate of one of its cables.
    fn cable(&self, cut: Cut) -> f64 {
        match cut {
            Cut::FromServer(s) | Cut::ToServer(s) => self.server[s],
            Cut::FromEdge(e) | Cut::ToEdge(e) => self.uplink[e],
        }
    }
}

#[cfg(test)]
mod tests {
    use simnet::Clos;
    use srd::Span;

    use super::*;

    const G: u64 = 1_000_000_000;

    #[test]
    fn an_incast_shares_the_receivers_cable() {
        let plan = Clos::star(5, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let incast: Vec<FlowSpec> = (0..48).map(|i| FlowSpec::between(i % 4, 4, 2_000_000)).collect();
        let ideal = super::flows(&plan, &incast, Ideal::Share, 9_000);
        assert!(ideal.iter().all(|i| (i.expect("it ends") - 7_680.0).abs() < 1e-6), "{ideal:?}");
    }

    #[test]
    fn over_subscribed_uplinks_and_constant_traffic_count() {
        let plan = Clos::leaf_spine(2, 4, 2, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let mut all: Vec<FlowSpec> = (0..4).map(|i| FlowSpec::between(i, i + 4, 1_000_000)).collect();
        // 4 MB over two uplinks of 100 Gb/s.
        assert_eq!(super::flows(&plan, &all, Ideal::Share, 9_000)[0], Some(160.0));
        all.push(FlowSpec {
            rate: Some(100 * G),
            background: true,
            transport: Transport::Constant { mtu: 9_000 },
            ..FlowSpec::between(0, 4, 1)
        });
        assert_eq!(super::flows(&plan, &all, Ideal::Share, 9_000)[1], Some(320.0));
        let slow = FlowSpec { rate: Some(G), ..FlowSpec::between(0, 1, 1_000_000) };
        assert_eq!(super::flows(&plan, &[slow], Ideal::Share, 9_000)[0], Some(8_000.0));
    }

    /// What the background fills leaves no time in which a flow could end.
    #[test]
    fn no_ideal_beside_traffic_that_takes_all() {
        let plan = Clos::star(3, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let constant = |rate| FlowSpec {
            rate: Some(rate),
            background: true,
            transport: Transport::Constant { mtu: 9_000 },
            ..FlowSpec::between(1, 2, 1)
        };
        let ideal =
            |rate| super::flows(&plan, &[FlowSpec::between(0, 2, 1_000_000), constant(rate)], Ideal::Share, 9_000)[0];
        assert_eq!([ideal(60 * G), ideal(100 * G), ideal(120 * G)], [Some(200.0), None, None]);
    }

    #[test]
    fn flows_without_an_end_take_their_share() {
        let plan = Clos::star(9, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let endless = |rate| FlowSpec { bytes: None, rate, ..FlowSpec::between(0, 8, 1) };
        let ideal = |more: [FlowSpec; 2]| {
            let all = [&[FlowSpec::between(4, 8, 3_000_000), FlowSpec::between(5, 8, 3_000_000)][..], &more].concat();
            super::flows(&plan, &all, Ideal::Share, 9_000)[0].expect("it ends")
        };
        // 4 equal parts of 100 Gb/s; or 20 are gone, and 3 parts of the rest.
        for (rate, expected) in [(None, 960.0), (Some(20 * G), 900.0), (Some(26 * G), 960.0)] {
            assert!((ideal([endless(None), endless(rate)]) - expected).abs() < 1e-6, "{rate:?}");
        }
    }

    #[test]
    fn alone_includes_the_round_trip() {
        let plan = Clos::star(2, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let ideal =
            super::flows(&plan, &[FlowSpec::between(0, 1, 1_000_000)], Ideal::Alone, 9_000)[0].expect("it ends");
        // 80 us of payload, 4 us of propagation, 9,000 bytes stored and forwarded once and 100 twice.
        assert!((ideal - 80.0 - 4.0 - 0.736).abs() < 2e-3, "{ideal}");
    }

    #[test]
    fn alone_knows_each_cable() {
        let mut plan = Clos::star(4, 100 * G, Span::from_micros(1)).plan().expect("valid");
        plan.cables[1].rate = 10 * G;
        plan.cables[3].delay = Span::from_micros(100);
        let pairs = [(0, 1), (1, 0), (0, 2), (0, 3)];
        // 0.64 us of payload at 100 Gb/s, 6.4 at 10; the acknowledgement 0.008 and 0.08.
        let expected = [4.0 + 7.128, 4.0 + 7.128, 4.0 + 1.296, 202.0 + 1.296];
        let check = |flows: &[FlowSpec], expected: &[f64]| {
            let ideals = super::flows(&plan, flows, Ideal::Alone, 9_000);
            for (ideal, expected) in ideals.iter().zip(expected) {
                assert!((ideal.expect("it ends") - expected).abs() < 4e-3, "{ideals:?}, not {expected:?}");
            }
        };
        check(&pairs.map(|(a, b)| FlowSpec::between(a, b, 8_000)), &expected);
        // 90,000 bytes from 10 to 100 Gb/s: the last packet of 9,000 is 0.72 us behind.
        check(&[FlowSpec::between(1, 0, 90_000), FlowSpec::between(0, 1, 90_000)], &[72.0 + 4.0 + 0.72 + 0.088; 2]);
    }

    #[test]
    fn the_last_of_few_packets_may_be_the_first_to_arrive() {
        let alone = |plan: &Plan, bytes| {
            super::flows(plan, &[FlowSpec::between(0, 1, bytes)], Ideal::Alone, 9_000)[0].expect("it ends")
        };
        let star = Clos::star(2, 100 * G, Span::from_micros(1)).plan().expect("valid");
        let fabric = Clos::leaf_spine(2, 1, 2, 100 * G, Span::from_micros(1)).plan().expect("valid");
        // Packets of 0.72 us and 0.24: in line through two cables, on ways of their own through four.
        assert!((alone(&star, 12_000) - 4.0 - 0.72 - 0.96 - 0.016).abs() < 2e-3);
        assert!((alone(&fabric, 12_000) - 8.0 - 4.0 * 0.72 - 0.032).abs() < 2e-3);
        assert!((alone(&fabric, 19_000) - 8.0 - 5.0 * 0.72 - 0.032).abs() < 2e-3);
        // Behind more packets, or hardly a shorter one, it does not.
        assert!((alone(&fabric, 40_000) - 8.0 - 3.0 * 0.72 - 3.2 - 0.032).abs() < 2e-3);
        assert!((alone(&fabric, 17_000) - 8.0 - 3.0 * 0.72 - 1.36 - 0.032).abs() < 2e-3);
    }

    #[test]
    fn alone_may_use_all_uplinks() {
        let clos =
            Clos { rates: [100 * G, 25 * G, 25 * G], ..Clos::leaf_spine(2, 1, 2, 100 * G, Span::from_micros(1)) };
        let plan = clos.plan().expect("valid");
        let ideal = super::flows(&plan, &[FlowSpec::between(0, 1, 900_000)], Ideal::Alone, 9_000)[0].expect("it ends");
        // 144 us over both uplinks, 8 us of propagation, packets of 0.72, 2.88 and 0.72 us, acknowledgements of 0.08.
        assert!((ideal - 144.0 - 8.0 - 4.32 - 0.08).abs() < 4e-3, "{ideal}");
    }
}
