//! A sending rank: does what the receiver asks for, over and over, until it says good-bye.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::clock::{Clock, nanos};
use super::control::{FromRank, Job, Line, MAGIC, Outcome, ToRank, Transport, VERSION};
use super::srd_side;
use super::tally::Signals;
use super::tcp_side::{self, HostCounters};
use crate::exit::{Exit, Fault, Result};
use crate::interrupt;
use crate::transport::{self, TransportArgs};

/// What a sending rank needs to know.
#[derive(Clone, Debug)]
pub(super) struct SenderArgs {
    pub(super) rank: u32,
    /// Name of this host in the report.
    pub(super) host: String,
    /// Where the receiver listens for its ranks.
    pub(super) master: SocketAddr,
    /// Where data go; none: the same host.
    pub(super) receiver: Option<IpAddr>,
    /// How long to wait for the receiver to be there.
    pub(super) wait: Duration,
    pub(super) transport: TransportArgs,
}

/// Pause between two attempts to find the receiver.
const RETRY: Duration = Duration::from_millis(100);
/// How long the receiver may take to say why it ended its data.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a glance at threads that work takes.
const GLANCE: Duration = Duration::from_millis(20);

pub(super) fn run(args: &SenderArgs, clock: Clock) -> Result<()> {
    let mut line = connect(args, clock)?;
    line.trust();
    let lost = |e: io::Error| {
        let what = format!("the connection to the receiver (rank 0) at {} broke; see its messages", args.master);
        Fault::new(Exit::Peer, anyhow::Error::new(e).context(what))
    };
    let hello = FromRank::Hello { magic: MAGIC.into(), version: VERSION, rank: args.rank, host: args.host.clone() };
    line.send(&hello).map_err(lost)?;
    let mut work: Option<Work> = None;
    loop {
        match line.poll::<ToRank>().map_err(lost)? {
            Some(ToRank::Ping) => line.send(&FromRank::Pong { clock_ns: clock.now() }).map_err(lost)?,
            Some(ToRank::Prepare(job)) => work = Some(Work::start(args, job, clock)?),
            Some(ToRank::Go { at_ns }) => work.iter().for_each(|w| w.signals.go(at_ns)),
            Some(ToRank::Bye) => return Ok(()),
            // The signal that made it give up may have been for us, too.
            Some(ToRank::Abort { .. }) if interrupt::requested() => return Err(Fault::interrupted()),
            Some(ToRank::Abort { reason }) => return Err(given_up(&reason)),
            None => {}
        }
        if interrupt::requested() {
            let _ = line.send(&FromRank::Failed { reason: "interrupted".into() });
            return Err(Fault::interrupted());
        }
        let Some(current) = &mut work else { continue };
        match current.news() {
            None => {}
            Some(Ok(News::Ready)) => line.send(&FromRank::Ready).map_err(lost)?,
            Some(Ok(News::Ended(outcome))) => {
                line.send(&FromRank::Done(outcome)).map_err(lost)?;
                work = None;
            }
            Some(Err(fault)) => {
                if let Some(reason) = last_words(&mut line, clock) {
                    return Err(given_up(&reason));
                }
                let _ = line.send(&FromRank::Failed { reason: fault.to_string() });
                return Err(fault);
            }
        }
    }
}

fn given_up(reason: &str) -> Fault {
    Fault::peer(format_args!("the receiver (rank 0) has given up: {reason}"))
}

