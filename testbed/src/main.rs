//! `testbed`: builds and changes test beds by hand.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use testbed::tcp::{Load, Stop};
use testbed::{CableStats, Clos, Direction, Error, Host, LinkDrops, Pair, Rate, Traffic};

/// Network namespaces on this machine: hosts - leaves - spines, with ECMP,
/// rates, queues, loss and black holes. Needs root.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build a bed that stays until `down`
    Up(Up),
    /// Remove a bed and kill what runs inside
    Down {
        #[command(flatten)]
        bed: Named,
    },
    /// List beds; removes those whose owner has died
    List,
    /// Run a command on a host
    Exec {
        #[command(flatten)]
        bed: Named,
        host: usize,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Silently drop everything on a link; without LEAF, all a spine carries
    Hole {
        #[command(flatten)]
        bed: Named,
        spine: usize,
        leaf: Option<usize>,
        /// up: what the leaf sends to the spine; down: what it gets from there
        #[arg(value_parser = directions, default_value = "both")]
        direction: Directions,
    },
    /// Lose a random share of what a link carries
    Loss {
        #[command(flatten)]
        bed: Named,
        spine: usize,
        leaf: usize,
        #[arg(value_parser = directions)]
        direction: Directions,
        #[arg(allow_negative_numbers = true)]
        percent: f64,
        /// all, udp, tcp, or a length in bytes: only packets longer than that
        #[arg(long, default_value = "all")]
        traffic: Traffic,
    },
    /// Undo all holes and losses
    Heal {
        #[command(flatten)]
        bed: Named,
    },
    /// Show what each link has carried and lost
    Stat {
        #[command(flatten)]
        bed: Named,
    },
    /// Measure kernel TCP between two hosts
    Tcp {
        #[command(flatten)]
        bed: Named,
        from: usize,
        to: usize,
        #[arg(long, default_value_t = 1)]
        flows: usize,
        #[arg(long, default_value_t = 5.0, allow_negative_numbers = true)]
        seconds: f64,
        /// cubic, bbr, reno, ... [default: the kernel's]
        #[arg(long)]
        congestion: Option<String>,
        /// Print the goodput of every so many milliseconds
        #[arg(long)]
        every_ms: Option<u64>,
    },
}

#[derive(Args)]
struct Named {
    /// Name of the bed: a-z, 0-9 and _
    #[arg(long, default_value = "lab")]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    bed: Named,
    /// Two hosts joined by one cable, instead of leaves and spines
    #[arg(long, conflicts_with_all = ["leaves", "spines", "hosts_per_leaf", "spine_rate", "ecmp_seed"])]
    pair: bool,
    #[arg(long, default_value_t = 2)]
    leaves: usize,
    #[arg(long, default_value_t = 4)]
    spines: usize,
    #[arg(long, default_value_t = 2)]
    hosts_per_leaf: usize,
    /// Rate of each host's cable, like 200mbit [default: no limit]
    #[arg(long)]
    host_rate: Option<Rate>,
    /// Make the choice of spines repeatable
    #[arg(long)]
    ecmp_seed: Option<u32>,
    /// Rate of each leaf-spine cable, like 100mbit [default: no limit]
    #[arg(long)]
    spine_rate: Option<Rate>,
    /// Bytes that may wait in front of a rate-limited cable
    #[arg(long, default_value_t = 65_536)]
    queue_bytes: u32,
    #[arg(long, default_value_t = 1_500)]
    mtu: u32,
    /// Let segments of up to 64 KB cross in one piece: faster, less real
    #[arg(long)]
    offload: bool,
}

type Directions = &'static [Direction];

