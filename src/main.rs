//! The `srd` command: parses the command line, runs a subcommand, turns its outcome into an exit code.

#![forbid(unsafe_code)]

mod demo;
mod devices;
mod doctor;
mod driver;
mod exit;
mod explain;
mod incast;
mod interrupt;
mod options;
mod perf;
mod progress;
mod render;
mod report;
mod results;
mod run;
mod sim;
mod stat;
mod transport;
mod units;

use std::error::Error as _;
use std::io::IsTerminal as _;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use serde::Serialize;

use crate::exit::{Exit, Fault};

/// Scalable Reliable Datagram in software: reliable, unordered messages over many network paths.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say more on standard error: what is opened; twice: how it is configured
    #[arg(long, short, global = true, action = ArgAction::Count)]
    verbose: u8,
}

const AFTER_HELP: &str = "\
Exit codes: 0 fine; 1 the verdict is bad; 2 wrong usage; 3 cannot be set up here (port in use, no permission, no route);
4 the peer is not there, does not answer, or is busy; 130 interrupted. 'srd run' ends as its program does.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a program that uses EFA, unmodified, over the software card
    Run(run::RunArgs),
    /// List the devices that a program would see
    Devices(devices::DevicesArgs),
    /// Check the set-up of this host, and say what to do about what is wrong
    Doctor(doctor::DoctorArgs),
    /// Explain a completion status
    Explain(explain::ExplainArgs),
    /// Show the counters of running programs
    Stat(stat::StatArgs),
    /// Show it at work: two cards on this machine, a lossy network, a path that dies
    Demo(demo::DemoArgs),
    /// Measure latency, bandwidth and message rate between two hosts
    #[command(subcommand)]
    Perf(perf::Perf),
    /// Run experiments in a simulated network: incasts, permutations, failures, scenarios of your own
    Sim(sim::SimArgs),
    /// Measure an incast on real hosts, or in a test bed on this one: many senders to one receiver, SRD beside TCP
    Incast(incast::IncastArgs),
}

/// What stands on standard output with `--json` when there is nothing better.
#[derive(Serialize)]
struct ErrorReport {
    ok: bool,
    error: String,
    exit_code: u8,
}

fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    log(cli.verbose);
    let (json, outcome) = match &cli.command {
        Command::Run(args) => (false, run::run(args)),
        Command::Devices(args) => (args.json, devices::run(args)),
        Command::Doctor(args) => (args.json, doctor::run(args)),
        Command::Explain(args) => (args.json, explain::run(args)),
        Command::Stat(args) => (args.json, stat::run(args)),
        Command::Demo(args) => (args.json, demo::run(args)),
        Command::Perf(perf) => (perf.json(), perf.run()),
        Command::Sim(args) => (args.json, sim::run(args)),
        Command::Incast(args) => (args.json(), incast::run(args)),
    };
    ExitCode::from(outcome.unwrap_or_else(|fault| fail(&fault, json)) as u8)
}

/// The command line. A negative number is a value, and whoever reads the value says what is wrong with it; but no program.
fn command() -> clap::Command {
    fn negative(command: clap::Command) -> clap::Command {
        let value = |arg: clap::Arg| match arg.get_action().takes_values() && !arg.is_trailing_var_arg_set() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        };
        command.mut_args(value).mut_subcommands(negative)
    }
    negative(Cli::command())
}

/// Says what went wrong, and returns the exit code.
fn fail(fault: &Fault, json: bool) -> Exit {
    if json {
        let report = ErrorReport { ok: false, error: fault.to_string(), exit_code: fault.exit as u8 };
        // The same stands on standard error, and the exit code says it, too.
        let _: Result<(), Fault> = render::json(&report);
    }
    render::complain(&fault.to_string());
    fault.exit
}

/// Help goes to standard output; an error becomes one sentence.
fn usage(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody reads it any more.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let text = e.render().to_string();
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        render::note(text.trim_end());
        return ExitCode::from(Exit::Usage as u8);
    }
    let (what, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    // Numbers say that they are wrong, and not what is wanted instead.
    let what = match e.source().and_then(|source| source.downcast_ref::<ParseIntError>()) {
        Some(wrong) if *wrong.kind() != IntErrorKind::PosOverflow => {
            what.replace(&wrong.to_string(), "a whole number without sign is wanted")
        }
        _ => what.to_owned(),
    };
    let words: Vec<_> = what.trim_start_matches("error: ").split_whitespace().collect();
    let near = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let meant =
        near.into_iter().find_map(|kind| e.get(kind)).map_or(String::new(), |name| format!(" (do you mean {name}?)"));
    // What was asked for is known from the words alone; those of a program that shall be run are not ours.
    let json = std::env::args_os().skip(1).take_while(|arg| arg != "run" && arg != "--").any(|arg| arg == "--json");
    ExitCode::from(fail(&Fault::usage(format!("{}{meant}; see --help", words.join(" "))), json) as u8)
}

/// What the libraries have to say goes to standard error: warnings, and more on request.
fn log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    // https://no-color.org
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !unwanted)
        .with_target(false)
        .init();
}
