//! The hosts and networks that the experiments run in, and what is measured there.

use bytes::Bytes;
use simnet::{Fabric, HostId, HostSpec, LinkId, Model, Part, Queue, SrdNode, SrdSpec, SrdWorld, leaf_spine, star};
use srd_core::{Config, Span, Time};

/// Line rate of every link, bit/s.
pub(crate) const RATE: u64 = 100_000_000_000;

/// What all experiments of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) config: Config,
    pub(crate) seeds: u64,
    /// Ethernet's, so datagrams are 28 bytes shorter.
    pub(crate) mtu: u32,
    pub(crate) buffers: Vec<u64>,
}

impl Default for Setting {
    fn default() -> Setting {
        let config = Config { link_rate: Some(RATE / 8), ..Config::fabric() };
        Setting { config, seeds: 10, mtu: 9000, buffers: vec![250_000, 1_000_000, 16_000_000] }
    }
}

impl Setting {
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<f64>().map_err(|_| format!("{value} is no number"));
        let micros = || number().map(|us| Span::from_nanos((us * 1e3) as u64));
        let config = &mut self.config;
        match name {
            "seeds" => self.seeds = number()? as u64,
            "mtu" => self.mtu = number()? as u32,
            "buffer" => self.buffers = vec![number()? as u64],
            "paths" => config.paths = number()? as u16,
            "initial_window" => config.initial_window = number()? as u32,
            "target_delay" => config.target_delay = micros()?,
            "burst_time" => config.burst_time = micros()?,
            "max_ack_delay" => config.max_ack_delay = micros()?,
            "link_rate" => config.link_rate = Some(number()? as u64).filter(|r| *r > 0),
            "share_period" => config.share_period = micros()?,
            "proportional" => config.tuning.proportional = number()?,
            "integral" => config.tuning.integral = number()?,
            "pull" => config.tuning.pull = number()?,
            "additive" => config.tuning.additive = number()?,
            "headroom" => config.tuning.headroom = number()?,
            "jitter" => config.tuning.jitter = number()?,
            _ => return Err("no such setting".into()),
        }
        Ok(())
    }

    fn nodes(&self, count: u32) -> Vec<(HostSpec, SrdNode)> {
        let config = Config { max_datagram: (self.mtu - 28) as u16, ..self.config.clone() };
        let config = config.check().unwrap_or_else(|e| panic!("{e}"));
        let spec = HostSpec { source_ports: config.path_pool, mtu: self.mtu, ..HostSpec::default() };
        let srd = SrdSpec { check_every: 0, discard: true, ..SrdSpec::new(config) };
        (0..count).map(|_| (spec, SrdNode::new(srd.clone(), None))).collect()
    }
}

/// A port of a switch or host with `buffer` bytes, and a cable of 1 us.
fn edge(buffer: u64) -> [Part; 2] {
    [Part::Queue(Queue::new(RATE, buffer)), Part::Delay(Span::from_micros(1))]
}

/// A world under way.
pub(crate) struct Bed {
    pub(crate) world: SrdWorld,
    pub(crate) fabric: Fabric,
    hosts: u32,
}

impl Bed {
    /// All hosts on one switch.
    pub(crate) fn star(setting: &Setting, seed: u64, hosts: u32, buffer: u64) -> Bed {
        let mut world = SrdWorld::new(seed, Model::new(false));
        let fabric = star(&mut world, setting.nodes(hosts), &edge(buffer));
        Bed { world, fabric, hosts }
    }

    /// Racks with a switch each, and spines between them.
    pub(crate) fn racks(setting: &Setting, seed: u64, hosts: u32, racks: usize, spines: usize, buffer: u64) -> Bed {
        let mut world = SrdWorld::new(seed, Model::new(false));
        let fabric = leaf_spine(&mut world, setting.nodes(hosts), racks, spines, &edge(buffer), &edge(buffer));
        Bed { world, fabric, hosts }
    }

    /// Opens connections, each with a small message, and lets them fall idle.
    pub(crate) fn warm(&mut self, pairs: &[(u32, u32)]) {
        for (i, &(from, to)) in pairs.iter().enumerate() {
            self.world.post(HostId(from), HostId(to), b"", zeros(1000));
            if i % 16 == 15 {
                self.world.run_for(Span::from_micros(2));
            }
        }
        assert!(self.world.settle(Time::from_nanos(3_000_000_000)), "connections open");
        self.world.run_for(Span::from_millis(1));
    }

