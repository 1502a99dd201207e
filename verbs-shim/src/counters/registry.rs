//! All counters of a host: those of processes that live, and what was counted before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::Values;
use super::file::{BEFORE, Fate, Record, SUFFIX};
use super::sysfs::Identity;
use crate::cancel::sleep;

/// How long somebody else may be at the sums: as long as many processes that end at once take in turn.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time between two looks whether he is done.
const PAUSE: Duration = Duration::from_millis(1);

/// Directories in which processes publish.
#[derive(Clone, Debug)]
pub struct Registry {
    dirs: Vec<PathBuf>,
}

/// A device, over all processes that use it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// What it is.
    pub identity: Identity,
    /// Those that use it now, by process number.
    pub processes: Vec<Record>,
    /// The sum of all that was ever counted, by them and before; it never goes down while the directory exists.
    pub total: Values,
}

impl Registry {
    /// The counters in these directories, whether they exist or not.
    pub fn new(dirs: impl IntoIterator<Item = impl Into<PathBuf>>) -> Registry {
        Registry { dirs: dirs.into_iter().map(Into::into).collect() }
    }

    /// All devices, by name. What dead processes left is added to what was counted before, where that is ours to do.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices: BTreeMap<String, Device> = BTreeMap::new();
        for dir in &self.dirs {
            let _guard = self.sweep(dir);
            for (_, record) in records(dir) {
                let identity = record.identity.clone();
                let device = devices.entry(identity.device.clone()).or_insert_with(|| Device {
                    identity,
                    processes: Vec::new(),
                    total: Values::default(),
                });
                device.total.add(&record.values);
                if record.pid != 0 && record.fate() != Fate::Dead {
                    device.processes.push(record);
                }
            }
        }
        for device in devices.values_mut() {
            device.processes.sort_by_key(|r| r.pid);
        }
        devices.into_values().collect()
    }

    /// Retires what dead processes left. Returns the lock, while which is held nobody else does so: sums are whole. `None` where
    /// that is not ours to do, or somebody else is at it for long.
    fn sweep(&self, dir: &Path) -> Option<Flock<File>> {
        let ours = fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == geteuid().as_raw());
        let guard = if ours { lock_soon(dir).ok()? } else { return None };
        for (path, record) in records(dir) {
            if record.fate() == Fate::Dead {
                // What cannot be done now is done the next time.
                let _ = fold(&path, &record);
            }
        }
        Some(guard)
    }

    /// Gives `then` the sum of all that was ever counted on a device. Nobody else adds anything up meanwhile.
    ///
    /// # Errors
    /// Those of `then`; [`WouldBlock`](io::ErrorKind::WouldBlock) if somebody else is at it, who is not waited for: it may have
    /// been stopped.
    pub(super) fn with_total(&self, device: &str, then: impl FnOnce(&Values) -> io::Result<()>) -> io::Result<()> {
        let mut total = Values::default();
        let mut guards = Vec::new();
        for dir in &self.dirs {
            guards.push(lock(dir, FlockArg::LockExclusiveNonblock)?);
            let of_device = |(_, record): &(_, Record)| record.identity.device == device;
            records(dir).iter().filter(|r| of_device(r)).for_each(|(_, record)| total.add(&record.values));
        }
        then(&total)
    }

    /// Adds what a file says to what was counted before, and removes it.
    ///
    /// # Errors
    /// A file cannot be read or written, or somebody else is at it for long.
    pub(super) fn retire(&self, path: &Path) -> io::Result<()> {
        let _guard = lock_soon(path.parent().unwrap_or(Path::new("/")))?;
        fold(path, &Record::read(path)?)
    }
}

/// Does what [`Registry::retire`] says, under the lock.
fn fold(path: &Path, record: &Record) -> io::Result<()> {
    let mut before = Record::before(record.identity.clone());
    let target = path.with_file_name(before.file_name());
    if let Ok(old) = Record::read(&target) {
        before.values = old.values;
    }
    before.values.add(&record.values);
    // In this order, counters may be counted twice if we die in between; in the other one they would be lost.
    before.write(&target)?;
    fs::remove_file(path)
}

/// The lock, if it is to be had soon. Who has it needs it for a moment, but may have been stopped in it; and for counters no
/// program shall wait for ever.
fn lock_soon(dir: &Path) -> io::Result<Flock<File>> {
    let began = Instant::now();
    loop {
        match lock(dir, FlockArg::LockExclusiveNonblock) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && began.elapsed() < PATIENCE => sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

pub(super) fn lock(dir: &Path, how: FlockArg) -> io::Result<Flock<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
    Flock::lock(file, how).map_err(|(_, errno)| errno.into())
}

/// All records in a directory; what is none is skipped.
fn records(dir: &Path) -> Vec<(PathBuf, Record)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|n| n.ends_with(SUFFIX) && (n.starts_with(BEFORE) || n.starts_with(|c: char| c.is_ascii_digit())));
    names.sort();
    let read = |name: String| {
        let path = dir.join(name);
        Record::read(&path).ok().map(|record| (path, record))
    };
    names.into_iter().filter_map(read).collect()
}
