//! The one table of options: environment variables, flags of `srd run`, help texts and `docs/options.md` all come from it.

use std::fs::{self, File};
use std::io::{Error, Read as _};
use std::time::Duration;

use srd_core::card::MAX_UNITS;
use srd_core::card::profile::{MAX_INLINE, MAX_SGE, MAX_SQ_SGE, caps};
use srd_core::{MIN_DATAGRAM, Span};
use srd_udp::WaitMode;
use srd_xdp::DriverChoice;

use super::value::{self, Parsed};
use super::{Checksums, Options, PREFIX};
use crate::faults::FaultSpec;

/// An option. `paths` is `--paths` on the command line and `SRD_PATHS` in the environment.
#[derive(Clone, Copy)]
pub struct Opt {
    /// Its name, in words joined by hyphens.
    pub name: &'static str,
    /// What stands for its value in help texts.
    pub value: &'static str,
    /// What it is when nobody says anything.
    pub default: &'static str,
    /// The heading that it stands under.
    pub group: &'static str,
    /// What it does, in one or two sentences without a final stop.
    pub help: &'static str,
    /// Reads a value; says what is wrong as the end of a sentence that begins with option and value.
    pub(super) set: fn(&mut Options, &str) -> Parsed<()>,
}

impl Opt {
    /// Its name in the environment.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }
}

impl std::fmt::Debug for Opt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The option of this name.
pub fn find(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|o| o.name == name)
}

const DEVICES: &str = "Devices";
const NETWORK: &str = "Network";
const LIMITS: &str = "Limits of the device (for tests)";
const FAULTS: &str = "Faults";
const WATCHING: &str = "Watching";

