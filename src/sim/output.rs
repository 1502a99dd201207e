//! Files that a report is written to, and the progress on the way there.

use std::io::IsTerminal as _;
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
        std::fs::create_dir_all(dir)
            .map_err(|e| Fault::setup(format!("cannot make the directory {}: {e}", dir.display())))?;
    }
    Ok(())
}

/// Writes all files that were asked for.
pub(crate) fn write(report: &Report, csv: Option<&Path>, plots: Option<&Path>, html: Option<&Path>) -> Result<()> {
    if let Some(dir) = csv {
        save(&dir.join("flows.csv"), results::flows_csv(report).as_bytes())?;
        save(&dir.join("links.csv"), results::links_csv(report).as_bytes())?;
        if let Some(samples) = results::samples_csv(report) {
            save(&dir.join("samples.csv"), samples.as_bytes())?;
        }
    }
    let pictures = if plots.is_some() || html.is_some() { results::plots(report) } else { Vec::new() };
    if let Some(dir) = plots {
        for picture in &pictures {
            let name = format!("{}-{}", report.scenario.replace(['/', '\\'], "_"), picture.name);
            save(&dir.join(format!("{name}.svg")), picture.svg.as_bytes())?;
            let png = results::png(picture).map_err(|e| Fault::setup(format!("cannot draw {name}.png: {e}")))?;
            save(&dir.join(format!("{name}.png")), &png)?;
        }
    }
    match html {
        Some(path) => save(path, results::html(report, &pictures).as_bytes()),
        None => Ok(()),
    }
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| Fault::setup(format!("cannot write {}: {e}", path.display())))
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
