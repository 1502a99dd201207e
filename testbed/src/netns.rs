//! Namespaces as the kernel shows them: list, enter, empty, remove.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, name, tools};

/// Where `ip netns` keeps its handles.
const HANDLES: &str = "/run/netns";

/// All namespaces whose bed `wanted` accepts, as (bed, node).
pub(crate) fn list(wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(HANDLES) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let ours = names.filter_map(|n| name::parse(&n).map(|(bed, node)| (bed.to_owned(), node.to_owned())));
    ours.filter(|(bed, _)| wanted(bed)).collect()
}

/// Runs a closure on a fresh thread inside a namespace and waits for it. The
/// closure may borrow; its panic becomes the caller's.
pub(crate) fn enter<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let handle = open(namespace)?;
    thread::scope(|scope| {
        let entered = scope.spawn(move || switch(&handle, namespace).map(|()| work()));
        entered.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Starts a closure on a thread of its own that is already inside.
pub(crate) fn spawn<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, Error> {
    // a new thread starts in the namespace of the thread that starts it
    let start = || thread::Builder::new().name(namespace.to_owned()).spawn(work);
    enter(namespace, start)?.map_err(Error::io("start a thread"))
}

/// Kills what runs in these namespaces, then removes them. What is already
/// gone is no error: another process may sweep at the same time.
pub(crate) fn remove(namespaces: &[String]) {
    if namespaces.is_empty() {
        return;
    }
    kill_inside(namespaces);
    let batch: String = namespaces.iter().map(|n| format!("netns del {n}\n")).collect();
    let _ = tools::run("ip", &["-force", "-batch", "-"], &batch);
}

fn open(namespace: &str) -> Result<File, Error> {
    File::open(format!("{HANDLES}/{namespace}")).map_err(Error::io(format!("open the namespace {namespace}")))
}

fn switch(handle: &File, namespace: &str) -> Result<(), Error> {
    use std::os::fd::AsFd;
    move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| Error::Io { what: format!("enter the namespace {namespace}"), source: e.into() })
}

/// Kills processes, never this one, whose network namespace is one of these.
/// The pidfd is taken before the check, so that the check and the signal are
/// about the same process.
fn kill_inside(namespaces: &[String]) {
    let identity = |path: String| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let doomed: Vec<(u64, u64)> = namespaces.iter().filter_map(|n| identity(format!("{HANDLES}/{n}"))).collect();
    let Ok(processes) = fs::read_dir("/proc") else { return };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids.filter(|pid| u32::try_from(*pid) != Ok(std::process::id())) {
        let is_inside = || identity(format!("/proc/{pid}/ns/net")).is_some_and(|net| doomed.contains(&net));
        if !is_inside() {
            continue;
        }
        let Some(Ok(process)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { continue };
        if is_inside() {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}
