//! `srd incast --testbed`: the network made of namespaces on this host, and all ranks in this process.
//!
//! The only file that knows the crate `testbed`. One switch, or two racks over several spines; the receiver's cable is
//! the bottleneck. A spine may die without a word during every run.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use testbed::{CableStats, Clos, Direction, LinkDrops, LinkStats, Moment, Rate};

use super::clock::{Clock, nanos};
use super::plan::Plan;
use super::receiver::{self, Findings, LEAD, Stage};
use super::sender::{self, SenderArgs};
use crate::exit::{Exit, Fault, Result};
use crate::results::{Link, Run};
use crate::transport::TransportArgs;

/// The network.
#[derive(Clone, Copy, Debug)]
pub(super) struct BedArgs {
    /// Bits per second of every host's cable.
    pub(super) rate: u64,
    /// Bytes that may wait before a cable.
    pub(super) queue: u32,
    /// Largest IP packet.
    pub(super) mtu: u32,
    /// Spines between senders and receiver; one means a single switch.
    pub(super) spines: u16,
    /// Bits per second of every cable of a spine.
    pub(super) spine_rate: u64,
    /// How long a spine is dead in every run.
    pub(super) dead_spine: Option<Duration>,
}

/// The spine that dies.
const VICTIM: usize = 0;
/// When it dies, as a share of the ideal time of a run.
const DIES_AT: f64 = 0.25;

fn failed(e: testbed::Error) -> Fault {
    let exit = if matches!(e, testbed::Error::Invalid(_)) { Exit::Usage } else { Exit::Setup };
    Fault::new(exit, anyhow::Error::new(e).context("cannot make the test bed"))
}

/// Makes the network, runs the plan in it, and removes it.
pub(super) fn run(plan: &Plan, args: &BedArgs, transport: &TransportArgs) -> Result<Findings> {
    testbed::available().map_err(|e| Fault::setup(format_args!("no test bed: {e}")))?;
    let senders = plan.senders as usize;
    let one_switch = args.spines < 2;
    let bed = Clos::builder()
        .leaves(if one_switch { 1 } else { 2 })
        .spines(usize::from(args.spines))
        .hosts_per_leaf(if one_switch { senders + 1 } else { senders })
        .host_rate(Rate::bits(args.rate))
        .spine_rate(Rate::bits(args.spine_rate))
        .queue_bytes(args.queue)
        .mtu(args.mtu)
        .build()
        .map_err(failed)?;
    let bed = Arc::new(bed);
    let to = bed.host(senders);
    let ip = IpAddr::V4(to.addr());
    let listener = to.enter(|| TcpListener::bind((ip, 0))).map_err(failed)?;
    let listener = listener.map_err(Fault::driver)?;
    let master: SocketAddr = listener.local_addr().map_err(Fault::driver)?;
    let clock = Clock::new();
    let ranks: Vec<JoinHandle<Result<()>>> = (0..senders)
        .map(|host| {
            let args = SenderArgs {
                rank: host as u32 + 1,
                host: format!("h{host}"),
                master,
                receiver: None,
                wait: plan.wait,
                transport: transport.clone(),
            };
            bed.host(host).spawn(move || sender::run(&args, clock)).map_err(failed)
        })
        .collect::<Result<_>>()?;
    let mut stage = BedStage::new(Arc::clone(&bed), *args, plan)?;
    let (plan, transport) = (plan.clone(), transport.clone());
    let receiving =
        to.spawn(move || receiver::run(&plan, ip, listener, &transport, clock, &mut stage)).map_err(failed)?;
    let findings = join(receiving);
    // Their errors are consequences of the receiver's, or have been reported to it.
    let sent: Vec<Result<()>> = ranks.into_iter().map(join).collect();
    drop(sent);
    findings
}

fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The bed during a run.
struct BedStage {
    bed: Arc<Clos>,
    args: BedArgs,
    receiver: usize,
    /// From start to death.
    dies_after: Duration,
    /// From start to the end of a run whose flows are not done.
    limit: Duration,
    before: Counts,
    healer: Option<Later<()>>,
    /// Counts what was carried until then: what waits in senders goes on after that.
    meter: Option<Later<Option<Result<Counts>>>>,
}

