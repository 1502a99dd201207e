//! `srd perf server`: serves measurements, one client after the other.
//!
//! Owns the state of the session that runs and nothing of those that are over. Whatever clients do, it goes on: strangers
//! are refused, a second client is told that it must wait, and one that vanishes is forgotten after a while.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use srd::{Driver as _, Endpoint, Event, Failure, PeerId, Span, Time};

use super::control::{self, Op, Outcome, Reason, Start, Test};
use super::pump;
use super::upper::PerfUpper;
use super::{DEFAULT_PORT, cpu};
use crate::driver::AnyDriver;
use crate::exit::{Exit, Fault, Result};
use crate::report::{Counters, Snapshot};
use crate::transport::{self, Mode, TransportArgs};
use crate::{interrupt, render, units};

/// Options of `srd perf server`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Local address to listen on, with or without port
    #[arg(long, short, value_name = "ADDR[:PORT]", default_value = "0.0.0.0", value_parser = transport::ip_and_port)]
    bind: (SocketAddr, Option<u16>),
    /// Port to listen on, where --bind names none; 0 lets the system choose
    #[arg(long, short, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// End after one client, with its result as exit code
    #[arg(long)]
    one_off: bool,
    /// Seconds of silence after which a client counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = units::seconds)]
    client_timeout: Span,
    /// Print one JSON object at the end, about all sessions
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    transport: TransportArgs,
}

/// One finished session.
#[derive(Clone, Debug, Serialize)]
struct SessionReport {
    /// Address of the client.
    client: String,
    /// Kind of the test.
    test: Test,
    /// Bytes per message.
    size: u32,
    /// Messages outstanding at once.
    depth: u32,
    /// Whether both sides sent.
    bidir: bool,
    /// Whether the client ended it properly.
    complete: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Gbit/s of payload received.
    bandwidth_gbps: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

/// What the server reports when it ends.
#[derive(Debug, Serialize)]
struct ServerReport {
    /// It ended after one client, as asked to, and not by a signal.
    ok: bool,
    /// Address it listened on.
    listening: String,
    /// The last sessions, oldest first.
    sessions: Vec<SessionReport>,
}

/// Sessions remembered for the report.
const MAX_SESSIONS: usize = 1000;
/// Pause of an idle server that would otherwise spin for nobody.
const DOZE: Duration = Duration::from_micros(200);
/// How long the good-bye may take.
const GOODBYE: Span = Span::from_millis(500);
/// Slowest client that is worth waiting for: its messages may take this much longer than the timeout, in ns per byte
/// (10 Mbit/s).
const PATIENCE_NS_PER_BYTE: u64 = 800;

pub(crate) fn run(args: &ServerArgs) -> Result<Exit> {
    interrupt::install()?;
    let (mut local, port) = args.bind;
    local.set_port(port.unwrap_or(args.port));
    let config = args.transport.config(local, args.client_timeout)?;
    let driver = args.transport.bind(local).map_err(|fault| fault.with_hint(&transport::port_hint(local.ip())))?;
    let mut pump = pump::start(driver, config, transport::seed()?);
    let listening = pump.driver.local_addr();
    let say = |text: &str| if args.json { render::note(text) } else { render::text(text).unwrap_or(()) };
    say(&format!("srd perf server: listening on {listening}"));

    let mut server = Server::new(args.client_timeout);
    let mut sessions = VecDeque::new();
    let exit = loop {
        let stopped = interrupt::requested();
        let moved = pump
            .turn_with(|endpoint, upper, driver, now| {
                server.work(endpoint, upper, driver, now);
                if stopped {
                    server.end(endpoint, upper, driver, now, Some("the server was stopped".to_owned()));
                }
            })
            .map_err(Fault::driver)?;
        while let Some(news) = server.news.pop_front() {
            say(&news.text());
            if let News::Ended(session) = news {
                if sessions.len() == MAX_SESSIONS {
                    sessions.pop_front();
                }
                sessions.push_back(session);
            }
        }
        if stopped {
            break Exit::Interrupted;
        }
        if args.one_off
            && let Some(last) = sessions.back()
            && !pump.upper.control_pending()
        {
            break if last.complete { Exit::Ok } else { Exit::Peer };
        }
        if !moved {
            if args.transport.mode == Mode::Spin && server.session.is_none() {
                std::thread::sleep(DOZE);
            } else {
                pump::wait(&mut pump).map_err(Fault::driver)?;
            }
        }
    };
    pump::close(&mut pump, GOODBYE).map_err(Fault::driver)?;
    if args.json {
        let ok = exit == Exit::Ok;
        render::json(&ServerReport { ok, listening: listening.to_string(), sessions: sessions.into() })?;
    }
    Ok(exit)
}

/// State of the server.
struct Server {
    timeout: Span,
    session: Option<Session>,
    /// What the operator is to hear.
    news: VecDeque<News>,
}

struct Session {
    peer: PeerId,
    addr: SocketAddr,
    start: Start,
    begun: Time,
    heard: Time,
    received: u64,
    sent: u64,
    cpu: f64,
    before: Snapshot,
    /// The client has had enough.
    stopping: bool,
}

enum News {
    Began(SocketAddr, Start),
    Ended(SessionReport),
    TurnedAway(SocketAddr, String),
}

impl News {
    fn text(&self) -> String {
        match self {
            News::Began(addr, s) => {
                let ways = if s.bidir { ", both ways" } else { "" };
                format!("{addr}: {} {} x {}{ways}", s.test.name(), units::size_text(s.size), s.depth)
            }
            News::Ended(s) => {
                let end = s.error.as_ref().map_or("done".to_owned(), |e| format!("broken off, {e}"));
                format!(
                    "{}: {end} after {:.2} s; {} messages received, {:.3} Gbit/s, {} sent; {:.2} cores",
                    s.client,
                    s.outcome.duration_s,
                    units::thousands(s.outcome.messages_received),
                    s.bandwidth_gbps,
                    units::thousands(s.outcome.messages_sent),
                    s.outcome.cpu_cores,
                )
            }
            News::TurnedAway(addr, why) => format!("{addr}: turned away, {why}"),
        }
    }
}

impl Server {
    fn new(timeout: Span) -> Server {
        Server { timeout, session: None, news: VecDeque::new() }
    }

