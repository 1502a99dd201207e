//! Congestion control at 100 Gbit/s, one line per experiment: incasts, flows that stay, join and leave, racks against
//! racks, a permutation, a dead link.
//!
//! `cargo run --release -p simnet --example incast -- [GROUP]... [seeds=N] [mtu=N] [NAME=VALUE]...`
//!
//! Groups are `burst`, `paper`, `many`, `stay`, `join`, `racks`, `permutation` and `dead`; all of them without any. Each
//! line is the worst of all seeds. `NAME=VALUE` sets a field of the configuration, for sweeps. See
//! docs/congestion-control.md for what the columns mean.

mod bed;
mod groups;

use bed::Setting;

fn main() {
    let mut setting = Setting::default();
    let mut chosen = Vec::new();
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some((name, value)) => {
                if let Err(what) = setting.set(name, value) {
                    eprintln!("{arg}: {what}");
                    std::process::exit(2);
                }
            }
            None => chosen.push(arg),
        }
    }
    if let Some(unknown) = chosen.iter().find(|c| groups::ALL.iter().all(|(name, _)| name != c)) {
        let names: Vec<&str> = groups::ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("no group is called {unknown}; there are {}", names.join(", "));
        std::process::exit(2);
    }
    for (name, run) in groups::ALL {
        if chosen.is_empty() || chosen.iter().any(|c| c == name) {
            run(&setting);
        }
    }
}
