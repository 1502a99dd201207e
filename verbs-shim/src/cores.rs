//! Whether there are enough cores for all that wants to run.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use srd_udp::spare_standard;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Cores {
    /// `/proc/loadavg`, if it can be read.
    load: Option<File>,
    count: u64,
}

impl Cores {
    pub(crate) fn new() -> Cores {
        // Those of the host, as what runs is told for the host.
        let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
        Cores { load: File::open("/proc/loadavg").and_then(spare_standard).ok(), count: count as u64 }
    }

    /// Whether others than the caller want more cores than there are. Takes a few microseconds.
    pub(crate) fn are_scarce(&self) -> bool {
        self.running().is_some_and(|running| running > self.count + 1)
    }

    /// Whether the caller can have a core of its own without taking it from others. Takes as long.
    pub(crate) fn suffice(&self) -> bool {
        self.running().is_some_and(|running| running <= self.count)
    }

    fn running(&self) -> Option<u64> {
        let mut text = [0; 128];
        let len = self.load.as_ref()?.read_at(&mut text, 0).ok()?;
        running(&text[..len])
    }
}

/// Threads that run or want to, of `/proc/loadavg` (proc(5)): the fourth field, before the slash.
fn running(loadavg: &[u8]) -> Option<u64> {
    let field = std::str::from_utf8(loadavg).ok()?.split_ascii_whitespace().nth(3)?;
    field.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_read_from_the_kernel() {
        assert_eq!(running(b"0.52 0.58 0.59 17/632 4711\n"), Some(17));
        assert_eq!([&b""[..], b"0.52 0.58 0.59", b"a b c d/e f", b"1 2 3 /4 5"].map(running), [None; 4]);
        let cores = Cores::new();
        assert!(cores.count > 0 && cores.load.is_some());
        // It runs itself, and is not counted among the others.
        let idle = Cores { count: u64::MAX - 1, ..cores };
        assert!(!idle.are_scarce() && idle.suffice());
        let unknown = Cores { load: None, count: 0 };
        assert!(!unknown.are_scarce() && !unknown.suffice());
        let none = Cores { count: 0, ..idle };
        assert!(!none.suffice(), "it runs itself");
    }
}
