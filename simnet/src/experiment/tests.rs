//! Small experiments whose outcome is known.

use srd_core::{Config, Span};

use super::*;
use crate::clos::Clos;
use crate::packet::Addr;
use crate::plan::Port;

const G: u64 = 1_000_000_000;
const US: Span = Span::from_micros(1);

fn flow(from: usize, to: usize, bytes: u64, transport: Transport) -> FlowSpec {
    FlowSpec { transport, ..FlowSpec::between(from, to, bytes) }
}

fn tcp(control: TcpControl) -> Transport {
    Transport::Tcp(TcpConfig { control, min_rto: Span::from_millis(5), ..TcpConfig::default() })
}

fn experiment(clos: Clos, flows: Vec<FlowSpec>) -> Experiment {
    Experiment {
        seed: 7,
        plan: clos.plan().expect("a valid network"),
        buffers: Buffers { port: 1_000_000, shared: None, ecn: Some((200_000, 800_000)), nic: 16_000_000 },
        polarised: false,
        mtu: 9_000,
        flows,
        faults: Vec::new(),
        descheduling: None,
        srd: Config::fabric().check().expect("a valid configuration"),
        cable_rates: false,
        drain: None,
        messages: Messages { bytes: 1 << 20, depth: 2, verbs: false },
        warm: true,
        limit: Span::from_millis(50),
        sample: None,
    }
}

fn run(e: &Experiment) -> Outcome {
    let outcome = e.run(|_| true).expect("a valid experiment");
    assert_eq!(outcome.broken, None);
    outcome
}

fn fct_us(outcome: &Outcome, flow: usize) -> f64 {
    outcome.flows[flow]
        .fct
        .unwrap_or_else(|| panic!("flow {flow} has no end: {:?}", outcome.flows[flow]))
        .as_micros_f64()
}

fn star(servers: usize) -> Clos {
    Clos::star(servers, 100 * G, US)
}

#[test]
fn every_transport_delivers_a_lone_flow_near_line_rate() {
    let all = [Transport::Srd, tcp(TcpControl::NewReno), tcp(TcpControl::Cubic), tcp(TcpControl::Dctcp)];
    for transport in all {
        let outcome = run(&experiment(star(2), vec![flow(0, 1, 20_000_000, transport)]));
        let flow = &outcome.flows[0];
        assert_eq!((flow.delivered, outcome.drops), (20_000_000, 0), "{transport:?}");
        // 1,600 us of payload, 4 us of round trip, headers, and a start.
        let fct = fct_us(&outcome, 0);
        assert!((1_604.0..1_750.0).contains(&fct), "{transport:?}: {fct} us");
        assert!(flow.arrived.expect("it arrived") < flow.fct.expect("it ended"));
    }
}

/// The handshake, which is not modelled, tells how far away the peer is: nothing times out that is on its way.
#[test]
fn tcp_knows_a_long_way_from_the_start() {
    let far = Clos::star(2, 100 * G, Span::from_millis(5));
    let outcome = run(&experiment(far, vec![flow(0, 1, 1_000_000, tcp(TcpControl::Cubic))]));
    let flow = &outcome.flows[0];
    assert_eq!((flow.timeouts, flow.retransmits, outcome.drops), (0, 0, 0), "20 ms away, with a minimum RTO of 5 ms");
}

/// Hosts whose cables are as fast as the receiver's are not in step with its queue, which would let in one of them only.
#[test]
fn endless_tcp_flows_share_a_receiver() {
    let endless = |from, control| FlowSpec { bytes: None, ..flow(from, 2, 1, tcp(control)) };
    for control in [TcpControl::NewReno, TcpControl::Cubic] {
        let mut e = experiment(star(3), vec![endless(0, control), endless(1, control)]);
        (e.buffers.ecn, e.limit) = (None, Span::from_millis(50));
        let both = |seed| {
            let outcome = run(&Experiment { seed, ..e.clone() });
            [0, 1].map(|i| outcome.flows[i].delivered as f64 * 8e-9 / 0.05)
        };
        let (one, other) = (both(1), both(2));
        for got in [one, other] {
            assert!(got[0].min(got[1]) > 25.0 && got[0] + got[1] > 97.0, "{control:?}: {got:?} Gbit/s");
        }
        assert_ne!(one, other, "{control:?}: chance is the seed's");
    }
}

