//! The ceiling: how fast datagrams go over a virtual cable without a protocol, by bare AF_XDP rings, by the AF_XDP driver and
//! by the UDP driver, all in one run.
//!
//! ```text
//! cargo run --release -p srd-xdp --example raw_xdp           # needs root; makes its own network namespaces
//! ```
//!
//! Bare rings do what the kernel's `xdpsock` does: frames are written once and sent again and again, received ones are only
//! counted. As data that nobody writes or reads stays in one core's cache, there is a second kind that copies each payload in
//! and reads it. The drivers do that, too, and build headers, and compute and verify checksums. One thread on each side, on a
//! core of its own, spinning. Prints medians of rounds.

mod bare;
mod driven;

#[path = "../../src/asm.rs"]
#[allow(dead_code, reason = "the bare rings need a part of it")]
mod asm;
#[path = "../../src/sys/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the bare rings need a part of it")]
mod sys;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use hdrhistogram::Histogram;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use srd_udp::{UdpDriver, UdpOptions, WaitMode};
use srd_xdp::{XdpDriver, XdpOptions};
use testbed::{Host, Pair};

#[derive(Parser)]
#[command(about = "Bare AF_XDP rings, the AF_XDP driver and the UDP driver over one virtual cable")]
struct Cli {
    /// Rounds; each measures everything once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 0.3)]
    time: f64,
    /// UDP payloads, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1400])]
    sizes: Vec<usize>,
    /// Frames to receive into and frames to send from.
    #[arg(long, default_value_t = XdpOptions::default().frames)]
    frames: u32,
    /// MTU of the cable, in bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
}

/// One end of the cable, whatever it is made of.
trait End: Send {
    /// Sends a batch of datagrams of the size that the end was made for.
    fn send_many(&mut self) -> anyhow::Result<()>;

    /// Sends one.
    fn send_one(&mut self) -> anyhow::Result<()>;

    /// Takes what has arrived, without waiting; returns how many datagrams.
    fn receive(&mut self) -> anyhow::Result<usize>;
}