fn directions(text: &str) -> Result<Directions, String> {
    match text {
        "up" => Ok(&[Direction::Up]),
        "down" => Ok(&[Direction::Down]),
        "both" => Ok(&Direction::BOTH),
        _ => Err("write up, down or both".into()),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        // whoever closed our output has read enough
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_unread(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn run(verb: Verb) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match verb {
        Verb::Up(up) => up.run(&mut out)?,
        Verb::Down { bed } => testbed::remove_kept(&bed.name)?,
        Verb::List => {
            testbed::available().map_err(anyhow::Error::msg)?;
            testbed::sweep();
            testbed::keep_names().iter().try_for_each(|name| writeln!(out, "{name}"))?;
        }
        Verb::Exec { bed, host, command } => {
            let bed = bed.any()?;
            let (program, args) = command.split_first().context("say which command to run")?;
            let failed = bed.host(host)?.command(program).args(args).exec();
            bail!("could not start `ip netns exec`: {failed}");
        }
        Verb::Hole { bed, spine, leaf: None, .. } => Clos::open(&bed.name)?.hole_spine(spine)?,
        Verb::Hole { bed, spine, leaf: Some(leaf), direction } => {
            let bed = Clos::open(&bed.name)?;
            direction.iter().try_for_each(|direction| bed.hole(spine, leaf, *direction))?;
        }
        Verb::Loss { bed, spine, leaf, direction, percent, traffic } => {
            let bed = Clos::open(&bed.name)?;
            direction.iter().try_for_each(|direction| bed.impair(spine, leaf, *direction, traffic, percent))?;
        }
        Verb::Heal { bed } => match bed.any()? {
            Any::Clos(clos) => clos.heal()?,
            Any::Pair(pair) => pair.heal()?,
        },
        Verb::Stat { bed } => stat(&bed.any()?, &mut out)?,
        Verb::Tcp { bed, from, to, flows, seconds, congestion, every_ms } => {
            let bed = bed.any()?;
            let stop = Duration::try_from_secs_f64(seconds).ok().filter(|stop| !stop.is_zero());
            let stop = stop.with_context(|| format!("{seconds} seconds make no load: choose a number above 0"))?;
            let bin = every_ms.map_or(Duration::from_millis(100), Duration::from_millis);
            let load = Load { flows, stop: Stop::After(stop), bin, congestion, ..Load::default() };
            let report = load.run(bed.host(from)?, bed.host(to)?)?;
            if every_ms.is_some() {
                for (nth, rate) in report.goodput_by_bin().enumerate() {
                    writeln!(out, "{:.3} s {}", bin.as_secs_f64() * nth as f64, megabits(rate))?;
                }
            }
            for flow in &report.flows {
                let (port, stall) = (flow.source_port, flow.longest_stall);
                writeln!(out, "port {port}: {} bytes, longest stall {stall:.1?}", flow.bytes)?;
            }
            writeln!(out, "all: {}, {} segments sent again", megabits(report.goodput()), report.retransmitted)?;
        }
    }
    Ok(())
}

impl Up {
    fn run(self, out: &mut impl Write) -> anyhow::Result<()> {
        let name = &self.bed.name;
        if self.pair {
            let pair = Pair::builder().rate(self.host_rate).queue_bytes(self.queue_bytes).mtu(self.mtu);
            show_hosts(pair.offload(self.offload).keep(name).build()?.hosts(), out)?;
        } else {
            let clos = Clos::builder().leaves(self.leaves).spines(self.spines).hosts_per_leaf(self.hosts_per_leaf);
            let clos = match self.ecmp_seed {
                Some(seed) => clos.ecmp_seed(seed),
                None => clos,
            };
            let clos = clos.host_rate(self.host_rate).spine_rate(self.spine_rate).queue_bytes(self.queue_bytes);
            show_hosts(clos.mtu(self.mtu).offload(self.offload).keep(name).build()?.hosts(), out)?;
        }
        Ok(())
    }
}

/// A bed of either shape.
enum Any {
    Clos(Clos),
    Pair(Pair),
}

impl Named {
    fn any(&self) -> Result<Any, Error> {
        match Pair::open(&self.name) {
            Ok(pair) => Ok(Any::Pair(pair)),
            Err(Error::Invalid(_)) => Clos::open(&self.name).map(Any::Clos),
            Err(error) => Err(error),
        }
    }
}

impl Any {
    fn host(&self, index: usize) -> anyhow::Result<&Host> {
        let hosts = match self {
            Self::Clos(clos) => clos.hosts(),
            Self::Pair(pair) => pair.hosts(),
        };
        let missing = || format!("there is no host {index}: they are numbered 0 to {}", hosts.len() - 1);
        hosts.get(index).with_context(missing)
    }
}

fn show_hosts(hosts: &[Host], out: &mut impl Write) -> io::Result<()> {
    for host in hosts {
        writeln!(out, "host {} {} {} (namespace {})", host.index(), host.addr(), host.addr6(), host.namespace())?;
    }
    Ok(())
}

fn stat(bed: &Any, out: &mut impl Write) -> anyhow::Result<()> {
    match bed {
        Any::Clos(clos) => {
            writeln!(out, "{HEAD}")?;
            for (link, drops) in clos.link_stats()?.iter().zip(clos.link_drops()?) {
                let LinkDrops { impaired, overflow, backlog_bytes, .. } = drops;
                let (bytes, packets) = (link.bytes, link.packets);
                let name = format!("l{} s{} {}", link.leaf, link.spine, link.direction);
                row(out, &name, CableStats { bytes, packets, impaired, overflow, backlog_bytes })?;
            }
            for (host, direction) in clos.hosts().iter().flat_map(|h| Direction::BOTH.map(|d| (h.index(), d))) {
                row(out, &format!("h{host} {direction}"), clos.host_stats(host, direction)?)?;
            }
        }
        Any::Pair(pair) => {
            writeln!(out, "{HEAD}")?;
            for (from, to) in [(0, 1), (1, 0)] {
                row(out, &format!("h{from} to h{to}"), pair.stats(to)?)?;
            }
        }
    }
    Ok(())
}

const HEAD: &str = "link             packets          bytes   impaired   overflow    backlog";

fn row(out: &mut impl Write, name: &str, stats: CableStats) -> io::Result<()> {
    let lost = format!("{:>10} {:>10} {:>10}", stats.impaired, stats.overflow, stats.backlog_bytes);
    writeln!(out, "{name:<12} {:>11} {:>14} {lost}", stats.packets, stats.bytes)
}

fn megabits(rate: Rate) -> String {
    format!("{:.1} Mbit/s", rate.bits_per_second() as f64 / 1e6)
}
