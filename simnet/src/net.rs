//! The network itself: links, switches, packets under way, and what can be done to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use srd_core::{Ecn, Span, Time};

use crate::lengths::Lengths;
use crate::link::{Link, Passage};
use crate::log::{DropReason, Log, LogEvent};
use crate::packet::{Addr, Arena, HostId, IP_UDP_OVERHEAD, LinkId, Packet, PacketId, SwitchId, flow_hash};
use crate::part::Part;
use crate::pool::Pool;
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::switch::Switch;

/// What one end of a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A packet comes out of a link.
    Arrive { link: LinkId, packet: PacketId },
    /// A host wants to run.
    Wake { host: HostId },
    /// Something outside the network happened that a host's node wants to know of at once.
    Nudge { host: HostId },
    /// An action of the schedule is due.
    Act { index: u32 },
}

/// The first violation of a rule, which ended the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When it was noticed.
    pub at: Time,
    /// What it was.
    pub what: String,
}

/// Packets that were captured for replaying, the last few.
const CAPTURED: usize = 64;

/// See the module documentation. Reached through [`World::net`](crate::World::net).
#[derive(Debug)]
pub struct Net {
    pub(crate) now: Time,
    pub(crate) events: EventQueue<Event>,
    pub(crate) packets: Arena,
    pub(crate) violation: Option<Violation>,
    /// What happened.
    pub log: Log,
    seed: u64,
    links: Vec<Link>,
    ends: Vec<End>,
    lengths: Lengths,
    /// Room for the links that packets of one moment enter.
    next: Vec<LinkId>,
    switches: Vec<Switch>,
    /// Per host, the link that it sends on.
    uplinks: Vec<Option<LinkId>>,
    /// Pairs (from, to) of hosts that cannot reach each other, in no order; almost always empty.
    blocked: Vec<(HostId, HostId)>,
    /// Buffers that several links share.
    pools: Vec<Pool>,
    /// Packets that no route led on.
    unrouted: u64,
    /// Room for a packet whose payload is put together from its length.
    pub(crate) zeros: Vec<u8>,
    capturing: bool,
    captured: VecDeque<(Addr, Addr, Vec<u8>)>,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Net {
        Net {
            now: Time::ZERO,
            events: EventQueue::new(),
            packets: Arena::default(),
            violation: None,
            log: Log::new(),
            seed,
            links: Vec::new(),
            ends: Vec::new(),
            lengths: Lengths::default(),
            next: Vec::new(),
            switches: Vec::new(),
            uplinks: Vec::new(),
            blocked: Vec::new(),
            pools: Vec::new(),
            unrouted: 0,
            zeros: Vec::new(),
            capturing: false,
            captured: VecDeque::new(),
        }
    }

    /// Adds a switch.
    pub fn add_switch(&mut self) -> SwitchId {
        let id = SwitchId(self.switches.len() as u32);
        let seed = Rng::derive(self.seed, "switch", id.0.into()).next_u64();
        self.switches.push(Switch::new(seed));
        id
    }

