//! Flows over SRD: an endpoint with a thread of its own stands for a process of the sending host; one endpoint receives.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use srd::{Driver as _, Endpoint, Engine, Span, Upper};

use super::clock::{Clock, nanos};
use super::control::{FlowOutcome, Job, Outcome};
use super::tally::{Counting, Signals, Tally};
use super::upper::{Inlet, Outlet};
use crate::driver::AnyDriver;
use crate::exit::{Fault, Result};
use crate::transport::{self, TransportArgs};

/// Longest sleep, so that signals are noticed soon.
const NAP: Span = Span::from_millis(20);
/// How long the good-bye may take.
const GOODBYE: Duration = Duration::from_millis(300);
/// How long an endpoint waits for its connection.
const CONNECT: Span = Span::from_secs(5);

type Card<U> = Engine<AnyDriver, U>;

/// An endpoint bound to any port of `ip`.
fn card<U: Upper>(ip: IpAddr, args: &TransportArgs, upper: U) -> Result<Card<U>> {
    let local = SocketAddr::new(ip, 0);
    let config = args.config(local, CONNECT)?;
    let mut driver = args.bind(local)?;
    let now = driver.now();
    let endpoint = Endpoint::new(config, driver.local_addr(), transport::seed()?, now);
    Ok(Engine::new(endpoint, driver, upper))
}

/// A turn, and a nap if nothing moved, until `at` (on `clock`) at the latest.
fn step<U: Upper>(card: &mut Card<U>, clock: Clock, at: Option<i64>) -> Result<bool> {
    let moved = card.turn().map_err(Fault::driver)?;
    if !moved {
        nap(card, clock, at)?;
    }
    Ok(moved)
}

fn nap<U: Upper>(card: &mut Card<U>, clock: Clock, at: Option<i64>) -> Result<()> {
    let left = at.map_or(NAP, |at| Span::from_nanos(u64::try_from(at - clock.now()).unwrap_or(0)).min(NAP));
    let limit = card.driver.now() + left;
    card.wait(Some(limit)).map_err(Fault::driver)
}

/// Ends the endpoint's connections, and gives that a moment to get through.
fn goodbye<U: Upper>(mut card: Card<U>, clock: Clock) -> Result<()> {
    let now = card.driver.now();
    card.endpoint.close(now);
    let end = clock.now() + nanos(GOODBYE);
    while !card.endpoint.is_closed() && clock.now() < end {
        step(&mut card, clock, Some(end))?;
    }
    let now = card.driver.now();
    card.endpoint.abort(now, &mut card.upper);
    card.turn().map_err(Fault::driver)?;
    Ok(())
}

/// One sending endpoint and its flows.
pub(super) struct Source {
    card: Card<Outlet>,
    peer: srd::PeerId,
    flows: Range<u32>,
}

impl Source {
    /// Connects to the receiver at `to`.
    pub(super) fn connect(
        ip: IpAddr,
        to: SocketAddr,
        args: &TransportArgs,
        job: &Job,
        flows: Range<u32>,
        clock: Clock,
        signals: &Signals,
    ) -> Result<Source> {
        let mut card = card(ip, args, Outlet::new(job, flows.clone()))?;
        let peer = card.peer(to).ok_or_else(|| Fault::setup("the table of peers is full"))?;
        let now = card.driver.now();
        if !card.upper.open(&mut card.endpoint, now, peer) {
            return Err(Fault::setup("the first message was not accepted"));
        }
        let deadline = clock.now() + 2 * nanos(CONNECT.into());
        while !card.upper.is_open() {
            step(&mut card, clock, Some(deadline))?;
            if let Some(failure) = card.upper.failed {
                return Err(Fault::peer(format_args!("cannot reach {to} by SRD: {failure}")));
            }
            if signals.is_stopped() || clock.now() > deadline {
                return Err(Fault::peer(format_args!("the receiver's SRD endpoint at {to} does not answer")));
            }
        }
        Ok(Source { card, peer, flows })
    }

