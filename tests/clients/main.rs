//! Unmodified programs for EFA, run on the software card: each in network namespaces of its own, without privileges.
//!
//! `./x clients` installs them and runs a part of the table, `./x clients --full` all of it. Words after that select
//! cases whose line has them all; before the first one of Debian 13 this is installed in a directory. How each case ended is kept beside the clients; with `--write` this becomes
//! `docs/compatibility.md` and `docs/pyverbs-skips.md`, once every case has been run.

mod case;
mod debian13;
mod ladder;
mod process;
mod report;
mod stage;
mod wheels;

use std::process::ExitCode;
use std::time::Instant;

use case::{Case, System};
use report::Report;
use stage::Stage;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (flags, words): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|f| *f == flag);
    if let Some(unknown) = flags.iter().find(|f| !["--full", "--list", "--write"].contains(&f.as_str())) {
        eprintln!("clients: no option '{unknown}'; there are --full, --list, --write, and words that select cases");
        return ExitCode::from(2);
    }
    let is_wanted = |case: &Case| {
        let line = line(case);
        (has("--full") || !case.full_only) && words.iter().all(|word| line.contains(word.as_str()))
    };
    let cases: Vec<Case> = ladder::all().into_iter().filter(is_wanted).collect();
    if has("--list") {
        cases.iter().for_each(|case| println!("{}", line(case)));
        return ExitCode::SUCCESS;
    }
    if !testbed::runs_here() {
        return ExitCode::SUCCESS;
    }
    match run(cases, has("--write")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("clients: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs cases one after the other, since the cores are few. Says whether all is well.
fn run(cases: Vec<Case>, write: bool) -> Result<bool, String> {
    let stage = Stage::build(&cases)?;
    if cases.iter().any(|case| case.system == System::Debian13) {
        debian13::prepare(&stage.debian13())?;
    }
    let mut report = Report::new(&stage)?;
    let (began, mut count, mut failed) = (Instant::now(), 0, 0);
    for case in cases {
        let at = Instant::now();
        let result = stage.run(&case);
        let seconds = at.elapsed().as_secs_f64();
        match &result {
            Ok(ended) => {
                println!("{seconds:6.1} s  {}: {}", line(&case), ended.words);
                report.note(&case, ended);
            }
            Err(failure) => {
                failed += 1;
                println!("{seconds:6.1} s  {}: FAILED: {}\n{}", line(&case), failure.why, failure.said);
            }
        }
        count += 1;
        report.add(&case, result.map(|ended| ended.words).map_err(|failure| failure.why))?;
    }
    println!("{count} cases in {:.0} s", began.elapsed().as_secs_f64());
    if write {
        report.write()?;
    }
    println!("clients: {} passed, {failed} failed", count - failed);
    Ok(failed == 0)
}

fn line(case: &Case) -> String {
    format!("{}, {}, {}: {}", case.title(), case.place, case.conditions(), case.command())
}
