//! Scenarios from end to end.

use std::path::Path;

use clap::Parser;

use super::*;
use crate::results;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SimArgs,
}

fn args(words: &[&str]) -> SimArgs {
    Cli::try_parse_from([&["sim"], words].concat()).unwrap_or_else(|e| panic!("{e}")).args
}

fn report(words: &[&str]) -> Report {
    let args = args(words);
    simulate(&args, &source(&args).expect("a scenario")).unwrap_or_else(|e| panic!("{e}"))
}

fn error(words: &[&str]) -> String {
    let args = args(words);
    match source(&args).and_then(|s| simulate(&args, &s)) {
        Err(fault) => {
            assert_eq!(fault.exit, Exit::Usage);
            fault.to_string()
        }
        Ok(_) => panic!("{words:?} should not run"),
    }
}

/// A directory of its own that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("srd-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("write a file");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_built_in_scenario_makes_sense() {
    for (name, text) in BUILT_IN {
        let scenario = Scenario::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(scenario.title.len() > 10, "{name}");
        for transport in ["srd", "tcp"] {
            let task = Task { scenario: scenario.clone(), transport: transport.into(), seed: 1 };
            task.experiment(Path::new(".")).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).expect("the scenarios");
    assert_eq!(files.count(), BUILT_IN.len(), "a file in scenarios/ is not built in");
}

const SMALL: [&str; 7] =
    ["incast", "--set", "traffic.senders=6", "--set", "network.hosts=7", "--set", "traffic.size=100KB"];

#[test]
fn same_seed_same_bytes() {
    let render = |extra: &[&str]| {
        let mut report = report(&[&SMALL, extra].concat());
        (report.wall_s, report.events_per_s) = (0.0, 0.0);
        let plots = results::plots(&report);
        let pictures: Vec<_> = plots.iter().map(|p| results::png(p).expect("a picture")).collect();
        let json = serde_json::to_string(&report).expect("JSON");
        let text = [results::flows_csv(&report), results::links_csv(&report), results::html(&report, &plots), json];
        (text, pictures)
    };
    let compared = ["--compare", "tcp", "--seeds", "3"];
    // However many run at once.
    let alone = render(&[&compared[..], &["--jobs", "1"]].concat());
    assert!(alone == render(&[&compared[..], &["--jobs", "4"]].concat()), "two runs differ");
    assert!(alone != render(&[&compared[..], &["--seed", "2"]].concat()), "the seed changes nothing");
}

#[test]
fn seeds_transports_and_sweeps_come_together() {
    let report = report(
        &[
            &SMALL[..],
            &[
                "--compare",
                "tcp",
                "--compare",
                "tcp-dctcp",
                "--compare",
                "tcp",
                "--compare",
                "tcp-cubic",
                "--seeds",
                "2",
            ],
            &["--sweep", "traffic.size=50KB,100KB"],
        ]
        .concat(),
    );
    let transports: Vec<_> = report.runs().map(|r| r.transport.as_str()).collect();
    assert_eq!(transports, ["srd", "tcp-cubic", "tcp-dctcp"]);
    let points: Vec<_> = report.sweep.iter().map(|p| (p.value.as_str(), p.transport.as_str())).collect();
    let expected = |v| [(v, "srd"), (v, "tcp-cubic"), (v, "tcp-dctcp")];
    assert_eq!(points, [expected("50KB"), expected("100KB")].concat());
    // 6 x 50 KB and 6 x 100 KB over 100 Gb/s.
    let ideals: Vec<_> = report.sweep.iter().map(|p| p.ideal_fct_us.round()).collect();
    assert_eq!(ideals, [24.0, 24.0, 24.0, 48.0, 48.0, 48.0]);
    assert_eq!(report.seeds.len(), 2);
    let confidence = report.confidence.expect("two seeds").max_over_ideal.expect("flows end");
    assert_eq!(Some(confidence.worst), report.run.summary.max_over_ideal);
}