    /// Adds a link that ends at `to`. A link that starts at a switch is used once the switch has a
    /// [route](Switch::route) over it.
    pub fn add_link(&mut self, to: End, parts: &[Part]) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        self.links.push(Link::new(parts, Rng::derive(self.seed, "link", id.0.into())));
        self.ends.push(to);
        id
    }

    /// Makes a host send on this link.
    pub fn set_uplink(&mut self, host: HostId, link: LinkId) {
        let i = host.0 as usize;
        if self.uplinks.len() <= i {
            self.uplinks.resize(i + 1, None);
        }
        self.uplinks[i] = Some(link);
    }

    /// A link.
    pub fn link(&self, link: LinkId) -> &Link {
        &self.links[link.0 as usize]
    }

    /// A link, to be changed. What is under way on it stays as it is.
    pub fn link_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.links[link.0 as usize]
    }

    /// What waits before these links or is on them is lost. It takes a look at all packets in the network.
    pub fn cut(&mut self, links: &BTreeSet<LinkId>) {
        let on = |event: &Event| matches!(event, Event::Arrive { link, .. } if links.contains(link));
        for (_, event) in self.events.extract(on) {
            let Event::Arrive { link, packet } = event else { unreachable!("only arrivals were wanted") };
            self.links[link.0 as usize].lose(self.packets.label(packet).len);
            self.drop_on(link, packet, DropReason::Blackhole);
        }
        for link in links {
            let link = &mut self.links[link.0 as usize];
            let gone = link.empty(self.now);
            if let Some(pool) = link.pool {
                self.pools[pool as usize].give_back(&gone);
            }
        }
    }

    /// Gives links of a queue and a delay other rates. What waits leaves at the new one. It takes a look at all packets in
    /// the network.
    pub fn set_rate(&mut self, rates: &BTreeMap<LinkId, u64>) {
        let on = |event: &Event| matches!(event, Event::Arrive { link, .. } if rates.contains_key(link));
        for (at, event) in self.events.extract(on) {
            let Event::Arrive { link, .. } = event else { unreachable!("only arrivals were wanted") };
            self.events.push(self.link(link).retimed(at, self.now, rates[&link]), event);
        }
        for (link, rate) in rates {
            let link = &mut self.links[link.0 as usize];
            let [before, after] = link.set_rate(self.now, *rate);
            if let Some(pool) = link.pool {
                let pool = &mut self.pools[pool as usize];
                pool.give_back(&before);
                after.iter().for_each(|(until, bytes)| pool.take(*until, *bytes));
            }
        }
    }

    /// Makes links share a buffer of `bytes`: a queue may then hold `alpha_percent` hundredths of what is still free in
    /// it, and never more than its own limit (dynamic thresholds, Choudhury and Hahne 1998).
    pub fn share_buffer(&mut self, links: &[LinkId], bytes: u64, alpha_percent: u32) {
        self.pools.push(Pool::new(bytes, alpha_percent));
        for link in links {
            self.links[link.0 as usize].pool = Some(self.pools.len() as u32 - 1);
        }
    }

    /// What a datagram takes on every link beside itself, in bytes.
    pub fn set_wire_overhead(&mut self, bytes: u32) {
        self.links.iter_mut().for_each(|link| link.overhead = bytes);
    }

    /// Starts a link's counters at zero, and counts the lengths of its queue for
    /// [`queue_percentile`](Self::queue_percentile) in steps of a 64th of `scale` bytes.
    pub fn measure(&mut self, link: LinkId, scale: u64) {
        self.link_mut(link).reset_stats();
        self.lengths.measure(link, scale);
    }

    /// The queue length in bytes that a share `q` of the packets did not find exceeded at a link that is measured, rounded up
    /// to a 64th of the scale.
    pub fn queue_percentile(&self, link: LinkId, q: f64) -> u64 {
        let most = self.link(link).stats().max_queue;
        self.lengths.percentile(link, q).map_or(most, |length| length.min(most))
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.links.iter().enumerate().map(|(i, l)| (LinkId(i as u32), l))
    }

    /// Packets that ended where there was no route for them, which is on no link.
    pub fn unrouted(&self) -> u64 {
        self.unrouted
    }

    /// A switch, to be given routes or another seed.
    pub fn switch_mut(&mut self, switch: SwitchId) -> &mut Switch {
        &mut self.switches[switch.0 as usize]
    }

    /// Gives every switch another hash seed: all flows move.
    pub fn rehash(&mut self, seed: u64) {
        for (i, switch) in self.switches.iter_mut().enumerate() {
            switch.rehash(Rng::derive(seed, "rehash", i as u64).next_u64());
        }
    }

    /// Keeps packets from `from` to `to` from being delivered, or lets them pass again.
    pub fn partition(&mut self, from: &[HostId], to: &[HostId], blocked: bool) {
        for &a in from {
            for &b in to {
                self.blocked.retain(|p| *p != (a, b));
                if blocked {
                    self.blocked.push((a, b));
                }
            }
        }
    }

    /// Ends all partitions.
    pub fn heal_partitions(&mut self) {
        self.blocked.clear();
    }

    /// Starts or stops remembering the last packets sent, for [`captured`](Self::captured).
    pub fn capture(&mut self, on: bool) {
        self.capturing = on;
    }

    /// The last packets that were sent while capturing: source, destination, bytes.
    pub fn captured(&self) -> impl ExactSizeIterator<Item = &(Addr, Addr, Vec<u8>)> {
        self.captured.iter()
    }

    /// Puts a packet that was made up before the host that has the destination address, now.
    pub fn inject(&mut self, src: Addr, dst: Addr, bytes: &[u8]) {
        let Some(host) = dst.host().filter(|h| (h.0 as usize) < self.uplinks.len()) else { return };
        let packet = self.packets.alloc(src, dst, host, Ecn::NotEct, |p| p.put(bytes));
        let serial = self.packets.get(packet).serial;
        let event = LogEvent::Injected { host, packet: serial, len: bytes.len() as u32 };
        self.log.record(self.now, event);
        // The link number of an injected packet is that of no link: it comes out of nowhere.
        self.events.push(self.now, Event::Arrive { link: NOWHERE, packet });
    }

    /// Gives a host's node a turn at `at`, or as soon as the host runs after that.
    pub fn nudge(&mut self, at: Time, host: HostId) {
        self.events.push(at.max(self.now), Event::Nudge { host });
    }

    /// How long a host's own port will be busy with what was given to it.
    pub(crate) fn backlog(&self, host: HostId) -> Span {
        let uplink = self.uplinks.get(host.0 as usize).copied().flatten();
        uplink.map_or(Span::ZERO, |link| self.links[link.0 as usize].busy_until().since(self.now))
    }

    /// The switches that packets between these addresses pass at present.
    pub fn trace(&self, src: Addr, dst: Addr) -> Vec<SwitchId> {
        let mut out = Vec::new();
        let (Some(from), Some(to)) = (src.host(), dst.host()) else { return out };
        let mut link = self.uplinks.get(from.0 as usize).copied().flatten();
        while let Some(at) = link
            && let End::Switch(switch) = self.ends[at.0 as usize]
            && out.len() < self.switches.len()
        {
            out.push(switch);
            link = self.switches[switch.0 as usize].next(to, flow_hash(src, dst));
        }
        out
    }

    /// Ends the run with the message that a rule was broken. The first one counts.
    pub fn violate(&mut self, what: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { at: self.now, what });
        }
    }

    /// A host with an interface of this MTU sends a packet whose payload `fill` writes; see [`Io::send_late`].
    ///
    /// [`Io::send_late`]: crate::Io::send_late
    pub(crate) fn send(
        &mut self,
        mtu: u32,
        src: Addr,
        dst: Addr,
        ecn: Ecn,
        late_ppm: u32,
        fill: impl FnOnce(&mut Packet),
    ) {
        let host = src.host().expect("a host's address");
        let to = dst.host().unwrap_or(HostId(u32::MAX));
        let packet = self.packets.alloc(src, dst, to, ecn, fill);
        let (p, len) = (self.packets.get(packet), self.packets.label(packet).len);
        let event = LogEvent::Sent { host, packet: p.serial, to, port: src.port, len };
        if self.capturing {
            if self.captured.len() == CAPTURED {
                self.captured.pop_front();
            }
            self.captured.push_back((src, dst, p.data.clone()));
        }
        self.log.record(self.now, event);
        if !self.blocked.is_empty() && self.blocked.contains(&(host, to)) {
            return self.drop_at(host, packet, DropReason::Partition);
        }
        if len + IP_UDP_OVERHEAD > mtu {
            return self.drop_at(host, packet, DropReason::Mtu);
        }
        match self.uplinks.get(host.0 as usize) {
            Some(&Some(link)) => self.enter(link, packet, late_ppm),
            _ => {
                self.unrouted += 1;
                self.drop_at(host, packet, DropReason::NoRoute);
            }
        }
    }

    /// Time has come to `first` and to what else happens at the same moment. Takes out of the queues that packets are to enter
    /// what has left them. They would do so themselves, but each would wait for memory at its switch and at its link, and the
    /// next one after it; done for all of them before, the processor waits for many at once.
    pub(crate) fn look_ahead(&mut self, first: &Event) {
        let mut next = std::mem::take(&mut self.next);
        for event in std::iter::once(first).chain(self.events.present()) {
            if let Event::Arrive { link, packet } = *event
                && let Some(switch) = self.switch_after(link)
            {
                let label = self.packets.label(packet);
                next.extend(switch.next(label.to, label.flow));
            }
        }
        for link in next.drain(..) {
            self.links[link.0 as usize].queued(self.now);
        }
        self.next = next;
    }

    /// A packet came out of a link: either it is at its host, which is returned, or a switch sends it on.
    pub(crate) fn arrive(&mut self, link: LinkId, packet: PacketId) -> Option<HostId> {
        let label = self.packets.label(packet);
        // Several hosts may share a cable; the address says which one it is.
        let Some(switch) = self.switch_after(link) else { return Some(label.to) };
        match switch.next(label.to, label.flow) {
            Some(next) => self.enter(next, packet, 0),
            None => {
                self.unrouted += 1;
                self.drop_on(link, packet, DropReason::NoRoute);
            }
        }
        None
    }

    /// The switch that a link ends at; `None` if that is a host.
    fn switch_after(&self, link: LinkId) -> Option<&Switch> {
        match *self.ends.get(link.0 as usize)? {
            End::Switch(switch) => Some(&self.switches[switch.0 as usize]),
            End::Host(_) => None,
        }
    }

    fn enter(&mut self, link: LinkId, packet: PacketId, late_ppm: u32) {
        let l = &mut self.links[link.0 as usize];
        let pool = l.pool.map(|pool| &mut self.pools[pool as usize]);
        let found = l.queued(self.now);
        let passage = l.pass(self.now, packet, &mut self.packets, pool);
        // What is lost behind the queue has found it, too.
        if !matches!(passage, Passage::Dropped(DropReason::Blackhole | DropReason::Mtu)) {
            self.lengths.note(link, found);
        }
        match passage {
            Passage::Dropped(reason) => self.drop_on(link, packet, reason),
            Passage::Arrives { at, copy } => {
                if let Some(copy_at) = copy {
                    let copy = self.packets.duplicate(packet);
                    let (a, b) = (self.packets.get(packet).serial, self.packets.get(copy).serial);
                    self.log.record(self.now, LogEvent::Copied { link, packet: a, copy: b });
                    self.events.push(copy_at, Event::Arrive { link, packet: copy });
                }
                let at = if late_ppm == 0 { at } else { self.late(link, packet, at, late_ppm) };
                self.events.push(at, Event::Arrive { link, packet });
            }
        }
    }

    /// When a packet arrives that would at `at` if it were not late.
    fn late(&mut self, link: LinkId, packet: PacketId, at: Time, ppm: u32) -> Time {
        let len = self.packets.label(packet).len;
        self.links[link.0 as usize].late(at, len, ppm)
    }

    fn drop_on(&mut self, link: LinkId, packet: PacketId, reason: DropReason) {
        let serial = self.packets.get(packet).serial;
        self.log.record(self.now, LogEvent::LostOnLink { link, packet: serial, reason });
        self.packets.free(packet);
    }

    pub(crate) fn drop_at(&mut self, host: HostId, packet: PacketId, reason: DropReason) {
        let serial = self.packets.get(packet).serial;
        self.log.record(self.now, LogEvent::LostAtHost { host, packet: serial, reason });
        self.packets.free(packet);
    }
}

/// The link of packets that were injected.
const NOWHERE: LinkId = LinkId(u32::MAX);