    /// Waits for the start, then sends until all has arrived, the limit, or the end of the run.
    pub(super) fn run(self, job: &Job, clock: Clock, signals: &Signals) -> Result<Outcome> {
        let Source { mut card, peer, flows } = self;
        let start = loop {
            match signals.start() {
                Some(at) if clock.now() >= at => break at,
                at => step(&mut card, clock, at)?,
            };
            if signals.is_stopped() {
                return Ok(Outcome::default());
            }
        };
        let began = clock.now();
        let before = *card.endpoint.stats();
        let paths_before: Vec<u64> = card.endpoint.peer_stats(peer).paths.iter().map(|p| p.packets).collect();
        let end = start.saturating_add(i64::try_from(job.limit_ns).unwrap_or(i64::MAX));
        let mut ended: Vec<Option<i64>> = flows.clone().map(|_| None).collect();
        let mut left = ended.len();
        while left > 0 && clock.now() < end && !signals.is_stopped() {
            let moved =
                card.turn_with(|endpoint, upper, _, now| upper.post(endpoint, now, peer)).map_err(Fault::driver)?;
            if !card.upper.ended.is_empty() {
                let now = clock.now();
                for index in card.upper.ended.drain(..) {
                    ended[index] = Some(now);
                    left -= 1;
                }
            }
            if let Some(failure) = card.upper.failed {
                return Err(Fault::peer(format_args!("a message did not arrive: {failure}")));
            }
            if !moved {
                nap(&mut card, clock, Some(end))?;
            }
        }
        let after = *card.endpoint.stats();
        let now = card.endpoint.peer_stats(peer);
        tracing::debug!(
            flows = ?flows, rate = now.rate, window = now.window, in_flight = now.in_flight, datagram = now.datagram,
            srtt_us = now.srtt.as_micros_f64(), min_rtt_us = now.min_rtt.as_micros_f64(),
            lost = after.lost_packets, spurious = after.spurious_retransmits, timeouts = after.timeouts,
            tail_probes = after.tail_probes, mtu_reductions = after.mtu_reductions, stalls = after.stalls,
            tx_packets = after.tx_packets, tx_bytes = after.tx_bytes, "SRD at the end of a run"
        );
        let paths = now.paths;
        let used = paths.iter().enumerate().filter(|(k, p)| p.packets > paths_before.get(*k).copied().unwrap_or(0));
        let (used, count) = (used.count() as u32, ended.len() as u64);
        let retransmits = after.retransmits - before.retransmits;
        let outcome = |(index, ended): (usize, &Option<i64>)| FlowOutcome {
            flow: flows.start + index as u32,
            start_ns: began,
            fct_ns: ended.map(|at| (at - began).max(0) as u64),
            delivered: card.upper.delivered(index),
            retransmits: share(retransmits, index as u64, count),
            paths: used,
        };
        let outcome = Outcome {
            flows: ended.iter().enumerate().map(outcome).collect(),
            packets: after.tx_data_packets - before.tx_data_packets,
            timeouts: after.timeouts - before.timeouts,
        };
        goodbye(card, clock)?;
        Ok(outcome)
    }
}

/// The part of `total` that falls to one of `count`; the parts add up.
pub(super) fn share(total: u64, index: u64, count: u64) -> u64 {
    total * (index + 1) / count - total * index / count
}

/// The receiving endpoint.
pub(super) struct Sink {
    card: Card<Inlet>,
}

impl Sink {
    pub(super) fn bind(ip: IpAddr, args: &TransportArgs, job: &Job, flows: u32) -> Result<Sink> {
        Ok(Sink { card: card(ip, args, Inlet::new(job.nonce, flows, job.message))? })
    }

    pub(super) fn port(&self) -> u16 {
        self.card.driver.local_addr().port()
    }

    /// Receives until the run is over.
    pub(super) fn run(mut self, flows: u32, counting: Counting, clock: Clock, signals: &Signals) -> Result<Vec<Tally>> {
        let mut tallies = vec![Tally::default(); flows as usize];
        while !signals.is_stopped() {
            // Before the acknowledgements leave, which tell the sender.
            let count = |_: &mut Endpoint, upper: &mut Inlet, _: &mut AnyDriver, _| {
                for (flow, bytes) in upper.arrived.drain(..) {
                    tallies[flow].add(counting, signals, clock, bytes);
                }
            };
            if !self.card.turn_with(count).map_err(Fault::driver)? {
                nap(&mut self.card, clock, None)?;
            }
        }
        goodbye(self.card, clock)?;
        Ok(tallies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, count) in [(0, 1), (10, 3), (2, 5), (1_000_003, 48)] {
            assert_eq!((0..count).map(|i| share(total, i, count)).sum::<u64>(), total);
        }
    }
}