/// 1 MB and its headers take 81 us, and the round trip 4. Each receiver knows two connections, but only one brings data.
#[test]
fn who_alone_sends_to_a_receiver_does_not_wait_for_its_share() {
    let flows = (0..2).map(|i| flow(i, i + 1, 1_000_000, Transport::Srd)).collect();
    let outcome = run(&Experiment { cable_rates: true, ..experiment(star(3), flows) });
    for i in 0..2 {
        let fct = fct_us(&outcome, i);
        assert!((85.0..88.0).contains(&fct), "flow {i}: {fct} us");
    }
}

/// Acknowledgements are none, whoever sends them.
#[test]
fn packets_of_a_flow_carry_its_data() {
    let flows = [(0, 1), (1, 0)].map(|(a, b)| flow(a, b, 5_000_000, Transport::Srd));
    let outcome = run(&experiment(star(2), flows.to_vec()));
    for flow in &outcome.flows {
        assert!((558..575).contains(&flow.packets), "{} packets of 9,000 bytes for 5 MB", flow.packets);
    }
}

#[test]
fn same_seed_same_outcome_and_another_seed_another() {
    let flows = (0..8).map(|i| flow(i, 8, 300_000, Transport::Srd)).collect();
    let e = experiment(star(9), flows);
    assert_eq!(run(&e), run(&e));
    assert_ne!(run(&e), run(&Experiment { seed: 8, ..e.clone() }));
}

#[test]
fn cards_of_one_server_share_its_cable() {
    let mut flows: Vec<FlowSpec> = (0..4).map(|_| flow(0, 1, 5_000_000, Transport::Srd)).collect();
    flows.iter_mut().enumerate().for_each(|(k, f)| (f.from.1, f.to.1) = (k, k % 2));
    let outcome = run(&experiment(star(2), flows));
    let slowest = (0..4).map(|i| fct_us(&outcome, i)).fold(0.0, f64::max);
    assert!((1_600.0..1_900.0).contains(&slowest), "{slowest} us for 20 MB over one cable");
}

#[test]
fn constant_flows_have_their_rate_and_end() {
    let constant = FlowSpec { rate: Some(10 * G), ..flow(0, 1, 1_000_000, Transport::Constant { mtu: 9_000 }) };
    let outcome = run(&experiment(star(2), vec![constant]));
    let fct = fct_us(&outcome, 0);
    // Data are made in 800 us, the last of them less than a packet.
    assert!((800.0..804.0).contains(&fct), "{fct}");
    assert_eq!(outcome.flows[0].delivered, 1_000_000);
    // Less than a packet in all.
    let short = FlowSpec { rate: Some(G), ..flow(0, 1, 1_000, Transport::Constant { mtu: 9_000 }) };
    let outcome = run(&experiment(star(2), vec![short]));
    let fct = fct_us(&outcome, 0);
    assert!((8.0..11.0).contains(&fct), "{fct}");
    assert_eq!(outcome.flows[0].delivered, 1_000);
}

/// Each of two servers of one switch, one of which is far.
#[test]
fn tcp_knows_how_far_each_server_is() {
    let mut e = experiment(star(3), [1, 2].map(|to| flow(0, to, 1_000_000, tcp(TcpControl::Cubic))).into());
    e.plan.cables[2].delay = Span::from_millis(5);
    let outcome = run(&e);
    assert_eq!((outcome.flows[1].timeouts, outcome.drops), (0, 0), "10 ms away, with a minimum RTO of 5 ms");
}

#[test]
fn applications_that_make_data_slowly_are_not_overtaken() {
    for transport in [Transport::Srd, tcp(TcpControl::Cubic)] {
        let slow = FlowSpec { rate: Some(10 * G), ..flow(0, 1, 10_000_000, transport) };
        let fct = fct_us(&run(&experiment(star(2), vec![slow])), 0);
        assert!((8_000.0..8_300.0).contains(&fct), "{transport:?}: {fct}");
    }
}

