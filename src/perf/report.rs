//! The report of a measurement, and its end.

use serde::Serialize;
use srd::Span;

use super::client::{Client, ClientArgs, Ended};
use super::control::{Outcome, Start, Test};
use super::pump;
use crate::exit::{Exit, Fault, Result};
use crate::report::{Counters, LatencyUs, PathReport};
use crate::units::{size_text, thousands};
use crate::{interrupt, render};

/// What `srd perf lat|bw|rate` reports. The names are an interface.
#[derive(Debug, Serialize)]
pub(crate) struct PerfReport {
    /// The same as `complete`.
    ok: bool,
    /// `lat`, `bw` or `rate`.
    test: &'static str,
    /// Address of the server.
    server: String,
    /// Whether the test ran to its end.
    complete: bool,
    /// Why it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Bytes per message.
    size: u32,
    /// Messages outstanding at once.
    depth: u32,
    /// Whether both sides sent.
    bidir: bool,
    /// How the client waited.
    mode: &'static str,
    /// What moved the client's packets: `udp` or `xdp`.
    driver: &'static str,
    /// Measured time.
    duration_s: f64,
    /// Messages delivered in that time, both directions together; round trips in `lat`.
    messages: u64,
    /// Gbit/s of payload, both directions together; one direction in `lat`.
    bandwidth_gbps: f64,
    /// The same from client to server.
    forward_gbps: f64,
    /// The same from server to client.
    reverse_gbps: f64,
    /// Messages per second, both directions together; round trips in `lat`.
    messages_per_s: f64,
    /// Half round trips in `lat`; from posting to completion otherwise, of one message in 64.
    latency_us: LatencyUs,
    /// `half_round_trip` or `post_to_completion`.
    latency_kind: &'static str,
    /// Packets sent again, both sides together, as in `counters`.
    retransmits: u64,
    /// CPU time over wall time.
    cpu_cores: CpuCores,
    /// What the protocol did, warm-up included, and at the client what came before it.
    counters: BothCounters,
    /// The client's paths at the end.
    paths: Vec<PathReport>,
}

#[derive(Debug, Serialize)]
struct CpuCores {
    client: f64,
    server: Option<f64>,
}

#[derive(Debug, Serialize)]
struct BothCounters {
    client: Counters,
    server: Option<Counters>,
}

/// How long an interrupted test waits for the server's result.
const PATIENCE: Span = Span::from_millis(500);
/// How long the good-bye may take.
const GOODBYE: Span = Span::from_millis(300);

/// Fetches the server's result, says good-bye, prints the report.
pub(crate) fn finish(mut client: Client, args: &ClientArgs, start: &Start, mut ended: Ended) -> Result<Exit> {
    let was_interrupted = ended.fault.as_ref().is_some_and(|f| f.exit == Exit::Interrupted);
    let paths = PathReport::all(&client.pump.endpoint.peer_stats(client.peer).paths);
    let mut outcome = None;
    if ended.fault.is_none() || was_interrupted {
        match client.stop(was_interrupted.then_some(PATIENCE)) {
            Ok(result) => outcome = Some(result),
            Err(fault) => {
                ended.fault.get_or_insert(fault);
            }
        }
    }
    // Whoever is gone hears no good-bye.
    let goodbye = if outcome.is_some() { GOODBYE } else { Span::ZERO };
    pump::close(&mut client.pump, goodbye).map_err(Fault::driver)?;
    if interrupt::requested() && ended.fault.is_none() {
        ended.fault = Some(Fault::interrupted());
    }
    if ended.messages == 0
        && let Some(fault) = ended.fault
    {
        return Err(fault);
    }
    if ended.messages + ended.received == 0 {
        return Err(nothing(start, ended.duration));
    }
    let report = PerfReport::new(&client, args, start, &ended, outcome, paths);
    if args.json {
        render::json(&report)?;
    } else {
        render::text(&report.text())?;
    }
    match ended.fault {
        None => Ok(Exit::Ok),
        Some(fault) => {
            let text = if fault.exit == Exit::Interrupted {
                "interrupted; the result is partial".to_owned()
            } else {
                fault.to_string()
            };
            render::complain(&text);
            Ok(fault.exit)
        }
    }
}