/// All options, in the order in which they take effect: a profile before its single limits.
pub static OPTIONS: &[Opt] = &[
    Opt {
        name: "addr",
        value: "ADDR[,ADDR...]",
        default: "the host's main address, 127.0.0.1 if it has none",
        group: DEVICES,
        help: "Addresses of the devices: IP, IP:PORT, or the name of an interface; one device each",
        set: |o, v| super::address::list(v).map(|addrs| o.addrs = addrs),
    },
    Opt {
        name: "devices",
        value: "N",
        default: "one for each address",
        group: DEVICES,
        help: "Number of devices, 1 to 64; when there are more devices than addresses, they share them in turn",
        set: |o, v| value::number(v, 1..=64).map(|n| o.devices = Some(n)),
    },
    Opt {
        name: "profile",
        value: "GENERATION",
        default: "efa1",
        group: DEVICES,
        help: "EFA generation that the devices claim to be, efa0 to efa4: PCI id, capabilities and limits",
        set: |o, v| super::profile(v).map(|profile| o.profile = profile),
    },
    Opt {
        name: "pus",
        value: "N",
        default: "1",
        group: DEVICES,
        help: "Processing units of a device, 1, 2, 4, 8 or 16: each has a thread, a port and its share of the queue pairs; IPv4 only",
        set: |o, v| value::power_of_two(v, 1..=MAX_UNITS.into()).map(|n| o.pus = n as u16),
    },
    Opt {
        name: "strict-peers",
        value: "on|off",
        default: "on",
        group: DEVICES,
        help: "Refuse RDMA from peers for which the target has no address handle (status 14), as EFA does",
        set: |o, v| value::switch(v).map(|on| o.strict_peers = on),
    },
    Opt {
        name: "rings",
        value: "on|off",
        default: "off",
        group: DEVICES,
        help: "Tell programs that ask where the queues are in memory, so that they write and poll these themselves (libfabric's data path direct); a thread of each device looks after them",
        set: |o, v| value::switch(v).map(|on| o.rings = on),
    },
    Opt {
        name: "library",
        value: "FILE",
        default: "libsrd_verbs.so beside the command srd, or in ../lib",
        group: DEVICES,
        help: "The library that programs get as libibverbs and libefa",
        set: |o, v| {
            o.library = Some(v.into());
            Ok(())
        },
    },
    Opt {
        name: "driver",
        value: "udp|xdp|auto",
        default: "udp",
        group: NETWORK,
        help: "What moves the packets: kernel UDP, AF_XDP (docs/xdp.md), or the faster one that works",
        set: |o, v| value::word(v, &DriverChoice::NAMED).map(|driver| o.driver = driver),
    },
    Opt {
        name: "xdp-queues",
        value: "N",
        default: "all that are free, up to 16",
        group: NETWORK,
        help: "Receive queues of the interface that a device takes for AF_XDP, 1 to 16, shared out to its processing units; the rest is for other devices",
        set: |o, v| value::number(v, 1..=16).map(|n| o.xdp_queues = Some(n)),
    },
    Opt {
        name: "paths",
        value: "N",
        default: "16",
        group: NETWORK,
        help: "Paths (UDP source ports) for each peer, 1 to 256",
        set: |o, v| value::number(v, 1..=256).map(|n| o.paths = n),
    },
    Opt {
        name: "path-pool",
        value: "N",
        default: "4 times the paths, at least 64",
        group: NETWORK,
        help: "Source ports of a device, from which paths are drawn and dead ones replaced; up to 1024, shared out to its processing units",
        set: |o, v| value::number(v, 1..=1024).map(|n| o.path_pool = Some(n)),
    },
    Opt {
        name: "ports",
        value: "FIRST-LAST",
        default: "the kernel chooses",
        group: NETWORK,
        help: "Range of UDP ports to use, for firewalls: at least path-pool + pus for each device of each process",
        set: |o, v| value::ports(v).map(|range| o.ports = Some(range)),
    },
    Opt {
        name: "mtu",
        value: "BYTES",
        default: "what the interface says",
        group: NETWORK,
        help: "MTU to assume, 560 to 9264, with IP and UDP headers: it limits the datagrams that are sent",
        set: |o, v| value::number(v, MIN_DATAGRAM + 48..=9264).map(|n| o.mtu = Some(n)),
    },
    Opt {
        name: "rate",
        value: "BITS/S",
        default: "400G",
        group: NETWORK,
        help: "Speed of this host's link, such as 10G: no peer is sent to faster, and those who send to this host at once share it",
        set: |o, v| value::rate(v).map(|rate| o.rate = Some(rate)),
    },
    Opt {
        name: "peer-timeout",
        value: "TIME",
        default: "5s",
        group: NETWORK,
        help: "Silence of a peer after which requests to it fail (status 13 or 15), 100ms to 1h",
        set: |o, v| value::time(v, Span::from_millis(100)..=Span::from_secs(3600)).map(|time| o.peer_timeout = time),
    },
    Opt {
        name: "checksum",
        value: "on|off|auto",
        default: "auto",
        group: NETWORK,
        help: "CRC32C in every packet; auto: while corruption is injected, because UDP's own checksum is made after that",
        set: |o, v| {
            let words = [("auto", Checksums::Auto), ("on", Checksums::On), ("off", Checksums::Off)];
            value::word(v, &words).map(|checksum| o.checksum = checksum)
        },
    },
    Opt {
        name: "wait",
        value: "spin|sleep|adaptive",
        default: "adaptive",
        group: NETWORK,
        help: "How the thread of a device waits: adaptive spins for 50 us where there is a core for it, and then sleeps; spin takes a core, and takes over from a program that does not poll within microseconds, as one that waits for bytes in its memory wants",
        set: |o, v| {
            let adaptive = WaitMode::Adaptive { spin: Duration::from_micros(50) };
            let words = [("spin", WaitMode::Spin), ("sleep", WaitMode::Sleep), ("adaptive", adaptive)];
            value::word(v, &words).map(|wait| o.wait = wait)
        },
    },
    Opt {
        name: "fault",
        value: "SPEC|@FILE",
        default: "none",
        group: FAULTS,
        help: "What goes wrong, such as loss=1%,dead=path:0@2s; docs/faults.md has them all",
        set: |o, v| fault(v).map(|fault| o.fault = fault),
    },
    Opt {
        name: "seed",
        value: "N",
        default: "random, and printed",
        group: FAULTS,
        help: "Decides which datagrams and requests meet which fault; the same seed repeats them",
        set: |o, v| value::number(v, 0..=u64::MAX).map(|seed| (o.seed, o.seed_is_drawn) = (seed, false)),
    },
    Opt {
        name: "log",
        value: "LEVEL",
        default: "warn",
        group: WATCHING,
        help: "What the library tells: off, error, warn (each error completion), info (devices that are opened), debug or trace (their configuration, too)",
        set: |o, v| super::log::level(v).map(|level| o.log.level = level),
    },
    Opt {
        name: "log-file",
        value: "FILE",
        default: "standard error",
        group: WATCHING,
        help: "Where it tells it: lines are added to this file; %p in the name becomes the process id",
        set: |o, v| super::log::file(v).map(|file| o.log.file = Some(file)),
    },
    Opt {
        name: "counters",
        value: "on|off",
        default: "on",
        group: WATCHING,
        help: "Publish counters for 'srd stat'",
        set: |o, v| value::switch(v).map(|on| o.counters = on),
    },
    Opt {
        name: "runtime-dir",
        value: "DIR",
        default: "/dev/shm/srd-UID, /tmp/srd-UID where that is not to be had",
        group: WATCHING,
        help: "Directory for counters, links to the library and the like; one for all that 'srd stat' shall see together",
        set: |o, v| {
            o.runtime_dir = Some(v.into());
            Ok(())
        },
    },
    Opt {
        name: "caps",
        value: "CAP[,CAP...]",
        default: "those of the profile",
        group: LIMITS,
        help: "Capabilities: read, write, rnr-retry, cq-with-sgid, unsolicited-write-recv; or none",
        set: |o, v| capabilities(v).map(|caps| o.profile.caps = caps),
    },
    Opt {
        name: "gbps",
        value: "N",
        default: "100, 200 from efa2, 400 from efa3",
        group: LIMITS,
        help: "Speed that the port claims to have, 1 to 1600 Gbit/s; nothing becomes faster or slower by it",
        set: |o, v| value::number(v, 1..=1600).map(|n| o.profile.gbps = n),
    },
    Opt {
        name: "max-msg",
        value: "BYTES",
        default: "8928",
        group: LIMITS,
        help: "Longest send (max_msg_sz), 256 to 65535",
        set: |o, v| value::number(v, 256..=65535).map(|n| o.profile.max_msg = n),
    },
    Opt {
        name: "max-rdma",
        value: "BYTES",
        default: "1G",
        group: LIMITS,
        help: "Longest RDMA operation, 1 to 1G",
        set: |o, v| value::number(v, 1..=1 << 30).map(|n| o.profile.max_rdma = n),
    },
    Opt {
        name: "max-sq-wr",
        value: "N",
        default: "4096",
        group: LIMITS,
        help: "Depth of a send queue, a power of two up to 32768",
        set: |o, v| value::power_of_two(v, 1..=32768).map(|n| o.profile.max_sq_wr = n),
    },
    Opt {
        name: "max-rq-wr",
        value: "N",
        default: "32768",
        group: LIMITS,
        help: "Depth of a receive queue, a power of two up to 32768",
        set: |o, v| value::power_of_two(v, 1..=32768).map(|n| o.profile.max_rq_wr = n),
    },
    Opt {
        name: "max-sq-sge",
        value: "N",
        default: "2",
        group: LIMITS,
        help: "Buffers of a send, 1 or 2",
        set: |o, v| value::number(v, 1..=MAX_SQ_SGE).map(|n| o.profile.max_sq_sge = n),
    },
    Opt {
        name: "max-rq-sge",
        value: "N",
        default: "3",
        group: LIMITS,
        help: "Buffers of a receive, 1 to 3",
        set: |o, v| value::number(v, 1..=MAX_SGE as u16).map(|n| o.profile.max_rq_sge = n),
    },
    Opt {
        name: "max-inline",
        value: "BYTES",
        default: "32, 80 from efa4",
        group: LIMITS,
        help: "Bytes of an inline send, 0 to 80; queue pairs that want more than 32 have half as deep send queues",
        set: |o, v| value::number(v, 0..=MAX_INLINE as u32).map(|n| o.profile.max_inline = n),
    },
    Opt {
        name: "max-cqe",
        value: "N",
        default: "65536",
        group: LIMITS,
        help: "Depth of a completion queue, a power of two up to 1M",
        set: |o, v| value::power_of_two(v, 1..=1 << 20).map(|n| o.profile.max_cqe = n),
    },
    Opt {
        name: "max-qp",
        value: "N",
        default: "1024",
        group: LIMITS,
        help: "Queue pairs, 1 to 4096",
        set: |o, v| value::number(v, 1..=4096).map(|n| o.profile.max_qp = n),
    },
    Opt {
        name: "max-cq",
        value: "N",
        default: "1024",
        group: LIMITS,
        help: "Completion queues, 1 to 65536",
        set: |o, v| value::number(v, 1..=65536).map(|n| o.profile.max_cq = n),
    },
    Opt {
        name: "max-mr",
        value: "N",
        default: "256k",
        group: LIMITS,
        help: "Memory regions, 1 to 256k",
        set: |o, v| value::number(v, 1..=1 << 18).map(|n| o.profile.max_mr = n),
    },
    Opt {
        name: "max-mr-size",
        value: "BYTES",
        default: "1T",
        group: LIMITS,
        help: "Longest memory region, from 4k",
        set: |o, v| value::number(v, 4096..=u64::MAX).map(|n| o.profile.max_mr_size = n),
    },
    Opt {
        name: "max-ah",
        value: "N",
        default: "16384",
        group: LIMITS,
        help: "Address handles, 1 to 65535",
        set: |o, v| value::number(v, 1..=65535).map(|n| o.profile.max_ah = n),
    },
    Opt {
        name: "max-pd",
        value: "N",
        default: "1024",
        group: LIMITS,
        help: "Protection domains, 1 to 65536",
        set: |o, v| value::number(v, 1..=65536).map(|n| o.profile.max_pd = n),
    },
];

