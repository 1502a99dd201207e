//! `srd sim`: experiments in a simulated network, from scenarios that are built in or come from files.

mod config;
mod formats;
mod ideal;
mod network;
pub(crate) mod output;
mod quantity;
mod run;
mod scenario;
#[cfg(test)]
mod tests;
mod traffic;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::exit::{Exit, Fault, Result};
use crate::results::{Point, Report, Run};
use crate::{interrupt, render};
use run::Task;
use scenario::Scenario;

/// Arguments that mean something only when something is run.
const OF_RUNS: [&str; 9] = ["seed", "seeds", "compare", "sweep", "set", "jobs", "csv", "plots", "html"];

/// Options of `srd sim`.
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// A built-in scenario (see --list), a scenario file (.toml), or traffic of htsim (.cm) or ns-3 (.txt) with --topology
    #[arg(required_unless_present = "list")]
    scenario: Option<String>,
    /// List the built-in scenarios
    #[arg(long, conflicts_with_all = ["scenario", "topology", "print"], conflicts_with_all = OF_RUNS)]
    list: bool,
    /// Print the scenario's file instead of running it: a start for one of your own
    #[arg(long, conflicts_with = "json", conflicts_with_all = OF_RUNS)]
    print: bool,
    /// Topology for traffic of other simulators: htsim's .topo, or ns-3's
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Replays a run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs with this many seeds, side by side; the worst counts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Runs the same traffic over another transport, too: tcp (CUBIC), tcp-newreno, tcp-dctcp, or none; may be repeated
    #[arg(long, value_name = "TRANSPORT")]
    compare: Vec<String>,
    /// Runs with each of these values of a parameter, such as traffic.size=64KB,2MB or srd.paths=8,16; none for no sweep
    #[arg(long, value_name = "PARAM=A,B,...")]
    sweep: Option<String>,
    /// Changes a value of the scenario, such as network.buffer=250KB; may be repeated
    #[arg(long, value_name = "PARAM=VALUE")]
    set: Vec<String>,
    /// Simulations at once; all cores unless told otherwise
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    jobs: Option<u32>,
    /// Prints the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Writes flows.csv, links.csv and samples.csv into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Writes plots as SVG and PNG into this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Writes one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        /// Names and texts of the scenarios that are built in.
        pub(crate) const BUILT_IN: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

built_in!(
    "paper-fig2",
    "paper-fig3",
    "paper-fig4",
    "paper-fig5",
    "paper-fig6",
    "incast",
    "permutation",
    "all-to-all",
    "ring-allreduce",
    "link-failure",
    "websearch",
    "legacy-traffic",
    "join-leave",
    "slow-receiver",
);

/// A scenario's text and where it came from.
struct Source {
    name: String,
    /// What errors call it: the name, or the path of its file.
    shown: String,
    text: String,
    /// Files that it names are found from here.
    base: PathBuf,
}

/// What `srd sim` reports: the report of all experiments, and whether it is all of it. The names are an interface.
#[derive(Serialize)]
struct SimReport<'a> {
    /// All of it was run, and all flows of the run that counts finished.
    ok: bool,
    #[serde(flatten)]
    report: &'a Report,
    /// Whether a signal ended it early.
    interrupted: bool,
}

/// Runs the command.
pub(crate) fn run(args: &SimArgs) -> Result<Exit> {
    if args.list {
        return list(args.json);
    }
    let source = source(args)?;
    if args.print {
        render::text(source.text.trim_end())?;
        return Ok(Exit::Ok);
    }
    interrupt::install()?;
    output::check(args.csv.as_deref(), args.plots.as_deref(), args.html.as_deref())?;
    let report = simulate(args, &source)?;
    let interrupted = interrupt::requested();
    let ok = !interrupted && report.run.summary.unfinished == 0;
    let written = output::write(&report, args.csv.as_deref(), args.plots.as_deref(), args.html.as_deref());
    if args.json {
        // There is one object only: what went wrong, if anything has.
        written?;
        render::json(&SimReport { ok, report: &report, interrupted })?;
    } else {
        render::text(&crate::results::table(&report))?;
        render::text(&format!("{:.2} s, {:.2} M events/s per core", report.wall_s, report.events_per_s / 1e6))?;
        written?;
    }
    if interrupted {
        render::complain("interrupted; the result is partial");
        return Ok(Exit::Interrupted);
    }
    Ok(if ok { Exit::Ok } else { Exit::Failed })
}

