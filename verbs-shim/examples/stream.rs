//! What `ib_send_bw` and `ib_read_bw` do, through the Rust API: to tell what the C interface costs from what the card does.
//!
//! ```text
//! stream server 127.0.0.1:7473                        # serves one client; the same port over TCP to find each other
//! stream client 127.0.0.1:7473 send --size 64         # messages that the server takes
//! stream client 127.0.0.1:7473 read --size 65536      # its memory, by RDMA
//! ```
//!
//! Both sides poll without sleeping. The client prints one JSON object.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;
use verbs_shim::api::{Buf, CompletionQueue, Device, Pd, QpAddress, QueuePair, RemoteMemory, Srd};
use verbs_shim::card::Opcode;

#[derive(Parser)]
#[command(about = "Streams of work requests through the Rust API")]
enum Cli {
    /// Serve one client.
    Server {
        /// Address of the card, and where clients ask for it over TCP.
        addr: SocketAddr,
    },
    /// Measure and report.
    Client {
        /// Address of the server.
        addr: SocketAddr,
        what: What,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
enum What {
    Send,
    Read,
}

#[derive(Args, Clone, Serialize, Deserialize)]
struct Options {
    /// Bytes of a message, or of a read.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// How many there are.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Most requests under way, and receives that wait for messages.
    #[arg(long, default_value_t = 512)]
    depth: u32,
}

/// What the client asks for.
#[derive(Serialize, Deserialize)]
struct Hello {
    what: What,
    options: Options,
    qp: String,
}

/// Where it finds that.
#[derive(Serialize, Deserialize)]
struct Answer {
    qp: String,
    addr: u64,
    len: u64,
    rkey: u32,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Server { addr } => serve(addr),
        Cli::Client { addr, what, options } => measure(addr, what, options),
    }
}

/// A queue pair of this depth on a card of its own, and what it needs.
fn end(addr: SocketAddr, depth: u32) -> anyhow::Result<(Pd, CompletionQueue, QueuePair<Srd>)> {
    let device = Device::at(addr)?;
    let (pd, cq) = (device.pd()?, device.cq(4 * depth)?);
    let qp = pd.srd(&cq).depth(depth, depth).build()?;
    Ok((pd, cq, qp))
}

fn serve(addr: SocketAddr) -> anyhow::Result<()> {
    let (mut stream, _) = TcpListener::bind(addr)?.accept()?;
    let Hello { what, options, qp: client } = hear(&stream)?;
    let (pd, cq, qp) = end(SocketAddr::new(addr.ip(), 0), options.depth)?;
    // Reads are served only to cards that we have a handle for.
    let _client = pd.target(client.parse()?)?;
    let window = pd.window(options.size, true, false)?;
    let RemoteMemory { addr, len, rkey } = window.remote();
    pd.bufs(options.depth as usize, options.size)?.into_iter().try_for_each(|buf| qp.recv(buf).map(drop))?;
    tell(&mut stream, &Answer { qp: qp.address().to_string(), addr, len, rkey })?;
    let mut left = if what == What::Send { options.count } else { 0 };
    while left > 0 {
        let Some(done) = cq.poll() else { continue };
        let done = done.ok()?;
        qp.recv(done.buf.context("a receive has a buffer")?)?;
        left -= 1;
    }
    // Polling answers, too, until the client has all.
    stream.set_nonblocking(true)?;
    while stream.peek(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock) {
        cq.poll();
    }
    Ok(())
}

fn measure(addr: SocketAddr, what: What, options: Options) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    let (pd, cq, qp) = end(SocketAddr::new(stream.local_addr()?.ip(), 0), options.depth)?;
    tell(&mut stream, &Hello { what, options: options.clone(), qp: qp.address().to_string() })?;
    let Answer { qp: server, addr, len, rkey } = hear(&stream)?;
    let (target, there) = (pd.target(server.parse::<QpAddress>()?)?, RemoteMemory { addr, len, rkey });
    let post = |buf: Buf| match what {
        What::Send => qp.send(&target, buf),
        What::Read => qp.read(&target, buf, there),
    };

    let mut bufs = pd.bufs(options.depth as usize, options.size)?;
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < options.count {
        while posted < options.count
            && let Some(buf) = bufs.pop()
        {
            post(buf)?;
            posted += 1;
        }
        while let Some(one) = cq.poll() {
            let one = one.ok()?;
            anyhow::ensure!(one.kind != Opcode::Recv, "the server sends nothing");
            bufs.extend(one.buf);
            done += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let (rate, size) = (done as f64 / seconds, options.size);
    let report = json!({
        "what": format!("{what:?}"), "size": size, "count": done, "seconds": seconds,
        "messages_per_s": rate, "bandwidth_gbps": rate * size as f64 * 8e-9,
    });
    println!("{report}");
    Ok(())
}

fn tell(stream: &mut TcpStream, what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    Ok(stream.write_all(line.as_bytes())?)
}

fn hear<T: for<'de> Deserialize<'de>>(stream: &TcpStream) -> anyhow::Result<T> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).context("the other side has gone")
}