/// Why the receiver has given up, if it has: the end of its data may be here before its words.
fn last_words(line: &mut Line, clock: Clock) -> Option<String> {
    let deadline = clock.now() + nanos(LAST_WORDS);
    while clock.now() < deadline {
        match line.poll::<ToRank>() {
            Ok(Some(ToRank::Abort { reason })) => return Some(reason),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    None
}

/// Finds the receiver, which may start later than we do.
fn connect(args: &SenderArgs, clock: Clock) -> Result<Line> {
    let deadline = clock.now() + nanos(args.wait);
    loop {
        let left = super::clock::duration(deadline - clock.now()).clamp(RETRY, Duration::from_secs(5));
        let why = match TcpStream::connect_timeout(&args.master, left).and_then(Line::new) {
            Ok(line) => return Ok(line),
            Err(e) => e,
        };
        if interrupt::requested() {
            return Err(Fault::interrupted());
        }
        if clock.now() >= deadline {
            let what = format!(
                "rank 0 does not listen at {}; start it there, check --master, or give it longer by --wait",
                args.master
            );
            return Err(Fault::new(Exit::Peer, anyhow::Error::new(why).context(what)));
        }
        std::thread::sleep(RETRY);
    }
}

enum News {
    Ready,
    Ended(Outcome),
}

/// What threads of a job report.
enum Report {
    Ready,
    Ended(Result<Outcome>),
}

/// A job under way, in threads. They end when this is dropped.
struct Work {
    signals: Arc<Signals>,
    reports: mpsc::Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
    not_ready: usize,
    running: usize,
    outcome: Outcome,
    /// The host's counters at the start, where TCP is measured.
    before: Option<HostCounters>,
}

impl Work {
    fn start(args: &SenderArgs, job: Job, clock: Clock) -> Result<Work> {
        job.check().map_err(|e| Fault::peer(format_args!("the receiver asks for what makes no sense: {e}")))?;
        let to = SocketAddr::new(args.receiver.unwrap_or(args.master.ip()), job.port);
        let from = transport::check_route(to)?.ip();
        let (tell, reports) = mpsc::channel();
        let signals = Arc::new(Signals::new());
        let parts = if job.transport == Transport::Srd { job.endpoints } else { job.flows };
        let mut work = Work {
            signals: Arc::clone(&signals),
            reports,
            threads: Vec::new(),
            not_ready: parts as usize,
            running: parts as usize,
            outcome: Outcome::default(),
            before: matches!(job.transport, Transport::Tcp(_)).then(HostCounters::read),
        };
        let job = Arc::new(job);
        for part in 0..parts {
            let (tell, signals, job) = (tell.clone(), Arc::clone(&signals), Arc::clone(&job));
            let transport = args.transport.clone();
            let first = |part: u32| job.first_flow + job.flows * part / parts;
            let flows = first(part)..first(part + 1);
            let run = move || {
                let ready = || drop(tell.send(Report::Ready));
                let ended = match &job.transport {
                    Transport::Srd => srd_side::Source::connect(from, to, &transport, &job, flows, clock, &signals)
                        .and_then(|source| {
                            ready();
                            source.run(&job, clock, &signals)
                        }),
                    Transport::Tcp(congestion) => {
                        tcp_side::Source::connect(to, congestion, &job, flows.start, &signals).and_then(|source| {
                            ready();
                            let flow = source.run(&job, clock, &signals)?;
                            Ok(Outcome { flows: vec![flow], ..Outcome::default() })
                        })
                    }
                };
                drop(tell.send(Report::Ended(ended)));
            };
            work.threads.push(tcp_side::spawn("sender", run)?);
        }
        Ok(work)
    }

    /// What has happened meanwhile, if it is worth telling.
    fn news(&mut self) -> Option<Result<News>> {
        loop {
            match self.reports.recv_timeout(GLANCE) {
                Ok(Report::Ready) => {
                    self.not_ready -= 1;
                    if self.not_ready == 0 {
                        return Some(Ok(News::Ready));
                    }
                }
                Ok(Report::Ended(Err(fault))) => return Some(Err(fault)),
                Ok(Report::Ended(Ok(outcome))) => {
                    self.outcome.flows.extend(outcome.flows);
                    self.outcome.packets += outcome.packets;
                    self.outcome.timeouts += outcome.timeouts;
                    self.running -= 1;
                    if self.running == 0 {
                        let mut outcome = std::mem::take(&mut self.outcome);
                        if let Some(before) = self.before {
                            before.account(&mut outcome);
                        }
                        return Some(Ok(News::Ended(outcome)));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(Fault::setup("a thread has gone without a word")));
                }
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.signals.stop();
        for thread in self.threads.drain(..) {
            // A panic has been printed by its thread, and is reported by the missing outcome.
            let _ = thread.join();
        }
    }
}
