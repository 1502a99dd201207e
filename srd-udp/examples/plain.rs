//! Plain sockets without any option, to compare with: a spinning ping-pong over UDP and TCP, and TCP in large writes.
//!
//! ```text
//! plain server tcp 127.0.0.1:7472
//! plain client tcp 127.0.0.1:7472 lat       # half the round-trip time of 64 bytes, both sides spinning
//! plain client tcp 127.0.0.1:7472 bw        # large blocking writes and reads
//! ```
//!
//! The server serves one client. The client prints one JSON object.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use serde_json::json;

#[derive(Parser)]
#[command(about = "Plain sockets: what everything else is compared with")]
enum Cli {
    /// Serve one client, spinning.
    Server {
        protocol: Protocol,
        /// Address to listen at.
        addr: SocketAddr,
    },
    /// Measure and report.
    Client {
        protocol: Protocol,
        /// Address of the server.
        addr: SocketAddr,
        #[command(subcommand)]
        mode: Mode,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Udp,
    Tcp,
}

#[derive(Subcommand)]
enum Mode {
    /// Ping-pong, half the round-trip time.
    Lat(Options),
    /// Bandwidth of writes of --size bytes, counted at the server.
    Bw(Options),
}

#[derive(Args)]
struct Options {
    /// Bytes of a message, or of a write.
    #[arg(long)]
    size: Option<usize>,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 1.0)]
    time: f64,
}

/// After so long without an answer a datagram counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// First byte of a TCP connection.
const ECHO: u8 = 1;
const COUNT: u8 = 2;

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Server { protocol: Protocol::Udp, addr } => Ok(serve_udp(addr)?),
        Cli::Server { protocol: Protocol::Tcp, addr } => Ok(serve_tcp(addr)?),
        Cli::Client { protocol: Protocol::Udp, addr, mode: Mode::Lat(options) } => {
            let socket = UdpSocket::bind(if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.connect(addr)?;
            socket.set_nonblocking(true)?;
            let mut buf = [0; 65536];
            let ping = vec![0; options.size.unwrap_or(64)];
            latency(options.time, || {
                socket.send(&ping)?;
                let start = Instant::now();
                loop {
                    match socket.recv(&mut buf) {
                        Ok(_) => return Ok(true),
                        Err(e) if e.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {}
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                        Err(e) => return Err(e),
                    }
                }
            })
        }
        Cli::Client { protocol: Protocol::Tcp, addr, mode: Mode::Lat(options) } => {
            let mut stream = connect(addr, ECHO)?;
            stream.set_nonblocking(true)?;
            let mut message = vec![0; options.size.unwrap_or(64)];
            latency(options.time, || {
                write_spinning(&mut stream, &message)?;
                read_spinning(&mut stream, &mut message).map(|_| true)
            })
        }
        Cli::Client { protocol: Protocol::Tcp, addr, mode: Mode::Bw(options) } => {
            let mut stream = connect(addr, COUNT)?;
            let bytes = vec![0; options.size.unwrap_or(256 * 1024)];
            let start = Instant::now();
            while start.elapsed().as_secs_f64() < options.time {
                stream.write_all(&bytes)?;
            }
            stream.shutdown(Shutdown::Write)?;
            let mut count = [0; 8];
            stream.read_exact(&mut count)?;
            let gbps = u64::from_le_bytes(count) as f64 * 8e-9 / start.elapsed().as_secs_f64();
            println!("{}", json!({ "mode": "bw", "size": bytes.len(), "bandwidth_gbps": gbps }));
            Ok(())
        }
        Cli::Client { protocol: Protocol::Udp, mode: Mode::Bw(_), .. } => {
            bail!("there is no bandwidth over plain UDP here; raw_udp measures it")
        }
    }
}

/// Repeats `round` for `time` seconds, and reports.
fn latency(time: f64, mut round: impl FnMut() -> io::Result<bool>) -> anyhow::Result<()> {
    let mut half_ns = Histogram::<u64>::new(3)?;
    let (start, mut lost) = (Instant::now(), 0u64);
    while start.elapsed().as_secs_f64() < time {
        let begin = Instant::now();
        if round()? {
            half_ns.record(begin.elapsed().as_nanos() as u64 / 2)?;
        } else {
            lost += 1;
        }
    }
    let us = |q| half_ns.value_at_quantile(q) as f64 / 1e3;
    let latency = json!({ "p50": us(0.5), "p99": us(0.99), "p999": us(0.999), "max": half_ns.max() as f64 / 1e3 });
    println!("{}", json!({ "mode": "lat", "round_trips": half_ns.len(), "lost": lost, "latency_us": latency }));
    Ok(())
}

fn serve_udp(addr: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(addr)?;
    let mut buf = [0; 65536];
    let (len, from) = socket.recv_from(&mut buf)?;
    socket.connect(from)?;
    socket.set_nonblocking(true)?;
    socket.send(&buf[..len])?;
    loop {
        match socket.recv(&mut buf) {
            Ok(len) => drop(socket.send(&buf[..len])?),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            // The client has gone.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

fn connect(addr: SocketAddr, what: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[what])?;
    Ok(stream)
}

fn serve_tcp(addr: SocketAddr) -> io::Result<()> {
    let (mut stream, _) = TcpListener::bind(addr)?.accept()?;
    stream.set_nodelay(true)?;
    let mut what = [0];
    stream.read_exact(&mut what)?;
    let mut buf = vec![0; 256 * 1024];
    if what[0] == ECHO {
        stream.set_nonblocking(true)?;
        // Whatever has come goes back: the client sends nothing while it waits.
        loop {
            match stream.read(&mut buf) {
                Ok(0) => return Ok(()),
                Ok(len) => write_spinning(&mut stream, &buf[..len])?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }
    let mut count = 0u64;
    loop {
        match stream.read(&mut buf)? {
            0 => break,
            len => count += len as u64,
        }
    }
    stream.write_all(&count.to_le_bytes())
}

fn read_spinning(stream: &mut TcpStream, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match stream.read(&mut buf[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => done += len,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn write_spinning(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
