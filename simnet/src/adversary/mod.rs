//! Random worlds in which everything goes wrong, and the demand that nothing goes wrong in them.
//!
//! A seed draws a topology, configurations, traffic and a schedule of faults. While the faults last, safety is checked:
//! no message twice, none damaged, none completed without delivery, no limit exceeded. Then everything heals, and progress
//! is demanded: every message completes, new ones are delivered, and then there is silence.

mod faults;
mod setup;
mod traffic;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use srd_core::{Span, Time};

use crate::check::Totals;
use crate::packet::HostId;
use crate::rng::Rng;
use crate::srd_world::SrdWorld;

/// What a run that went well was like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Hash of the event log.
    pub hash: u64,
    /// Events executed.
    pub events: u64,
    /// Datagrams sent.
    pub packets: u64,
    /// Virtual time that passed.
    pub elapsed: Span,
    /// Fates of messages.
    pub totals: Totals,
}

/// A rule that was broken, with what is needed to understand how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// When it was noticed.
    pub at: Time,
    /// What it was.
    pub what: String,
    /// The world and its schedule, a line each.
    pub plan: Vec<String>,
    /// The last events before it, a line each, and then what the endpoints know.
    pub tail: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} at {}: {}", self.seed, self.at, self.what)?;
        for line in self.plan.iter().chain(&self.tail) {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "replay with: {}", replay_command(self.seed))
    }
}

impl std::error::Error for Failure {}

/// The command that runs one seed again.
pub fn replay_command(seed: u64) -> String {
    format!("SRD_SIM_SEED={seed} SRD_SIM_SEEDS=1 cargo test -p simnet --test adversarial random -- --nocapture")
}

/// Events of the log that a failure shows.
const TAIL: usize = 100;

/// Runs the world of a seed.
///
/// # Errors
/// The first rule that was broken; a panic of the transport is one, too.
pub fn run_seed(seed: u64) -> Result<Summary, Box<Failure>> {
    run_seed_with(seed, TAIL)
}

/// Like [`run_seed`], keeping the last `tail` events for the report.
///
/// # Errors
/// See [`run_seed`].
pub fn run_seed_with(seed: u64, tail: usize) -> Result<Summary, Box<Failure>> {
    let mut scene = setup::draw(seed);
    let traffic = traffic::draw(&scene);
    let faults = faults::draw(&mut scene, &traffic);
    scene.describe_schedule(&traffic, &faults);
    scene.world.net_mut().log.keep(tail);
    let ran = catch_unwind(AssertUnwindSafe(|| play(&mut scene, traffic, faults)));
    let world = &scene.world;
    let what = match (ran, world.violation()) {
        (Err(panic), _) => format!("panic: {}", panic_text(&*panic)),
        (Ok(()), Some(violation)) => violation.what.clone(),
        (Ok(()), None) => {
            let counters = world.counters();
            return Ok(Summary {
                seed,
                hash: world.net().log.hash(),
                events: counters.events,
                packets: counters.packets,
                elapsed: world.now().since(Time::ZERO),
                totals: world.shared().totals(),
            });
        }
    };
    let mut tail: Vec<String> = world.net().log.tail().map(|(at, event)| format!("{at} {event}")).collect();
    tail.extend(states(world));
    Err(Box::new(Failure { seed, at: world.now(), what, plan: scene.plan, tail }))
}

/// Everything that a seed draws before time passes.
struct Scene {
    seed: u64,
    world: SrdWorld,
    fabric: crate::topology::Fabric,
    edge: Vec<crate::part::Part>,
    core: Vec<crate::part::Part>,
    hosts: Vec<setup::HostPlan>,
    /// Whether damaged datagrams reach the transport.
    damage_passes: bool,
    /// From when on nothing is wrong any more.
    heal: Time,
    plan: Vec<String>,
}

impl Scene {
    fn rng(&self, purpose: &str) -> Rng {
        Rng::derive(self.seed, purpose, 0)
    }

    /// The shortest time after which a host may give its peer up.
    fn peer_timeout(&self) -> Span {
        self.hosts.iter().map(|h| h.srd.config.peer_timeout).min().expect("there are hosts")
    }

    fn describe_schedule(&mut self, traffic: &[traffic::Shot], faults: &faults::Schedule) {
        let mut lines: Vec<(Time, String)> =
            faults.actions.iter().map(|(at, action)| (*at, format!("{at} {action:?}"))).collect();
        lines.extend(traffic.iter().map(|shot| (shot.at, format!("{} {shot}", shot.at))));
        lines.push((self.heal, format!("{} everything heals", self.heal)));
        lines.sort_by_key(|l| l.0);
        self.plan.extend(lines.into_iter().map(|l| l.1));
        self.plan.push(format!("expect {:?}", self.world.shared().expect));
    }
}

