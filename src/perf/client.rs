//! The client's side of a measurement, shared by all kinds.

use std::net::SocketAddr;

use clap::Args;
use srd::{Driver as _, Failure, PeerId, Span, Time};

use super::control::{self, Op, Outcome, Reason, Start};
use super::pump::{self, Pump};
use super::{DEFAULT_PORT, cpu};
use crate::exit::{Fault, Result};
use crate::progress::Progress;
use crate::report::{Counters, Latencies, Snapshot};
use crate::transport::{self, Target, TransportArgs};
use crate::{interrupt, units};

/// Options of every measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Where 'srd perf server' runs: host name or address, with or without port
    #[arg(value_name = "HOST[:PORT]")]
    target: Target,
    /// Port of the server, where HOST names none
    #[arg(long, short, value_name = "PORT", default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Seconds to measure [default: 5, or no limit with --iters]
    #[arg(long, short, value_name = "SECONDS", value_parser = units::seconds)]
    time: Option<Span>,
    /// Messages (round trips) to measure; messages that complete together with the last of them count, too
    #[arg(long, short = 'n', value_name = "N", value_parser = units::count)]
    iters: Option<u64>,
    /// Seconds to run before the measurement begins
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = units::seconds_or_none)]
    warmup: Span,
    /// Local address to send from
    #[arg(long, value_name = "ADDR", value_parser = transport::ip)]
    bind: Option<SocketAddr>,
    /// Seconds after which a server that does not answer counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = units::seconds)]
    connect_timeout: Span,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) transport: TransportArgs,
}

/// Time to measure when nothing is said about it.
const DEFAULT_TIME: Span = Span::from_secs(5);

/// A connected client.
pub(crate) struct Client {
    pub(crate) pump: Pump,
    pub(crate) peer: PeerId,
    pub(crate) addr: SocketAddr,
    /// After which silence the server counts as gone.
    pub(crate) timeout: Span,
    /// The server has answered.
    agreed: bool,
    /// Datagrams that have arrived, and when there was a new one.
    heard: (u64, Time),
}

/// Whether waiting for the server ends with a signal. At the end of a test it does not: that takes a moment only, and
/// the signal may be why the test ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heed {
    Interrupts,
    Nothing,
}

/// What a measurement found, and why it ended early if it did.
pub(crate) struct Ended {
    /// Messages (round trips) delivered in the measured time.
    pub(crate) messages: u64,
    /// Messages received in a two-way test.
    pub(crate) received: u64,
    pub(crate) duration: Span,
    pub(crate) latencies: Latencies,
    pub(crate) cpu_cores: f64,
    pub(crate) counters: Counters,
    pub(crate) fault: Option<Fault>,
}

/// Counts during a measurement.
pub(crate) struct Meter {
    begin: Time,
    end: Time,
    warm: bool,
    iters: u64,
    messages: u64,
    received: u64,
    last: Time,
    pub(crate) latencies: Latencies,
    cpu: f64,
    bar: Progress,
    time: Option<Span>,
}

impl Client {
    /// Finds the server and agrees on the test with it.
    pub(crate) fn connect(args: &ClientArgs, start: &Start) -> Result<Client> {
        start.check().map_err(Fault::usage)?;
        let addr = args.target.resolve(args.port)?;
        // Not before, since nobody looks at the flag while a name server does not answer.
        interrupt::install()?;
        // Bound to one address, the driver can connect its sockets.
        let route = transport::check_route(addr)?;
        let local = args.bind.unwrap_or(route);
        if local.is_ipv4() != addr.is_ipv4() {
            return Err(Fault::usage(format_args!(
                "cannot send from {} to {addr}: IPv4 and IPv6 do not mix",
                local.ip()
            )));
        }
        let config = args.transport.config(local, args.connect_timeout)?;
        let driver = args.transport.bind(local)?;
        let mut pump = pump::start(driver, config, transport::seed()?);
        let peer = pump.peer(addr).ok_or_else(|| Fault::setup("the table of peers is full"))?;
        let heard = (0, pump.now);
        let mut client = Client { pump, peer, addr, timeout: args.connect_timeout, agreed: false, heard };
        client.agree(start)?;
        Ok(client)
    }