/// Something that a thread does later, or as soon as this is dropped.
struct Later<T> {
    now: mpsc::Sender<()>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Later<T> {
    /// `work` is told whether its time has come.
    fn after(delay: Duration, work: impl FnOnce(bool) -> T + Send + 'static) -> Later<T> {
        let (now, wait) = mpsc::channel::<()>();
        let thread = thread::spawn(move || work(wait.recv_timeout(delay) == Err(RecvTimeoutError::Timeout)));
        Later { now, thread }
    }

    /// Does it now, unless it was done. A thread that has panicked has said so.
    fn now(self) -> Option<T> {
        drop(self.now);
        self.thread.join().ok()
    }
}

/// What all cables have carried and dropped.
struct Counts {
    /// Down to the receiver, and up from each host.
    cables: Vec<(usize, Direction, CableStats)>,
    links: Vec<LinkStats>,
    drops: Vec<LinkDrops>,
}

impl BedStage {
    fn new(bed: Arc<Clos>, args: BedArgs, plan: &Plan) -> Result<BedStage> {
        let receiver = plan.senders as usize;
        let before = Counts::read(&bed, receiver)?;
        let lasts = plan.ideal_us().map_or(plan.time, |us| Duration::from_secs_f64(us / 1e6));
        let (dies_after, limit) = (lasts.mul_f64(DIES_AT), plan.limit);
        Ok(BedStage { bed, args, receiver, dies_after, limit, before, healer: None, meter: None })
    }

    /// What was carried until the limit, if that has come.
    fn tidy(&mut self) -> Option<Result<Counts>> {
        if let Some(healer) = self.healer.take() {
            healer.now();
        }
        self.meter.take().and_then(Later::now).flatten()
    }

    fn measure_until(&mut self, end: Duration) {
        let (bed, receiver) = (Arc::clone(&self.bed), self.receiver);
        self.meter = Some(Later::after(end, move |is_time| is_time.then(|| Counts::read(&bed, receiver))));
    }
}

impl Stage for BedStage {
    fn start(&mut self, clock: Clock) -> Result<i64> {
        self.before = Counts::read(&self.bed, self.receiver)?;
        let Some(dead) = self.args.dead_spine else {
            self.measure_until(LEAD + self.limit);
            return Ok(clock.now() + nanos(LEAD));
        };
        // Setting the holes takes a while, too; they open at a whole second.
        let moment = Moment::after(self.dies_after + LEAD + Duration::from_millis(700));
        self.bed.hole_spine_at(moment, VICTIM).map_err(failed)?;
        let start = clock.at(moment.instant()) - nanos(self.dies_after);
        if start < clock.now() + nanos(LEAD) / 2 {
            return Err(Fault::setup("this machine is too busy to let a spine die in time"));
        }
        let away = super::clock::duration(start - clock.now());
        let bed = Arc::clone(&self.bed);
        // Should that fail, the next run cannot set its holes either, and says so.
        let heal = move |_| drop(bed.heal());
        self.healer = Some(Later::after(away + self.dies_after + dead, heal));
        self.measure_until(away + self.limit);
        Ok(start)
    }

    fn end(&mut self, run: &mut Run) -> Result<()> {
        let after = self.tidy().unwrap_or_else(|| Counts::read(&self.bed, self.receiver))?;
        let seconds = run.summary.duration_us / 1e6;
        run.links = after.since(&self.before, &self.args, seconds);
        run.summary.drops = run.links.iter().map(|l| l.drops + l.losses).sum();
        let sent = after.sent() - self.before.sent();
        run.summary.drop_share = run.summary.drops as f64 / sent.max(1) as f64;
        run.flows.iter_mut().for_each(|f| f.to = format!("h{}", self.receiver));
        Ok(())
    }
}

impl Drop for BedStage {
    fn drop(&mut self) {
        drop(self.tidy());
    }
}

impl Counts {
    fn read(bed: &Clos, receiver: usize) -> Result<Counts> {
        let cable = |(host, direction)| Ok((host, direction, bed.host_stats(host, direction).map_err(failed)?));
        let up = (0..=receiver).map(|host| (host, Direction::Up));
        let cables = std::iter::once((receiver, Direction::Down)).chain(up);
        let fabric = bed.leaves() > 1;
        Ok(Counts {
            cables: cables.map(cable).collect::<Result<_>>()?,
            links: if fabric { bed.link_stats().map_err(failed)? } else { Vec::new() },
            drops: if fabric { bed.link_drops().map_err(failed)? } else { Vec::new() },
        })
    }

