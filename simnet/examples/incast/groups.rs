//! The experiments.

use simnet::{Action, HostId, Part};
use srd_core::Span;

use crate::bed::{Bed, Counts, RATE, Setting, Worst, jain, zeros};

/// A group of experiments: prints its lines.
pub(crate) type Group = fn(&Setting);

pub(crate) const ALL: [(&str, Group); 8] = [
    ("burst", burst),
    ("paper", paper),
    ("many", many),
    ("stay", stay),
    ("join", join),
    ("racks", racks),
    ("permutation", permutation),
    ("dead", dead),
];

fn head(title: &str) {
    println!(
        "{title:<34} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>8} {:>8}",
        "min", "med", "med", "max", "jain", "drops %", "resent %", "timeouts", "queue KB"
    );
}

fn line(what: &str, w: &Worst) {
    let percent = |n: u64| 100.0 * n as f64 / w.counts.sent as f64;
    println!(
        "{what:<34} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>6.4} {:>8.4} {:>8.4} {:>8} {:>8}",
        w.min,
        w.median.0,
        w.median.1,
        w.max,
        w.jain,
        percent(w.counts.drops),
        percent(w.counts.resent),
        w.counts.timeouts,
        w.counts.queue / 1000
    );
}

fn bytes(n: u64) -> String {
    if n >= 1_000_000 { format!("{} MB", n / 1_000_000) } else { format!("{} KB", n / 1000) }
}

/// All payload of `flows` at line rate, seconds.
fn ideal(flows: usize, size: usize) -> f64 {
    (flows * size * 8) as f64 / RATE as f64
}

/// Runs an experiment with each seed, on the cores that there are.
fn each_seed(setting: &Setting, run: impl Fn(u64) -> (Vec<f64>, Counts) + Sync) -> Worst {
    let next = std::sync::atomic::AtomicU64::new(0);
    let worst = std::sync::Mutex::new(Worst::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= setting.seeds {
                        break;
                    }
                    let (times, counts) = run(seed);
                    worst.lock().expect("no run panicked").add(times, counts);
                }
            });
        }
    });
    worst.into_inner().expect("no run panicked")
}

/// An incast: `senders` hosts with `each` messages of `size` bytes to host 0.
struct Incast {
    senders: u32,
    each: u32,
    size: usize,
    buffer: u64,
    warm: bool,
    skew: Span,
}

fn incast(setting: &Setting, i: &Incast) -> Worst {
    let ideal = ideal((i.senders * i.each) as usize, i.size);
    each_seed(setting, |seed| {
        let mut bed = Bed::star(setting, seed, i.senders + 1, i.buffer);
        let one: Vec<(u32, u32)> = (1..=i.senders).map(|s| (s, 0)).collect();
        if i.warm {
            bed.warm(&one);
        }
        let before = bed.counts();
        let pairs: Vec<(u32, u32)> = (0..i.each).flat_map(|_| one.iter().copied()).collect();
        let times = bed.transfer(&pairs, i.size, i.skew, seed);
        let mut counts = bed.counts();
        counts.timeouts -= before.timeouts;
        (times.iter().map(|t| t / ideal).collect(), counts)
    })
}

const SIZES: [usize; 5] = [64_000, 256_000, 1_000_000, 2_000_000, 8_000_000];

/// 48 senders at once, connections open already or not.
fn burst(setting: &Setting) {
    for warm in [false, true] {
        let kind = if warm { "open" } else { "new" };
        head(&format!("48 -> 1, {kind} connections"));
        for &buffer in &setting.buffers {
            for size in SIZES {
                let i = Incast { senders: 48, each: 1, size, buffer, warm, skew: Span::ZERO };
                line(&format!("  {}, buffer {}", bytes(size as u64), bytes(buffer)), &incast(setting, &i));
            }
        }
    }
}

/// The paper's: 4 hosts with 12 flows each, a barrier's skew between them.
fn paper(setting: &Setting) {
    head("4 hosts x 12 -> 1, skew 20 us");
    for &buffer in &setting.buffers {
        for size in SIZES {
            let i = Incast { senders: 4, each: 12, size, buffer, warm: true, skew: Span::from_micros(20) };
            line(&format!("  {}, buffer {}", bytes(size as u64), bytes(buffer)), &incast(setting, &i));
        }
    }
}