#[test]
fn flows_wait_for_each_other() {
    let mut flows: Vec<FlowSpec> = (0..3).map(|i| flow(i, i + 1, 100_000, Transport::Srd)).collect();
    flows[1].after = vec![(0, Moment::Arrived)];
    flows[2].after = vec![(0, Moment::Completed), (1, Moment::Completed)];
    flows[2].start = Span::from_micros(10);
    let outcome = run(&experiment(star(4), flows));
    let end = |i: usize| outcome.flows[i].start.expect("it started") + outcome.flows[i].fct.expect("it ended");
    assert_eq!(outcome.flows[1].start, outcome.flows[0].arrived);
    assert_eq!(outcome.flows[2].start, Some(end(1) + Span::from_micros(10)));
}

#[test]
fn a_tcp_flow_is_as_dead_as_its_spine_until_routing_notices() {
    let clos = Clos::leaf_spine(2, 1, 4, 100 * G, US);
    let bound = FlowSpec { via: Some(3), ..flow(0, 1, 20_000_000, tcp(TcpControl::Cubic)) };
    let mut e = experiment(clos, vec![bound]);
    assert_eq!(e.plan.switches[3], "spine1");
    let dead = |notice| Fault {
        cables: e.plan.cables_named("spine1"),
        directions: (true, true),
        trouble: Trouble::Dead(notice),
        from: Span::from_micros(500),
        until: None,
    };
    let (unnoticed, noticed) = (dead(None), dead(Some(Span::from_millis(10))));
    let healthy = fct_us(&run(&e), 0);
    e.faults = vec![noticed];
    let late = fct_us(&run(&e), 0);
    assert!(late > 10_000.0 && late < 10_000.0 + 2.0 * 10_000.0 + healthy, "{late} us, {healthy} without the fault");
    e.faults = vec![unnoticed];
    let outcome = run(&e);
    assert_eq!((outcome.flows[0].fct, outcome.elapsed), (None, e.limit));
    // SRD does not wait for routing.
    e.flows = vec![flow(0, 1, 20_000_000, Transport::Srd)];
    let srd = fct_us(&run(&e), 0);
    assert!(srd < 1.5 * healthy, "{srd} us, {healthy} without the fault");
}

#[test]
fn faults_end_and_links_slow_down() {
    let clos = star(2);
    let mut e = experiment(clos, vec![flow(0, 1, 5_000_000, Transport::Srd)]);
    let on = |trouble, until| Fault { cables: vec![1], directions: (true, true), trouble, from: Span::ZERO, until };
    let healthy = fct_us(&run(&e), 0);
    e.faults = vec![on(Trouble::Slow(25 * G), None)];
    let slow = fct_us(&run(&e), 0);
    assert!(slow > 3.5 * healthy, "{slow} us at a quarter of the rate, {healthy} before");
    e.faults = vec![on(Trouble::Slow(25 * G), Some(Span::from_micros(400)))];
    let short = fct_us(&run(&e), 0);
    assert!(short < 0.8 * slow && short > healthy, "{short} us");
    e.faults = vec![on(Trouble::Lossy(20_000), None)];
    let outcome = run(&e);
    assert!(outcome.drops > 0 && outcome.flows[0].retransmits > 0 && outcome.flows[0].delivered == 5_000_000);
}

/// Where routing knows that a server's only cable is dead, its packets end at a switch, not on a link.
#[test]
fn packets_without_a_route_are_dropped_ones() {
    let mut e = experiment(star(2), vec![flow(0, 1, 5_000_000, Transport::Srd)]);
    e.limit = Span::from_millis(2);
    let trouble = Trouble::Dead(Some(Span::ZERO));
    e.faults = vec![Fault { cables: vec![1], directions: (true, true), trouble, from: US * 100, until: None }];
    let outcome = run(&e);
    let on_links: u64 = outcome.links.iter().map(|l| l.queue_drops + l.other_drops).sum();
    assert!(outcome.drops > on_links + 10, "{} dropped, {on_links} of them on links", outcome.drops);
}

