//! The speed of the simulator: permutations of 2 MB over fat trees, every host running the real transport, on one core.
//!
//! `cargo bench -p simnet [-- --large]`. Time and memory per packet must not grow with the number of hosts; `--large` adds
//! 8,192 of them.

use simnet::experiment::{Experiment, FlowSpec, Messages};
use simnet::{Buffers, Clos, Rng};
use srd_core::{Config, Span};

/// Servers, and MTU.
const SIZES: [(usize, u32); 4] = [(128, 9_000), (1_024, 9_000), (1_024, 4_096), (8_192, 9_000)];

fn main() {
    let given = |word: &str| std::env::args().any(|a| a == word);
    // `cargo test` and `cargo bench -- --test` only want to see that it runs.
    let count = if given("--large") {
        4
    } else if given("--bench") && !given("--test") {
        3
    } else {
        1
    };
    for (hosts, mtu) in SIZES.into_iter().take(count) {
        permutation(hosts, mtu, 1);
    }
}

fn permutation(hosts: usize, mtu: u32, seed: u64) {
    let k = (2..).step_by(2).find(|k| k * k * k / 4 >= hosts).expect("some radix is large enough");
    let mut order: Vec<usize> = (0..hosts).collect();
    let mut rng = Rng::new(seed);
    // Sattolo's shuffle: one cycle, so that nobody sends to itself.
    for i in (1..hosts).rev() {
        order.swap(i, rng.below(i as u64) as usize);
    }
    let flow = |(from, to): (usize, &usize)| FlowSpec::between(from, *to, 2_000_000);
    let clos = Clos::fat_tree(k, hosts, 100_000_000_000, Span::from_micros(1));
    let config = Config { max_datagram: (mtu - 28) as u16, ..Config::fabric() };
    let experiment = Experiment {
        seed,
        plan: clos.plan().expect("a valid tree"),
        buffers: Buffers { port: 1_000_000, shared: None, ecn: Some((200_000, 800_000)), nic: 16_000_000 },
        polarised: false,
        mtu,
        flows: order.iter().enumerate().map(flow).collect(),
        faults: Vec::new(),
        descheduling: None,
        cable_rates: true,
        drain: None,
        srd: config.check().expect("a valid configuration"),
        messages: Messages { bytes: 4_000_000, depth: 1, verbs: false },
        warm: true,
        limit: Span::from_millis(20),
        sample: None,
    };
    let began = cpu_seconds();
    let outcome = experiment.run(|_| true).expect("a valid experiment");
    let cpu = cpu_seconds() - began;
    let mut times: Vec<f64> = outcome.flows.iter().filter_map(|f| Some(f.fct?.as_micros_f64())).collect();
    times.sort_by(f64::total_cmp);
    let hops: u64 = outcome.links.iter().map(|l| l.packets).sum();
    assert_eq!((times.len(), outcome.broken), (hosts, None), "every flow ends");
    println!(
        "{hosts} servers, MTU {mtu}: {cpu:.2} s of CPU, {:.2} M events/s, {:.2} us per packet ({} packets, {hops} hops), peak memory \
         {:.0} MB; completion time median {:.1} max {:.1} us, {} drops, {} resent",
        outcome.events as f64 / cpu / 1e6,
        cpu * 1e6 / outcome.packets as f64,
        outcome.packets,
        peak_memory_mb(),
        times[times.len() / 2],
        times[times.len() - 1],
        outcome.drops,
        outcome.flows.iter().map(|f| f.retransmits).sum::<u64>(),
    );
}

/// CPU time of this process, from the kernel, which counts in hundredths of a second: what others do on this machine does not
/// change it much.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // User and system time are the 12th and 13th field after the command in parentheses.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Peak resident set size, from the kernel.
fn peak_memory_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}
