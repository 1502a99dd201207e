//! The evaluation in simulation: every row runs a scenario, prints its figure beside the goal, and fails when it gets worse
//! than what is reached today. `SRD_EVALUATION_SEEDS=10 cargo test --release --test evaluation -- --nocapture` prints the
//! table that counts: the worst of ten seeds.

use std::process::Command;

use serde_json::Value;

/// Runs a scenario with some seeds and returns its report.
fn sim(args: &[&str]) -> Value {
    let seeds = std::env::var("SRD_EVALUATION_SEEDS").unwrap_or_else(|_| "2".into());
    run("none", &[args, &["--seeds", &seeds]].concat())
}

/// The same without saying with which seeds, and with what to compare it.
fn run(compare: &str, args: &[&str]) -> Value {
    let fixed = ["--compare", compare, "--sweep", "none", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_srd")).arg("sim").args(args).args(fixed).output();
    let output = output.expect("start the command");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"))
}

fn figure(report: &Value, name: &str) -> f64 {
    report["summary"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {}", report["summary"]))
}

/// A figure of each seed.
fn each(report: &Value, name: &str) -> impl Iterator<Item = f64> {
    let seeds = report["seeds"].as_array().expect("several seeds").iter();
    seeds.map(move |s| s["summary"][name].as_f64().expect("a figure"))
}

fn most(report: &Value, name: &str) -> f64 {
    each(report, name).fold(f64::NEG_INFINITY, f64::max)
}

fn least(report: &Value, name: &str) -> f64 {
    each(report, name).fold(f64::INFINITY, f64::min)
}

/// Prints a figure, its goal, and what is demanded of it today. The smaller, the better.
#[track_caller]
fn at_most(what: &str, value: f64, goal: f64, today: f64) {
    let verdict = if value <= goal { "reached" } else { "missed" };
    println!("{what:<62} {value:>9.4}   goal {goal:>8.4} {verdict}");
    assert!(value <= today, "{what}: {value}, at most {today} is reached today");
}

#[track_caller]
fn at_least(what: &str, value: f64, goal: f64, today: f64) {
    let verdict = if value >= goal { "reached" } else { "missed" };
    println!("{what:<62} {value:>9.4}   goal {goal:>8.4} {verdict} (at least)");
    assert!(value >= today, "{what}: {value}, at least {today} is reached today");
}

#[test]
fn bursty_incast() {
    for (size, goal, today) in [("2MB", 1.05, 1.04), ("64KB", 1.15, 1.13)] {
        let r = sim(&["paper-fig3", "--set", &format!("traffic.size={size}")]);
        let name = format!("fig. 2/3, 4 x 12 -> 1, {size}");
        at_most(&format!("{name}: max / ideal"), figure(&r, "max_over_ideal"), goal, today);
        at_most(&format!("{name}: timeouts"), figure(&r, "timeouts"), 0.0, 0.0);
        at_most(&format!("{name}: share of packets dropped"), figure(&r, "drop_share"), 1e-4, 1e-4);
        at_most(&format!("{name}: flows that did not finish"), figure(&r, "unfinished"), 0.0, 0.0);
    }
}

#[test]
fn persistent_incast() {
    let r = sim(&["paper-fig4"]);
    let off = each(&r, "worst_sample_over_fair").map(|sample| (sample - 1.0).abs()).fold(0.0, f64::max);
    at_most("fig. 4: a sample's distance from the fair share", off, 0.05, 0.03);
    at_least("fig. 4: Jain's index", figure(&r, "jain"), 0.999, 0.999);
    let links = r["links"].as_array().expect("links");
    let last = links.iter().find(|l| l["link"] == "leaf0->h4").expect("the receiver's cable");
    let queue = last["queue_p50"].as_f64().expect("a queue") / last["buffer"].as_f64().expect("a buffer");
    at_most("fig. 4: standing queue over buffer", queue, 0.20, 0.10);
    at_least("fig. 4: the receiver's cable busy", last["utilisation"].as_f64().expect("a share"), 0.98, 0.98);
}

/// Flows that join others, and leave them again.
#[test]
fn joining_and_leaving() {
    let row = |what: &str, set: &[String]| {
        let set: Vec<&str> = set.iter().flat_map(|s| ["--set", s]).collect();
        let r = sim(&[&["join-leave"], &set[..]].concat());
        at_most(&format!("{what} and leave: round trips to equal shares"), most(&r, "convergence_rtts"), 50.0, 20.0);
    };
    row("4 join 4 flows", &[]);
    let (from, to) = (1..48).map(|i| (i, 48)).unzip::<_, _, Vec<i32>, Vec<i32>>();
    let changes = ["network.hosts=49", "traffic.senders=1", "traffic.receiver=48", "limit=9ms", "traffic.1.size=780KB"];
    let lists = [format!("traffic.1.from={from:?}"), format!("traffic.1.to={to:?}")];
    row("47 join one flow", &[&changes.map(String::from)[..], &lists].concat());
}

/// A receiver that takes in half of what its cable carries: twice the cable's ideal is all that there is.
#[test]
fn slow_receiver() {
    let r = sim(&["slow-receiver"]);
    at_most("8 -> 1, the host takes in half: max / what it can", figure(&r, "max_over_ideal") / 2.0, 1.1, 1.1);
    at_most("8 -> 1, the host takes in half: share dropped", most(&r, "drop_share"), 1e-4, 1e-3);
    at_most(
        "8 -> 1, the host takes in half: share resent",
        figure(&r, "retransmits") / figure(&r, "packets"),
        0.02,
        0.01,
    );
}

#[test]
fn racks() {
    // A card per server, as in the paper, and one per process, which nobody asked for but emulation on one host gives.
    let own = ["--set", "traffic.shared_card=false", "--set", "messages.size=1MiB"];
    for (scenario, what, today, today_own) in
        [("paper-fig5", "50 % used", 1.03, 1.04), ("paper-fig6", "full", 1.09, 1.3)]
    {
        let r = sim(&[scenario]);
        at_most(&format!("fig. 5/6, uplinks {what}: max / ideal"), figure(&r, "max_over_ideal"), 1.10, today);
        let r = sim(&[&[scenario], &own[..]].concat());
        at_most(
            &format!("fig. 5/6, 16 cards each, {what}: max / ideal"),
            figure(&r, "max_over_ideal"),
            1.10,
            today_own,
        );
    }
}

/// One flow over four uplinks that it can fill: each carries its part, however few of the paths cross it.
#[test]
fn thin_uplinks() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/thin-uplinks.toml");
    let mut least = f64::MAX;
    for seed in 1..=20 {
        let r = run("none", &[file, "--seed", &seed.to_string()]);
        let links = r["links"].as_array().expect("links");
        let up = links.iter().filter(|l| l["link"].as_str().is_some_and(|l| l.starts_with("leaf0->spine")));
        least = up.filter_map(|l| l["utilisation"].as_f64()).fold(least, f64::min);
    }
    at_least("one flow over 4 uplinks: use of the emptiest", least, 0.9, 0.86);
}

#[test]
fn large_incasts() {
    for (senders, today) in [(256, 1.08), (1_000, 1.15)] {
        let set = [format!("traffic.senders={senders}"), format!("network.hosts={}", senders + 1)];
        let r = sim(&["incast", "--set", "traffic.size=64KB", "--set", &set[0], "--set", &set[1]]);
        at_most(&format!("{senders} -> 1, 64 KB: max / ideal"), figure(&r, "max_over_ideal"), 1.15, today);
        at_most(&format!("{senders} -> 1, 64 KB: flows that did not finish"), figure(&r, "unfinished"), 0.0, 0.0);
    }
}

/// Hundreds that start within milliseconds on a link of which each may use a packet's worth every 18 ms: what they send to
/// find out about lost packets must not fill the queue that loses them.
#[test]
fn many_on_a_slow_link() {
    let network = ["hosts=5", "rate=200Mbps", "delay=50us", "mtu=1500", "buffer=60KB"].map(|s| format!("network.{s}"));
    let traffic = ["senders=4", "per_sender=75", "size=64KiB", "spread=3ms"].map(|s| format!("traffic.{s}"));
    let rest = ["srd.preset=host", "srd.paths=4", "messages.size=8KiB", "messages.depth=64", "limit=20s"];
    let set = network.iter().chain(&traffic).map(String::as_str).chain(rest).flat_map(|s| ["--set", s]);
    let r = sim(&[&["incast"], &set.collect::<Vec<_>>()[..]].concat());
    let name = "300 -> 1, 64 KiB, 200 Mbit/s, 60 KB";
    at_most(&format!("{name}: max / ideal"), figure(&r, "max_over_ideal"), 1.15, 1.2);
    at_most(&format!("{name}: share dropped"), figure(&r, "drop_share"), 0.01, 0.01);
}

/// Every cable of a fat tree is needed all the time: 2 MB take 164 us of it with their headers, and 13 the round trip.
#[test]
fn permutation() {
    for (what, overhead) in [("", "66"), (", headers as htsim's", "28")] {
        let overhead = format!("network.wire_overhead={overhead}");
        let r = sim(&["permutation", "--set", "network.mtu=4096", "--set", &overhead]);
        let last = figure(&r, "max_fct_us");
        at_most(&format!("permutation of 1,024 servers, MTU 4,096{what}: last, us"), last, 200.0, 203.0);
    }
}

#[test]
fn all_to_all() {
    let r = sim(&["all-to-all", "--set", "network.hosts=64", "--set", "network.radix=8"]);
    at_most("all-to-all of 64 KB, 64 servers: max / ideal", figure(&r, "max_over_ideal"), 1.2, 1.36);
    // One seed, since each takes half a minute.
    let r = run("none", &["all-to-all"]);
    at_most("all-to-all of 64 KB, 256 servers: max / ideal", figure(&r, "max_over_ideal"), 1.2, 1.2);
    at_most("all-to-all of 64 KB, 256 servers: packets resent", figure(&r, "retransmits"), 0.0, 0.0);
}

#[test]
fn dead_spine() {
    let network = ["link-failure", "--set", "fault.on=[\"spine3\"]", "--set", "fault.at=1us"];
    let r = sim(&network);
    let limit = 1.3 + 1_000.0 / r["ideal_fct_us"].as_f64().expect("an ideal");
    at_most("one of 16 spines dead: max / (1.3 ideal + 1 ms)", figure(&r, "max_over_ideal") / limit, 1.0, 0.7);
    let (healthy, dead) = (sim(&["link-failure", "--set", "fault.at=99s"]), sim(&["link-failure"]));
    let ratio = figure(&dead, "max_over_ideal") / figure(&healthy, "max_over_ideal");
    at_most("a cable silently dead: max / healthy run", ratio, 1.1, 1.06);
}

#[test]
fn legacy_flows() {
    let r = sim(&["legacy-traffic"]);
    at_most("two of 8 uplinks taken: max / what is left allows", figure(&r, "max_over_ideal"), 1.25, 1.15);
    let flows = r["flows"].as_array().expect("flows");
    let legacy = flows.iter().filter(|f| f["background"] == Value::Bool(true));
    let least = legacy.filter_map(|f| f["goodput_gbps"].as_f64()).fold(f64::MAX, f64::min);
    at_least("the legacy flows' throughput, Gbit/s of 80", least, 76.0, 76.0);
}

/// Headers count as they do there: 64 bytes in a packet of 4,150, and nothing else on the cable. Beside that, what Ethernet's
/// own overhead makes of it.
#[test]
fn beside_htsim() {
    let incast = |name: &str, network: [&str; 2], limits: [(&str, f64, f64); 3]| {
        for (size, goal, today) in limits {
            let size_of_all = format!("traffic.size={size}");
            let set = [network[0], network[1], &size_of_all].into_iter().flat_map(|s| ["--set", s]);
            let r = sim(&[&["incast"], &set.collect::<Vec<_>>()[..]].concat());
            at_most(&format!("48 -> 1, {name}, {size}: max / ideal"), figure(&r, "max_over_ideal"), goal, today);
            if size == "2MB" {
                at_least(&format!("48 -> 1, {name}, 2MB: min / ideal"), figure(&r, "min_over_ideal"), 0.9, 0.9);
            }
        }
    };
    let goals = [("2MB", 1.03, 1.03), ("64KB", 1.15, 1.15), ("8MB", 1.02, 1.02)];
    incast("headers as htsim's", ["network.mtu=4150", "network.wire_overhead=28"], goals);
    let today = [("2MB", 1.03, 1.04), ("64KB", 1.15, 1.15), ("8MB", 1.02, 1.035)];
    incast("MTU 4,096", ["network.mtu=4096", "network.wire_overhead=66"], today);
}

/// The paper's comparison: TCP's slowest flow takes 3 to 20 times the ideal, because of its timeouts.
#[test]
fn tcp_has_its_tail() {
    let tcp = |scenario| run("tcp", &[scenario])["baselines"][0]["summary"].clone();
    let incast = tcp("paper-fig3");
    let max = incast["max_over_ideal"].as_f64().expect("flows end");
    println!("fig. 3, TCP: max / ideal {max:.1}, {} timeouts", incast["timeouts"]);
    assert!((3.0..60.0).contains(&max) && incast["timeouts"].as_u64() > Some(0), "{incast}");
    let racks = tcp("paper-fig6");
    let (median, max) = (&racks["median_over_ideal"], &racks["max_over_ideal"]);
    println!("fig. 6, TCP: median {median:.2}, max {max:.1} of ideal");
    assert!(median.as_f64() < Some(1.3) && max.as_f64() > Some(5.0), "{racks}");
}

/// Who comes while others fill the queue has never seen the network idle, and nobody says what a fair rate is.
#[test]
fn latecomers_without_advice() {
    let network = ["hosts=5", "rate=200Mbps", "delay=20us", "mtu=1500", "buffer=64KB"].map(|s| format!("network.{s}"));
    let traffic = ["senders=4", "per_sender=1", "size=250MB", "spread=3ms"].map(|s| format!("traffic.{s}"));
    let srd = ["preset=host", "paths=64", "path_pool=256", "target_delay=500us", "link_rate=unknown"];
    let rest = ["warm=false", "messages.size=8KiB", "messages.depth=32", "sample=1s", "limit=6s"];
    let set = network.into_iter().chain(traffic).chain(srd.map(|s| format!("srd.{s}")));
    let set: Vec<String> = set.chain(rest.map(String::from)).flat_map(|s| ["--set".into(), s]).collect();
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let r = sim(&[&["incast"], &set[..]].concat());
    at_least("4 -> 1, latecomers, link unknown: Jain's index", least(&r, "jain"), 0.99, 0.98);
    at_most("4 -> 1, latecomers, link unknown: share dropped", most(&r, "drop_share"), 0.01, 0.01);
}

/// Most ways are longer than one: what they take more is no queue.
#[test]
fn uneven_paths() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/uneven-paths.toml");
    for rate in ["10Gbps", "unknown"] {
        let r = sim(&[file, "--set", &format!("srd.link_rate={rate}")]);
        let name = format!("one way of four shorter, link {rate}: max / ideal");
        at_most(&name, figure(&r, "max_over_ideal"), 2.0, 3.3);
    }
}
