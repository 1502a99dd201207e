//! Files that a report is written to, and the progress on the way there.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::run::{Progress, Task};
use crate::exit::{Fault, Result};
use crate::interrupt;
use crate::results::{self, Report};

/// Makes the directories, so that nobody waits for a simulation whose results have no place.
pub(crate) fn check(csv: Option<&Path>, plots: Option<&Path>, html: Option<&Path>) -> Result<()> {
    let parent = html.and_then(Path::parent).filter(|p| !p.as_os_str().is_empty());
    for dir in [csv, plots, parent].into_iter().flatten() {
        fs::create_dir_all(dir)
            .map_err(|e| Fault::setup(format!("cannot make the directory {}: {e}", dir.display())))?;
    }
    match html.filter(|path| path.is_dir()) {
        Some(dir) => {
            Err(Fault::setup(format!("cannot write {}: it is a directory, and --html takes a file", dir.display())))
        }
        None => Ok(()),
    }
}

/// Writes all files that were asked for, and removes those of an earlier report that this one has not: nobody shall take them
/// for its own.
pub(crate) fn write(report: &Report, csv: Option<&Path>, plots: Option<&Path>, html: Option<&Path>) -> Result<()> {
    if let Some(dir) = csv {
        save(&dir.join("flows.csv"), results::flows_csv(report).as_bytes())?;
        save(&dir.join("links.csv"), results::links_csv(report).as_bytes())?;
        match results::samples_csv(report) {
            Some(samples) => save(&dir.join("samples.csv"), samples.as_bytes())?,
            None => remove(&dir.join("samples.csv"))?,
        }
    }
    let pictures = if plots.is_some() || html.is_some() { results::plots(report) } else { Vec::new() };
    if let Some(dir) = plots {
        for name in results::PLOT_NAMES {
            let file = format!("{}-{name}", report.scenario.replace(['/', '\\'], "_"));
            let (svg, png) = (dir.join(format!("{file}.svg")), dir.join(format!("{file}.png")));
            let Some(picture) = pictures.iter().find(|p| p.name == name) else {
                remove(&svg)?;
                remove(&png)?;
                continue;
            };
            save(&svg, picture.svg.as_bytes())?;
            save(&png, &results::png(picture).map_err(|e| Fault::setup(format!("cannot draw {file}.png: {e}")))?)?;
        }
    }
    match html {
        Some(path) => save(path, results::html(report, &pictures).as_bytes()),
        None => Ok(()),
    }
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes).map_err(|e| Fault::setup(format!("cannot write {}: {e}", path.display())))
}

/// Replaces a file as a whole, so that nobody reads a part of it. What is no file, such as a pipe, is written to.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays one: what it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|m| !m.is_file()) {
        return fs::write(&target, bytes);
    }
    let mut fresh = target.clone().into_os_string();
    fresh.push(format!(".{}.new", std::process::id()));
    let replaced = fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, &target));
    if replaced.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&fresh);
    }
    replaced
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Fault::setup(format!("cannot remove {}, which is of an earlier report: {e}", path.display())))
        }
        _ => Ok(()),
    }
}

/// How often the bar moves, and how long it waits before it appears.
const TICK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

/// Does the work on a thread of its own; this one shows how far it is and listens for signals.
pub(super) fn with_progress<T: Send>(tasks: &[Task], work: impl FnOnce(&Progress) -> T + Send) -> T {
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let (done, wait) = channel();
        let progress = &progress;
        let worker = scope.spawn(move || {
            let result = work(progress);
            // Nobody listens any more if the other thread has panicked.
            let _ = done.send(());
            result
        });
        let began = Instant::now();
        let mut bar = ProgressBar::hidden();
        while wait.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            progress.stop.fetch_or(interrupt::requested(), Ordering::Relaxed);
            if bar.is_hidden() && began.elapsed() > PATIENCE && std::io::stderr().is_terminal() {
                let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs  {msg}");
                bar = ProgressBar::new(tasks.len() as u64)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            }
            bar.set_position(progress.done.load(Ordering::Relaxed) as u64);
            bar.set_message(describe(progress, began.elapsed()));
        }
        bar.finish_and_clear();
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn describe(progress: &Progress, elapsed: Duration) -> String {
    let events = progress.events.load(Ordering::Relaxed) + progress.running.load(Ordering::Relaxed);
    let simulated = progress.simulated.load(Ordering::Relaxed) as f64 / 1e6;
    let rate = events as f64 / elapsed.as_secs_f64() / 1e6;
    format!(
        "{simulated:.2} ms simulated, {} flows done, {rate:.1} M events/s",
        progress.flows_done.load(Ordering::Relaxed)
    )
}