/// Longest file of a fault schedule.
const MAX_SCHEDULE: u64 = 256 << 10;

fn fault(text: &str) -> Parsed<FaultSpec> {
    let Some(path) = text.strip_prefix('@') else { return text.parse().map_err(|e| format!("makes no sense: {e}")) };
    let read = || {
        // Each process of a program reads it for itself, and a pipe would give it to the first one only.
        if !fs::metadata(path)?.is_file() {
            return Err(Error::other("it is no regular file, which every process can read from its beginning"));
        }
        let mut text = String::new();
        let size = File::open(path)?.take(MAX_SCHEDULE + 1).read_to_string(&mut text)? as u64;
        if size > MAX_SCHEDULE { Err(Error::other("it is longer than 256 KiB")) } else { Ok(text) }
    };
    let text = read().map_err(|e| format!("names a schedule that cannot be read: {e}"))?;
    text.parse().map_err(|e| format!("names a schedule that makes no sense: {e}"))
}

/// Capabilities by name.
pub const CAPS: [(&str, u32); 5] = [
    ("read", caps::RDMA_READ),
    ("rnr-retry", caps::RNR_RETRY),
    ("cq-with-sgid", caps::CQ_WITH_SGID),
    ("write", caps::RDMA_WRITE),
    ("unsolicited-write-recv", caps::UNSOLICITED_WRITE_RECV),
];

fn capabilities(text: &str) -> Parsed<u32> {
    if text == "none" {
        return Ok(0);
    }
    text.split(',').try_fold(0, |all, name| Ok(all | value::word(name.trim(), &CAPS)?))
}
