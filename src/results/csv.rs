//! Comma-separated values: one line per flow, link, or sample of every run, also of those with a sweep's other values.

use std::fmt::{Display, Write as _};

use super::Report;

/// One line per flow of every run.
pub(crate) fn flows(report: &Report) -> String {
    let mut out =
        "run,seed,flow,transport,background,from,to,bytes,delivered,start_us,fct_us,arrived_us,ideal_us,over_ideal,\
                   goodput_gbps,retransmits,paths,sweep\n"
            .to_owned();
    for (value, run) in report.all_runs() {
        for f in &run.flows {
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{},{},{},{:.3},{},{},{},{},{:.4},{},{},{value}",
                run.transport,
                run.seed,
                f.flow,
                f.transport,
                f.background,
                f.from,
                f.to,
                maybe(f.bytes),
                f.delivered,
                f.start_us,
                maybe(f.fct_us),
                maybe(f.arrived_us),
                maybe(f.ideal_us),
                maybe(f.over_ideal),
                f.goodput_gbps,
                f.retransmits,
                f.paths
            );
        }
    }
    out
}

/// One line per link of every run.
pub(crate) fn links(report: &Report) -> String {
    let mut out =
        "run,seed,link,rate_gbps,utilisation,packets,drops,losses,marked,queue_p50,queue_p99,queue_max,buffer,sweep\n"
            .to_owned();
    for (value, run) in report.all_runs() {
        for l in &run.links {
            let _ = writeln!(
                out,
                "{},{},{},{},{:.5},{},{},{},{},{},{},{},{},{value}",
                run.transport,
                run.seed,
                l.link,
                l.rate_gbps,
                l.utilisation,
                l.packets,
                l.drops,
                l.losses,
                l.marked,
                maybe(l.queue_p50),
                maybe(l.queue_p99),
                maybe(l.queue_max),
                l.buffer
            );
        }
    }
    out
}

/// One line per flow and sample of every run; `None` if nothing was sampled.
pub(crate) fn samples(report: &Report) -> Option<String> {
    let mut out = "run,seed,flow,time_us,gbps,sweep\n".to_owned();
    let mut any = false;
    for (value, run) in report.all_runs() {
        let Some(samples) = &run.samples else { continue };
        for (flow, row) in samples.gbps.iter().enumerate() {
            for (k, gbps) in row.iter().enumerate() {
                any = true;
                let time = (k + 1) as f64 * samples.interval_us;
                let _ = writeln!(out, "{},{},{flow},{time:.1},{gbps:.5},{value}", run.transport, run.seed);
            }
        }
    }
    any.then_some(out)
}

/// A value, or nothing between two commas.
fn maybe(value: Option<impl Display>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}