    /// START, until READY.
    fn agree(&mut self, start: &Start) -> Result<()> {
        self.pump.upper.open(self.peer, start.size, start.send_slots(), start.receive_buffers());
        self.send(Op::Start, control::encode(start))?;
        let answer = self.receive(Some(self.timeout), Heed::Interrupts)?;
        self.agreed = true;
        match answer {
            (Op::Ready, _) => Ok(()),
            (op @ (Op::Busy | Op::Refused), body) => {
                let reason = control::decode::<Reason>(&body).map_or("gives no reason".to_owned(), |r| r.reason);
                let verb = if op == Op::Busy { "is busy" } else { "refuses the test" };
                Err(Fault::peer(format_args!("the server at {} {verb}: {reason}", self.addr)))
            }
            (op, _) => Err(Fault::peer(format_args!("the server at {} answered {op:?} to START", self.addr))),
        }
    }

    /// STOP, until RESULT; for `limit`, or as long as anything comes from the server: it may still have much to deliver.
    pub(crate) fn stop(&mut self, limit: Option<Span>) -> Result<Outcome> {
        self.send(Op::Stop, Vec::new())?;
        match self.receive(limit, Heed::Nothing)? {
            (Op::Result, body) => control::decode(&body).ok_or_else(|| {
                Fault::peer(format_args!("the server at {} sent a result that makes no sense", self.addr))
            }),
            (op, _) => Err(Fault::peer(format_args!("the server at {} answered {op:?} to STOP", self.addr))),
        }
    }

    fn send(&mut self, op: Op, body: Vec<u8>) -> Result<()> {
        let peer = self.peer;
        let turned = self.pump.turn_with(|endpoint, upper, _, now| upper.send_control(endpoint, now, peer, op, body));
        turned.map(|_| ()).map_err(Fault::driver)
    }

    /// The next control message of the server; `limit` from now is long enough for it, or its silence.
    fn receive(&mut self, limit: Option<Span>, heed: Heed) -> Result<(Op, Vec<u8>)> {
        let end = limit.map(|limit| self.pump.driver.now() + limit + GRACE);
        loop {
            let moved = self
                .pump
                .turn_with(|_, upper, _, _| {
                    upper.recycle();
                    upper.samples.clear();
                })
                .map_err(Fault::driver)?;
            while let Some((peer, op, body)) = self.pump.upper.control.pop_front() {
                if peer == self.peer {
                    return Ok((op, body));
                }
            }
            if heed == Heed::Interrupts && interrupt::requested() {
                return Err(Fault::interrupted());
            }
            if !moved {
                self.idle()?;
                if end.is_some_and(|end| self.pump.now > end) {
                    return Err(self.silent());
                }
            }
        }
    }

    /// Whether the server is still there, as far as the protocol knows.
    fn check(&mut self) -> Result<()> {
        while self.pump.endpoint.poll_event().is_some() {}
        let failed = self.pump.upper.failed.take();
        let failed = failed.or_else(|| self.pump.upper.control_failed.pop_front().map(|(_, failure)| failure));
        match failed {
            Some(failure) => Err(self.fault(failure)),
            None => Ok(()),
        }
    }

    /// What to do in a turn in which nothing moved: look whether the server is still there, and wait.
    ///
    /// What shows that it is there is anything that comes from it: one message may take longer than any timeout.
    pub(crate) fn idle(&mut self) -> Result<()> {
        self.check()?;
        let packets = self.pump.endpoint.stats().rx_packets;
        if packets != self.heard.0 {
            self.heard = (packets, self.pump.now);
        }
        if self.pump.now.since(self.heard.1) > self.timeout + GRACE {
            return Err(self.silent());
        }
        pump::wait(&mut self.pump).map_err(Fault::driver)
    }

    /// The server does not answer, although the protocol has not noticed.
    fn silent(&self) -> Fault {
        self.fault(Failure::Unresponsive)
    }