/// Hundreds of senders of 64 KB.
fn many(setting: &Setting) {
    for warm in [false, true] {
        let kind = if warm { "open" } else { "new" };
        head(&format!("many -> 1 of 64 KB, {kind} connections"));
        for &buffer in &setting.buffers {
            for senders in [256, 1_000] {
                let i = Incast { senders, each: 1, size: 64_000, buffer, warm, skew: Span::ZERO };
                line(&format!("  {senders} senders, buffer {}", bytes(buffer)), &incast(setting, &i));
            }
        }
    }
}

/// 48 flows that stay: each one's share of the receiver's link in every sample of 2 ms.
fn stay(setting: &Setting) {
    println!(
        "{:<34} {:>6} {:>6} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "48 -> 1 for 12 ms, samples of 2 ms", "min", "max", "jain", "busy %", "queue %", "peak KB", "drops"
    );
    for &buffer in &setting.buffers {
        let (mut least, mut most, mut fair, mut busy) = (f64::INFINITY, 0f64, 1f64, 1f64);
        let (mut mean_queue, mut peak, mut drops) = (0f64, 0, 0);
        for seed in 0..setting.seeds {
            let mut bed = Bed::star(setting, seed, 49, buffer);
            let data = zeros(100_000_000);
            for sender in 1..=48 {
                bed.world.post(HostId(sender), HostId(0), b"", data.clone());
            }
            bed.world.run_for(Span::from_millis(2));
            let link = bed.fabric.down[0];
            let early = bed.counts().drops;
            for _ in 0..5 {
                let before: Vec<f64> = (1..=48).map(|s| bed.delivered(s, 0)).collect();
                let was = bed.busy(link);
                let (mut sum, samples) = (0, 1000);
                for _ in 0..samples {
                    bed.world.run_for(Span::from_micros(2));
                    let queued = bed.queued(link);
                    sum += queued;
                    peak = peak.max(queued);
                }
                let got: Vec<f64> = (1..=48).map(|s| bed.delivered(s, 0) - before[s as usize - 1]).collect();
                let share = got.iter().sum::<f64>() / 48.0;
                least = got.iter().fold(least, |m, g| m.min(g / share));
                most = got.iter().fold(most, |m, g| m.max(g / share));
                fair = fair.min(jain(got));
                busy = busy.min((bed.busy(link) - was).as_secs_f64() / 2e-3);
                mean_queue = mean_queue.max(sum as f64 / f64::from(samples) / buffer as f64);
            }
            drops = drops.max(bed.counts().drops - early);
        }
        println!(
            "{:<34} {least:>6.3} {most:>6.3} {fair:>7.5} {:>7.2} {:>8.2} {:>8} {drops:>8}",
            format!("  buffer {}", bytes(buffer)),
            100.0 * busy,
            100.0 * mean_queue,
            peak / 1000
        );
    }
}

/// Flows join others, and leave them: how soon every flow has its share, within 10 %, over 100 us.
fn join(setting: &Setting) {
    println!("{:<34} {:>9} {:>9} {:>8} {:>8}", "joining and leaving", "join us", "leave us", "peak KB", "drops");
    for (stay, come) in [(1, 1), (4, 4), (24, 24), (47, 1), (1, 47)] {
        for &buffer in &setting.buffers {
            let (mut joined, mut left, mut peak, mut drops) = (0f64, 0f64, 0, 0);
            for seed in 0..setting.seeds {
                let mut bed = Bed::star(setting, seed, stay + come + 1, buffer);
                let flows: Vec<(u32, u32)> = (1..=stay + come).map(|s| (s, 0)).collect();
                bed.warm(&flows);
                let data = zeros(400_000_000);
                for &(s, _) in &flows[..stay as usize] {
                    bed.world.post(HostId(s), HostId(0), b"", data.clone());
                }
                bed.world.run_for(Span::from_millis(3));
                let early = bed.counts().drops;
                // Sized so that they would be done after 4 ms at their share.
                let part = zeros((RATE as f64 / 8.0 * 4e-3 / f64::from(stay + come)) as usize);
                for &(s, _) in &flows[stay as usize..] {
                    bed.world.post(HostId(s), HostId(0), b"", part.clone());
                }
                joined = joined.max(settling(&mut bed, &flows, 3e-3));
                let limit = bed.world.now() + Span::from_millis(20);
                bed.world.run_while(limit, |w| w.shared().open() == u64::from(stay));
                left = left.max(settling(&mut bed, &flows[..stay as usize], 3e-3));
                let counts = bed.counts();
                drops = drops.max(counts.drops - early);
                peak = peak.max(counts.queue);
            }
            println!(
                "{:<34} {joined:>9.0} {left:>9.0} {:>8} {drops:>8}",
                format!("  {stay} + {come}, buffer {}", bytes(buffer)),
                peak / 1000
            );
        }
    }
}