/// A rate for people: of long messages, less than one per second is something.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.2}") } else { thousands(per_second as u64) }
}

/// Figures of nothing would be taken for measured.
fn nothing(start: &Start, duration: Span) -> Fault {
    let (what, seconds) = (if start.test == Test::Lat { "round trip" } else { "delivery" }, duration.as_secs_f64());
    let text = format!("no {what} of {} ended within {seconds:.2} s: measure longer (--time)", size_text(start.size));
    Fault::new(Exit::Failed, anyhow::anyhow!(text))
}

impl PerfReport {
    fn new(
        client: &Client,
        args: &ClientArgs,
        start: &Start,
        ended: &Ended,
        outcome: Option<Outcome>,
        paths: Vec<PathReport>,
    ) -> PerfReport {
        let lat = start.test == Test::Lat;
        let seconds = ended.duration.as_secs_f64();
        let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let gbps = |n: u64| per_second(n) * f64::from(start.size) * 8.0 / 1e9;
        let both = if lat { ended.messages } else { ended.messages + ended.received };
        let server = outcome.map(|o| o.counters);
        let fault = ended.fault.as_ref();
        PerfReport {
            ok: fault.is_none(),
            test: start.test.name(),
            server: client.addr.to_string(),
            complete: fault.is_none(),
            error: fault.map(|f| if f.exit == Exit::Interrupted { "interrupted".to_owned() } else { f.to_string() }),
            size: start.size,
            depth: start.depth,
            bidir: start.bidir,
            mode: args.transport.mode.name(),
            driver: client.pump.driver.name(),
            duration_s: seconds,
            messages: both,
            bandwidth_gbps: gbps(both),
            forward_gbps: gbps(ended.messages),
            reverse_gbps: gbps(ended.received),
            messages_per_s: per_second(both),
            latency_us: ended.latencies.report(if lat { 2.0 } else { 1.0 }),
            latency_kind: if lat { "half_round_trip" } else { "post_to_completion" },
            retransmits: ended.counters.retransmits + server.map_or(0, |c| c.retransmits),
            cpu_cores: CpuCores { client: ended.cpu_cores, server: outcome.map(|o| o.cpu_cores) },
            counters: BothCounters { client: ended.counters, server },
            paths,
        }
    }

    /// The report for people.
    fn text(&self) -> String {
        let PerfReport { test, server, size, depth, duration_s, .. } = self;
        let ways = if self.bidir { "both ways, " } else { "" };
        let partial = if self.complete { "" } else { " (partial)" };
        let (kind, per_second) = match self.latency_kind {
            "half_round_trip" => ("half round trip", "round trips/s"),
            _ => ("post to completion", "messages/s"),
        };
        let server_cpu = self.cpu_cores.server.map_or("unknown".to_owned(), |c| format!("{c:.2}"));
        let mut lines = vec![
            format!(
                "srd perf {test} to {server}: {} x {depth}, {ways}{}, {}, {duration_s:.2} s{partial}",
                size_text(*size),
                self.driver,
                self.mode
            ),
            String::new(),
            format!("  bandwidth    {:.3} Gbit/s", self.bandwidth_gbps),
        ];
        if self.bidir {
            lines.push(format!("               {:.3} forward, {:.3} back", self.forward_gbps, self.reverse_gbps));
        }
        lines.extend([
            format!("  rate         {} {per_second}", rate(self.messages_per_s)),
            format!("  latency      {} ({kind})", self.latency_us.line()),
            format!("  client       {:.2} cores  {}", self.cpu_cores.client, self.counters.client.line()),
        ]);
        lines.push(match &self.counters.server {
            Some(counters) => format!("  server       {server_cpu} cores  {}", counters.line()),
            None => "  server       did not report".to_owned(),
        });
        lines.push(String::new());
        lines.push(PathReport::table(&self.paths).trim_fmt());
        lines.join("\n")
    }
}
