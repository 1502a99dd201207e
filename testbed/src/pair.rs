//! The smaller bed: two hosts joined by one cable.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::bed::{Bed, Node};
use crate::cable::{End, Plan, Wire};
use crate::host::Host;
use crate::nics::Nics;
use crate::tools::runs_here;
use crate::{CableStats, Error, Rate, Traffic, impair, stats};

/// Two hosts joined by one cable; removed when dropped.
#[derive(Debug)]
pub struct Pair {
    bed: Bed,
    hosts: [Host; 2],
    /// In this order: free for the next pair when this one's hosts are gone.
    nics: Option<Nics>,
}

/// Settings of a [`Pair`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PairBuilder {
    wire: Wire,
    keep: Option<String>,
}

impl Pair {
    /// The defaults: no rate limit, MTU 9000, offload on, one queue.
    pub fn builder() -> PairBuilder {
        let wire = Wire { rate: None, queue_bytes: 64 << 10, mtu: 9_000, offload: true, queues: 1 };
        PairBuilder { wire, keep: None }
    }

    /// Takes hold of a pair that was built with [`PairBuilder::keep`].
    ///
    /// # Errors
    /// If there is none of that name, or it is not a pair.
    pub fn open(name: &str) -> Result<Self, Error> {
        let bed = Bed::open(name)?;
        match bed.nodes().len() {
            2 if bed.has("h0") && bed.has("h1") => Ok(Self::around(bed, None)),
            _ => Err(Error::invalid(format!("the test bed `{name}` is not a pair"))),
        }
    }

    fn around(bed: Bed, nics: Option<Nics>) -> Self {
        let hosts = [0, 1].map(|index| {
            let (v4, v6) = addresses(index);
            Host { index, namespace: bed.node(&format!("h{index}")).namespace.clone(), v4, v6 }
        });
        Self { bed, hosts, nics }
    }

    /// Whether the cable is a virtual one (veth). It is, unless `SRD_TESTBED_NICS` names two NICs with a cable between them,
    /// as `/sys/class/net/*/device` does.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.nics.is_none()
    }

    /// The name in the bed's namespaces: `srdbed-<id>-h0`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.bed.id()
    }

    /// Both hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host.
    ///
    /// # Panics
    /// Unless `index` is 0 or 1.
    #[must_use]
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Loses a random share of the packets, in both directions.
    ///
    /// # Errors
    /// If `percent` is not within 0 to 100, or `nft` fails.
    pub fn loss(&self, percent: f64) -> Result<(), Error> {
        [0, 1].into_iter().try_for_each(|host| self.impair(host, Traffic::All, percent))
    }

    /// Silently drops everything that is on its way to this host.
    ///
    /// # Errors
    /// If there is no such host, or `nft` fails.
    pub fn hole(&self, to_host: usize) -> Result<(), Error> {
        self.impair(to_host, Traffic::All, 100.0)
    }

    /// Loses a random share of the given traffic on its way to this host, in
    /// place of the loss or hole set there before.
    ///
    /// # Errors
    /// If there is no such host, `percent` is not within 0 to 100, or `nft` fails.
    pub fn impair(&self, to_host: usize, traffic: Traffic, percent: f64) -> Result<(), Error> {
        if to_host > 1 {
            return Err(Error::invalid(format!("there is no host {to_host}: a pair has hosts 0 and 1")));
        }
        impair::set(self.node(to_host), "eth0", traffic, percent, None)
    }

    /// Undoes all losses and holes.
    ///
    /// # Errors
    /// If `nft` fails.
    pub fn heal(&self) -> Result<(), Error> {
        impair::heal(&self.bed)
    }

    /// Bytes (with Ethernet headers) and frames that this host has sent. Cheap.
    ///
    /// # Errors
    /// If the counters cannot be read.
    ///
    /// # Panics
    /// Unless `host` is 0 or 1.
    pub fn sent(&self, host: usize) -> Result<(u64, u64), Error> {
        assert!(host < 2, "a pair has hosts 0 and 1, not {host}");
        stats::sent_by(self.node(host), "eth0")
    }

    /// What the cable has carried and lost on the way to this host. Starts two
    /// programs.
    ///
    /// # Errors
    /// If the counters cannot be read.
    ///
    /// # Panics
    /// Unless `to_host` is 0 or 1.
    pub fn stats(&self, to_host: usize) -> Result<CableStats, Error> {
        assert!(to_host < 2, "a pair has hosts 0 and 1, not {to_host}");
        CableStats::read((self.node(1 - to_host), "eth0"), (self.node(to_host), "eth0"))
    }

    /// Removes the pair, also if it was built to be kept.
    pub fn remove(self) {
        self.bed.remove();
    }

    fn node(&self, host: usize) -> &Node {
        self.bed.node(if host == 0 { "h0" } else { "h1" })
    }
}

impl PairBuilder {
    /// Limits what each host can send; `None` leaves the cable unlimited.
    pub fn rate(mut self, rate: impl Into<Option<Rate>>) -> Self {
        self.wire.rate = rate.into();
        self
    }

    /// Bytes that may wait at a rate-limited end. Default 65,536.
    pub fn queue_bytes(mut self, bytes: u32) -> Self {
        self.wire.queue_bytes = bytes;
        self
    }

    /// The largest IP packet in bytes, 1,280 to 65,535. Default 9,000.
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.wire.mtu = bytes;
        self
    }

    /// Off: the cable carries real frames with real checksums. On (the
    /// default): segments may cross in one piece of up to 64 KB, which is
    /// faster, but losses then hit whole pieces.
    pub fn offload(mut self, on: bool) -> Self {
        self.wire.offload = on;
        self
    }

    /// Queues of each host, for either direction. Default 1.
    pub fn queues(mut self, count: u32) -> Self {
        self.wire.queues = count;
        self
    }

    /// Lets the pair outlive this process, until it is opened and removed.
    /// The name consists of 1 to 32 of `a-z`, `0-9` and `_`.
    pub fn keep(mut self, name: &str) -> Self {
        self.keep = Some(name.to_owned());
        self
    }

    /// Builds the pair.
    ///
    /// # Errors
    /// If a setting is out of range, or root, a program or a feature of the
    /// kernel is missing; nothing stays behind then.
    pub fn build(self) -> Result<Pair, Error> {
        self.wire.check()?;
        let mut plan = Plan::default();
        let [a, b] = [0, 1].map(|index| {
            let (v4, v6) = addresses(index);
            End { node: plan.node(format!("h{index}"), false), device: "eth0".into(), v4, v6 }
        });
        plan.cable(a, b, (24, 64), self.wire);
        let nics = Nics::take()?;
        if let Some(nics) = &nics {
            plan.nics = Some(nics.prepare(self.wire.queues)?);
        }
        let bed = Bed::build(&plan, None, self.keep.as_deref())?;
        Ok(Pair::around(bed, nics))
    }

    /// Builds it for a test: `None`, after a note on standard error, where tests
    /// that need beds shall not run (see [`runs_here`]).
    ///
    /// # Panics
    /// If it cannot be built.
    #[must_use]
    pub fn for_test(self) -> Option<Pair> {
        runs_here().then(|| self.build().unwrap_or_else(|e| panic!("no test bed: {e}")))
    }
}

fn addresses(host: usize) -> (Ipv4Addr, Ipv6Addr) {
    let last = host as u8 + 1;
    (Ipv4Addr::new(10, 0, 0, last), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)))
}
