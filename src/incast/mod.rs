//! `srd incast`: many senders to one receiver on real hosts, by SRD and by kernel TCP, with the report of `srd sim`.
//!
//! One process per host. Rank 0 receives and decides what is measured; the others do as they are told. With `--testbed`
//! all of them are threads of one process, in network namespaces.

mod bed;
mod clock;
mod control;
mod launch;
mod plan;
mod receiver;
mod report;
mod sender;
mod srd_side;
mod tally;
mod tcp_side;
mod upper;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::{ArgGroup, Args};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use srd::Span;

use self::bed::BedArgs;
use self::clock::Clock;
use self::control::{DEFAULT_PORT, MAX_DEPTH, MAX_FLOWS, Transport};
use self::plan::Plan;
use self::receiver::{Findings, RealNetwork};
use self::report::IncastReport;
use self::sender::SenderArgs;
use crate::exit::{Exit, Fault, Result};
use crate::results::{self, Report};
use crate::sim::output;
use crate::transport::{self, Target, TransportArgs};
use crate::{interrupt, render, units};

/// Most endpoints of a sending host unless told otherwise. Each has a thread, and hundreds keep each other from the cores.
const MAX_ENDPOINTS: u32 = 12;

/// Options of `srd incast`.
#[derive(Args, Clone, Debug)]
// Many endpoints share the cores of a host.
#[command(mut_arg("mode", |a| a.default_value("sleep")), group = of_the_bed(), after_help = AFTER_HELP)]
pub(crate) struct IncastArgs {
    /// Make the whole network of namespaces on this host (as root) and run all ranks in it
    #[arg(long)]
    testbed: bool,

    /// Number of this process: 0 receives, 1 and up send [default: what mpirun or srun says]
    #[arg(long, value_name = "K", help_heading = "Ranks")]
    rank: Option<u32>,
    /// Number of all processes [default: what mpirun or srun says]
    #[arg(long, value_name = "N", help_heading = "Ranks")]
    size: Option<u32>,
    /// Host of rank 0, with or without port [default: $MASTER_ADDR, or the first node of a Slurm job]
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Ranks")]
    master: Option<String>,
    /// TCP port at which rank 0 awaits the others, where --master names none; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, help_heading = "Ranks")]
    port: u16,
    /// Address of rank 0 that data go to, where it is not the one of --master
    #[arg(long, value_name = "ADDR", help_heading = "Ranks")]
    receiver: Option<IpAddr>,
    /// Seconds that ranks wait for each other at the beginning
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = units::seconds, help_heading = "Ranks")]
    wait: Span,

    /// Sending hosts of the test bed, 1 to 63
    #[arg(long, value_name = "S", default_value_t = 4, value_parser = up_to(63), help_heading = "Traffic")]
    senders: u32,
    /// Flows (processes) of each sending host, 1 to 16384 in all
    #[arg(long, value_name = "P", default_value_t = 12, value_parser = up_to(MAX_FLOWS), help_heading = "Traffic")]
    flows: u32,
    /// SRD endpoints of each sending host, among which it shares out its flows [default: as many as share
    /// them evenly, up to 12; one with --driver xdp]
    #[arg(long, value_name = "E", value_parser = up_to(MAX_FLOWS), help_heading = "Traffic")]
    endpoints: Option<u32>,
    /// Bytes that each flow transfers: 64k, 2M (powers of 1,024; 2MB are 2,000,000)
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = units::size, help_heading = "Traffic")]
    transfer: u32,
    /// Let flows send for so many whole seconds, 2 or more, and sample them each second, instead of transferring a number of
    /// bytes
    #[arg(long, value_name = "SECONDS", conflicts_with = "transfer", value_parser = whole_seconds, help_heading = "Traffic")]
    time: Option<u32>,
    /// Bytes per SRD message
    #[arg(long, value_name = "SIZE", default_value = "8k", value_parser = units::size, help_heading = "Traffic")]
    message: u32,
    /// SRD messages outstanding per flow, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = up_to(MAX_DEPTH), help_heading = "Traffic")]
    depth: u32,
    /// Repetitions, 1 to 1000, each over new connections; the worst counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1_000), help_heading = "Traffic")]
    rounds: u32,
    /// Kernel TCP with these congestion controls, after SRD on the same hosts: cubic,bbr
    #[arg(long, value_name = "CC,...", value_delimiter = ',', value_parser = congestion, help_heading = "Traffic")]
    tcp: Vec<String>,
    /// Seconds after which a run is ended whose flows are not done [default: 20 times the ideal, at least 20]
    #[arg(long, value_name = "SECONDS", conflicts_with = "time", value_parser = units::seconds, help_heading = "Traffic")]
    limit: Option<Span>,
    /// Bits per second of the link that all flows share: 25G. It decides what is ideal [default: 200M in the test bed]
    #[arg(long, value_name = "RATE", value_parser = units::rate, help_heading = "Traffic")]
    rate: Option<u64>,

    /// Bytes that may wait before each cable
    #[arg(long, value_name = "SIZE", default_value = "60k", value_parser = units::size, help_heading = "Test bed")]
    queue: u32,
    /// Largest IP packet in the test bed, 1280 to 9000 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1_280..=9_000), help_heading = "Test bed")]
    bed_mtu: u32,
    /// Spines between the senders' switch and the receiver's, 1 to 16; 1: all hosts on one switch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16), help_heading = "Test bed")]
    spines: u16,
    /// Bits per second of each cable of a spine [default: all spines together carry twice --rate]
    #[arg(long, value_name = "RATE", value_parser = units::rate, help_heading = "Test bed")]
    spine_rate: Option<u64>,
    /// One of the spines swallows everything for so many seconds of each run
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds, help_heading = "Test bed")]
    dead_spine: Option<Span>,

    /// Print one JSON object
    #[arg(long, help_heading = "Report (of rank 0)")]
    json: bool,
    /// Write flows.csv, links.csv and samples.csv into this directory
    #[arg(long, value_name = "DIR", help_heading = "Report (of rank 0)")]
    csv: Option<PathBuf>,
    /// Write plots as SVG and PNG into this directory
    #[arg(long, value_name = "DIR", help_heading = "Report (of rank 0)")]
    plots: Option<PathBuf>,
    /// Write one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Report (of rank 0)")]
    html: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Transport")]
    transport: TransportArgs,
}

