//! Flows over kernel TCP: a connection and a thread per flow on either side.
//!
//! A connection begins with the run's nonce and the flow's number, which the receiver confirms with a byte. A second byte
//! says that everything has arrived.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::clock::{Clock, nanos};
use super::control::{FlowOutcome, Job, Outcome, is_glance};
use super::srd_side::share;
use super::tally::{Counting, Signals, Tally};
use crate::exit::{Exit, Fault, Result};

/// How often a blocked end looks whether it is over.
const GLANCE: Duration = Duration::from_millis(20);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// Strangers served at once, beside the flows.
const STRANGERS: usize = 64;
const HEADER: usize = 12;
const STACK: usize = 256 << 10;
const READY: u8 = b'R';
const COMPLETE: u8 = b'C';

/// Starts a thread with a small stack, as there are many.
pub(super) fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    builder.spawn(work).map_err(|e| Fault::setup(format_args!("cannot start one more thread: {e}; see 'ulimit -u'")))
}

/// Whether the kernel offers a congestion control; the error says which ones it has.
pub(super) fn check(congestion: &str) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    if socket.is_ok_and(|socket| socket.set_tcp_congestion(congestion.as_bytes()).is_ok()) {
        return Ok(());
    }
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    Err(Fault::setup(format_args!(
        "this kernel does not offer TCP congestion control '{congestion}'; it has: {} (more by 'modprobe tcp_{congestion}')",
        known.trim()
    )))
}

/// One sending connection.
pub(super) struct Source {
    stream: TcpStream,
    flow: u32,
}

impl Source {
    pub(super) fn connect(to: SocketAddr, congestion: &str, job: &Job, flow: u32, signals: &Signals) -> Result<Source> {
        let failed = |e: io::Error| {
            Fault::new(Exit::Peer, anyhow::Error::new(e).context(format!("cannot connect to {to} by TCP")))
        };
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_tcp_congestion(congestion.as_bytes())?;
            socket.connect_timeout(&to.into(), CONNECT)?;
            socket.set_write_timeout(Some(GLANCE))?;
            socket.set_read_timeout(Some(GLANCE))?;
            socket.set_tcp_nodelay(true)?;
            let mut stream = TcpStream::from(socket);
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&job.nonce.to_be_bytes());
            header[8..].copy_from_slice(&flow.to_be_bytes());
            stream.write_all(&header)?;
            Ok(stream)
        };
        let mut stream = connect().map_err(failed)?;
        let clock = Clock::new();
        match hear(&mut stream, || signals.is_stopped() || clock.now() > nanos(CONNECT)).map_err(failed)? {
            Some(READY) => Ok(Source { stream, flow }),
            _ => Err(Fault::peer(format_args!("the receiver at {to} does not confirm a TCP connection"))),
        }
    }

    /// Waits for the start, then sends until all has arrived, the limit, or the end of the run.
    pub(super) fn run(mut self, job: &Job, clock: Clock, signals: &Signals) -> Result<FlowOutcome> {
        let mut outcome = FlowOutcome { flow: self.flow, paths: 1, ..FlowOutcome::default() };
        let start = loop {
            if signals.is_stopped() {
                return Ok(outcome);
            }
            match signals.start() {
                Some(at) if at - clock.now() < nanos(GLANCE) => break at,
                _ => thread::sleep(GLANCE),
            }
        };
        clock.sleep_until(start);
        let end = start.saturating_add(i64::try_from(job.limit_ns).unwrap_or(i64::MAX));
        let is_over = || signals.is_stopped() || clock.now() >= end;
        outcome.start_ns = clock.now();
        let chunk = [0x5a; 64 << 10];
        let mut left = job.bytes.unwrap_or(u64::MAX);
        let broken = |e: io::Error| Fault::new(Exit::Peer, anyhow::Error::new(e).context("a TCP connection broke"));
        while left > 0 && !is_over() {
            match self.stream.write(&chunk[..left.min(chunk.len() as u64) as usize]) {
                Ok(n) => left -= n as u64,
                Err(e) if is_glance(&e) => {}
                Err(e) => return Err(broken(e)),
            }
        }
        if let Some(bytes) = job.bytes.filter(|_| left == 0)
            && hear(&mut self.stream, is_over).map_err(broken)? == Some(COMPLETE)
        {
            outcome.fct_ns = Some((clock.now() - outcome.start_ns).max(0) as u64);
            outcome.delivered = bytes;
        }
        Ok(outcome)
    }
}

