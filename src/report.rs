//! Parts that several reports share, as values: every renderer reads them, so that `--json` shows what the table shows.

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use srd::{Endpoint, PathState, PathStats, Span, Stats};

use crate::driver::{CountsDrops, Drops};
use crate::units::{bytes, thousands};

/// Percentiles of a latency in microseconds; all zero when nothing was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct LatencyUs {
    /// Smallest.
    pub(crate) min: f64,
    /// Arithmetic mean.
    pub(crate) mean: f64,
    /// Median.
    pub(crate) p50: f64,
    /// 90 of 100 are not above it.
    pub(crate) p90: f64,
    /// 99 of 100.
    pub(crate) p99: f64,
    /// 999 of 1,000.
    pub(crate) p999: f64,
    /// 9,999 of 10,000.
    pub(crate) p9999: f64,
    /// Largest.
    pub(crate) max: f64,
    /// Number of samples.
    pub(crate) samples: u64,
}

/// Collects latencies in nanoseconds, three significant digits, up to a minute.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid"))
    }

    pub(crate) fn record(&mut self, span: Span) {
        self.0.saturating_record(span.as_nanos());
    }

    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }

    /// The percentiles of what was recorded, divided by `divisor` (2 makes half round trips of round trips).
    pub(crate) fn report(&self, divisor: f64) -> LatencyUs {
        if self.0.is_empty() {
            return LatencyUs::default();
        }
        let us = |ns: f64| (ns / divisor).round() / 1e3;
        let at = |q: f64| us(self.0.value_at_quantile(q) as f64);
        LatencyUs {
            min: us(self.0.min() as f64),
            mean: us(self.0.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: us(self.0.max() as f64),
            samples: self.0.len(),
        }
    }
}

impl LatencyUs {
    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let LatencyUs { p50, p90, p99, p999, p9999, max, samples, .. } = self;
        if *samples == 0 {
            return "not measured, too few messages".to_owned();
        }
        format!("p50 {p50:.2}  p90 {p90:.2}  p99 {p99:.2}  p99.9 {p999:.2}  p99.99 {p9999:.2}  max {max:.2} us")
    }
}

/// One path at the end of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct PathReport {
    /// Number of the path in its connection.
    pub(crate) path: usize,
    /// Index of its source port in the driver's pool.
    pub(crate) source_port: u16,
    /// `unproven`, `good` or `suspect`.
    pub(crate) state: &'static str,
    /// Smoothed round-trip time.
    pub(crate) srtt_us: f64,
    /// Smallest recent round-trip time.
    pub(crate) min_rtt_us: f64,
    /// Packets sent on it.
    pub(crate) packets: u64,
    /// Bytes sent on it.
    pub(crate) bytes: u64,
    /// Packets declared lost.
    pub(crate) lost: u64,
    /// Packets that came back with a congestion mark.
    pub(crate) ecn_marked: u64,
    /// How often it was declared dead and got a new source port.
    pub(crate) replaced: u32,
}

/// State of a path on which nothing has come back yet.
const UNPROVEN: &str = "unproven";

impl PathReport {
    pub(crate) fn all(paths: &[PathStats]) -> Vec<PathReport> {
        let micros = |span: Span| if span == Span::MAX { 0.0 } else { span.as_micros_f64() };
        let report = |(path, p): (usize, &PathStats)| PathReport {
            path,
            source_port: p.port.0,
            state: match p.state {
                PathState::Unproven => UNPROVEN,
                PathState::Good => "good",
                PathState::Suspect => "suspect",
            },
            srtt_us: micros(p.srtt),
            min_rtt_us: micros(p.min_rtt),
            packets: p.packets,
            bytes: p.bytes,
            lost: p.lost,
            ecn_marked: p.ce,
            replaced: p.replaced,
        };
        paths.iter().enumerate().map(report).collect()
    }