/// Datagrams of a batch.
const BATCH: usize = 64;
/// Source ports that a batch is spread over.
const PORTS: u16 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bare,
    Touched,
    Xdp,
    Udp,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Bare, Kind::Touched, Kind::Xdp, Kind::Udp];

    fn name(self) -> &'static str {
        match self {
            Kind::Bare => "bare AF_XDP rings",
            Kind::Touched => "the same, payload written and read",
            Kind::Xdp => "AF_XDP driver",
            Kind::Udp => "UDP driver (GSO, GRO)",
        }
    }

    /// Both ends, made in their namespaces.
    fn ends(self, bed: &Pair, size: usize, frames: u32) -> anyhow::Result<[Box<dyn End>; 2]> {
        let (a, b) = (bed.host(0), bed.host(1));
        Ok(match self {
            Kind::Bare | Kind::Touched => {
                let touch = self == Kind::Touched;
                let [mac_a, mac_b] = [bare::mac(a)?, bare::mac(b)?];
                let make = |host: &Host, peer: &Host, macs| -> anyhow::Result<Box<dyn End>> {
                    let addresses = [host.addr(), peer.addr()];
                    Ok(Box::new(host.enter(|| bare::Bare::open("eth0", macs, addresses, size, frames, touch))??))
                };
                [make(a, b, [mac_a, mac_b])?, make(b, a, [mac_b, mac_a])?]
            }
            Kind::Xdp => {
                let open = |host: &Host| -> anyhow::Result<XdpDriver> {
                    let udp = UdpOptions { wait: WaitMode::Spin, ..UdpOptions::default() };
                    let options = XdpOptions { udp, frames, ..XdpOptions::default() };
                    Ok(host.enter(|| XdpDriver::open((host.addr(), 0).into(), options))??)
                };
                driven::pair(open(a)?, open(b)?, size)
            }
            Kind::Udp => {
                let open = |host: &Host| -> anyhow::Result<UdpDriver> {
                    let options = UdpOptions { wait: WaitMode::Spin, ..UdpOptions::default() };
                    Ok(host.enter(|| UdpDriver::bind((host.addr(), 0).into(), options))??)
                };
                driven::pair(open(a)?, open(b)?, size)
            }
        })
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    testbed::available().map_err(anyhow::Error::msg)?;
    let time = Duration::from_secs_f64(cli.time);
    let mut rates = vec![vec![Vec::new(); Kind::ALL.len()]; cli.sizes.len()];
    let mut delays = rates.clone();
    for _ in 0..cli.rounds {
        for (s, &size) in cli.sizes.iter().enumerate() {
            for (k, kind) in Kind::ALL.into_iter().enumerate() {
                // A fresh cable for each: nothing of one kind stays for the next.
                let bed = Pair::builder().mtu(cli.mtu).build()?;
                rates[s][k].push(
                    stream(&bed, kind, size, cli.frames, time).with_context(|| format!("{}: stream", kind.name()))?,
                );
                let bed = Pair::builder().mtu(cli.mtu).build()?;
                delays[s][k].push(
                    ping(&bed, kind, size, cli.frames, time).with_context(|| format!("{}: ping-pong", kind.name()))?,
                );
            }
        }
    }
    println!("| UDP payload | | M datagrams/s | Gbit/s | / bare | / touched | half RTT, p50 us | / bare | / touched |");
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for (s, &size) in cli.sizes.iter().enumerate() {
        let [bare, touched] = [0, 1].map(|k| (median(&mut rates[s][k]), median(&mut delays[s][k])));
        for (k, kind) in Kind::ALL.into_iter().enumerate() {
            let (rate, delay) = (median(&mut rates[s][k]), median(&mut delays[s][k]));
            println!(
                "| {size} | {} | {:.2} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                kind.name(),
                rate / 1e6,
                rate * size as f64 * 8.0 / 1e9,
                rate / bare.0,
                rate / touched.0,
                delay,
                delay / bare.1,
                delay / touched.1
            );
        }
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The calling thread stays on this core from now on, if there is such a core.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    // On a machine with one core both share it, and the figures show it.
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// A rate is taken in so many slices; the best one counts, as the machine may do other work meanwhile.
const SLICE: Duration = Duration::from_millis(2);

/// Datagrams of each slice from `begin` on.
struct Slices {
    begin: Instant,
    counts: Vec<usize>,
}

impl Slices {
    fn new(begin: Instant, time: Duration) -> Slices {
        Slices { begin, counts: vec![0; (time.as_nanos() / SLICE.as_nanos()).max(1) as usize] }
    }

    /// Adds to the present slice. Says whether there is one.
    fn add(&mut self, count: usize) -> bool {
        let now = Instant::now();
        if now < self.begin {
            return true;
        }
        let slice = self.counts.get_mut((now.duration_since(self.begin).as_nanos() / SLICE.as_nanos()) as usize);
        slice.map(|sum| *sum += count).is_some()
    }
}

/// Datagrams per second that were sent and received.
fn stream(bed: &Pair, kind: Kind, size: usize, frames: u32, time: Duration) -> anyhow::Result<f64> {
    let [mut sender, mut receiver] = kind.ends(bed, size, frames)?;
    let ready = Arc::new(Barrier::new(2));
    let (begin, begun) = mpsc::channel();
    let sending = {
        let ready = ready.clone();
        bed.host(0).spawn(move || -> anyhow::Result<Slices> {
            pin(0);
            // Through the kernel at first, which finds the neighbour.
            sender.send_one()?;
            std::thread::sleep(Duration::from_millis(20));
            sender.receive()?;
            ready.wait();
            let at = Instant::now() + time / 4;
            begin.send(at)?;
            let mut slices = Slices::new(at, time);
            while slices.add(BATCH) {
                sender.send_many()?;
            }
            Ok(slices)
        })?
    };
    let receiving = bed.host(1).spawn(move || -> anyhow::Result<Slices> {
        pin(1);
        ready.wait();
        let mut slices = Slices::new(begun.recv()?, time);
        let mut received = 0;
        while slices.add(received) {
            received = receiver.receive()?;
        }
        Ok(slices)
    })?;
    let received = receiving.join().expect("the receiver does not panic")?;
    let sent = sending.join().expect("the sender does not panic")?;
    // Both ran: what waited to be received, or was dropped, is no rate.
    let best = sent.counts.iter().zip(&received.counts).map(|(sent, got)| *sent.min(got)).max().unwrap_or_default();
    Ok(best as f64 / SLICE.as_secs_f64())
}

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_millis(20);

/// Median of half the round-trip time, in microseconds.
fn ping(bed: &Pair, kind: Kind, size: usize, frames: u32, time: Duration) -> anyhow::Result<f64> {
    let [mut client, mut server] = kind.ends(bed, size, frames)?;
    let stop = Arc::new(AtomicBool::new(false));
    let serving = {
        let stop = stop.clone();
        bed.host(1).spawn(move || -> anyhow::Result<()> {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..server.receive()? {
                    server.send_one()?;
                }
            }
            Ok(())
        })?
    };
    let asking = bed.host(0).spawn(move || -> anyhow::Result<f64> {
        pin(0);
        let mut spans = Histogram::<u64>::new(3)?;
        let begin = Instant::now();
        while begin.elapsed() < time + time / 4 {
            let asked = Instant::now();
            client.send_one()?;
            // Nothing is sent again here, so a lost datagram is a round trip less.
            let mut answered = false;
            while !answered && asked.elapsed() < PATIENCE {
                answered = client.receive()? > 0;
            }
            if answered && begin.elapsed() > time / 4 {
                spans.record(asked.elapsed().as_nanos() as u64)?;
            }
        }
        Ok(spans.value_at_quantile(0.5) as f64 / 2e3)
    })?;
    let half = asking.join().expect("the client does not panic");
    stop.store(true, Ordering::Relaxed);
    serving.join().expect("the server does not panic")?;
    half
}
