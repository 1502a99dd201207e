//! Incast at 100 Gbit/s: N senders, each with one transfer to the same receiver, all at once.
//!
//! Prints flow completion times over the ideal (all payload at line rate), Jain's fairness index and drops, for several
//! sizes and switch buffers. `cargo run --release -p simnet --example incast [SENDERS]`

use simnet::{HostId, HostSpec, Model, Part, Queue, SrdNode, SrdSpec, SrdWorld, payload, star};
use srd_core::{Config, Span, Time};

/// Line rate, bit/s.
const RATE: u64 = 100_000_000_000;

fn main() {
    let senders: u32 = std::env::args().nth(1).map_or(48, |a| a.parse().expect("a number of senders"));
    println!("{senders} senders -> 1, {} Gbit/s, 1 us per link; completion over ideal", RATE / 1_000_000_000);
    println!(
        "{:>9} {:>9} {:>7} {:>7} {:>7} {:>6} {:>7} {:>7} {:>8}",
        "bytes", "buffer", "min", "median", "max", "jain", "drops", "resent", "timeouts"
    );
    for buffer in [125_000, 250_000, 1_000_000] {
        for size in [64_000, 256_000, 1_000_000, 2_000_000] {
            run(senders, size, buffer);
        }
    }
}

fn run(senders: u32, size: usize, buffer: u64) {
    let edge = [Part::Queue(Queue::new(RATE, buffer)), Part::Delay(Span::from_micros(1))];
    let config = Config { max_datagram: 4096, ..Config::fabric() }.check().expect("valid");
    let spec = HostSpec { source_ports: config.path_pool, ..HostSpec::default() };
    let mut world = SrdWorld::new(7, Model::new(false));
    let srd = SrdSpec { check_every: 0, discard: true, ..SrdSpec::new(config) };
    let fabric = star(&mut world, (0..=senders).map(|_| (spec, SrdNode::new(srd.clone(), None))), &edge);
    for i in 1..=senders {
        world.post(HostId(i), HostId(0), b"", payload(i.into(), size));
    }
    let settled = world.settle(Time::from_nanos(2_000_000_000));
    let ideal = f64::from(senders) * size as f64 * 8.0 / RATE as f64;
    let mut fct: Vec<f64> = world
        .shared()
        .messages()
        .iter()
        .map(|m| m.done.map_or(f64::INFINITY, |d| d.1.since(m.posted).as_secs_f64() / ideal))
        .collect();
    fct.sort_by(f64::total_cmp);
    let rates: Vec<f64> = fct.iter().map(|t| 1.0 / t).collect();
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    let stats = (1..=senders).map(|i| world.node(HostId(i)).endpoint_stats());
    let (resent, timeouts) = stats.fold((0, 0), |(r, t), s| (r + s.retransmits, t + s.timeouts));
    let drops: u64 = fabric.all().into_iter().map(|l| world.net().link(l).stats().queue_drops).sum();
    println!(
        "{size:>9} {buffer:>9} {:>7.3} {:>7.3} {:>7.3} {:>6.3} {:>7} {resent:>7} {timeouts:>8}{}",
        fct[0],
        fct[fct.len() / 2],
        fct[fct.len() - 1],
        sum * sum / (f64::from(senders) * squares),
        drops,
        if settled { "" } else { "  NOT SETTLED" }
    );
}