fn play(scene: &mut Scene, traffic: Vec<traffic::Shot>, faults: faults::Schedule) {
    for (at, action) in faults.actions {
        scene.world.at(at, action);
    }
    for shot in traffic {
        scene.world.run_until(shot.at);
        if scene.world.violation().is_some() {
            return;
        }
        shot.post(&mut scene.world);
    }
    scene.world.run_until(scene.heal);
    if scene.world.violation().is_some() {
        return;
    }
    faults::heal(scene);

    // The first round may meet connections whose other end is gone, the second may not.
    let pairs = traffic::pairs(scene.hosts.len());
    for round in 0..2 {
        scene.world.shared_mut().expect.outages &= round == 0;
        let first = scene.world.shared().messages().len();
        for (from, to) in &pairs {
            traffic::probe(&mut scene.world, *from, *to);
        }
        let limit = scene.world.now() + settling_time(scene);
        scene.world.settle(limit);
        scene.world.demand_settled("long after everything has healed");
        if scene.world.violation().is_some() {
            return;
        }
        if round == 1 {
            let failed = scene.world.shared().messages()[first..]
                .iter()
                .find(|m| !matches!(m.done, Some((Ok(()), _))) && m.from != m.to);
            if let Some(m) = failed {
                let what =
                    format!("a message from h{} to h{} fails although all is well: {:?}", m.from.0, m.to.0, m.done);
                scene.world.net_mut().violate(what);
            }
        }
    }
    demand_silence(scene, pairs.len() as u64);
}

/// How long the messages that are open may take once nothing is wrong any more: the longest back-offs, the time for which a
/// smallest RTT of better days is remembered (ten seconds), and a twentieth of the slowest link's rate for what is left to
/// send. Scenarios demand more of single failures; this is the bound after any mixture of them.
fn settling_time(scene: &Scene) -> Span {
    let config = scene.hosts.iter().map(|h| &h.srd.config);
    let backoff = config.clone().map(|c| c.rto_max.max(c.rnr_max)).max().expect("there are hosts");
    let timeout = config.map(|c| c.peer_timeout).max().expect("there are hosts");
    let bytes: u64 = scene
        .world
        .shared()
        .open_messages()
        .map(|m| 512 + u64::from(scene.world.shared().messages()[m as usize].len))
        .sum();
    let rate = setup::slowest(&scene.edge).min(setup::slowest(&scene.core)) / 20;
    Span::from_secs(12) + timeout + backoff * 8 + Span::from_nanos(bytes * 8_000_000_000 / rate.max(1))
}

/// When everything is delivered, only keepalives may be sent, few enough, and nothing may be left half done.
fn demand_silence(scene: &mut Scene, pairs: u64) {
    let world = &mut scene.world;
    world.run_for(Span::from_secs(1));
    let span = Span::from_secs(3);
    let keepalive = scene.hosts.iter().map(|h| h.srd.config.keepalive).min().expect("there are hosts");
    let sent = world.packets_during(span);
    // A keepalive and its answer, from both ends; and some probing of paths that were dead.
    let allowed = pairs * (4 * (1 + span.as_nanos() / keepalive.as_nanos()) + 24);
    if sent > allowed && world.violation().is_none() {
        world
            .net_mut()
            .violate(format!("{sent} packets within {span} of silence between {pairs} pairs, at most {allowed}"));
    }
    for host in world.hosts() {
        let places = world.node(host).open_places();
        if places > 0 && world.violation().is_none() {
            world
                .net_mut()
                .violate(format!("h{} holds {places} half delivered messages after all have completed", host.0));
        }
    }
}

/// What every endpoint knows at the end, a line per host and peer.
fn states(world: &SrdWorld) -> Vec<String> {
    let mut lines = Vec::new();
    for host in world.hosts() {
        lines.push(format!("h{} {:?}", host.0, world.node(host).endpoint_stats()));
        for peer in world.hosts().filter(|p| *p != host) {
            let mut stats = world.node(host).peer_stats(peer);
            let paths = std::mem::take(&mut stats.paths);
            if stats.established || stats.messages > 0 {
                lines.push(format!("h{} -> h{} {stats:?}", host.0, peer.0));
                lines.extend(paths.iter().take(4).map(|p| format!("   {p:?}")));
            }
        }
    }
    lines
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "of an unknown kind".to_owned())
}

/// A host of a scene, at random.
fn any_host(rng: &mut Rng, scene: &Scene) -> HostId {
    HostId(rng.below(scene.hosts.len() as u64) as u32)
}