/// Time in microseconds after which each flow had its fair share of the line rate within 10 %, over two windows of ten
/// packets of each flow and at least 100 us.
fn settling(bed: &mut Bed, flows: &[(u32, u32)], longest: f64) -> f64 {
    let line = RATE as f64 / 8.0;
    let window = (10.0 * 9000.0 * flows.len() as f64 / line).max(100e-6);
    let fair = line * window / flows.len() as f64;
    let mut good = 0;
    for i in 1.. {
        let before: Vec<f64> = flows.iter().map(|&(f, t)| bed.delivered(f, t)).collect();
        bed.world.run_for(Span::from_nanos((window * 1e9) as u64));
        let off = flows.iter().zip(before).map(|(&(f, t), b)| (bed.delivered(f, t) - b - fair).abs());
        // A packet more or less is chance.
        good = if off.fold(0f64, f64::max) < 0.1 * fair + 9000.0 { good + 1 } else { 0 };
        if good == 2 {
            return f64::from(i - 2) * window * 1e6;
        }
        if f64::from(i) * window > longest {
            break;
        }
    }
    f64::INFINITY
}

/// 8 hosts in one rack to 8 in another, 16 flows per pair.
fn racks(setting: &Setting) {
    head("8 x 16 flows of 2 MB between racks");
    let size = 2_000_000;
    for spines in [16, 8] {
        for &buffer in &setting.buffers {
            let w = each_seed(setting, |seed| {
                let mut bed = Bed::racks(setting, seed, 16, 2, spines, buffer);
                let one: Vec<(u32, u32)> = (0..8).map(|s| (s, 8 + s)).collect();
                bed.warm(&one);
                let pairs: Vec<(u32, u32)> = (0..16).flat_map(|_| one.iter().copied()).collect();
                let times = bed.transfer(&pairs, size, Span::ZERO, seed);
                (times.iter().map(|t| t / ideal(16, size)).collect(), bed.counts())
            });
            line(&format!("  {spines} uplinks, buffer {}", bytes(buffer)), &w);
        }
    }
}

/// 1,024 hosts, each sending 2 MB to another one. Times are microseconds.
fn permutation(setting: &Setting) {
    head("permutation of 1,024, 2 MB, us");
    let setting = Setting { seeds: setting.seeds.min(3), ..setting.clone() };
    for warm in [true, false] {
        for &buffer in &setting.buffers {
            let w = each_seed(&setting, |seed| {
                let mut bed = Bed::racks(&setting, seed, 1024, 32, 32, buffer);
                let pairs = derangement(1024, seed);
                if warm {
                    bed.warm(&pairs);
                }
                let times = bed.transfer(&pairs, 2_000_000, Span::ZERO, seed);
                (times.iter().map(|t| t * 1e6).collect(), bed.counts())
            });
            let kind = if warm { "open" } else { "new" };
            line(&format!("  {kind}, buffer {}", bytes(buffer)), &w);
        }
    }
}

/// Every host sends to another one and receives from another one.
fn derangement(n: u32, seed: u64) -> Vec<(u32, u32)> {
    let mut rng = simnet::Rng::derive(seed, "permutation", 0);
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..n as usize).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    // Along the cycle of a random order nobody sends to himself.
    (0..n as usize).map(|i| (order[i], order[(i + 1) % n as usize])).collect()
}

/// 8 flows of 20 MB between racks with 16 spines, one of which dies silently after 300 us.
fn dead(setting: &Setting) {
    head("8 flows of 20 MB, 16 spines");
    let size = 20_000_000;
    for dies in [false, true] {
        for &buffer in &setting.buffers {
            let w = each_seed(setting, |seed| {
                let mut bed = Bed::racks(setting, seed, 16, 2, 16, buffer);
                let pairs: Vec<(u32, u32)> = (0..8).map(|s| (s, 8 + s)).collect();
                bed.warm(&pairs);
                if dies {
                    let at = bed.world.now() + Span::from_micros(300);
                    bed.world.at(at, Action::Set(bed.fabric.path(3), Part::Blackhole));
                }
                let times = bed.transfer(&pairs, size, Span::ZERO, seed);
                (times.iter().map(|t| t / ideal(1, size)).collect(), bed.counts())
            });
            let kind = if dies { "one dies silently" } else { "healthy" };
            line(&format!("  {kind}, buffer {}", bytes(buffer)), &w);
        }
    }
}
