//! A spine dies without a word in the middle of a transfer; what that does to SRD, and to TCP.

use std::thread;
use std::time::{Duration, Instant};

use srd::xdp::DriverChoice;
use srd::{Config, Span};
use testbed::{Clos, ClosBuilder, Direction, Moment, Rate, tcp};

use super::{Delays, Load, Node, Setup, Snapshot, Timeline, Watch, lateness};

/// Spines of the bed.
pub(crate) const SPINES: usize = 4;
/// What each of them carries.
pub(crate) const SPINE_RATE: Rate = Rate::mbit(100);
/// Bytes per second of UDP payload that a spine carries in full frames: the rest is headers.
pub(crate) const SPINE_PAYLOAD: f64 = SPINE_RATE.bytes_per_second() as f64 * 1472.0 / 1514.0;
/// What is left of a fabric of [`SPINES`] with one gone, and 90 % of it.
const RECOVERED: f64 = 0.9 * SPINE_PAYLOAD * (SPINES - 1) as f64;

/// The spine that dies.
const SPINE: usize = 1;
/// Time to reach full load.
const WARM_UP: Duration = Duration::from_millis(700);
/// How long the spine stays dead under observation.
const AFTER: Duration = Duration::from_millis(1500);
/// For how long lost goodput is counted.
const COUNTED: Duration = Duration::from_millis(100);
/// Longer than any healthy transfer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which way the spine swallows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Everything.
    Both,
    /// What goes from the receiver to the sender.
    Acks,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) hole: Instant,
    /// RTT under load, just before.
    pub(crate) rtt: Duration,
    pub(crate) timeline: Timeline,
    /// Goodput in bytes per second just before.
    pub(crate) before: f64,
    /// Goodput in bytes per second a second later.
    pub(crate) after: f64,
    /// How long goodput was lost, measured by 90 % of what the remaining spines carry, beyond what SRD's hosts were not run.
    pub(crate) lag: Duration,
    /// The longest time in which nothing arrived.
    pub(crate) stall: Duration,
    /// The worst that happened to a message, or to a flow.
    pub(crate) worst: Duration,
    /// How late this machine ran threads.
    pub(crate) late: Duration,
}

/// What was seen of SRD only.
#[derive(Debug)]
pub(crate) struct Detail {
    pub(crate) delays_before: Delays,
    pub(crate) delays_after: Delays,
    pub(crate) failed: usize,
    pub(crate) sent: usize,
    pub(crate) arrived: usize,
    /// When the healed spine carried at least half of its fair share again.
    pub(crate) used_again: Option<Duration>,
    pub(crate) at_hole: Snapshot,
    pub(crate) at_heal: Snapshot,
}

/// A bed for such experiments.
pub(crate) fn fabric() -> ClosBuilder {
    Clos::builder().spines(SPINES).hosts_per_leaf(1).spine_rate(SPINE_RATE).queue_bytes(64 << 10)
}

/// The protocol on such a bed: many paths, and a target for queues of four packets of a spine.
pub(crate) fn setup(name: u16) -> Setup {
    let target_delay = Span::from_micros(500);
    let protocol = Config { paths: 64, path_pool: 256, target_delay, ..Config::default() };
    Setup { protocol, driver: DriverChoice::Udp, port: 0, name }
}

/// Bytes that each spine has carried down to a leaf.
pub(crate) fn carried_down(bed: &Clos, leaf: usize) -> Vec<u64> {
    let links = bed.link_stats().expect("counters of the bed");
    links.iter().filter(|l| l.leaf == leaf && l.direction == Direction::Down).map(|l| l.bytes).collect()
}

/// Prepares the hole, and says when it opens.
fn dig(bed: &Clos, way: Way) -> Moment {
    for lead in [400, 1_600, 6_400].map(Duration::from_millis) {
        let moment = Moment::after(lead);
        match way {
            Way::Both => bed.hole_spine_at(moment, SPINE),
            Way::Acks => bed.hole_at(moment, SPINE, 1, Direction::Up),
        }
        .expect("a hole");
        if Instant::now() < moment.instant() {
            return moment;
        }
        // It opened before it was ready: this machine is too busy for so little time.
        bed.heal().expect("a healed bed");
    }
    panic!("a hole takes more than six seconds to prepare");
}