/// One byte; `None` if it is over before there is one.
fn hear(stream: &mut TcpStream, is_over: impl Fn() -> bool) -> io::Result<Option<u8>> {
    let mut byte = [0];
    while !is_over() {
        match stream.read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(Some(byte[0])),
            Err(e) if is_glance(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Segments that this host's TCP has sent, sent again, and its retransmission timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCounters {
    sent: u64,
    resent: u64,
    timeouts: u64,
}

impl HostCounters {
    /// Reads them for the network namespace of this thread. All zero where the kernel does not tell.
    pub(super) fn read() -> HostCounters {
        let text = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let (snmp, netstat) = (text("snmp"), text("netstat"));
        let value = |text: &str, table: &str, name: &str| counter(text, table, name).unwrap_or(0);
        HostCounters {
            sent: value(&snmp, "Tcp:", "OutSegs"),
            resent: value(&snmp, "Tcp:", "RetransSegs"),
            timeouts: value(&netstat, "TcpExt:", "TCPTimeouts"),
        }
    }

    /// Adds what has happened since to an outcome; segments sent again are shared out among the flows.
    pub(super) fn account(self, outcome: &mut Outcome) {
        let now = HostCounters::read();
        let resent = now.resent.saturating_sub(self.resent);
        outcome.packets = now.sent.saturating_sub(self.sent) + resent;
        outcome.timeouts = now.timeouts.saturating_sub(self.timeouts);
        let count = outcome.flows.len() as u64;
        for (index, flow) in outcome.flows.iter_mut().enumerate() {
            flow.retransmits = share(resent, index as u64, count);
        }
    }
}

/// A counter of `/proc/net/snmp` and its like: a line of names, then a line of values.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(table)).map(str::split_whitespace);
    let (names, values) = (lines.next()?, lines.next()?);
    names.zip(values).find(|(n, _)| *n == name)?.1.parse().ok()
}

/// The receiving side.
pub(super) struct Sink {
    listener: TcpListener,
}

/// What the threads of the connections share.
struct Shared {
    nonce: u64,
    counting: Counting,
    clock: Clock,
    signals: Arc<Signals>,
    /// One per flow, taken by its connection.
    tallies: Vec<Mutex<Option<Tally>>>,
}

impl Sink {
    pub(super) fn bind(ip: IpAddr) -> Result<Sink> {
        let listen = || {
            let listener = TcpListener::bind((ip, 0))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let failed = |e: io::Error| {
            Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("cannot listen for TCP at {ip}")))
        };
        Ok(Sink { listener: listen().map_err(failed)? })
    }

    pub(super) fn port(&self) -> Result<u16> {
        self.listener.local_addr().map(|a| a.port()).map_err(Fault::driver)
    }

    /// Receives until the run is over.
    pub(super) fn run(
        self,
        nonce: u64,
        flows: u32,
        counting: Counting,
        clock: Clock,
        signals: Arc<Signals>,
    ) -> Result<Vec<Tally>> {
        let tallies = (0..flows).map(|_| Mutex::new(None)).collect();
        let shared = Arc::new(Shared { nonce, counting, clock, signals, tallies });
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        while !shared.signals.is_stopped() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    threads.retain(|t| !t.is_finished());
                    if threads.len() < flows as usize + STRANGERS {
                        let shared = Arc::clone(&shared);
                        threads.push(spawn("tcp receiver", move || shared.serve(stream))?);
                    }
                }
                // Once all are there, nobody is in a hurry.
                Err(e) if is_glance(&e) && shared.signals.start().is_some() => thread::sleep(GLANCE),
                Err(e) if is_glance(&e) => thread::sleep(GLANCE / 20),
                Err(e) => return Err(Fault::driver(e)),
            }
        }
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let take =
            |t: &Mutex<Option<Tally>>| t.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        Ok(shared.tallies.iter().map(take).collect())
    }
}

impl Shared {
    /// A connection, from its first byte to its end. Whatever is wrong with it ends it.
    fn serve(&self, mut stream: TcpStream) {
        let Some(flow) = self.introduce(&mut stream).unwrap_or(None) else { return };
        let mut tally = Tally::default();
        let mut buffer = vec![0; 64 << 10];
        while !self.signals.is_stopped() {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    tally.add(self.counting, &self.signals, self.clock, n as u64);
                    if self.counting.size.is_some_and(|size| tally.bytes >= size) {
                        let _ = stream.write_all(&[COMPLETE]);
                        break;
                    }
                }
                Err(e) if is_glance(&e) => {}
                Err(_) => break,
            }
        }
        *self.tallies[flow].lock().unwrap_or_else(PoisonError::into_inner) = Some(tally);
    }

    /// The flow of a connection; `None` for a stranger.
    fn introduce(&self, stream: &mut TcpStream) -> io::Result<Option<usize>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GLANCE))?;
        stream.set_nodelay(true)?;
        let deadline = self.clock.now() + nanos(CONNECT);
        let mut header = [0; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            if self.signals.is_stopped() || self.clock.now() > deadline {
                return Ok(None);
            }
            match stream.read(&mut header[filled..]) {
                Ok(0) => return Ok(None),
                Ok(n) => filled += n,
                Err(e) if is_glance(&e) => {}
                Err(e) => return Err(e),
            }
        }
        let (nonce, flow) = header.split_at(8);
        let flow = u32::from_be_bytes(flow.try_into().unwrap_or([0xff; 4])) as usize;
        if nonce != self.nonce.to_be_bytes() || flow >= self.tallies.len() {
            return Ok(None);
        }
        stream.write_all(&[READY])?;
        Ok(Some(flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 20 3\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs"), Some(3));
        assert_eq!([counter(text, "Tcp:", "Nothing"), counter("", "Tcp:", "OutSegs")], [None, None]);
        let _: HostCounters = HostCounters::read();
    }

    #[test]
    fn unknown_congestion_control_is_explained() {
        assert!(check("cubic").is_ok() || check("reno").is_ok());
        let text = check("nonsense").expect_err("no such thing").to_string();
        assert!(text.contains("'nonsense'") && text.contains("it has: "), "{text}");
    }
}