/// Two constant flows of the whole rate and so many packets each, to one receiver.
fn two_of_the_whole_rate(packets: u64) -> Experiment {
    let constant =
        |from| FlowSpec { rate: Some(100 * G), ..flow(from, 2, packets * 8_972, Transport::Constant { mtu: 9_000 }) };
    experiment(star(3), vec![constant(0), constant(1)])
}

/// Two constant flows of the whole rate, to one receiver, for 101 us: half of what has come waits for its cable.
#[test]
fn a_fault_meets_what_waits() {
    let mut e = two_of_the_whole_rate(140);
    (e.buffers.port, e.limit) = (2_000_000, Span::from_millis(2));
    let to_receiver = |e: &Experiment| {
        let outcome = run(e);
        let delivered = outcome.flows.iter().map(|f| f.delivered / 8_972).sum::<u64>();
        let link = outcome.links.iter().find(|l| l.name == "leaf0->h2").expect("a cable").clone();
        (delivered, outcome.elapsed.as_micros_f64(), link)
    };
    let on = |trouble, from, until| {
        let (from, until) = (Span::from_micros(from), Some(Span::from_micros(until)));
        Fault { cables: vec![2], directions: (true, true), trouble, from, until }
    };
    for shared in [None, Some((4_000_000, 100))] {
        (e.buffers.shared, e.faults) = (shared, Vec::new());
        let (delivered, healthy, _) = to_receiver(&e);
        assert_eq!(delivered, 280);
        // What is there when the cable dies is lost, though it works again long before it would have left.
        e.faults = vec![on(Trouble::Dead(None), 50, 51)];
        let (delivered, elapsed, link) = to_receiver(&e);
        assert!((205..=212).contains(&delivered), "{delivered} delivered");
        assert_eq!((link.packets, link.packets + link.other_drops), (delivered, 280));
        assert!(link.queue.2 < 700_000, "what was lost takes no place: {link:?}");
        let busy = link.utilisation * elapsed / 0.723;
        let carried = delivered as f64;
        assert!((carried..carried + 2.0).contains(&busy), "busy for {busy} packets, {delivered} delivered");
        // A tenth of the rate for 90 us costs 81 us, though all that is to be sent waits already.
        e.faults = vec![on(Trouble::Slow(10 * G), 105, 195)];
        let (delivered, slow, link) = to_receiver(&e);
        assert_eq!(delivered, 280);
        assert!((slow - healthy - 81.0).abs() < 1.0, "{slow} us, {healthy} without the fault");
        assert!((0.97..=1.0).contains(&link.utilisation), "{link:?}");
    }
}

/// A flow is not whole that lacks a message, whatever came after that.
#[test]
fn a_flow_that_lost_a_message_does_not_finish() {
    for verbs in [false, true] {
        let mut e =
            experiment(star(2), vec![flow(0, 1, 20_000_000, Transport::Srd), flow(1, 0, 1_000, Transport::Srd)]);
        e.flows[1].after = vec![(0, Moment::Completed)];
        e.messages.verbs = verbs;
        e.srd = Config { peer_timeout: Span::from_millis(5), ..Config::fabric() }.check().expect("valid");
        let (from, until) = (US * 200, Some(Span::from_millis(15)));
        e.faults = vec![Fault { cables: vec![1], directions: (true, true), trouble: Trouble::Dead(None), from, until }];
        let outcome = run(&e);
        assert!(outcome.failed_messages > 0 && outcome.flows[0].delivered < 20_000_000, "{outcome:?}");
        assert_eq!((outcome.flows[0].fct, outcome.flows[1].start), (None, None), "{:?}", outcome.flows);
    }
}