    /// Work of one turn.
    fn work(&mut self, endpoint: &mut Endpoint, upper: &mut PerfUpper, driver: &AnyDriver, now: Time) {
        while let Some((peer, op, body)) = upper.control.pop_front() {
            match op {
                Op::Start => self.start(endpoint, upper, driver, now, peer, &body),
                Op::Stop => {
                    if let Some(session) = self.session.as_mut().filter(|s| s.peer == peer) {
                        session.heard = now;
                        session.stopping = true;
                    }
                }
                // Answers are not for servers.
                Op::Ready | Op::Busy | Op::Refused | Op::Result => {}
            }
        }
        let Some(session) = &mut self.session else {
            upper.control_failed.clear();
            while endpoint.poll_event().is_some() {}
            return;
        };
        let received = upper.recycle();
        let sent = upper.take_done();
        upper.samples.clear();
        if received + sent > 0 {
            session.heard = now;
            session.received += received;
            session.sent += sent;
        }
        if session.start.test == Test::Lat {
            upper.post(endpoint, now, received);
        } else if session.start.bidir && !session.stopping {
            upper.post(endpoint, now, u64::MAX);
        }
        if session.stopping && (upper.outstanding() == 0 || session.start.test == Test::Lat) {
            return self.end(endpoint, upper, driver, now, None);
        }
        self.look_after(endpoint, upper, driver, now);
    }