const AFTER_HELP: &str = "\
Traffic, rate and report are rank 0's choice; each host takes its own transport options. Examples:
  sudo srd incast --testbed --tcp cubic,bbr
  mpirun -n 5 --map-by node srd incast --master node0 --rate 100G
  srun -N 5 --ntasks-per-node 1 srd incast --rate 100G
  pdsh -w node[0-4] srd incast --rank %n --size 5 --master node0 --rate 100G";

impl IncastArgs {
    /// Whether standard output is for one JSON object. Launchers put the output of all ranks together, so it is rank 0's.
    pub(crate) fn json(&self) -> bool {
        self.json && (self.testbed || self.place().map_or(true, |place| place.rank == 0))
    }

    /// Which process of how many this is.
    fn place(&self) -> std::result::Result<launch::Place, String> {
        launch::find(self.rank, self.size, self.master.clone(), |name| std::env::var(name).ok())
    }
}

/// Options that mean something in the test bed only.
fn of_the_bed() -> ArgGroup {
    let options = ["testbed", "senders", "queue", "bed_mtu", "spines", "spine_rate", "dead_spine"];
    let ranks = ["rank", "size", "master", "receiver", "port"];
    ArgGroup::new("bed").args(options).multiple(true).requires("testbed").conflicts_with_all(ranks)
}

fn up_to(most: u32) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(most))
}

fn congestion(text: &str) -> std::result::Result<String, &'static str> {
    if text.is_empty() { Err("a name is missing; write for example cubic,bbr") } else { Ok(text.to_owned()) }
}

fn whole_seconds(text: &str) -> std::result::Result<u32, String> {
    text.parse().ok().filter(|n| (2..=86_400).contains(n)).ok_or_else(|| {
        format!("'{text}' is no number of whole seconds from 2 to 86400 (the first sample does not count)")
    })
}

/// What reports and plots are called: like no scenario of `srd sim`, so that neither command takes files of the other for its own.
const SCENARIO: &str = "real-incast";

/// Rate of the test bed's cables unless told otherwise.
const BED_RATE: u64 = 200_000_000;