/// A cable loses what it has carried, which took its time: of two constant flows of the whole rate half fits, and half of that
/// arrives.
#[test]
fn what_is_lost_has_been_sent() {
    let mut e = two_of_the_whole_rate(1_000);
    (e.buffers.port, e.limit) = (100_000, Span::from_millis(2));
    let trouble = Trouble::Lossy(500_000);
    e.faults = vec![Fault { cables: vec![2], directions: (true, true), trouble, from: Span::ZERO, until: None }];
    let outcome = run(&e);
    let delivered = outcome.flows.iter().map(|f| f.delivered / 8_972).sum::<u64>();
    assert!((430..580).contains(&delivered), "{delivered} of 2000 packets delivered");
}

/// A fault that ends while another one of its kind goes on ends nothing else.
#[test]
fn faults_may_overlap() {
    let mut e = experiment(star(2), vec![flow(0, 1, 5_000_000, Transport::Srd)]);
    let ms = Span::from_millis;
    let on =
        |trouble, from, until| Fault { cables: vec![1], directions: (true, true), trouble, from, until: Some(until) };
    let during = |trouble, short| vec![on(trouble, Span::ZERO, ms(10)), on(short, ms(1), ms(2))];
    e.faults = during(Trouble::Dead(None), Trouble::Dead(None));
    let dead = fct_us(&run(&e), 0);
    assert!(dead > 10_000.0, "{dead} us, dead for 10,000");
    e.faults = during(Trouble::Slow(G), Trouble::Slow(2 * G));
    let slow = fct_us(&run(&e), 0);
    // 10 ms at 1 Gbit/s carry a quarter of it.
    assert!(slow > 10_000.0, "{slow} us, slow for 10,000");
    // What the cable loses itself it loses after the fault, too.
    let lost = |e: &Experiment| run(e).links.iter().map(|l| l.other_drops).sum::<u64>();
    e.plan.cables[1].loss_ppm = 50_000;
    e.faults = vec![on(Trouble::Lossy(1_000), Span::ZERO, US)];
    let with = lost(&e);
    e.faults.clear();
    let without = lost(&e);
    assert!(with > without / 2 && without > 20, "{with} lost with a fault of 1 us, {without} without");
}

/// A server's port has room for 16 MB and needs none of it: its percentiles are told in steps of a switch's buffer.
#[test]
fn queues_of_servers_are_told_apart() {
    let e = experiment(star(3), (0..2).map(|i| flow(i, 2, 2_000_000, tcp(TcpControl::Dctcp))).collect());
    let outcome = run(&e);
    let (median, most, longest) = outcome.links.iter().find(|l| l.name == "h0->leaf0").expect("a cable").queue;
    assert!(median > 0 && median < most && most <= longest && longest < 300_000, "{median}, {most}, {longest}");
}

#[test]
fn a_shared_buffer_drops_earlier() {
    let flows: Vec<FlowSpec> = (0..16).map(|i| flow(i, 16, 200_000, tcp(TcpControl::NewReno))).collect();
    let mut e = experiment(star(17), flows);
    e.buffers.ecn = None;
    let port = |o: &Outcome| o.links.iter().find(|l| l.name == "leaf0->h16").expect("it has a cable").clone();
    let own = port(&run(&e));
    e.buffers.shared = Some((600_000, 100));
    let shared = port(&run(&e));
    assert!(own.queue.2 > 900_000, "{own:?}");
    // Half of what is free is the fixed point for one busy port at alpha 1.
    assert!(shared.queue.2 <= 309_000 && shared.queue_drops > own.queue_drops, "{shared:?}");
}

#[test]
fn descheduled_hosts_cost_time() {
    let mut e = experiment(star(2), vec![flow(0, 1, 20_000_000, Transport::Srd)]);
    let steady = fct_us(&run(&e), 0);
    let length = (Span::from_micros(50), Span::from_micros(100));
    e.descheduling = Some(Descheduling { every: Span::from_micros(300), length });
    let outcome = run(&e);
    let noisy = fct_us(&outcome, 0);
    assert!(noisy > 1.1 * steady && outcome.flows[0].delivered == 20_000_000, "{noisy} us, {steady} without noise");
}