    /// The table of all paths.
    pub(crate) fn table(paths: &[PathReport]) -> Table {
        let mut table = table();
        table.set_header(["path", "port", "state", "srtt us", "min us", "packets", "sent", "lost", "ECN", "replaced"]);
        for p in paths {
            // Until something comes back on a path, its times are those to begin with.
            let rtt = |us: f64| if p.state == UNPROVEN { "-".to_owned() } else { format!("{us:.1}") };
            table.add_row([
                p.path.to_string(),
                format!("#{}", p.source_port),
                p.state.to_owned(),
                rtt(p.srtt_us),
                rtt(p.min_rtt_us),
                thousands(p.packets),
                bytes(p.bytes),
                thousands(p.lost),
                thousands(p.ecn_marked),
                p.replaced.to_string(),
            ]);
        }
        for (k, column) in table.column_iter_mut().enumerate() {
            if k != 2 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// An empty table in the style of all tables of this command.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table
}

/// What the protocol did during a run: differences of [`Stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// Datagrams sent.
    pub(crate) tx_packets: u64,
    /// Datagrams received.
    pub(crate) rx_packets: u64,
    /// Packets declared lost.
    pub(crate) lost_packets: u64,
    /// Packets whose payload was sent again.
    pub(crate) retransmits: u64,
    /// Packets declared lost that had arrived after all.
    pub(crate) spurious_retransmits: u64,
    /// Retransmission timeouts.
    pub(crate) timeouts: u64,
    /// Tail-loss probes.
    pub(crate) tail_probes: u64,
    /// Packets received again.
    pub(crate) duplicates: u64,
    /// Acknowledgements sent.
    pub(crate) acks_sent: u64,
    /// 'Receiver not ready' answers received.
    pub(crate) receiver_not_ready: u64,
    /// Paths declared dead and replaced.
    pub(crate) paths_replaced: u64,
    /// Datagrams that this host dropped because a receive buffer was full: to the protocol that is loss.
    pub(crate) receive_buffer_drops: u64,
    /// Datagrams that this host could not send: to the protocol that is loss, too.
    pub(crate) send_drops: u64,
}

/// The protocol's and the driver's counters at one time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Snapshot {
    protocol: Stats,
    drops: Drops,
}

impl Snapshot {
    pub(crate) fn new(endpoint: &Endpoint, driver: &impl CountsDrops) -> Snapshot {
        Snapshot { protocol: *endpoint.stats(), drops: driver.drops() }
    }
}

impl Counters {
    /// What happened between two snapshots.
    pub(crate) fn between(before: &Snapshot, after: &Snapshot) -> Counters {
        let d = |f: fn(&Stats) -> u64| f(&after.protocol).wrapping_sub(f(&before.protocol));
        Counters {
            receive_buffer_drops: after.drops.received.saturating_sub(before.drops.received),
            send_drops: after.drops.sent - before.drops.sent,
            tx_packets: d(|s| s.tx_packets),
            rx_packets: d(|s| s.rx_packets),
            lost_packets: d(|s| s.lost_packets),
            retransmits: d(|s| s.retransmits),
            spurious_retransmits: d(|s| s.spurious_retransmits),
            timeouts: d(|s| s.timeouts),
            tail_probes: d(|s| s.tail_probes),
            duplicates: d(|s| s.duplicates),
            acks_sent: d(|s| s.acks_sent),
            receiver_not_ready: d(|s| s.rnr),
            paths_replaced: d(|s| s.paths_replaced),
        }
    }

    /// Datagrams that this host's sockets dropped, in either direction.
    pub(crate) fn socket_drops(&self) -> u64 {
        self.receive_buffer_drops + self.send_drops
    }

    /// One line for people: what went wrong underneath.
    pub(crate) fn line(&self) -> String {
        format!(
            "lost {}  retransmitted {} (needlessly {})  timeouts {}  not ready {}  paths replaced {}  socket drops {}",
            thousands(self.lost_packets),
            thousands(self.retransmits),
            thousands(self.spurious_retransmits),
            thousands(self.timeouts),
            thousands(self.receiver_not_ready),
            self.paths_replaced,
            thousands(self.socket_drops()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_halved_and_ordered() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.report(1.0), LatencyUs::default());
        (1..=10_000).for_each(|k| latencies.record(Span::from_micros(k)));
        let r = latencies.report(2.0);
        assert!((r.p50 - 2500.0).abs() < 5.0 && (r.p9999 - 5000.0).abs() < 5.0, "{r:?}");
        assert!([r.min, r.p50, r.p90, r.p99, r.p999, r.p9999, r.max].is_sorted(), "{r:?}");
        assert_eq!(r.samples, 10_000);
        assert!(r.line().starts_with("p50 2500"), "{}", r.line());
        assert!(LatencyUs::default().line().starts_with("not measured"), "nothing is not 0 us");
    }

    #[test]
    fn paths_show_no_times_that_were_not_measured() {
        let path = |state| PathReport {
            path: 0,
            source_port: 1,
            state,
            srtt_us: 1000.0,
            min_rtt_us: 1000.0,
            packets: 0,
            bytes: 0,
            lost: 0,
            ecn_marked: 0,
            replaced: 0,
        };
        let shown = |state| PathReport::table(&[path(state)]).to_string();
        assert!(shown("good").contains("1000.0"), "{}", shown("good"));
        assert!(!shown(UNPROVEN).contains("1000.0"), "{}", shown(UNPROVEN));
    }
}
