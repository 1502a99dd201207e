//! Names of beds and of their namespaces.
//!
//! A namespace is called `srdbed-<bed>-<node>`. `<bed>` tells who owns it:
//! - `<pid namespace>.<pid>.<start>.<unique>` in an owned bed: the creating
//!   process, in a form that a later process with the same number cannot be
//!   mistaken for. Such a bed is stale once that process is gone.
//! - `keep.<name>` in a bed that a person made to stay until told to go.
//!
//! `<node>` is `h0`, `l0`, `s0`, ... for hosts, leaves and spines, so the
//! shape of a bed can be read off the names and needs no state elsewhere.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// What all our namespaces start with; nothing else is ever looked at.
const PREFIX: &str = "srdbed-";
const KEEP: &str = "keep.";

/// The name of a new bed that belongs to this process.
pub(crate) fn owned() -> Result<String, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    let start = start_time(pid).ok_or_else(|| Error::invalid("could not read /proc/self/stat: mount /proc"))?;
    let random = getrandom::u32().map_err(|e| Error::invalid(format!("could not draw a random name: {e}")))?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{:x}.{pid}.{start:x}.{count}_{random:08x}", pid_namespace()?))
}

/// The name of a bed that stays until it is removed by name.
pub(crate) fn kept(name: &str) -> Result<String, Error> {
    let fits = !name.is_empty() && name.len() <= 32;
    if fits && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
        Ok(format!("{KEEP}{name}"))
    } else {
        Err(Error::invalid(format!("`{name}` cannot name a test bed: use 1 to 32 of a-z, 0-9 and _")))
    }
}

/// The other way round: what a person called this bed.
pub(crate) fn kept_name(bed: &str) -> Option<&str> {
    bed.strip_prefix(KEEP)
}

/// The namespace of one node.
pub(crate) fn namespace(bed: &str, node: &str) -> String {
    format!("{PREFIX}{bed}-{node}")
}

/// Splits a namespace's name into bed and node; `None` if it is not ours.
pub(crate) fn parse(namespace: &str) -> Option<(&str, &str)> {
    namespace.strip_prefix(PREFIX)?.split_once('-')
}

/// Whether the process that owned this bed is gone. A kept bed is never stale,
/// nor is one made in another pid namespace, whose processes cannot be seen
/// from here.
pub(crate) fn is_stale(bed: &str) -> bool {
    let mut parts = bed.split('.');
    let hex = |part: Option<&str>| part.and_then(|p| u64::from_str_radix(p, 16).ok());
    let Some(space) = hex(parts.next()) else { return false };
    let Some(pid) = parts.next().and_then(|p| p.parse().ok()) else { return false };
    let Some(start) = hex(parts.next()) else { return false };
    pid_namespace().is_ok_and(|own| own == space) && start_time(pid) != Some(start)
}

/// When a process started, in clock ticks since boot; `None` if it is gone or
/// only waits to be reaped.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the second field is the program's name in parentheses and may hold anything
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let (state, threads, start) = (fields.first()?, fields.get(17)?, fields.get(19)?);
    if *state == "Z" && threads.parse::<u32>().ok()? <= 1 { None } else { start.parse().ok() }
}

fn pid_namespace() -> Result<u64, Error> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map(|m| m.ino()).map_err(Error::io("look at /proc/self/ns/pid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_is_unique_and_not_stale() {
        let (a, b) = (owned().unwrap(), owned().unwrap());
        assert_ne!(a, b);
        assert!(!is_stale(&a) && !is_stale(&b));
        assert_eq!(parse(&namespace(&a, "h0")), Some((a.as_str(), "h0")));
    }

    #[test]
    fn stale_when_the_pid_has_another_start_time() {
        let own = owned().unwrap();
        let mut parts: Vec<&str> = own.split('.').collect();
        parts[2] = "1";
        assert!(is_stale(&parts.join(".")));
    }

    #[test]
    fn stale_never_if_kept_foreign_or_unreadable() {
        for bed in ["keep.lab", "", "x.y.z", "1.1.1.0_0", "deadbeef"] {
            assert!(!is_stale(bed), "{bed}");
        }
        for foreign in ["cni-1234", "h0", "srdbed", "srdbed-"] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn kept_refuses_what_would_confuse() {
        assert_eq!(kept_name(&kept("lab_1").unwrap()), Some("lab_1"));
        for name in ["", "a-b", "A", "../x", "x y", "a.b"] {
            assert!(kept(name).is_err(), "{name}");
        }
    }
}