/// Runs the command.
pub(crate) fn run(args: &IncastArgs) -> Result<Exit> {
    if args.spines < 2 && (args.dead_spine.is_some() || args.spine_rate.is_some()) {
        return Err(Fault::usage(
            "all hosts are on one switch: give --spines 2 or more for --dead-spine and --spine-rate",
        ));
    }
    if args.testbed {
        let plan = plan(args, args.senders, args.rate.or(Some(BED_RATE)))?;
        let rate = plan.rate.unwrap_or(BED_RATE);
        let bed = BedArgs {
            rate,
            queue: args.queue,
            mtu: args.bed_mtu,
            spines: args.spines,
            spine_rate: args.spine_rate.unwrap_or(2 * rate / u64::from(args.spines)),
            dead_spine: args.dead_spine.map(Duration::from),
        };
        interrupt::install()?;
        prepare(args, &plan)?;
        descriptors(&plan, args, plan.senders)?;
        let began = Instant::now();
        let transport = with_link_rate(args, bed.rate);
        let findings = bed::run(&plan, &bed, &transport)?;
        return conclude(args, &plan, bed_assumptions(&bed), findings, began);
    }
    let place = args.place().map_err(Fault::usage)?;
    let master = place.master.as_deref().map(str::parse::<Target>).transpose().map_err(Fault::usage)?;
    if let (1.., Some(master)) = (place.rank, &master) {
        return send(args, place.rank, master);
    }
    let plan = plan(args, place.size - 1, args.rate)?;
    prepare(args, &plan)?;
    descriptors(&plan, args, 0)?;
    let (ip, control) = own_addresses(args, master.as_ref())?;
    // Not before names are found: nobody looks at the flag while a name server does not answer.
    interrupt::install()?;
    let listener = TcpListener::bind(control).map_err(|e| {
        let what = format!("cannot await the other ranks at TCP port {} (choose another by --port)", control.port());
        Fault::new(Exit::Setup, anyhow::Error::new(e).context(what))
    })?;
    let port = listener.local_addr().map_err(Fault::driver)?.port();
    render::note(&format!("srd incast: rank 0 of {} awaits the others at TCP port {port}", place.size));
    let began = Instant::now();
    // The link that all flows share is usually ours.
    let transport = plan.rate.map_or(args.transport.clone(), |rate| with_link_rate(args, rate));
    let findings = receiver::run(&plan, ip, listener, &transport, Clock::new(), &mut RealNetwork)?;
    conclude(args, &plan, Vec::new(), findings, began)
}

/// Where rank 0 takes data, and where it awaits the others: all are told the same --master, so its port and its kind of
/// address hold for rank 0, too.
fn own_addresses(args: &IncastArgs, master: Option<&Target>) -> Result<(IpAddr, SocketAddr)> {
    // Its own name need not say anything to rank 0.
    let told = master.and_then(|master| master.resolve(args.port).ok()).map(|at| at.ip());
    let any = |ip: IpAddr| transport::any_port(SocketAddr::new(ip, 0)).ip();
    let ip = args.receiver.or(told.map(any)).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    UdpSocket::bind((ip, 0)).map_err(|e| {
        Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("cannot receive at {ip} (--receiver, --master)")))
    })?;
    // One that listens for IPv6 takes IPv4, too.
    let control = if ip.is_ipv6() { any(ip) } else { any(told.unwrap_or(ip)) };
    Ok((ip, SocketAddr::new(control, master.map_or(args.port, |master| master.port(args.port)))))
}

fn plan(args: &IncastArgs, senders: u32, rate: Option<u64>) -> Result<Plan> {
    let mut transports = vec![Transport::Srd];
    for congestion in &args.tcp {
        let tcp = Transport::Tcp(congestion.clone());
        // Named twice, it is run once.
        if !transports.contains(&tcp) {
            transports.push(tcp);
        }
    }
    let mut plan = Plan {
        senders,
        flows: args.flows,
        // A receive queue has room for one endpoint over AF_XDP, and many interfaces have one queue.
        endpoints: args.endpoints.unwrap_or(if args.transport.driver.is_xdp() {
            1
        } else {
            even_endpoints(args.flows)
        }),
        bytes: args.time.is_none().then_some(args.transfer.into()),
        time: Duration::from_secs(args.time.unwrap_or(0).into()),
        message: args.message,
        depth: args.depth,
        rounds: args.rounds,
        transports,
        rate,
        limit: Duration::ZERO,
        wait: args.wait.into(),
    };
    plan.check().map_err(Fault::usage)?;
    plan.limit = match args.limit {
        Some(limit) => limit.into(),
        None => plan::limit(&plan) + args.dead_spine.map_or(Duration::ZERO, Duration::from),
    };
    Ok(plan)
}

/// The most endpoints that share so many flows evenly.
fn even_endpoints(flows: u32) -> u32 {
    (1..=MAX_ENDPOINTS).rev().find(|&endpoints| flows.is_multiple_of(endpoints)).unwrap_or(1)
}

/// The transport's options; the link's rate is what was said, else `rate`.
fn with_link_rate(args: &IncastArgs, rate: u64) -> TransportArgs {
    TransportArgs { link_rate: args.transport.link_rate.or(Some(rate)), ..args.transport.clone() }
}

/// What can go wrong is found out before anybody waits.
fn prepare(args: &IncastArgs, plan: &Plan) -> Result<()> {
    for transport in &plan.transports {
        if let Transport::Tcp(congestion) = transport {
            tcp_side::check(congestion)?;
        }
    }
    output::check(args.csv.as_deref(), args.plots.as_deref(), args.html.as_deref())
}

