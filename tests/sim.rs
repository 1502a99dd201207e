//! `srd sim` as users run it: reports, files, errors. What scenarios come to is tested beside the code and in
//! `tests/evaluation.rs`.

#[path = "support/command.rs"]
mod support;

use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;
use support::{Output, command, fails, finish, is_documented, run, signal};

fn sim(args: &[&str]) -> Output {
    run(&[&["sim"], args].concat())
}

fn json(args: &[&str]) -> Value {
    sim(&[args, &["--json"]].concat()).json()
}

const SMALL: [&str; 7] =
    ["incast", "--set", "traffic.senders=4", "--set", "network.hosts=5", "--set", "traffic.size=50KB"];

/// A directory of its own that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("srd-sim-cli-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn json_has_the_documented_names() {
    let all = ["--seeds", "2", "--compare", "tcp", "--sweep", "traffic.size=20KB,50KB", "--set", "sample=5us"];
    let report = json(&[&SMALL[..], &all].concat());
    is_documented(&report);
    for name in ["scenario", "seed", "ideal_fct_us", "summary", "flows", "wall_s", "events_per_s", "links", "samples"] {
        assert!(!report[name].is_null(), "{name}");
    }
    for name in ["max_over_ideal", "median_over_ideal", "p99_over_ideal", "jain", "timeouts", "drops", "retransmits"] {
        assert!(report["summary"][name].is_number(), "{name}");
    }
    assert!(report["flows"][0]["fct_us"].as_f64() > Some(0.0));
    assert_eq!(report["sweep"].as_array().map(Vec::len), Some(4));
    let list = json(&["--list"]);
    is_documented(&list);
    assert_eq!([&report["ok"], &list["ok"]], [&Value::Bool(true); 2]);
}

#[test]
fn files_are_written_and_repeatable() {
    let (a, b) = (Scratch::new("a"), Scratch::new("b"));
    let write = |dir: &Scratch| {
        let path = |name: &str| dir.0.join(name).to_string_lossy().into_owned();
        let (csv, plots, html) = (path("csv"), path("plots"), path("report/index.html"));
        let output = sim(&[&SMALL[..], &["--csv", &csv, "--plots", &plots, "--html", &html]].concat());
        assert_eq!(output.code, Some(0), "{output:?}");
        let names = [
            "csv/flows.csv",
            "csv/links.csv",
            "plots/incast-fct-cdf.svg",
            "plots/incast-fct-cdf.png",
            "report/index.html",
        ];
        names.map(|n| std::fs::read(dir.0.join(n)).unwrap_or_else(|e| panic!("{n}: {e}")))
    };
    let (first, second) = (write(&a), write(&b));
    assert!(first == second, "the same seed gives other bytes");
    assert_eq!(first[0].iter().filter(|b| **b == b'\n').count(), 5);
    let page = String::from_utf8_lossy(&first[4]);
    assert!(page.contains("<svg") && !page.contains("src=\"http"), "the page needs nothing else");
}

#[test]
fn files_that_cannot_be_written_are_the_only_object() {
    let dir = Scratch::new("taken");
    let place = dir.0.to_string_lossy().into_owned();
    for taken in ["flows.csv", "incast-fct-cdf.svg"] {
        std::fs::create_dir_all(dir.0.join(taken)).expect("a directory");
    }
    for option in ["--csv", "--plots"] {
        let args = [&["sim"], &SMALL[..], &[option, &place]].concat();
        fails(&[&args[..], &["--json"]].concat(), 3, &["cannot write", &place]);
        // People get the table all the same.
        let output = run(&args);
        output.fails(3, &["cannot write"]);
        assert!(output.stdout.contains("Gbit/s"), "{output:?}");
    }
    fails(&[&["sim"], &SMALL[..], &["--html", "/dev/full", "--json"]].concat(), 3, &["cannot write /dev/full"]);
}

#[test]
fn mistakes_are_explained() {
    for (args, says) in [
        (&["paper-fig9"][..], "paper-fig4"),
        (&["incast", "--set", "network.kind=torus"], "torus"),
        (&["incast", "--seeds", "0"], "--seeds"),
        (&[], "SCENARIO"),
        (&["perm.cm"], "--topology"),
        (&["incast", "--topology", "x.topo"], "--topology goes with"),
        (&["incast", "--jobs", "0"], "--jobs"),
    ] {
        sim(args).fails(2, &[says]);
    }
    // Before it is simulated, not after.
    let output = sim(&["incast", "--html", "/"]);
    output.fails(3, &["--html takes a file"]);
    assert_eq!(output.stdout, "");
}

#[test]
fn an_interrupt_ends_it() {
    // More than anybody waits for.
    let args = ["sim", "permutation", "--seeds", "10000", "--json"];
    let child = command(&args).spawn().expect("start the command");
    // Its handlers are in place once it catches SIGHUP, the last of the signals.
    let is_ready = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("the signals that it catches");
        u64::from_str_radix(mask.trim(), 16).expect("a mask") & 1 << (Signal::SIGHUP as u32 - 1) != 0
    };
    while !is_ready() {
        std::thread::yield_now();
    }
    signal(child.id(), Signal::SIGINT);
    let output = finish(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert!(output.stderr.starts_with("srd: interrupted"), "{output:?}");
    // Whether a run had begun by then or not.
    let report = output.json();
    assert!(report["interrupted"] == true || report["exit_code"] == 130, "{report:#}");
}

#[test]
fn unfinished_flows_are_a_bad_verdict() {
    let output = sim(&[&SMALL[..], &["--set", "limit=10us", "--json"]].concat());
    assert_eq!((output.code, &output.json()["ok"]), (Some(1), &Value::Bool(false)), "{output:?}");
}

#[test]
fn a_built_in_scenario_can_be_printed_and_run_as_a_file() {
    let dir = Scratch::new("print");
    std::fs::create_dir_all(&dir.0).expect("a directory");
    let output = sim(&["link-failure", "--print"]);
    let file = dir.0.join("mine.toml");
    std::fs::write(&file, &output.stdout).expect("write the scenario");
    let report = |name: &str| {
        let mut report = json(&[name, "--compare", "none"]);
        for name in ["scenario", "wall_s", "events_per_s"] {
            report[name].take();
        }
        report
    };
    assert_eq!(report(&file.to_string_lossy()), report("link-failure"));
}
