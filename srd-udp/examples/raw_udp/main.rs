//! The ceiling: how fast datagrams go without a protocol.
//!
//! Two processes, here on one host; give each a core.
//!
//! ```text
//! raw_udp server                                  # one end
//! raw_udp client 127.0.0.1:7471 bw --size 8192    # the other: bandwidth
//! raw_udp client 127.0.0.1:7471 lat               # half the round-trip time, both sides spinning
//! ```
//!
//! By default both go through `UdpDriver`, with `--bare` straight through sockets, which tells what the driver costs. The
//! client prints one JSON object.

mod bare;
mod driven;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use hdrhistogram::Histogram;
use serde_json::json;

#[derive(Parser)]
#[command(about = "Raw UDP between two processes: the ceiling for every protocol above it")]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Count and echo what arrives, spinning.
    Server {
        /// Address to listen at.
        #[arg(long, default_value = "0.0.0.0:7471")]
        listen: SocketAddr,
        /// End after this many seconds.
        #[arg(long, default_value_t = 60.0)]
        time: f64,
        /// Use sockets directly.
        #[arg(long)]
        bare: bool,
    },
    /// Send to a server and report.
    Client {
        /// The server.
        server: SocketAddr,
        #[command(subcommand)]
        mode: Mode,
    },
}

#[derive(Subcommand)]
enum Mode {
    /// Bandwidth, counted at the server.
    Bw {
        /// UDP payload of a datagram, in bytes.
        #[arg(long, default_value_t = 8192)]
        size: usize,
        /// Datagrams per call; 0: as many as 65,000 bytes hold, at most 64.
        #[arg(long, default_value_t = 0)]
        segments: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Ping-pong, half the round-trip time.
    Lat {
        /// UDP payload of a datagram, in bytes.
        #[arg(long, default_value_t = 64)]
        size: usize,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Args)]
struct Common {
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 1.0)]
    time: f64,
    /// Use sockets directly.
    #[arg(long)]
    bare: bool,
    /// Source ports to use in turn.
    #[arg(long, default_value_t = 1)]
    ports: u16,
}

/// What a measurement needs of either implementation.
trait Transport {
    /// Port that this end receives at.
    fn port(&self) -> u16;

    /// Sends datagrams of `segment` bytes (the last may be shorter) from source port number `port` of the pool.
    fn send(&mut self, to: SocketAddr, port: u16, bytes: &[u8], segment: usize) -> anyhow::Result<()>;

    /// Hands over what has arrived, without waiting; several datagrams may come in one piece.
    fn recv(&mut self, sink: &mut dyn FnMut(SocketAddr, &[u8])) -> anyhow::Result<()>;
}

/// First byte of a datagram: what the server should do with it. In the next two is the port to answer to, as source ports
/// do not receive.
mod kind {
    /// Count it.
    pub(crate) const DATA: u8 = 0;
    /// Send it back.
    pub(crate) const ECHO: u8 = 1;
    /// Answer with the counters since the last such question.
    pub(crate) const REPORT: u8 = 2;
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().side {
        Side::Server { listen, time, bare } => {
            let mut transport = open(listen, 1, bare)?;
            serve(transport.as_mut(), Duration::from_secs_f64(time))
        }
        Side::Client { server, mode } => {
            let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let local: SocketAddr = any.parse().expect("an address");
            let report = match mode {
                Mode::Bw { size, segments, common } => {
                    let mut transport = open(local, common.ports, common.bare)?;
                    bandwidth(transport.as_mut(), server, size, segments, &common)?
                }
                Mode::Lat { size, common } => {
                    let mut transport = open(local, common.ports, common.bare)?;
                    latency(transport.as_mut(), server, size, &common)?
                }
            };
            println!("{report}");
            Ok(())
        }
    }
}

/// A datagram of `size` bytes, at least 3, that asks for an answer.
fn question(transport: &dyn Transport, kind: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[0] = kind;
    bytes[1..3].copy_from_slice(&transport.port().to_le_bytes());
    bytes
}

/// Where to send the answer to a question.
fn answer_to(mut from: SocketAddr, question: &[u8]) -> Option<SocketAddr> {
    from.set_port(u16::from_le_bytes(*question.get(1..)?.first_chunk()?));
    Some(from)
}

fn open(local: SocketAddr, ports: u16, bare: bool) -> anyhow::Result<Box<dyn Transport>> {
    Ok(if bare { Box::new(bare::Bare::open(local, ports)?) } else { Box::new(driven::Driven::open(local, ports)?) })
}

/// Seconds on this process's clock.
fn clock() -> impl Fn() -> f64 {
    let start = std::time::Instant::now();
    move || start.elapsed().as_secs_f64()
}