/// Makes sure that all sockets of this process can be open at once; `senders` of them are in this process.
fn descriptors(plan: &Plan, args: &IncastArgs, senders: u32) -> Result<()> {
    const OTHERS: u64 = 100;
    // A socket per path, and two beside; the receiver's are fewer than that.
    let per_endpoint = u64::from(args.transport.paths) + 4;
    let tcp = 2 * u64::from(plan.senders) * u64::from(plan.flows);
    let need = OTHERS + tcp.max((u64::from(senders) * u64::from(plan.endpoints) + 1) * per_endpoint);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| Fault::driver(e.into()))?;
    if need > hard {
        return Err(Fault::setup(format_args!(
            "this takes {need} open files, and the limit is {hard}: raise it ('ulimit -n'), or take fewer --flows, --endpoints or --paths"
        )));
    }
    if need > soft {
        setrlimit(Resource::RLIMIT_NOFILE, need, hard).map_err(|e| Fault::driver(e.into()))?;
    }
    Ok(())
}

/// A sending rank.
fn send(args: &IncastArgs, rank: u32, master: &Target) -> Result<Exit> {
    // As many as a host may have; what is really needed is not known yet.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let host = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok());
    let sender = SenderArgs {
        rank,
        host: host.unwrap_or_else(|| format!("rank {rank}")),
        master: master.resolve(args.port)?,
        receiver: args.receiver,
        wait: args.wait.into(),
        transport: args.transport.clone(),
    };
    interrupt::install()?;
    sender::run(&sender, Clock::new())?;
    Ok(Exit::Ok)
}

fn bed_assumptions(bed: &BedArgs) -> Vec<String> {
    let mbit = |rate: u64| format!("{} Mbit/s", rate as f64 / 1e6);
    let mut lines = vec![format!(
        "cables of {} with queues of {} and packets of {} bytes",
        mbit(bed.rate),
        units::bytes(bed.queue.into()),
        bed.mtu
    )];
    if bed.spines > 1 {
        lines.push(format!("{} spines, {} each", bed.spines, mbit(bed.spine_rate)));
    }
    if let Some(dead) = bed.dead_spine {
        lines.push(format!(
            "one spine dead for {} s of each run, from a quarter of the ideal time on",
            dead.as_secs_f64()
        ));
    }
    lines
}

/// Puts the report together and shows it.
fn conclude(
    args: &IncastArgs,
    plan: &Plan,
    mut assumptions: Vec<String>,
    findings: Findings,
    began: Instant,
) -> Result<Exit> {
    let Findings { runs, skew, interrupted } = findings;
    let what = match plan.bytes {
        Some(bytes) => format!("{} bytes each", units::thousands(bytes)),
        None => format!("for {} s", plan.time.as_secs()),
    };
    let title = format!("{} senders x {} flows to one receiver, {what}", plan.senders, plan.flows);
    if let (Some(rate), Some(_)) = (plan.rate, plan.bytes) {
        assumptions.push(format!("ideal: all payload at {} Gbit/s, without any header", rate as f64 / 1e9));
    }
    if plan.endpoints < plan.flows {
        assumptions.push(format!("the flows of a sender share {} SRD endpoints", plan.endpoints));
    }
    let mut reports = runs.into_iter().map(|rounds| Report::of(SCENARIO, &title, assumptions.clone(), rounds));
    let mut report = reports.next().ok_or_else(Fault::interrupted)?;
    report.baselines = reports.map(|r| r.run).collect();
    report.wall_s = began.elapsed().as_secs_f64();
    let (start_skew_us, clock_error_us) = (skew.start_ns as f64 / 1e3, skew.clock_ns as f64 / 1e3);
    let ok = !interrupted && report.run.summary.unfinished == 0;
    let report = IncastReport { ok, report, interrupted, start_skew_us, clock_error_us };
    let written = output::write(&report.report, args.csv.as_deref(), args.plots.as_deref(), args.html.as_deref());
    if args.json {
        // There is one object only: what went wrong, if anything has.
        written?;
        render::json(&report)?;
    } else {
        render::text(&results::table(&report.report))?;
        render::text(&format!(
            "flows started within {start_skew_us:.0} us of each other; clocks agree to {clock_error_us:.0} us"
        ))?;
        written?;
    }
    if interrupted {
        render::complain("interrupted; the result is partial");
        return Ok(Exit::Interrupted);
    }
    Ok(if ok { Exit::Ok } else { Exit::Failed })
}

#[cfg(test)]
mod tests {
    use super::even_endpoints;

    #[test]
    fn flows_share_endpoints_evenly() {
        assert_eq!([1, 12, 16, 17, 75, 100].map(even_endpoints), [1, 12, 8, 1, 5, 10]);
    }
}