#[test]
fn files_are_those_of_one_report() {
    let dir = Scratch::new("files");
    let (csv, plots) = (dir.0.join("csv"), dir.0.join("plots"));
    let names = |dir: &Path| -> Vec<String> {
        let files = std::fs::read_dir(dir).expect("a directory").flatten();
        let mut names: Vec<_> = files.map(|f| f.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let write = |extra: &[&str]| {
        output::check(Some(&csv), Some(&plots), None).expect("directories");
        output::write(&report(&[&SMALL, extra].concat()), Some(&csv), Some(&plots), None).expect("written");
    };
    write(&["--set", "sample=5us", "--sweep", "traffic.size=50KB,100KB"]);
    assert_eq!(names(&csv), ["flows.csv", "links.csv", "samples.csv"]);
    let kinds = ["fct-cdf", "sweep", "throughput"];
    assert_eq!(names(&plots), kinds.map(|k| ["png", "svg"].map(|e| format!("incast-{k}.{e}"))).concat());
    let flows = std::fs::read_to_string(csv.join("flows.csv")).expect("flows");
    for value in ["50KB", "100KB"] {
        assert_eq!(flows.lines().filter(|l| l.ends_with(&format!(",traffic.size={value}"))).count(), 6, "{flows}");
    }
    // What is not srd's stays.
    std::fs::write(csv.join("mine.csv"), "").expect("written");
    std::fs::write(plots.join("paper-fig4-throughput.svg"), "").expect("written");
    let link = csv.join("links.csv");
    std::fs::rename(&link, dir.0.join("elsewhere.csv")).expect("moved");
    std::os::unix::fs::symlink("../elsewhere.csv", &link).expect("a link");
    write(&[]);
    assert_eq!(names(&csv), ["flows.csv", "links.csv", "mine.csv"]);
    assert!(link.is_symlink() && std::fs::read_to_string(link).is_ok_and(|l| !l.contains("traffic.size")));
    assert_eq!(names(&plots), ["incast-fct-cdf.png", "incast-fct-cdf.svg", "paper-fig4-throughput.svg"]);
}

#[test]
fn what_was_changed_is_reported() {
    let report = report(&[&SMALL[..], &["--sweep", "srd.paths=4, 8"]].concat());
    assert_eq!(report.changed, ["traffic.senders=6", "network.hosts=7", "traffic.size=100KB"]);
    assert_eq!(report.sweep_value.as_deref(), Some("srd.paths=8"));
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!((&json["changed"][2], &json["sweep_value"]), (&"traffic.size=100KB".into(), &"srd.paths=8".into()));
    let plain = self::report(&["incast", "--set", "traffic.size=9KB"]);
    assert_eq!(plain.sweep_value, None);
}

#[test]
fn what_was_not_begun_is_left_out() {
    let scenario = Scenario::parse(BUILT_IN[1].1).expect("a scenario");
    let task = |seed| Task { scenario: scenario.clone(), transport: "srd".into(), seed };
    let tasks: Vec<_> = (1..=3).map(task).collect();
    let progress = run::Progress::default();
    progress.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (runs, ..) = run::all(&tasks, 3, Path::new("."), 1, &progress).expect("they make sense");
    assert!(runs.iter().all(Option::is_none));
    let points = ["1", "2"].map(|value| (Some(value.to_owned()), scenario.clone()));
    let report = |runs| assemble("it", &scenario, runs, 2, 2, &points, Some("network.hosts".into()));
    assert!(report(vec![None; 8]).is_none());
    // One seed of the second transport of the first point, and none of the second point.
    let run = results::Run { transport: "tcp-cubic".into(), seed: 2, ..results::Run::default() };
    let report = report([vec![None; 3], vec![Some(run)], vec![None; 4]].concat()).expect("one run");
    assert_eq!((report.run.transport.as_str(), report.run.seed, report.seeds.len()), ("tcp-cubic", 2, 0));
    assert_eq!(report.sweep.iter().map(|p| p.value.as_str()).collect::<Vec<_>>(), ["1"]);
}

#[test]
fn errors_say_what_to_do() {
    assert!(error(&["nowhere"]).contains("paper-fig2"));
    assert!(error(&["nowhere.toml"]).contains("cannot read"));
    assert!(error(&["x.cm"]).contains("--topology"));
    assert!(error(&["incast", "--set", "network.hosts"]).contains("PARAM=VALUE"));
    assert!(error(&["incast", "--set", "traffic.per_sender=100000000000"]).contains("more than 4000000 flows"));
    assert!(error(&["incast", "--set", "network.colour=1"]).contains("colour"));
    assert!(error(&["incast", "--set", "network.hosts=3"]).contains("48 senders"));
    assert!(error(&["incast", "--compare", "pigeon"]).contains("tcp-newreno"));
    assert!(error(&["incast", "--compare", "constant"]).contains("background"));
    assert!(error(&["incast", "--set", "srd.paths=9999"]).contains("paths is 9999"));
    assert!(error(&["incast", "--set", "srd.colour=1"]).contains("no such field"));
    let set = |change: &str| error(&["slow-receiver", "--set", change]);
    assert!(set("srd.crc32c=foo").contains("srd.crc32c: \"foo\" is neither true nor false"));
    assert!(set("srd.preset=foo").contains("srd.preset is \"foo\"; there are"));
    assert!(set("messages.depth=0").contains("messages.depth is 0, at least 1"));
    assert!(set("hosts.receive_queue=0").contains("hosts.receive_queue is 0, at least 1"));
    assert!(set("srd.initial_window=5GB").contains("srd.initial_window: 5000000000 bytes, at most 4294967295"));
    assert!(set("srd.max_burst=4GiB").contains("srd.max_burst: 4294967296 bytes"));
    assert!(set("tcp.initial_window=0").contains("tcp.initial_window is 0, at least 1"));
    assert!(set("tcp.min_rto=0s").contains("tcp.min_rto is less than 1 us"));
    assert!(
        set("network.shared_alpha=2.0").ends_with("network.shared_alpha means nothing without network.shared_buffer")
    );
    assert!(set("sample=0us").contains("sample is 0"));
    assert!(set("limit=0s").contains("limit is 0"));
    assert!(error(&["incast", "--sweep", "traffic.size=1MB,1 parsec"]).contains("'1 parsec'"));
    assert!(error(&["permutation", "--set", "traffic.senders=3"]).contains("'senders' means nothing"));
    // By the names that scenario files have.
    assert!(error(&["permutation", "--set", "traffic.senders=3"]).ends_with("in traffic of kind permutation"));
    assert!(error(&["websearch", "--set", "network.radix=4"]).ends_with("in a network of kind leaf-spine"));
    // The value that was given is the one that is wrong.
    assert!(error(&["incast", "--set", "network.mtu=100"]).contains("network.mtu is 100, not within 576 and 9244"));
    for name in ["senders", "per_sender", "size"] {
        let zero = format!("traffic.{name}=0{}", if name == "size" { "B" } else { "" });
        assert!(error(&["incast", "--set", &zero]).contains(&format!("'{name}' is 0, at least 1")), "{name}");
    }
    let too_many = error(&["incast", "--set", "traffic.senders=49", "--set", "traffic.receiver=0"]);
    assert!(too_many.contains("change 'senders', 'receiver' or network.hosts"), "{too_many}");
    assert!(error(&["websearch", "--set", "traffic.duration=1000s"]).contains("give a shorter 'duration'"));
    assert!(error(&["incast", "--compare", "none", "--compare", "tcp"]).contains("give it alone"));
    assert!(error(&["websearch", "--set", "traffic.load=2"]).contains("'load'"));
    assert!(error(&["websearch", "--set", "traffic.sizes=no.cdf"]).contains("cannot read"));
}

/// What is wrong is found before the first of many runs, not after hours of them.
#[test]
fn what_cannot_run_is_not_begun() {
    for (name, changes, expected) in [
        ("legacy-traffic", &[("traffic.1.to", "[18, 99]")][..], "server 99"),
        (
            "legacy-traffic",
            &[("traffic.1.via", "[\"spine0\", \"leaf0\"]"), ("traffic.1.transport", "srd")],
            "many paths",
        ),
        ("websearch", &[("traffic.duration", "1ns")], "there is no flow"),
        ("incast", &[("messages.depth", "100000")], "messages.depth is 100000, at most"),
        (
            "incast",
            &[("messages.depth", "60000"), ("messages.verbs", "true")],
            "60000 messages under way, a queue pair takes",
        ),
        ("incast", &[("srd.fixed_rate", "7bps")], "srd.fixed_rate: 7 bit/s"),
        ("permutation", &[("traffic.shared_card", "true")], "'shared_card' means nothing"),
        ("join-leave", &[("sample", "1ns")], "give a longer 'sample'"),
        (
            "join-leave",
            &[("network.kind", "leaf-spine"), ("network.leaves", "4"), ("network.spines", "1")],
            "fill 3 leaves",
        ),
    ] {
        let changes: Vec<_> = changes.iter().map(|(p, v)| ((*p).to_owned(), (*v).to_owned())).collect();
        let text = BUILT_IN.iter().find(|(n, _)| *n == name).expect("a scenario").1;
        let scenario = Scenario::with(text, &changes).unwrap_or_else(|e| panic!("{changes:?}: {e}"));
        let error = Task { scenario, transport: "srd".into(), seed: 1 }.experiment(Path::new("."));
        let error = error.map(drop).expect_err(expected);
        assert!(error.contains(expected), "{changes:?}: {error}");
    }
}

/// The first of an entry's flows takes the first of its ways, whatever stands before the entry.
#[test]
fn ways_are_taken_in_the_order_of_their_entry() {
    let text = BUILT_IN.iter().find(|(n, _)| *n == "legacy-traffic").expect("a scenario").1;
    let lists = [("traffic.0.from", "[0]"), ("traffic.0.to", "[10]")].map(|(p, v)| (p.to_owned(), v.to_owned()));
    let scenario = Scenario::with(text, &lists).expect("valid");
    let e = Task { scenario, transport: "srd".into(), seed: 1 }.experiment(Path::new(".")).expect("valid");
    let ways: Vec<_> = e.flows.iter().map(|f| f.via.map(|s| e.plan.switches[s].as_str())).collect();
    assert_eq!(ways, [None, Some("spine0"), Some("spine1")]);
}

/// Of many seeds one is reported flow by flow, so the flows of the others are not kept.
#[test]
fn flows_of_the_worst_seed_are_kept() {
    let all = ["sample=20us", "traffic.senders=6", "network.hosts=7", "traffic.size=100KB"];
    let changes: Vec<_> = all.map(|c| change(c).expect("a change")).into();
    let scenario = Scenario::with(BUILT_IN.iter().find(|(n, _)| *n == "incast").expect("a scenario").1, &changes);
    let scenario = scenario.expect("valid");
    let task = |(transport, seed): (&str, u64)| Task { scenario: scenario.clone(), transport: transport.into(), seed };
    let tasks: Vec<_> = [("srd", 1), ("srd", 2), ("srd", 3), ("tcp", 1), ("tcp", 2), ("tcp", 3)].map(task).into();
    for threads in [1, 4] {
        let (runs, ..) = run::all(&tasks, 3, Path::new("."), threads, &run::Progress::default()).expect("valid");
        let runs: Vec<_> = runs.into_iter().map(|r| r.expect("it was run")).collect();
        for group in runs.chunks(3) {
            let worst = results::worst(group);
            for (i, run) in group.iter().enumerate() {
                let (kept, all) = (usize::from(i == worst), (6, 14, true));
                let there = (run.flows.len(), run.links.len(), run.samples.is_some());
                assert_eq!(there, if kept == 1 { all } else { (0, 0, false) }, "seed {}", run.seed);
                assert_eq!(run.summary.flows, 6);
            }
        }
    }
}

/// Of flows that begin late, the time before that does not count.
#[test]
fn goodput_counts_from_the_first_start() {
    let endless = ["paper-fig4", "--compare", "none", "--set", "traffic.start=1ms", "--set", "limit=2ms"];
    let summary = report(&[&endless[..], &["--set", "sample=500us"]].concat()).run.summary;
    assert!((990.0..=1_000.0).contains(&summary.duration_us), "{summary:?}");
    assert!(summary.goodput_gbps > 90.0, "{summary:?}");
}

#[test]
fn a_short_limit_makes_nothing_better_than_ideal() {
    let summary = report(&[&SMALL[..], &["--set", "limit=10us"]].concat()).run.summary;
    assert_eq!((summary.unfinished, summary.min_over_ideal, summary.max_over_ideal), (6, Some(1.0), Some(1.0)));
}

#[test]
fn htsim_files_run() {
    let dir = Scratch::new("htsim");
    let topo = dir.write(
        "small.topo",
        "Nodes 8\nTiers 2\nPodsize 8\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 4\nRadix_Up 4\nDownlink_Latency_ns 1000\n\
         Tier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nDownlink_Latency_ns 1000\n",
    );
    let cm = dir.write(
        "small.cm",
        "Nodes 8\nConnections 3\nTriggers 1\n0->4 start 0 size 1000000 recv_done_trigger 1\n1->5 start 1000000 size 1000000\n\
         4->0 trigger 1 size 50000\ntrigger id 1 oneshot\n",
    );
    let report = report(&[&cm, "--topology", &topo]);
    let flows = &report.run.flows;
    assert_eq!((report.run.summary.unfinished, flows.len()), (0, 3));
    assert_eq!(flows[1].start_us, 1.0);
    assert_eq!(Some(flows[2].start_us), flows[0].arrived_us);
    let serial = dir.write(
        "serial.cm",
        "Nodes 8\nConnections 3\nTriggers 1\n0->4 id 1 start 0 size 1000000 send_done_trigger 1\n\
         0->4 id 2 trigger 1 size 1000000 send_done_trigger 1\n0->4 id 3 trigger 1 size 1000000 send_done_trigger 1\n\
         trigger id 1 multishot\n",
    );
    let flows = self::report(&[&serial, "--topology", &topo]).run.flows;
    for next in flows.windows(2) {
        let end = next[0].start_us + next[0].fct_us.expect("it ends");
        assert!((next[1].start_us - end).abs() < 1e-6, "{next:?}");
    }
    let broken = dir.write("broken.cm", "Nodes 8\n0->9 size 5\n");
    assert!(error(&[&broken, "--topology", &topo]).contains("0->9 leaves"));
}

#[test]
fn ns3_files_run() {
    let dir = Scratch::new("ns3");
    let topology = dir.write("topology.txt", "4 1 3\n3\n0 3 100Gbps 1us 0\n1 3 100Gbps 1us 0\n2 3 100Gbps 1us 0\n");
    let flows = dir.write("flow.txt", "2\n0 2 3 100 1000000 2\n1 2 3 100 1000000 2.00005\n");
    let report = report(&[&flows, "--topology", &topology]);
    let starts: Vec<_> = report.run.flows.iter().map(|f| f.start_us).collect();
    assert_eq!((report.run.summary.unfinished, starts), (0, vec![0.0, 50.0]));
    assert_eq!((report.run.flows[0].from.as_str(), report.run.flows[0].to.as_str()), ("n0", "n2"));
}

#[test]
fn scenario_files_find_their_neighbours() {
    let dir = Scratch::new("cdf");
    dir.write("sizes.cdf", "1000 0\n2000 100\n");
    let text = "title = \"small flows\"\n[network]\nkind = \"star\"\nhosts = 4\n[[traffic]]\nkind = \"poisson\"\nload = 0.1\n\
                duration = \"20us\"\nsizes = \"sizes.cdf\"\n";
    let report = report(&[&dir.write("small.toml", text)]);
    assert_eq!((report.scenario.as_str(), report.run.summary.unfinished), ("small", 0));
    assert!(report.run.flows.iter().all(|f| f.bytes.is_some_and(|b| (1_000..=2_000).contains(&b))));
    dir.write("odd.cdf", "0 0\nnan 50\n1000 100\n");
    let odd = dir.write("odd.toml", &text.replace("sizes.cdf", "odd.cdf"));
    assert!(error(&[&odd]).contains("line 2: the size is NaN"), "{}", error(&[&odd]));
    let broken = dir.write("broken.toml", &text.replace("sizes.cdf", "nowhere.cdf"));
    assert!(error(&[&broken]).starts_with(&format!("{broken}: ")));
}

#[test]
fn all_traffic_takes_start_and_spread() {
    let dir = Scratch::new("starts");
    let matrix = dir.write(
        "three.cm",
        "Nodes 4\n0->1 start 0 size 9 send_done_trigger 1\n1->2 start 0 size 9\n\
                                        2->3 trigger 1 size 9\ntrigger id 1 oneshot\n",
    );
    let flows = dir.write("flow.txt", "2\n0 2 3 100 1000 2\n1 2 3 100 1000 2\n");
    let starts = |traffic: &str, start: &str| -> Vec<f64> {
        let text = format!("title = \"t\"\n[network]\nkind = \"star\"\nhosts = 4\n[[traffic]]\n{traffic}\n{start}\n");
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let experiment = Task { scenario, transport: "srd".into(), seed: 1 }.experiment(Path::new("."));
        experiment.unwrap_or_else(|e| panic!("{e}")).flows.iter().map(|f| f.start.as_micros_f64()).collect()
    };
    // Flows that wait for others start after those.
    for (traffic, waiting) in [
        ("kind = \"poisson\"\nload = 0.5\nduration = \"20us\"\nsize = \"9KB\"".to_owned(), None),
        (format!("kind = \"htsim\"\nfile = {matrix:?}"), Some(2)),
        (format!("kind = \"hpcc\"\nfile = {flows:?}"), None),
    ] {
        let (plain, late) = (starts(&traffic, ""), starts(&traffic, "start = \"50us\""));
        assert!(plain.len() > 1 && plain.len() == late.len(), "{traffic}");
        for (k, (plain, late)) in plain.iter().zip(&late).enumerate() {
            let wanted = if waiting == Some(k) { 0.0 } else { 50.0 };
            assert!((late - plain - wanted).abs() < 1e-6, "{traffic}: {plain} {late}");
        }
        let spread = starts(&traffic, "start = \"50us\"\nspread = \"5us\"");
        assert!(spread[..2] != late[..2] && spread[..2].iter().all(|s| *s >= 50.0), "{traffic}: {spread:?}");
    }
}

#[test]
fn jobs_of_a_ring_wait_for_each_other() {
    let report = report(&[
        "ring-allreduce",
        "--set",
        "network.hosts=4",
        "--set",
        "network.leaves=2",
        "--set",
        "traffic.size=400KB",
    ]);
    // 6 steps of 4 parts of 100 KB, 8 us each and never less.
    assert_eq!((report.run.flows.len(), report.run.summary.unfinished), (24, 0));
    assert!(report.run.summary.duration_us > 6.0 * 8.0, "{:?}", report.run.summary);
}
