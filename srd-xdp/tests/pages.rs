//! Packet buffers on huge pages, if there are any, and on normal ones.
//!
//! The pool of huge pages is the machine's, so these steps are one test in a program of its own.

mod common;

use std::fs;
use std::io;

use common::{Side, bed, meet, options, xdp_at};
use srd_xdp::{XdpDriver, XdpOptions};
use testbed::{Host, Pair};

const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// A number of pages in the machine's pool; dropped, it is as it was.
struct Pool {
    before: u64,
}

fn read_pool() -> io::Result<u64> {
    fs::read_to_string(POOL)?.trim().parse().map_err(io::Error::other)
}

impl Pool {
    /// The pool with some pages more.
    fn grown(more: u64) -> io::Result<Pool> {
        let pool = Pool { before: read_pool()? };
        fs::write(POOL, (pool.before + more).to_string())?;
        match read_pool()? {
            now if now >= pool.before + more => Ok(pool),
            now => Err(io::Error::other(format!("it has {now} pages, not {}", pool.before + more))),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        fs::write(POOL, self.before.to_string()).expect("it could be written before");
    }
}

/// A line of a file with a colon and a number of some unit.
fn numbers(path: &str, name: &str) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("a file of the kernel");
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next());
    values.map(|value| value.parse().expect("a number")).collect()
}

fn open(host: &Host, frames: u32) -> Side<XdpDriver> {
    xdp_at(host, (host.addr(), 0).into(), XdpOptions { frames, ..options() })
}

/// Whether this process has memory in pages of 2 MiB from the pool.
fn has_huge_pages() -> bool {
    numbers("/proc/self/smaps", "KernelPageSize").contains(&2048)
}

/// Two drivers that exchange datagrams, with so many frames each.
fn converse(frames: u32) -> [bool; 3] {
    let bed = bed(Pair::builder().mtu(1500)).expect("the test runs here");
    let (mut a, mut b) = (open(bed.host(0), frames), open(bed.host(1), frames));
    meet(&mut a, &mut b);
    let (to_a, to_b, before) = (a.addr(), b.addr(), b.stats());
    for round in 0..200 {
        a.say(to_b, &format!("question {round}"));
        assert_eq!(b.receive(1)[0].1, format!("question {round}").as_bytes());
        b.say(to_a, &format!("answer {round}"));
        assert_eq!(a.receive(1)[0].1, format!("answer {round}").as_bytes());
    }
    assert_eq!(b.stats().rx_datagrams - before.rx_datagrams, 200, "by AF_XDP");
    for info in [a.driver.info(), b.driver.info()] {
        let said = if info.huge_pages { "on huge pages" } else { "on normal pages" };
        assert!(info.to_string().ends_with(said) || info.to_string().contains(&format!("{said} (")), "{info}");
    }
    [a.driver.info().huge_pages, b.driver.info().huge_pages, has_huge_pages()]
}

#[test]
fn huge_pages_are_used_and_done_without() {
    if !testbed::runs_here() {
        return;
    }
    // Two drivers with 2 x 2,048 frames of 2,048 bytes, some to spare for programs that others start meanwhile.
    match Pool::grown(16) {
        Ok(_pool) => assert_eq!(converse(2048), [true; 3], "two drivers, and what the kernel says"),
        Err(e) => eprintln!("skipped: no huge pages in {POOL}: {e}"),
    }
    // 128 MB each.
    let free = numbers("/proc/meminfo", "HugePages_Free").first().copied().unwrap_or(0);
    if free >= 64 {
        eprintln!("skipped: {free} huge pages are free, more than the test would use up");
        return;
    }
    assert_eq!(converse(32_768), [false; 3], "two drivers, and what the kernel says");
}