/// A host that is busy when a flow is due makes it slow; it does not move its start.
#[test]
fn flows_start_when_they_are_due() {
    let mut e = experiment(star(3), vec![flow(0, 1, 2_000_000, Transport::Srd), flow(1, 2, 1_000, Transport::Srd)]);
    // A batch of 32 datagrams takes 2.3 ms.
    e.drain = Some((G, 1_024));
    e.flows[1].start = US * 500;
    let outcome = run(&e);
    assert_eq!(outcome.flows[1].start, Some(US * 500), "{:?}", outcome.flows[1]);
    assert!(fct_us(&outcome, 1) > 500.0, "{:?}", outcome.flows[1]);
}

#[test]
fn a_polarised_hash_leaves_cores_idle() {
    let flows: Vec<FlowSpec> = (0..16).map(|i| flow(i, 112 + i, 500_000, tcp(TcpControl::Cubic))).collect();
    let mut e = experiment(Clos::fat_tree(8, 128, 100 * G, US), flows);
    let used = |o: &Outcome| o.links.iter().filter(|l| l.name.contains("->core") && l.packets > 0).count();
    let spread = used(&run(&e));
    e.polarised = true;
    let polarised = used(&run(&e));
    assert!(polarised < spread, "{polarised} of 16 links to cores used, {spread} with seeds of their own");
}

#[test]
fn samples_add_up() {
    let endless = FlowSpec { bytes: None, ..flow(0, 1, 1, Transport::Srd) };
    let mut e = experiment(star(2), vec![endless]);
    (e.limit, e.sample) = (Span::from_millis(2), Some(Span::from_micros(500)));
    let outcome = run(&e);
    assert_eq!(outcome.samples.len(), 4);
    assert_eq!(outcome.samples[3][0], outcome.flows[0].delivered);
    let per_sample = (outcome.samples[3][0] - outcome.samples[2][0]) as f64 * 8.0 / 500e3;
    assert!(per_sample > 90.0, "{per_sample} Gbit/s");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let error = |change: &dyn Fn(&mut Experiment)| {
        let mut e = experiment(star(2), vec![flow(0, 1, 1_000, Transport::Srd)]);
        change(&mut e);
        e.run(|_| true).expect_err("it makes no sense")
    };
    assert!(error(&|e| e.flows.clear()).contains("no flow"));
    assert!(error(&|e| e.flows[0].to.0 = 2).contains("server 2"));
    assert!(error(&|e| e.flows[0].to = (0, 0)).contains("to itself"));
    assert!(error(&|e| e.flows[0].bytes = Some(0)).contains("no bytes"));
    assert!(error(&|e| e.flows[0].after = vec![(0, Moment::Arrived)]).contains("waits for flow 0"));
    assert!(error(&|e| e.flows[0].transport = Transport::Constant { mtu: 1_500 }).contains("does not say which"));
    let config = TcpConfig { min_rto: Span::ZERO, ..TcpConfig::default() };
    let at_once = |e: &mut Experiment| e.flows[0].transport = Transport::Tcp(config);
    assert!(error(&at_once).contains("minimum RTO of 0"));
    assert!(error(&|e| e.flows[0].via = Some(0)).contains("many paths"));
    // Packets of these are counted in 32 bits.
    for transport in [tcp(TcpControl::Cubic), Transport::Constant { mtu: 9_000 }] {
        let huge = |e: &mut Experiment| e.flows = vec![FlowSpec { rate: Some(G), ..flow(0, 1, 1 << 50, transport) }];
        assert!(error(&huge).contains("1125899906842624 bytes, at most"), "{transport:?}");
    }
    let each_its_card = |e: &mut Experiment| {
        let own = |card| FlowSpec { from: (0, card), ..flow(0, 1, 1_000, Transport::Srd) };
        e.flows = (0..Addr::HOSTS).map(own).collect();
    };
    assert!(error(&each_its_card).contains("64001 cards at their ends, at most 64000"));
    assert!(error(&|e| e.plan.cables.truncate(1)).contains("h1 has 0 cables"));
    let bad = |e: &mut Experiment| {
        let trouble = Trouble::Dead(None);
        e.faults = vec![Fault { cables: vec![9], directions: (true, true), trouble, from: Span::ZERO, until: None }];
    };
    assert!(error(&bad).contains("cable 9"));
}