fn list(json: bool) -> Result<Exit> {
    let title = |text: &str| Scenario::parse(text).map_or_else(|e| e, |s| s.title);
    if json {
        let all: Vec<_> =
            BUILT_IN.iter().map(|(name, text)| serde_json::json!({"scenario": name, "title": title(text)})).collect();
        render::json(&serde_json::json!({ "ok": true, "scenarios": all }))?;
    } else {
        for (name, text) in BUILT_IN {
            render::text(&format!("{name:<15} {}", title(text)))?;
        }
    }
    Ok(Exit::Ok)
}

fn source(args: &SimArgs) -> Result<Source> {
    let name = args.scenario.clone().unwrap_or_default();
    let foreign_traffic = [".cm", ".txt"].iter().any(|e| name.ends_with(e));
    if args.topology.is_some() && !foreign_traffic {
        return Err(Fault::usage(format!(
            "--topology goes with traffic of htsim (.cm) or ns-3 (.txt); {name} has a network"
        )));
    }
    if let Some((_, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
        return Ok(Source { shown: name.clone(), name, text: (*text).to_owned(), base: PathBuf::from(".") });
    }
    let path = Path::new(&name);
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match extension {
        "toml" => {
            let text = std::fs::read_to_string(path).map_err(|e| Fault::usage(format!("cannot read {name}: {e}")))?;
            let base = path.parent().unwrap_or(Path::new(".")).to_owned();
            let stem = path.file_stem().map_or(name.clone(), |n| n.to_string_lossy().into_owned());
            Ok(Source { name: stem, shown: name, text, base })
        }
        "cm" | "txt" => foreign(&name, extension == "cm", args.topology.as_deref()),
        _ => {
            let names: Vec<_> = BUILT_IN.iter().map(|(n, _)| *n).collect();
            Err(Fault::usage(format!(
                "'{name}' is neither a file (.toml, .cm, .txt) nor a scenario; there are {}",
                names.join(", ")
            )))
        }
    }
}

/// A scenario around the traffic and topology files of another simulator.
fn foreign(traffic: &str, htsim: bool, topology: Option<&Path>) -> Result<Source> {
    let topology = topology.ok_or_else(|| Fault::usage(format!("{traffic} needs a network: give --topology FILE")))?;
    let topo = topology.extension().is_some_and(|e| e == "topo");
    let kind = |is_htsim: bool| if is_htsim { "htsim" } else { "hpcc" };
    let quote = |path: &Path| {
        toml::Value::String(std::path::absolute(path).unwrap_or(path.into()).to_string_lossy().into_owned())
    };
    let text = format!(
        "title = {}\nlimit = \"1s\"\nideal = \"alone\"\n\n[network]\nkind = \"{}\"\nfile = {}\n\n[[traffic]]\nkind = \"{}\"\nfile = {}\n",
        toml::Value::String(format!("{traffic} over {}", topology.display())),
        kind(topo),
        quote(topology),
        kind(htsim),
        quote(Path::new(traffic))
    );
    Ok(Source { name: traffic.to_owned(), shown: traffic.to_owned(), text, base: PathBuf::from(".") })
}

/// A parameter and its value, from `PARAM=VALUE`.
fn change(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').ok_or_else(|| Fault::usage(format!("'{text}' is not PARAM=VALUE")))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn simulate(args: &SimArgs, source: &Source) -> Result<Report> {
    let wrong = |e: String| Fault::usage(format!("{}: {e}", source.shown));
    let changes = args.set.iter().map(|s| change(s)).collect::<Result<Vec<_>>>()?;
    let scenario = match changes.is_empty() {
        // From the text itself, so that errors know their line.
        true => Scenario::parse(&source.text),
        false => Scenario::with(&source.text, &changes),
    };
    let scenario = scenario.map_err(wrong)?;
    let compare: Vec<String> = match args.compare.as_slice() {
        [] => scenario.compare.clone(),
        [none] if none == "none" => Vec::new(),
        some if some.iter().any(|name| name == "none") => {
            return Err(Fault::usage("--compare none leaves out all others: give it alone"));
        }
        some => some.to_vec(),
    };
    let sweep = args.sweep.as_ref().or(scenario.sweep.as_ref()).filter(|s| *s != "none");
    let sweep = sweep.map(|s| change(s)).transpose()?;
    let points: Vec<(Option<String>, Scenario)> = match &sweep {
        None => vec![(None, scenario.clone())],
        Some((name, values)) => {
            let each = |value: &str| {
                let all: Vec<_> = changes.iter().cloned().chain([(name.clone(), value.trim().to_owned())]).collect();
                Ok((Some(value.trim().to_owned()), Scenario::with(&source.text, &all).map_err(wrong)?))
            };
            values.split(',').map(each).collect::<Result<_>>()?
        }
    };
    let mut transports = vec!["srd".to_owned()];
    // Named twice, it is run once, also by its other name.
    compare.into_iter().map(|other| if other == "tcp" { "tcp-cubic".to_owned() } else { other }).for_each(|other| {
        if !transports.contains(&other) {
            transports.push(other);
        }
    });
    let seeds: Vec<u64> = (0..u64::from(args.seeds)).map(|i| args.seed.wrapping_add(i)).collect();
    let mut tasks = Vec::new();
    for (_, scenario) in &points {
        for transport in &transports {
            tasks.extend(seeds.iter().map(|seed| Task {
                scenario: scenario.clone(),
                transport: transport.clone(),
                seed: *seed,
            }));
        }
    }
    // What is wrong with one of them is said before the first one runs.
    for task in tasks.iter().filter(|t| t.seed == args.seed) {
        if interrupt::requested() {
            return Err(Fault::interrupted());
        }
        task.experiment(&source.base).map_err(wrong)?;
    }
    let began = Instant::now();
    let threads = args.jobs.map(|n| n as usize);
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (runs, busy, events) =
        output::with_progress(&tasks, |progress| run::all(&tasks, seeds.len(), &source.base, threads, progress))
            .map_err(wrong)?;
    let report = assemble(&source.name, &scenario, runs, seeds.len(), transports.len(), &points, sweep.map(|s| s.0));
    let mut report = report.ok_or_else(Fault::interrupted)?;
    report.changed = changes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    report.wall_s = began.elapsed().as_secs_f64();
    report.events_per_s = events as f64 / busy.max(1e-9);
    Ok(report)
}

/// Puts the runs together, which come by point, transport and seed. There is no report without any.
fn assemble(
    name: &str,
    scenario: &Scenario,
    runs: Vec<Option<Run>>,
    seeds: usize,
    transports: usize,
    points: &[(Option<String>, Scenario)],
    parameter: Option<String>,
) -> Option<Report> {
    let mut runs = runs.into_iter();
    let mut sweep = Vec::new();
    let mut others = Vec::new();
    let mut last: Option<Report> = None;
    for (value, _) in points {
        let taken = (0..transports).map(|_| runs.by_ref().take(seeds).flatten().collect::<Vec<Run>>());
        let ran: Vec<_> = taken.filter(|same| !same.is_empty()).collect();
        let mut reports =
            ran.into_iter().map(|same| Report::of(name, &scenario.title, scenario.assumptions.clone(), same));
        let Some(mut report) = reports.next() else { continue };
        report.baselines = reports.map(|r| r.run).collect();
        if let (Some(parameter), Some(value)) = (&parameter, value) {
            report.sweep_value = Some(format!("{parameter}={value}"));
            sweep.extend(report.runs().map(|run| Point {
                parameter: parameter.clone(),
                value: value.clone(),
                transport: run.transport.clone(),
                seed: run.seed,
                ideal_fct_us: run.ideal_fct_us,
                summary: run.summary,
            }));
        }
        if let Some(Report { run, baselines, sweep_value, .. }) = last.replace(report) {
            others.push((sweep_value.unwrap_or_default(), [vec![run], baselines].concat()));
        }
    }
    let mut report = last?;
    (report.sweep, report.others) = (sweep, others);
    Some(report)
}
