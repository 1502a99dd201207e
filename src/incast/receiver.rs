//! Rank 0: gathers the senders, agrees with them on each run, receives, and puts the results together.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::clock::{Clock, duration, nanos};
use super::control::{FromRank, Job, Line, MAGIC, Outcome, ToRank, Transport, VERSION};
use super::plan::Plan;
use super::report::{self, Skew};
use super::tally::{Signals, Tally};
use super::{srd_side, tcp_side};
use crate::exit::{Fault, Result};
use crate::results::Run;
use crate::transport::TransportArgs;
use crate::{interrupt, transport};

/// What surrounds the runs: the network, which may be asked to break during them.
pub(super) trait Stage {
    /// When the next run starts, on `clock`; at least [`LEAD`] away.
    fn start(&mut self, clock: Clock) -> Result<i64> {
        Ok(clock.now() + nanos(LEAD))
    }

    /// A run is over; adds what the network knows of it.
    fn end(&mut self, _run: &mut Run) -> Result<()> {
        Ok(())
    }
}

/// A network that we know nothing of.
pub(super) struct RealNetwork;

impl Stage for RealNetwork {}

/// From the agreement on a start to that start: enough for the news to arrive everywhere.
pub(super) const LEAD: Duration = Duration::from_millis(300);
/// Looks at each sender's clock; the fastest one counts.
const PINGS: usize = 16;
/// How long senders may take to connect their flows, and to report after the limit of a run.
const GRACE: Duration = Duration::from_secs(20);
/// Longest time without a look at signals.
const GLANCE: Duration = Duration::from_millis(50);
/// Connections that have not introduced themselves yet, at once.
const STRANGERS: usize = 64;

/// What came of all runs.
pub(super) struct Findings {
    /// By transport, then by round.
    pub(super) runs: Vec<Vec<Run>>,
    pub(super) skew: Skew,
    /// Not all that was asked for.
    pub(super) interrupted: bool,
}

/// Runs everything in the plan.
pub(super) fn run(
    plan: &Plan,
    ip: IpAddr,
    listener: TcpListener,
    args: &TransportArgs,
    clock: Clock,
    stage: &mut dyn Stage,
) -> Result<Findings> {
    let mut hall = Hall::open(listener, clock)?;
    let result = hall.gather(plan).and_then(|()| {
        let mut findings = Findings { runs: Vec::new(), skew: hall.synchronise()?, interrupted: false };
        for transport in &plan.transports {
            let mut rounds = Vec::new();
            for round in 0..plan.rounds {
                match hall.round(plan, transport, round, ip, args, stage, &mut findings.skew) {
                    Ok(run) => rounds.push(run),
                    // What was measured until then is worth something.
                    Err(_) if interrupt::requested() && !(findings.runs.is_empty() && rounds.is_empty()) => {
                        findings.interrupted = true;
                        break;
                    }
                    Err(fault) => return Err(fault),
                }
            }
            if !rounds.is_empty() {
                findings.runs.push(rounds);
            }
            if findings.interrupted {
                break;
            }
        }
        Ok(findings)
    });
    // A signal to all ranks, or to a test bed, reaches them too, and they may be the first to say so.
    let result = result.map_err(|fault| if interrupt::requested() { Fault::interrupted() } else { fault });
    let farewell = match &result {
        Ok(Findings { interrupted: false, .. }) => ToRank::Bye,
        Ok(_) => ToRank::Abort { reason: "interrupted".into() },
        Err(fault) => ToRank::Abort { reason: fault.to_string() },
    };
    hall.tell_all(&farewell);
    result
}

/// Something that a connection said, and when.
struct Event {
    from: usize,
    at: i64,
    what: std::result::Result<FromRank, String>,
}

/// A sender.
struct Rank {
    host: String,
    line: Line,
    /// Its clock less ours.
    offset: i64,
}

/// Where all connections of senders end.
struct Hall {
    clock: Clock,
    events: mpsc::Receiver<Event>,
    /// To send by, until they have introduced themselves.
    strangers: mpsc::Receiver<(usize, Line)>,
    unknown: BTreeMap<usize, Line>,
    /// Rank by number of its connection.
    numbers: BTreeMap<usize, u32>,
    ranks: BTreeMap<u32, Rank>,
    is_over: Arc<AtomicBool>,
    porter: Option<JoinHandle<()>>,
}

impl Hall {
    fn open(listener: TcpListener, clock: Clock) -> Result<Hall> {
        listener.set_nonblocking(true).map_err(Fault::driver)?;
        let (tell, events) = mpsc::channel();
        let (bring, strangers) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let porter = tcp_side::spawn("porter", move || admit(&listener, clock, &tell, &bring, &over))?;
        let (unknown, numbers, ranks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Hall { clock, events, strangers, unknown, numbers, ranks, is_over, porter: Some(porter) })
    }