#[test]
fn a_run_can_be_stopped() {
    let endless = FlowSpec { bytes: None, ..flow(0, 1, 1, Transport::Srd) };
    let outcome = experiment(star(2), vec![endless]).run(|s| s.elapsed < Span::from_millis(1)).expect("valid");
    assert!(outcome.elapsed < Span::from_millis(2), "{:?}", outcome.elapsed);
    let plan = star(2).plan().expect("valid");
    assert_eq!(plan.find("h1"), Some(Port::Server(1)));
}

#[test]
fn a_run_can_be_stopped_before_it_begins() {
    let e = experiment(star(64), (0..64).map(|i| flow(i, (i + 1) % 64, 1_000_000, Transport::Srd)).collect());
    let mut asked = 0;
    let outcome = e.run(|status: Status| {
        assert_eq!((status.elapsed, status.open), (Span::ZERO, 64));
        asked += 1;
        false
    });
    let outcome = outcome.expect("valid");
    // Who wants an end is not asked again, and the network is not built.
    assert_eq!((asked, outcome.events, outcome.flows.len()), (1, 0, 0));
}

#[test]
fn a_run_of_many_servers_can_be_stopped_soon() {
    // Here 200 us are 100,000 events.
    let flows = (0..64).map(|i| FlowSpec { bytes: None, ..flow(i, (i + 1) % 64, 1, Transport::Srd) }).collect();
    let (mut last, mut most) = (0, 0);
    let watch = |s: Status| {
        most = most.max(s.events - last);
        last = s.events;
        s.elapsed < Span::from_micros(300)
    };
    experiment(star(64), flows).run(watch).expect("valid");
    assert!(last > 100_000 && most < 25_000, "{most} of {last} events at a stretch");
}

/// An incast across racks, one of whose spines dies, by RDMA writes of the verbs card: a queue pair per flow, four of them on
/// each sending card.
#[test]
fn hosts_may_run_the_verbs_card() {
    let clos = Clos::leaf_spine(2, 4, 4, 100 * G, US);
    let mut flows: Vec<FlowSpec> = (0..16).map(|i| flow(i % 4, 4, 1_000_000, Transport::Srd)).collect();
    flows.push(flow(4, 0, 300_000, Transport::Srd));
    let plan = clos.clone().plan().expect("a valid network");
    let cables = plan.cables_named("leaf0-spine1");
    let fault = Fault { cables, directions: (true, true), trouble: Trouble::Dead(None), from: US * 50, until: None };
    let e = Experiment { faults: vec![fault], ..experiment(clos, flows) };
    let run_as =
        |verbs, seed| run(&Experiment { seed, messages: Messages { bytes: 64_000, depth: 4, verbs }, ..e.clone() });
    // Of several seeds the middle one: what the spine takes along is chance.
    let slowest = |verbs| {
        let mut us: Vec<f64> = (0..5)
            .map(|seed| {
                let outcome = run_as(verbs, seed);
                for (i, f) in outcome.flows.iter().enumerate() {
                    assert_eq!(Some(f.delivered), e.flows[i].bytes, "flow {i}");
                }
                assert_eq!(outcome.failed_messages, 0);
                (0..16).map(|i| fct_us(&outcome, i)).fold(0.0, f64::max)
            })
            .collect();
        us.sort_by(f64::total_cmp);
        us[2]
    };
    let (card, plain) = (slowest(true), slowest(false));
    // Nothing but 60 bytes of the card's header in each message sets them apart.
    assert!((card / plain - 1.0).abs() < 0.1, "{card} and {plain} us");
    assert!((1_280.0..1_500.0).contains(&card), "{card} us for 16 MB");
    assert_eq!(run_as(true, 7), run_as(true, 7), "the same seed gives the same outcome");
}