/// One SRD connection from host 0 to host 1.
pub(crate) fn srd(bed: &Clos, way: Way, [setup, other]: [&Setup; 2], load: Load) -> (Outcome, Detail) {
    let watch = Watch::start();
    let from = Node::start(bed.host(0), setup.clone());
    let to = Node::start(bed.host(1), other.clone());
    let start = Instant::now();
    from.send(to.addr(), load);
    thread::sleep(WARM_UP);
    let hole = dig(bed, way).instant();
    sleep_until(hole - Duration::from_millis(10));
    let at_hole = from.snapshot();
    let end = hole + AFTER;
    sleep_until(end);
    let at_heal = from.snapshot();
    let late = lateness(&watch, [&from, &to], hole, end);
    let held_up = from.held_up(hole, hole + COUNTED) + to.held_up(hole, hole + COUNTED);
    drop(watch);
    bed.heal().expect("a healed bed");
    let used_again = used_again(bed);
    assert!(from.drain(PATIENCE), "the transfer ends");
    to.assert_sound();
    let (departures, arrivals) = (from.take_departures(), to.take_arrivals());

    let timeline = Timeline::new(start, &arrivals);
    let delays_before = Delays::of(&departures, start + WARM_UP / 2, hole);
    let delays_after = Delays::of(&departures, hole, end);
    let outcome = Outcome {
        hole,
        rtt: at_hole.peer.srtt.into(),
        before: timeline.rate(start + WARM_UP / 2, hole),
        after: timeline.rate(end - Duration::from_millis(500), end),
        lag: timeline.lag(hole, hole + COUNTED, RECOVERED).saturating_sub(held_up),
        stall: timeline.longest_stall(hole, end),
        worst: delays_after.max(),
        timeline,
        late,
    };
    let failed = departures.iter().filter(|d| d.outcome.is_err()).count();
    let (sent, arrived) = (departures.len(), arrivals.len());
    (outcome, Detail { delays_before, delays_after, failed, sent, arrived, used_again, at_hole, at_heal })
}

/// Flows of TCP from host 0 to host 1, as many as it takes to fill all spines.
pub(crate) fn tcp(bed: &Clos, way: Way, flows: usize) -> Outcome {
    let watch = Watch::start();
    let stop = tcp::Stop::After(PATIENCE);
    let load = tcp::Load { flows, stop, bin: Duration::from_millis(1), ..tcp::Load::default() };
    let running = load.start(bed.host(0), bed.host(1)).expect("TCP flows");
    let start = Instant::now();
    thread::sleep(WARM_UP);
    let hole = dig(bed, way).instant();
    let rtt = Duration::ZERO;
    let end = hole + AFTER;
    sleep_until(end);
    running.stop();
    let report = running.join().expect("TCP flows");
    let late = watch.lateness(hole, end);
    bed.heal().expect("a healed bed");
    let timeline = Timeline::from_bins(start, report.bins);
    Outcome {
        hole,
        rtt,
        before: timeline.rate(start + WARM_UP / 2, hole),
        after: timeline.rate(end - Duration::from_millis(500), end),
        lag: timeline.lag(hole, hole + COUNTED, RECOVERED),
        stall: timeline.longest_stall(hole, end),
        worst: report.flows.iter().map(|f| f.longest_stall).max().unwrap_or_default(),
        timeline,
        late,
    }
}

/// How long it takes until the healed spine carries at least half of its fair share, a look at a time.
fn used_again(bed: &Clos) -> Option<Duration> {
    const LOOK: Duration = Duration::from_millis(50);
    let healed = Instant::now();
    let mut before = carried_down(bed, 1);
    while healed.elapsed() < Duration::from_secs(10) {
        thread::sleep(LOOK);
        let after = carried_down(bed, 1);
        let carried: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
        if carried[SPINE] * 2 * SPINES as u64 >= carried.iter().sum() {
            return Some(healed.elapsed());
        }
        before = after;
    }
    None
}

pub(crate) fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}
