//! Results as tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Link, Point, Report, Spread, Summary};
use crate::units::{bytes, thousands};

/// Links that the table shows: those that carried most.
const BUSIEST: usize = 6;

/// The whole report as text.
pub(crate) fn table(report: &Report) -> String {
    let mut out = vec![format!("{}: {}", report.scenario, report.title)];
    out.extend(report.assumptions.iter().map(|a| format!("  assumed: {a}")));
    out.extend(report.changed.iter().map(|c| format!("  changed: {c}")));
    out.extend(report.sweep_value.iter().map(|v| format!("  changed: {v}, the last of the sweep")));
    // None has one where no flow ends, or where the rate is not known.
    if report.run.ideal_fct_us > 0.0 {
        out.push(format!("ideal completion time {:.1} us", report.run.ideal_fct_us));
    }
    let rows: Vec<(String, u64, &Summary)> = report.runs().map(|r| (r.transport.clone(), r.seed, &r.summary)).collect();
    out.push(summaries("transport", &rows));
    for run in report.runs() {
        // Samples short enough for round trips hold a packet or none.
        if let Some(worst) = run.summary.worst_sample_over_fair.filter(|_| run.summary.convergence_rtts.is_none()) {
            out.push(format!("{}: the sample furthest from the fair share is {worst:.3} of it", run.transport));
        }
        if let Some(rtts) = run.summary.convergence_rtts {
            out.push(format!(
                "{}: equal shares {rtts:.0} round trips after flows came or went, at most",
                run.transport
            ));
        }
    }
    if report.seeds.len() > 1 {
        let rows: Vec<_> = report.seeds.iter().map(|s| (report.run.transport.clone(), s.seed, &s.summary)).collect();
        out.push(format!("{} seeds, the worst above:\n{}", report.seeds.len(), summaries("transport", &rows)));
    }
    if let Some(confidence) = &report.confidence {
        let line = |name: &str, s: &Option<Spread>| {
            s.map(|s| format!("{name} {:.4} +- {:.4} (95 %), worst {:.4}", s.mean, s.plus_minus, s.worst))
        };
        out.extend(line("max over ideal", &confidence.max_over_ideal));
        out.extend(line("median over ideal", &confidence.median_over_ideal));
    }
    if let Some(first) = report.sweep.first() {
        let name = |p: &Point| format!("{} {}", p.value, p.transport);
        let rows: Vec<_> = report.sweep.iter().map(|p| (name(p), p.seed, &p.summary)).collect();
        out.push(format!("sweep:\n{}", summaries(&first.parameter, &rows)));
    }
    if let Some(links) = links(&report.run.links) {
        out.push(format!("busiest links ({}):\n{links}", report.run.transport));
    }
    out.join("\n")
}

fn grid(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn summaries(what: &str, rows: &[(String, u64, &Summary)]) -> String {
    let mut table = grid(&[
        what, "seed", "flows", "open", "min", "median", "p99", "max", "max us", "jain", "Gbit/s", "packets", "resent",
        "timeouts", "drops", "total us",
    ]);
    for (name, seed, s) in rows {
        // Flows that did not finish would have taken longer.
        let more = |is_more: bool| if is_more { ">" } else { "" };
        let ratio = |v: Option<f64>| {
            v.map_or("-".into(), |v| format!("{}{v:.3}", more(s.open_over_ideal.is_some_and(|open| open <= v))))
        };
        table.add_row(vec![
            name.clone(),
            seed.to_string(),
            s.flows.to_string(),
            s.unfinished.to_string(),
            ratio(s.min_over_ideal),
            ratio(s.median_over_ideal),
            ratio(s.p99_over_ideal),
            ratio(s.max_over_ideal),
            s.max_fct_us.map_or("-".into(), |v| format!("{}{v:.1}", more(s.unfinished > 0))),
            s.jain.map_or("-".into(), |v| format!("{v:.4}")),
            format!("{:.2}", s.goodput_gbps),
            thousands(s.packets),
            thousands(s.retransmits),
            thousands(s.timeouts),
            thousands(s.drops),
            format!("{:.1}", s.duration_us),
        ]);
    }
    table.to_string()
}

fn links(links: &[Link]) -> Option<String> {
    let mut busiest: Vec<&Link> = links.iter().filter(|l| l.packets + l.drops + l.losses > 0).collect();
    // Those that drop come first, then by use; the order of equals is that of the network.
    busiest
        .sort_by(|a, b| (b.drops + b.losses).cmp(&(a.drops + a.losses)).then(b.utilisation.total_cmp(&a.utilisation)));
    busiest.first()?;
    let mut table =
        grid(&["link", "Gbit/s", "busy", "packets", "dropped", "lost", "marked", "queue p50", "p99", "max", "buffer"]);
    let queue = |length: Option<u64>| length.map_or("-".into(), bytes);
    for l in busiest.into_iter().take(BUSIEST) {
        table.add_row(vec![
            l.link.clone(),
            format!("{}", l.rate_gbps),
            format!("{:.1} %", l.utilisation * 100.0),
            thousands(l.packets),
            thousands(l.drops),
            thousands(l.losses),
            thousands(l.marked),
            queue(l.queue_p50),
            queue(l.queue_p99),
            queue(l.queue_max),
            if l.buffer == u64::MAX { "-".into() } else { bytes(l.buffer) },
        ]);
    }
    Some(table.to_string())
}
