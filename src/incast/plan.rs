//! What is to be measured, as rank 0 knows it.

use std::time::Duration;

use super::clock::nanos;
use super::control::{Job, MAX_FLOWS, Transport};
use super::tally::Counting;

/// An experiment.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Sending hosts.
    pub(super) senders: u32,
    /// Flows of each.
    pub(super) flows: u32,
    /// SRD endpoints of each.
    pub(super) endpoints: u32,
    /// Bytes per flow; none: flows run for `time`.
    pub(super) bytes: Option<u64>,
    pub(super) time: Duration,
    pub(super) message: u32,
    pub(super) depth: u32,
    pub(super) rounds: u32,
    pub(super) transports: Vec<Transport>,
    /// Bits per second of the link that all flows share, where known.
    pub(super) rate: Option<u64>,
    /// When a run is ended whose flows are not done.
    pub(super) limit: Duration,
    /// How long to wait for senders to be there.
    pub(super) wait: Duration,
}

/// Length of a sample of flows that run for a time.
const SAMPLE: Duration = Duration::from_secs(1);

impl Plan {
    /// Whether it can be done at all; the sentence says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let all = u64::from(self.senders) * u64::from(self.flows);
        if self.senders == 0 || all > MAX_FLOWS.into() {
            return Err(format!(
                "{} senders with {} flows each are out of range; there may be {MAX_FLOWS} flows in all",
                self.senders, self.flows
            ));
        }
        self.job(Transport::Srd, 0).check()
    }

    /// The part of every sender, but for its first flow and the port.
    pub(super) fn job(&self, transport: Transport, nonce: u64) -> Job {
        Job {
            transport,
            nonce,
            port: 0,
            first_flow: 0,
            flows: self.flows,
            endpoints: self.endpoints,
            bytes: self.bytes,
            message: self.message,
            depth: self.depth,
            limit_ns: self.limit.as_nanos().try_into().unwrap_or(u64::MAX),
        }
    }

    pub(super) fn counting(&self) -> Counting {
        let count = (self.time.as_nanos() / SAMPLE.as_nanos()).try_into().unwrap_or(usize::MAX);
        Counting { size: self.bytes, samples: self.bytes.is_none().then_some((nanos(SAMPLE), count)) }
    }

    /// Microseconds in which the shared link carries the payload of all flows, if it carries nothing else.
    pub(super) fn ideal_us(&self) -> Option<f64> {
        let bits = self.bytes? as f64 * 8.0 * f64::from(self.senders) * f64::from(self.flows);
        Some(bits / self.rate? as f64 * 1e6)
    }
}

/// A time that no run should need: many times the ideal, where that is known.
pub(super) fn limit(plan: &Plan) -> Duration {
    const LEAST: Duration = Duration::from_secs(20);
    const UNKNOWN: Duration = Duration::from_secs(120);
    const TIMES: f64 = 20.0;
    /// A year: no more than clocks can count.
    const MOST: f64 = 365.0 * 86_400.0;
    match (plan.bytes, plan.ideal_us()) {
        (None, _) => plan.time,
        (Some(_), Some(us)) => LEAST.max(Duration::from_secs_f64((us / 1e6 * TIMES).min(MOST))),
        (Some(_), None) => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let (senders, flows, endpoints, bytes) = (4, 12, 12, Some(2_000_000));
        let rate = Some(400_000_000);
        Plan { senders, flows, endpoints, bytes, rate, message: 8192, depth: 64, ..Plan::default() }
    }

    #[test]
    fn ideal_is_payload_over_rate() {
        assert_eq!(plan().ideal_us(), Some(1_920_000.0));
        assert_eq!(limit(&plan()), Duration::from_micros(38_400_000));
        let slow = Plan { flows: 4_096, bytes: Some(1 << 30), rate: Some(8_000), ..plan() };
        assert!(nanos(limit(&slow)) < i64::MAX / 100, "a clock counts on beyond it");
        assert_eq!(Plan { rate: None, ..plan() }.ideal_us(), None);
        assert_eq!(Plan { bytes: None, ..plan() }.ideal_us(), None);
    }

    #[test]
    fn plans_are_checked() {
        assert_eq!(plan().check(), Ok(()));
        for bad in [
            Plan { senders: 0, ..plan() },
            Plan { flows: 0, ..plan() },
            Plan { flows: 10_000, ..plan() },
            Plan { endpoints: 13, ..plan() },
            Plan { message: 0, ..plan() },
            Plan { depth: 100_000, ..plan() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