    /// The next thing that a rank says, if it comes before `deadline`. What strangers say is dealt with on the way.
    fn hear(&mut self, deadline: i64, waiting_for: &str, plan: &Plan) -> Result<(u32, i64, FromRank)> {
        loop {
            if interrupt::requested() {
                return Err(Fault::interrupted());
            }
            let left = duration(deadline - self.clock.now());
            let event = match self.events.recv_timeout(left.min(GLANCE)) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) if self.clock.now() < deadline => continue,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Fault::peer(format_args!("waited in vain for {waiting_for}{}", self.missing(plan))));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Fault::setup("no longer listening for senders")),
            };
            self.unknown.extend(self.strangers.try_iter());
            match (self.numbers.get(&event.from).copied(), event.what) {
                (Some(rank), Ok(FromRank::Failed { reason })) => {
                    return Err(Fault::peer(format_args!("rank {rank} ({}) failed: {reason}", self.ranks[&rank].host)));
                }
                (Some(rank), Ok(message)) => return Ok((rank, event.at, message)),
                (Some(rank), Err(why)) => {
                    let host = &self.ranks[&rank].host;
                    return Err(Fault::peer(format_args!("lost rank {rank} ({host}): {why}")));
                }
                (None, Ok(FromRank::Hello { magic, version, rank, host })) if magic == MAGIC => {
                    let Some(mut line) = self.unknown.remove(&event.from) else { continue };
                    let problem = if version != VERSION {
                        Some(format!(
                            "it speaks version {VERSION} of the protocol, not {version}: install the same 'srd' everywhere"
                        ))
                    } else if rank == 0 || rank > plan.senders {
                        Some(format!("it expects ranks 1 to {}, not {rank}: give all the same --size", plan.senders))
                    } else if self.ranks.contains_key(&rank) {
                        Some(format!("there is a rank {rank} already, on {}", self.ranks[&rank].host))
                    } else {
                        None
                    };
                    if let Some(reason) = problem {
                        let _ = line.send(&ToRank::Abort { reason });
                        line.close();
                        continue;
                    }
                    let host = host.chars().filter(|c| !c.is_control()).take(64).collect();
                    self.numbers.insert(event.from, rank);
                    self.ranks.insert(rank, Rank { host, line, offset: 0 });
                    return Ok((rank, event.at, FromRank::Ready));
                }
                (None, _) => {
                    if let Some(line) = self.unknown.remove(&event.from) {
                        line.close();
                    }
                }
            }
        }
    }

    fn missing(&self, plan: &Plan) -> String {
        let missing: Vec<String> =
            (1..=plan.senders).filter(|r| !self.ranks.contains_key(r)).map(|r| r.to_string()).collect();
        match missing.is_empty() {
            true => String::new(),
            false => format!("; missing: rank {}. Are they started, with --master pointing here?", missing.join(", ")),
        }
    }

    /// Waits until all senders are there.
    fn gather(&mut self, plan: &Plan) -> Result<()> {
        let deadline = self.clock.now() + nanos(plan.wait);
        while self.ranks.len() < plan.senders as usize {
            self.hear(deadline, "senders", plan)?;
        }
        Ok(())
    }

    /// Finds how far each sender's clock is from ours.
    fn synchronise(&mut self) -> Result<Skew> {
        let plan = Plan { senders: self.ranks.len() as u32, ..Plan::default() };
        let mut skew = Skew::default();
        for rank in 1..=plan.senders {
            let mut best = i64::MAX;
            for _ in 0..PINGS {
                let sent = self.clock.now();
                self.tell(rank, &ToRank::Ping)?;
                let (from, at, message) = self.hear(sent + nanos(GRACE), "the answer to a ping", &plan)?;
                if let FromRank::Pong { clock_ns } = message
                    && from == rank
                    && at - sent < best
                {
                    best = at - sent;
                    let offset = clock_ns.saturating_sub(sent + best / 2);
                    self.ranks.entry(rank).and_modify(|r| r.offset = offset);
                }
            }
            skew.clock_ns = skew.clock_ns.max(best / 2);
        }
        Ok(skew)
    }

    fn tell(&mut self, rank: u32, message: &ToRank) -> Result<()> {
        let Some(to) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let lost = |e: io::Error| Fault::peer(format_args!("lost rank {rank} ({}): {e}", to.host));
        to.line.send(message).map_err(lost)
    }

    fn tell_all(&mut self, message: &ToRank) {
        for rank in self.ranks.values_mut() {
            // Who is gone needs no farewell.
            let _ = rank.line.send(message);
        }
    }

    /// One run, from its preparation to its results.
    fn round(
        &mut self,
        plan: &Plan,
        transport: &Transport,
        round: u32,
        ip: IpAddr,
        args: &TransportArgs,
        stage: &mut dyn Stage,
        skew: &mut Skew,
    ) -> Result<Run> {
        let seed = transport::seed()?;
        let nonce = seed.iter().fold(0_u64, |a, b| a.rotate_left(8) ^ u64::from(*b));
        let mut job = plan.job(transport.clone(), nonce);
        let mut data = Data::start(&job, plan, ip, args, self.clock)?;
        job.port = data.port;
        for rank in 1..=plan.senders {
            let job = Job { first_flow: (rank - 1) * plan.flows, ..job.clone() };
            self.tell(rank, &ToRank::Prepare(job))?;
        }
        let deadline = self.clock.now() + nanos(GRACE);
        let mut ready = 0;
        while ready < plan.senders {
            if matches!(self.hear(deadline, "senders to connect their flows", plan)?, (_, _, FromRank::Ready)) {
                ready += 1;
            }
        }
        let start = stage.start(self.clock)?;
        data.signals.go(start);
        for rank in 1..=plan.senders {
            let at_ns = start.saturating_add(self.ranks.get(&rank).map_or(0, |r| r.offset));
            self.tell(rank, &ToRank::Go { at_ns })?;
        }
        let deadline = start + nanos(plan.limit) + nanos(GRACE);
        let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
        while outcomes.len() < plan.senders as usize {
            if let (rank, _, FromRank::Done(mut outcome)) = self.hear(deadline, "the results of all senders", plan)? {
                let offset = self.ranks.get(&rank).map_or(0, |r| r.offset);
                outcome.flows.iter_mut().for_each(|f| f.start_ns = f.start_ns.saturating_sub(offset));
                outcomes.insert(rank, outcome);
            }
        }
        let tallies = data.finish()?;
        let hosts = self.ranks.iter().map(|(rank, r)| (*rank, r.host.clone())).collect();
        let mut run = report::assemble(plan, transport, round, start, &outcomes, &tallies, &hosts, skew)?;
        stage.end(&mut run)?;
        Ok(run)
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(porter) = self.porter.take() {
            let _ = porter.join();
        }
        for rank in self.ranks.values() {
            rank.line.close();
        }
    }
}

