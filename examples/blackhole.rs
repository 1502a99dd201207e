//! A spine of a fabric dies without a word, in the middle of a transfer: SRD and TCP side by side, as tables.
//!
//! `cargo run --release --example blackhole` as root; with `acks`, only what acknowledgements travel on dies.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use support::hole::{self, Outcome, SPINE_PAYLOAD, SPINES, Way};
use support::{Load, mbit};

/// Milliseconds shown before the hole, and after it.
const BEFORE: usize = 5;
const AFTER: usize = 30;
const FLOWS: usize = 16;

fn main() -> Result<(), String> {
    let way = match std::env::args().nth(1).as_deref() {
        None => Way::Both,
        Some("acks") => Way::Acks,
        Some(other) => return Err(format!("`{other}` is not understood: write `acks`, or nothing")),
    };
    testbed::available()?;
    let _turn = support::turn();
    let bed = hole::fabric().build().map_err(|e| e.to_string())?;
    let load = Load { size: 8192, depth: 32, count: u64::MAX };
    println!(
        "{SPINES} spines of {} each; one of them dies. Payload that the others carry: {:.0} Mbit/s.\n",
        hole::SPINE_RATE,
        { mbit(SPINE_PAYLOAD * (SPINES - 1) as f64) }
    );
    let (srd, detail) = hole::srd(&bed, way, [&hole::setup(1), &hole::setup(2)], load);
    let tcp = hole::tcp(&bed, way, FLOWS);

    let runs = [("SRD, one connection".to_owned(), &srd), (format!("TCP, {FLOWS} flows"), &tcp)];
    println!("{}\n", timeline(&runs));
    println!("{}\n", summary(&runs));
    println!("SRD, before the hole: {}", detail.delays_before);
    println!("SRD, after the hole:  {}\n", detail.delays_after);
    println!("Paths of SRD 1.5 s after the hole:\n{}", detail.at_heal.paths());
    Ok(())
}

fn table<'a>(head: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(head.into_iter().map(str::to_owned));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Goodput of each millisecond.
fn timeline(runs: &[(String, &Outcome)]) -> Table {
    let heads = ["ms", &runs[0].0, &runs[1].0];
    let mut table = table(heads);
    let each = |seen: &Outcome| seen.timeline.each(seen.hole - Duration::from_millis(BEFORE as u64), BEFORE + AFTER);
    for (at, (srd, tcp)) in each(runs[0].1).into_iter().zip(each(runs[1].1)).enumerate() {
        let ms = at as i64 - BEFORE as i64;
        table.add_row([format!("{ms:+}"), format!("{srd:.0} Mbit/s"), format!("{tcp:.0} Mbit/s")]);
    }
    table
}

/// What it comes down to.
fn summary(runs: &[(String, &Outcome)]) -> Table {
    let mut table = table(["", "before", "after", "goodput lost", "nothing came for", "worst delay or stall"]);
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    for (name, seen) in runs {
        table.add_row([
            name.clone(),
            format!("{:.0} Mbit/s", mbit(seen.before)),
            format!("{:.0} Mbit/s", mbit(seen.after)),
            ms(seen.lag),
            ms(seen.stall),
            ms(seen.worst),
        ]);
    }
    table
}
