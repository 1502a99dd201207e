//! Kernel TCP over a bed, to be shown beside other transports: several flows
//! from one host to another, with goodput over time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::{Error, Family, Host, Rate};

/// When a flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After this many bytes each, or when the limit has passed, whichever is
    /// first.
    Bytes {
        /// Bytes per flow.
        each: u64,
        /// When to give up on flows that are not done.
        limit: Duration,
    },
    /// After this long.
    After(Duration),
}

/// What to send.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many flows, each from a source port of its own.
    pub flows: usize,
    /// When they end.
    pub stop: Stop,
    /// Width of the bins in which goodput is counted; 1 ms or more.
    pub bin: Duration,
    /// Congestion control by its kernel name (`cubic`, `bbr`, `reno`); `None`
    /// takes the kernel's default.
    pub congestion: Option<String>,
    /// IPv4 or IPv6.
    pub family: Family,
}

impl Default for Load {
    /// One flow for one second, counted every 10 ms.
    fn default() -> Self {
        Self {
            flows: 1,
            stop: Stop::After(Duration::from_secs(1)),
            bin: Duration::from_millis(10),
            congestion: None,
            family: Family::V4,
        }
    }
}

/// What one flow achieved, as its receiver saw it.
#[derive(Clone, Debug)]
pub struct FlowReport {
    /// The sender's port: with the addresses, it decides the flow's spine.
    pub source_port: u16,
    /// Bytes received.
    pub bytes: u64,
    /// From the common start to the last byte; `None` for a flow that did not
    /// get all its bytes across, or had no size.
    pub finished: Option<Duration>,
    /// The longest time without a byte arriving, between start and end.
    pub longest_stall: Duration,
}

/// What all flows achieved.
#[derive(Clone, Debug)]
pub struct Report {
    /// Each flow.
    pub flows: Vec<FlowReport>,
    /// Width of a bin.
    pub bin: Duration,
    /// Bytes received in each bin since the common start, all flows together.
    pub bins: Vec<u64>,
    /// From the common start to the end of the last flow.
    pub took: Duration,
    /// Segments that the sending host has sent again, of all its TCP.
    pub retransmitted: u64,
}

impl Report {
    /// Bytes received, all flows together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.flows.iter().map(|f| f.bytes).sum()
    }

    /// Goodput (payload) over the whole run.
    #[must_use]
    pub fn goodput(&self) -> Rate {
        rate(self.bytes(), self.took)
    }

    /// Goodput in every bin.
    pub fn goodput_by_bin(&self) -> impl Iterator<Item = Rate> + '_ {
        self.bins.iter().map(|bytes| rate(*bytes, self.bin))
    }
}

/// Flows on their way; see [`Load::start`].
#[derive(Debug)]
pub struct Running {
    bin: Duration,
    senders: Vec<JoinHandle<()>>,
    receivers: Vec<JoinHandle<Received>>,
    ports: Vec<u16>,
    shared: Arc<Shared>,
    from: Host,
    retransmitted_before: u64,
}

#[derive(Debug, Default)]
struct Shared {
    start: OnceLock<Instant>,
    received: AtomicU64,
    is_stopped: AtomicBool,
}

impl Load {
    /// Runs the load to its end.
    ///
    /// # Errors
    /// As [`Load::start`] and [`Running::join`].
    pub fn run(&self, from: &Host, to: &Host) -> Result<Report, Error> {
        self.start(from, to)?.join()
    }

    /// Connects all flows, then starts them together. When it returns, they
    /// run: the caller may now break the network.
    ///
    /// # Errors
    /// If a number is out of range, the congestion control is unknown to the
    /// kernel, or a connection cannot be made.
    pub fn start(&self, from: &Host, to: &Host) -> Result<Running, Error> {
        if self.flows == 0 || self.bin < Duration::from_millis(1) {
            return Err(Error::invalid("a TCP load needs at least one flow, and bins of at least 1 ms"));
        }
        let listener = to.enter(|| self.listen(to))??;
        let target = listener.local_addr()?;
        let mut ends = Vec::new();
        for _ in 0..self.flows {
            let sender = from.enter(|| self.connect(target))??;
            ends.push((sender, listener.accept()?.0));
        }
        let shared = Arc::new(Shared::default());
        let barrier = Arc::new(Barrier::new(2 * self.flows + 1));
        let mut running = Running {
            bin: self.bin,
            senders: Vec::new(),
            receivers: Vec::new(),
            ports: ends.iter().map(|(sender, _)| sender.local_addr().map(|a| a.port())).collect::<Result<_, _>>()?,
            shared: Arc::clone(&shared),
            from: from.clone(),
            retransmitted_before: retransmitted(from)?,
        };
        for (sender, receiver) in ends {
            for socket in [&sender, &receiver] {
                socket.set_read_timeout(Some(GLANCE))?;
                socket.set_write_timeout(Some(GLANCE))?;
            }
            let end =
                End { stop: self.stop, bin: self.bin, shared: Arc::clone(&shared), barrier: Arc::clone(&barrier) };
            let other = End { shared: Arc::clone(&shared), barrier: Arc::clone(&barrier), ..end };
            running.senders.push(small_thread("tcp sender", move || end.send(sender))?);
            running.receivers.push(small_thread("tcp receiver", move || other.receive(receiver))?);
        }
        // Once all are there: whoever gets a core late has not begun later.
        barrier.wait();
        shared.start.get_or_init(Instant::now);
        barrier.wait();
        Ok(running)
    }