    fn fault(&self, failure: Failure) -> Fault {
        let (addr, timeout) = (self.addr, self.timeout.as_secs_f64());
        match failure {
            Failure::Unreachable | Failure::Unresponsive if !self.agreed => {
                let hint = if transport::is_refused(addr) {
                    "; its host says that nothing listens on that UDP port"
                } else {
                    ""
                };
                let bind = if addr.is_ipv6() { " --bind ::" } else { "" };
                let port = transport::port_hint(addr.ip());
                Fault::peer(format_args!(
                    "no server answers at {addr} within {timeout} s{hint}{port}; start one there with 'srd perf server{bind}' and let UDP through firewalls, to port {} there, and back from any port to any",
                    addr.port(),
                ))
            }
            Failure::Unresponsive => Fault::peer(format_args!(
                "the server at {addr} stopped answering for {timeout} s; it died, or the network to it did"
            )),
            Failure::PeerClosed | Failure::Refused(super::upper::REFUSED_NO_TEST) => {
                Fault::peer(format_args!("the server at {addr} has given the test up"))
            }
            Failure::Refused(status) => Fault::peer(format_args!(
                "the peer at {addr} refuses our messages with status {status}; it is no 'srd perf server', or one of another version"
            )),
            other => Fault::peer(format_args!("the test with the server at {addr} broke off: {other}")),
        }
    }
}

/// Time beyond the protocol's own timeout after which we no longer rely on it.
const GRACE: Span = Span::from_secs(1);

impl Meter {
    /// Begins the warm-up.
    pub(crate) fn new(client: &mut Client, args: &ClientArgs) -> Meter {
        let now = client.pump.driver.now();
        let time = args.time.or(if args.iters.is_some() { None } else { Some(DEFAULT_TIME) });
        let total = time.map_or(args.iters.unwrap_or(0), Span::as_nanos);
        Meter {
            begin: now + args.warmup,
            end: time.map_or(Time::NEVER, |time| now + args.warmup + time),
            warm: false,
            iters: args.iters.unwrap_or(u64::MAX),
            messages: 0,
            received: 0,
            last: now,
            latencies: Latencies::new(),
            cpu: cpu::seconds(),
            bar: Progress::new(total, time.unwrap_or(Span::MAX)),
            time,
        }
    }

    /// Messages were delivered in this turn.
    pub(crate) fn count(&mut self, sent: u64, received: u64) {
        self.messages += sent;
        self.received += received;
    }

    /// A turn has been worked on. Whether it was the last one of the warm-up: what it found does not count.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.last = now;
        let begins = !self.warm && now >= self.begin;
        if begins {
            self.warm = true;
            let late = now.since(self.begin);
            (self.begin, self.messages, self.received) = (now, 0, 0);
            if self.end != Time::NEVER {
                self.end += late;
            }
            self.latencies.clear();
            self.cpu = cpu::seconds();
        }
        if self.warm && self.bar.due(now) {
            let spent = now.since(self.begin);
            let done = if self.time.is_some() { spent.as_nanos() } else { self.messages };
            let rate = self.messages as f64 / spent.as_secs_f64().max(1e-9);
            self.bar.set(now, done, || format!("{} messages/s", units::thousands(rate as u64)));
        }
        begins
    }

    /// Whether time or count is up.
    pub(crate) fn is_over(&self) -> bool {
        self.warm && (self.last >= self.end || self.messages >= self.iters)
    }

    /// Ends the measurement.
    pub(crate) fn end(self, client: &Client, fault: Option<Fault>) -> Ended {
        let duration = if self.warm { self.last.since(self.begin) } else { Span::ZERO };
        let measured = self.warm && duration > Span::ZERO;
        Ended {
            messages: if measured { self.messages } else { 0 },
            received: if measured { self.received } else { 0 },
            duration,
            cpu_cores: if measured { (cpu::seconds() - self.cpu) / duration.as_secs_f64() } else { 0.0 },
            latencies: self.latencies,
            // The endpoint is there for this test, and what it lost while it agreed on it may turn up during it.
            counters: Counters::between(
                &Snapshot::default(),
                &Snapshot::new(&client.pump.endpoint, &client.pump.driver),
            ),
            fault,
        }
    }
}