    /// Sends one message of `size` bytes for each pair, with starts spread over `skew`, and waits for all. Gives their
    /// times in seconds, infinite for what did not arrive.
    pub(crate) fn transfer(&mut self, pairs: &[(u32, u32)], size: usize, skew: Span, seed: u64) -> Vec<f64> {
        let first = self.world.shared().messages().len();
        let mut rng = simnet::Rng::derive(seed, "skew", 0);
        let mut starts: Vec<(Span, (u32, u32))> = pairs.iter().map(|&p| (rng.span(Span::ZERO, skew), p)).collect();
        starts.sort();
        let data = zeros(size);
        let begin = self.world.now();
        for (at, (from, to)) in starts {
            self.world.run_until(begin + at);
            self.world.post(HostId(from), HostId(to), b"", data.clone());
        }
        let limit = self.world.now() + Span::from_secs(5);
        self.world.settle(limit);
        let messages = &self.world.shared().messages()[first..];
        let took = |m: &simnet::Message| match m.done {
            Some((Ok(()), at)) => at.since(m.posted).as_secs_f64(),
            _ => f64::INFINITY,
        };
        messages.iter().map(took).collect()
    }

    /// Counters of the whole world.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for host in 0..self.hosts {
            let s = self.world.node(HostId(host)).endpoint_stats();
            counts.sent += s.tx_packets;
            counts.resent += s.retransmits;
            counts.timeouts += s.timeouts;
        }
        for link in self.fabric.all() {
            let s = self.world.net().link(link).stats();
            counts.drops += s.queue_drops;
            counts.queue = counts.queue.max(s.max_queue);
        }
        counts
    }

    /// Bytes of a sender that have arrived at a receiver, or nearly.
    pub(crate) fn delivered(&self, from: u32, to: u32) -> f64 {
        let peer = self.world.node(HostId(from)).peer_stats(HostId(to));
        let sent: u64 = peer.paths.iter().map(|p| p.bytes).sum();
        sent as f64 - peer.in_flight as f64
    }

    /// Bytes that wait before a host's link.
    pub(crate) fn queued(&mut self, link: LinkId) -> u64 {
        let now = self.world.now();
        self.world.net_mut().link_mut(link).queued(now)
    }

    /// How long a link has been busy so far.
    pub(crate) fn busy(&self, link: LinkId) -> Span {
        self.world.net().link(link).stats().busy
    }
}

pub(crate) fn zeros(size: usize) -> Bytes {
    Bytes::from(vec![0; size])
}

/// Counters of a whole world.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Packets.
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    pub(crate) drops: u64,
    /// Retransmission timeouts during which nothing at all was heard.
    pub(crate) timeouts: u64,
    /// Longest queue anywhere, bytes.
    pub(crate) queue: u64,
}

/// Jain's index of fairness.
pub(crate) fn jain(rates: impl IntoIterator<Item = f64>) -> f64 {
    let (n, sum, squares) = rates.into_iter().fold((0.0, 0.0, 0.0), |(n, s, q), r| (n + 1.0, s + r, q + r * r));
    sum * sum / (n * squares)
}

/// Times over the ideal: least, median, most; the worst of several runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worst {
    pub(crate) min: f64,
    pub(crate) median: (f64, f64),
    pub(crate) max: f64,
    pub(crate) jain: f64,
    pub(crate) counts: Counts,
}

impl Default for Worst {
    fn default() -> Worst {
        let counts = Counts::default();
        Worst { min: f64::INFINITY, median: (f64::INFINITY, 0.0), max: 0.0, jain: 1.0, counts }
    }
}

impl Worst {
    /// Adds a run: its times, in units of the ideal, and its counters.
    pub(crate) fn add(&mut self, mut times: Vec<f64>, counts: Counts) {
        times.sort_by(f64::total_cmp);
        self.min = self.min.min(times[0]);
        let median = times[times.len() / 2];
        self.median = (self.median.0.min(median), self.median.1.max(median));
        self.max = self.max.max(times[times.len() - 1]);
        self.jain = self.jain.min(jain(times.iter().map(|t| 1.0 / t)));
        let worst = &mut self.counts;
        worst.sent = worst.sent.max(counts.sent);
        worst.resent = worst.resent.max(counts.resent);
        worst.drops = worst.drops.max(counts.drops);
        worst.timeouts = worst.timeouts.max(counts.timeouts);
        worst.queue = worst.queue.max(counts.queue);
    }
}