    /// Ends a session whose client is gone.
    fn look_after(&mut self, endpoint: &mut Endpoint, upper: &mut PerfUpper, driver: &AnyDriver, now: Time) {
        let Some(session) = &self.session else { return };
        let mut why = upper.failed.take();
        while let Some(event) = endpoint.poll_event() {
            if let Event::Disconnected(peer, failure) = event
                && peer == session.peer
            {
                why.get_or_insert(failure);
            }
        }
        upper.control_failed.clear();
        let size = u64::from(session.start.size);
        let patience = self.timeout + Span::from_nanos(size.saturating_mul(PATIENCE_NS_PER_BYTE));
        if now.since(session.heard) > patience {
            why.get_or_insert(Failure::Unresponsive);
        }
        if let Some(failure) = why {
            let text = match failure {
                Failure::PeerClosed => "the client said good-bye in the middle".to_owned(),
                Failure::Unresponsive | Failure::Unreachable => "the client vanished".to_owned(),
                other => other.to_string(),
            };
            self.end(endpoint, upper, driver, now, Some(text));
        }
    }

    fn start(
        &mut self,
        endpoint: &mut Endpoint,
        upper: &mut PerfUpper,
        driver: &AnyDriver,
        now: Time,
        peer: PeerId,
        body: &[u8],
    ) {
        let Some(addr) = endpoint.peer_addr(peer) else { return };
        let turn_away = |reason: String| control::encode(&Reason { reason });
        if let Some(session) = &self.session
            && session.peer != peer
        {
            let since = now.since(session.begun).as_secs_f64();
            let other = format!("it has served {} for {since:.1} s; try again later", session.addr);
            upper.send_control(endpoint, now, peer, Op::Busy, turn_away(other));
            self.news.push_back(News::TurnedAway(addr, "another client is being served".to_owned()));
            return;
        }
        let start = control::decode::<Start>(body).ok_or_else(|| "it does not understand the request".to_owned());
        match start.and_then(|start| start.check().map(|()| start)) {
            Err(reason) => {
                upper.send_control(endpoint, now, peer, Op::Refused, turn_away(reason.clone()));
                self.news.push_back(News::TurnedAway(addr, reason));
            }
            Ok(start) => {
                if self.session.is_some() {
                    self.end(endpoint, upper, driver, now, Some("the client began again".to_owned()));
                }
                upper.open(peer, start.size, start.send_slots(), start.receive_buffers());
                upper.send_control(endpoint, now, peer, Op::Ready, Vec::new());
                self.news.push_back(News::Began(addr, start));
                let (cpu, before) = (cpu::seconds(), Snapshot::new(endpoint, driver));
                let (begun, heard) = (now, now);
                let session =
                    Session { peer, addr, start, begun, heard, received: 0, sent: 0, cpu, before, stopping: false };
                self.session = Some(session);
            }
        }
    }

    /// Ends the session, if there is one; tells the client what we saw, unless it broke off.
    fn end(
        &mut self,
        endpoint: &mut Endpoint,
        upper: &mut PerfUpper,
        driver: &AnyDriver,
        now: Time,
        error: Option<String>,
    ) {
        let Some(session) = self.session.take() else { return };
        let seconds = now.since(session.begun).as_secs_f64();
        let per_second = |x: f64| if seconds > 0.0 { x / seconds } else { 0.0 };
        let outcome = Outcome {
            duration_s: seconds,
            cpu_cores: per_second(cpu::seconds() - session.cpu),
            messages_received: session.received,
            messages_sent: session.sent,
            counters: Counters::between(&session.before, &Snapshot::new(endpoint, driver)),
        };
        if error.is_none() {
            upper.send_control(endpoint, now, session.peer, Op::Result, control::encode(&outcome));
        }
        upper.close();
        let Start { test, size, depth, bidir } = session.start;
        self.news.push_back(News::Ended(SessionReport {
            client: session.addr.to_string(),
            test,
            size,
            depth,
            bidir,
            complete: error.is_none(),
            error,
            bandwidth_gbps: per_second(session.received as f64 * f64::from(size) * 8.0 / 1e9),
            outcome,
        }));
    }
}