fn serve(transport: &mut dyn Transport, time: Duration) -> anyhow::Result<()> {
    let now = clock();
    let (mut bytes, mut first, mut last) = (0u64, 0.0, 0.0);
    let mut answer: Vec<u8> = Vec::with_capacity(65536);
    while now() < time.as_secs_f64() {
        let mut to = None;
        let (before, at) = (bytes, now());
        transport.recv(&mut |from, data| match data.first() {
            Some(&kind::ECHO) => {
                answer.clear();
                answer.extend_from_slice(data);
                to = answer_to(from, data);
            }
            Some(&kind::REPORT) => {
                answer.clear();
                answer.push(kind::REPORT);
                for number in [bytes as f64, last - first] {
                    answer.extend_from_slice(&number.to_le_bytes());
                }
                bytes = 0;
                to = answer_to(from, data);
            }
            _ => bytes += data.len() as u64,
        })?;
        if bytes > before {
            last = now();
            if before == 0 {
                first = at;
            }
        }
        if let Some(to) = to {
            transport.send(to, 0, &answer, answer.len())?;
        }
    }
    Ok(())
}

fn bandwidth(
    transport: &mut dyn Transport,
    server: SocketAddr,
    size: usize,
    segments: usize,
    common: &Common,
) -> anyhow::Result<serde_json::Value> {
    if !(1..=65_000).contains(&size) {
        bail!("--size is {size}, must be in 1..=65000");
    }
    let most = (65_000 / size).min(64);
    let segments = if segments == 0 { most } else { segments };
    if segments > most {
        bail!("--segments is {segments}, at most {most} of {size} bytes fit one call");
    }
    ask(transport, server)?;
    let bytes = vec![kind::DATA; size * segments];
    let (now, mut sent, mut port) = (clock(), 0u64, 0);
    while now() < common.time {
        for _ in 0..16 {
            transport.send(server, port, &bytes, size)?;
            port = (port + 1) % common.ports;
            sent += segments as u64;
        }
    }
    let send_s = now();
    let [bytes, seconds] = ask(transport, server)?;
    let datagrams = bytes / size as f64;
    Ok(json!({
        "mode": "bw",
        "bare": common.bare,
        "size": size,
        "segments": segments,
        "ports": common.ports,
        "bandwidth_gbps": bytes * 8.0 / seconds / 1e9,
        "datagrams_per_s": datagrams / seconds,
        "sent": sent,
        "received": datagrams,
        "loss": 1.0 - datagrams / sent as f64,
        "send_gbps": sent as f64 * size as f64 * 8.0 / send_s / 1e9,
        "seconds": seconds,
    }))
}

/// Asks the server for its counters: bytes, and seconds between the first and the last datagram.
fn ask(transport: &mut dyn Transport, server: SocketAddr) -> anyhow::Result<[f64; 2]> {
    let question = question(transport, kind::REPORT, 3);
    let now = clock();
    let mut asked = f64::NEG_INFINITY;
    let mut answer = None;
    while answer.is_none() {
        if now() - asked > 0.5 {
            if asked > 2.0 {
                bail!("no answer from {server}; is the server running, and are its firewall and address right?");
            }
            transport.send(server, 0, &question, question.len())?;
            asked = now();
        }
        transport.recv(&mut |_, data| {
            if let Some((&kind::REPORT, numbers)) = data.split_first() {
                let mut numbers = numbers.chunks_exact(8).filter_map(|n| Some(f64::from_le_bytes(*n.first_chunk()?)));
                let mut next = || numbers.next().unwrap_or(0.0);
                answer = Some([next(), next()]);
            }
        })?;
    }
    answer.context("the server answers")
}

fn latency(
    transport: &mut dyn Transport,
    server: SocketAddr,
    size: usize,
    common: &Common,
) -> anyhow::Result<serde_json::Value> {
    if !(3..=65_000).contains(&size) {
        bail!("--size is {size}, must be in 3..=65000");
    }
    ask(transport, server)?;
    let ping = question(transport, kind::ECHO, size);
    let mut half_ns = Histogram::<u64>::new(3)?;
    let (now, mut lost) = (clock(), 0u64);
    while now() < common.time {
        let start = now();
        transport.send(server, 0, &ping, size)?;
        let mut answered = false;
        while !answered && now() - start < 0.1 {
            transport.recv(&mut |_, data| answered |= data.len() == size)?;
        }
        if answered {
            half_ns.record(((now() - start) * 1e9 / 2.0) as u64)?;
        } else {
            lost += 1;
        }
    }
    let us = |q| half_ns.value_at_quantile(q) as f64 / 1e3;
    Ok(json!({
        "mode": "lat",
        "bare": common.bare,
        "size": size,
        "round_trips": half_ns.len(),
        "lost": lost,
        "latency_us": { "p50": us(0.5), "p99": us(0.99), "p999": us(0.999), "max": half_ns.max() as f64 / 1e3 },
    }))
}