/// Takes connections and listens to each in a thread of its own, until it is over.
fn admit(
    listener: &TcpListener,
    clock: Clock,
    tell: &mpsc::Sender<Event>,
    bring: &mpsc::Sender<(usize, Line)>,
    over: &Arc<AtomicBool>,
) {
    let mut number = 0;
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !over.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(GLANCE);
            continue;
        };
        threads.retain(|t| !t.is_finished());
        // Senders stay, strangers must leave soon.
        if threads.len() >= super::control::MAX_FLOWS as usize + STRANGERS {
            continue;
        }
        number += 1;
        let (tell, over) = (tell.clone(), Arc::clone(over));
        let Ok((line, writer)) = greet(stream) else { continue };
        if bring.send((number, writer)).is_err() {
            return;
        }
        let listen = move || listen(line, number, clock, &tell, &over);
        threads.extend(tcp_side::spawn("rank", listen).ok());
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn greet(stream: TcpStream) -> io::Result<(Line, Line)> {
    let line = Line::new(stream)?;
    let writer = line.writer()?;
    Ok((line, writer))
}

/// Passes on what comes over a connection. One that does not introduce itself in time is closed.
fn listen(mut line: Line, from: usize, clock: Clock, tell: &mpsc::Sender<Event>, over: &AtomicBool) {
    const INTRODUCTION: Duration = Duration::from_secs(5);
    let deadline = clock.now() + nanos(INTRODUCTION);
    let mut is_known = false;
    while !over.load(Ordering::Acquire) {
        let what = match line.poll::<FromRank>() {
            Ok(None) if is_known || clock.now() < deadline => continue,
            Ok(None) => Err("it did not introduce itself".into()),
            Ok(Some(message)) => Ok(message),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err("it closed the connection".into()),
            Err(e) => Err(e.to_string()),
        };
        let is_end = what.is_err();
        if matches!(what, Ok(FromRank::Hello { .. })) {
            is_known = true;
            line.trust();
        }
        if tell.send(Event { from, at: clock.now(), what }).is_err() || is_end {
            line.close();
            return;
        }
    }
}

/// The receiving side of one run, in a thread; ends when dropped.
struct Data {
    port: u16,
    signals: Arc<Signals>,
    thread: Option<JoinHandle<Result<Vec<Tally>>>>,
}

impl Data {
    fn start(job: &Job, plan: &Plan, ip: IpAddr, args: &TransportArgs, clock: Clock) -> Result<Data> {
        let signals = Arc::new(Signals::new());
        let (shared, counting, flows) = (Arc::clone(&signals), plan.counting(), plan.senders * plan.flows);
        let (port, thread) = match &job.transport {
            Transport::Srd => {
                let sink = srd_side::Sink::bind(ip, args, job, flows)?;
                (sink.port(), tcp_side::spawn("receiver", move || sink.run(flows, counting, clock, &shared))?)
            }
            Transport::Tcp(_) => {
                let sink = tcp_side::Sink::bind(ip)?;
                let nonce = job.nonce;
                (sink.port()?, tcp_side::spawn("receiver", move || sink.run(nonce, flows, counting, clock, shared))?)
            }
        };
        Ok(Data { port, signals, thread: Some(thread) })
    }

    fn finish(&mut self) -> Result<Vec<Tally>> {
        self.signals.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        self.signals.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