    fn listen(&self, to: &Host) -> Result<TcpListener, Error> {
        let address = SocketAddr::from((to.ip(self.family), 0));
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(self.flows).unwrap_or(i32::MAX))?;
        Ok(socket.into())
    }

    fn connect(&self, target: SocketAddr) -> Result<TcpStream, Error> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        if let Some(name) = &self.congestion {
            SockRef::from(&socket)
                .set_tcp_congestion(name.as_bytes())
                .map_err(Error::io(format!("use the congestion control `{name}`: `modprobe tcp_{name}` may help")))?;
        }
        socket.connect_timeout(&target.into(), CONNECT_LIMIT).map_err(Error::io(format!("connect to {target}")))?;
        Ok(socket.into())
    }
}

impl Running {
    /// Bytes received so far, all flows together.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Ends all flows now; what has been received so far counts.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of all flows.
    ///
    /// # Errors
    /// If the sending host is gone.
    ///
    /// # Panics
    /// If one of the load's own threads has.
    pub fn join(mut self) -> Result<Report, Error> {
        let join = |thread: JoinHandle<Received>| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        let received: Vec<Received> = self.receivers.drain(..).map(join).collect();
        self.stop();
        for sender in self.senders.drain(..) {
            sender.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        }
        let mut bins = vec![0; received.iter().map(|r| r.bins.len()).max().unwrap_or(0)];
        for (bin, bytes) in received.iter().flat_map(|r| r.bins.iter().enumerate()) {
            bins[bin] += bytes;
        }
        let took = received.iter().map(|r| r.took).max().unwrap_or_default();
        let flow = |(r, port): (Received, u16)| FlowReport {
            source_port: port,
            bytes: r.bytes,
            finished: r.is_complete.then_some(r.took),
            longest_stall: r.longest_stall,
        };
        let flows = received.into_iter().zip(self.ports.drain(..)).map(flow).collect();
        let retransmitted = retransmitted(&self.from)?.saturating_sub(self.retransmitted_before);
        Ok(Report { flows, bin: self.bin, bins, took, retransmitted })
    }
}

impl Drop for Running {
    /// Threads of a load that nobody waits for end soon.
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a receiver has counted.
#[derive(Debug, Default)]
struct Received {
    bytes: u64,
    bins: Vec<u64>,
    took: Duration,
    longest_stall: Duration,
    is_complete: bool,
}

/// One end of one flow.
struct End {
    stop: Stop,
    bin: Duration,
    shared: Arc<Shared>,
    barrier: Arc<Barrier>,
}

impl End {
    /// Waits for the common start, and says when that was.
    fn start(&self) -> Instant {
        self.barrier.wait();
        self.barrier.wait();
        *self.shared.start.get().expect("set between the two")
    }

    fn send(self, mut socket: TcpStream) {
        let chunk = vec![0x5a; 64 << 10];
        let start = self.start();
        let mut left = match self.stop {
            Stop::Bytes { each, .. } => each,
            Stop::After(_) => u64::MAX,
        };
        while left > 0 && !self.is_over(start) {
            let size = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match socket.write(&chunk[..size]) {
                Ok(count) => left -= count as u64,
                Err(e) if is_glance(&e) => {}
                Err(_) => break, // the receiver has ended the flow
            }
        }
        let _ = socket.shutdown(Shutdown::Write);
    }

    fn receive(self, mut socket: TcpStream) -> Received {
        let mut buffer = vec![0; 64 << 10];
        let mut seen = Received::default();
        let each = match self.stop {
            Stop::Bytes { each, .. } => Some(each),
            Stop::After(_) => None,
        };
        let start = self.start();
        let mut last = Duration::ZERO;
        while each != Some(seen.bytes) && !self.is_over(start) {
            match socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let now = start.elapsed();
                    seen.longest_stall = seen.longest_stall.max(now - last);
                    last = now;
                    seen.bytes += count as u64;
                    self.shared.received.fetch_add(count as u64, Ordering::Relaxed);
                    let bin = usize::try_from(now.as_nanos() / self.bin.as_nanos()).expect("a run has few bins");
                    seen.bins.resize(seen.bins.len().max(bin + 1), 0);
                    seen.bins[bin] += count as u64;
                }
                Err(e) if is_glance(&e) => {}
                Err(_) => break, // reset: what came so far counts
            }
        }
        seen.is_complete = each == Some(seen.bytes);
        seen.took = if seen.is_complete { last } else { start.elapsed() };
        seen.longest_stall = seen.longest_stall.max(seen.took - last);
        seen
    }

    fn is_over(&self, start: Instant) -> bool {
        let limit = match self.stop {
            Stop::Bytes { limit, .. } | Stop::After(limit) => limit,
        };
        start.elapsed() >= limit || self.shared.is_stopped.load(Ordering::Relaxed)
    }
}

/// Segments sent again by this host so far.
fn retransmitted(host: &Host) -> Result<u64, Error> {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))?;
    let text = text.map_err(Error::io("read /proc/thread-self/net/snmp"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(str::split_whitespace);
    let pairs = lines.next().zip(lines.next()).map(|(names, values)| names.zip(values));
    let value = pairs.and_then(|mut pairs| pairs.find(|(name, _)| *name == "RetransSegs")).map(|(_, value)| value);
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::invalid("/proc/thread-self/net/snmp counts no RetransSegs"))
}

fn is_glance(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn small_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
    builder.spawn(work).map_err(Error::io("start a thread"))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates fit u64 by far")]
#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
fn rate(bytes: u64, time: Duration) -> Rate {
    Rate::bits(if time.is_zero() { 0 } else { (bytes as f64 * 8.0 / time.as_secs_f64()) as u64 })
}

/// How often a blocked end looks whether it is over.
const GLANCE: Duration = Duration::from_millis(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