    /// Packets that hosts have sent.
    fn sent(&self) -> u64 {
        let up = self.cables.iter().filter(|(_, direction, _)| *direction == Direction::Up);
        up.map(|(.., stats)| stats.packets + stats.overflow).sum()
    }

    /// What has happened since `before`, within `seconds`.
    fn since(&self, before: &Counts, args: &BedArgs, seconds: f64) -> Vec<Link> {
        let link = |link: String, rate: u64, bytes: u64, packets: u64, drops: u64, losses: u64| Link {
            link,
            rate_gbps: rate as f64 / 1e9,
            utilisation: busy(bytes, rate, seconds),
            packets,
            drops,
            losses,
            buffer: args.queue.into(),
            ..Link::default()
        };
        let cables = self.cables.iter().zip(&before.cables).map(|((host, direction, now), (.., old))| {
            let name = match direction {
                Direction::Up => format!("h{host} up"),
                Direction::Down => format!("h{host} down"),
            };
            let losses = now.impaired - old.impaired;
            let (bytes, packets, drops) =
                (now.bytes - old.bytes, now.packets - old.packets, now.overflow - old.overflow);
            link(name, args.rate, bytes, packets, drops, losses)
        });
        let drops = self.drops.iter().zip(&before.drops);
        let fabric = self.links.iter().zip(&before.links).zip(drops).map(|((now, old), (lost, lost_old))| {
            let name = format!("leaf{} spine{} {}", now.leaf, now.spine, now.direction);
            let (drops, losses) = (lost.overflow - lost_old.overflow, lost.impaired - lost_old.impaired);
            link(name, args.spine_rate, now.bytes - old.bytes, now.packets - old.packets, drops, losses)
        });
        cables.chain(fabric).collect()
    }
}

/// The share of the time in which a cable sent. Counters are read a little before and after the flows, whose farewell is
/// theirs, too, so that they may have more than the time had room for.
fn busy(bytes: u64, rate: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { (bytes as f64 * 8.0 / (rate as f64 * seconds)).min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(down: CableStats, up: [CableStats; 2]) -> Counts {
        let up = up.into_iter().enumerate().map(|(host, stats)| (host, Direction::Up, stats));
        let cables = std::iter::once((1, Direction::Down, down)).chain(up).collect();
        Counts { cables, links: Vec::new(), drops: Vec::new() }
    }

    #[test]
    fn links_say_what_was_counted_and_nothing_else() {
        let stats = |bytes, packets, overflow| CableStats { bytes, packets, overflow, ..CableStats::default() };
        let before = counts(stats(100, 1, 0), [stats(100, 1, 0), stats(0, 0, 0)]);
        let after = counts(stats(20_000_100, 901, 90), [stats(1_000_100, 991, 10), stats(5_000, 50, 0)]);
        let args = BedArgs { rate: 8_000_000, queue: 60_000, mtu: 1_500, spines: 1, spine_rate: 0, dead_spine: None };
        let links = after.since(&before, &args, 2.0);
        let names: Vec<_> = links.iter().map(|l| (l.link.as_str(), l.utilisation)).collect();
        assert_eq!(names, [("h1 down", 1.0), ("h0 up", 0.5), ("h1 up", 0.0025)]);
        assert_eq!((links[0].drops, links[0].queue_max), (90, None));
        // What was sent, on whatever way: the packets of one hop are not those of the next.
        assert_eq!(after.sent() - before.sent(), 1_050);
    }

    #[test]
    fn later_is_now_if_nobody_waits() {
        assert_eq!(Later::after(Duration::from_secs(3_600), |is_time| is_time).now(), Some(false));
        let due = Later::after(Duration::ZERO, |is_time| is_time);
        while !due.thread.is_finished() {
            thread::yield_now();
        }
        assert_eq!(due.now(), Some(true));
    }
}
