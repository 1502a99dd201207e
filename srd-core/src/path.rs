//! The paths of a connection: health, RTT and in-flight bytes of each source port, and the choice among them.
//!
//! A path is (nearly) first-in first-out, so loss is judged per path, never across paths. A path that stays silent about
//! its oldest packet is avoided at once, probed after a timeout, and replaced by a fresh source port after the second one;
//! the old port rests in quarantine before it may be drawn again.

mod bits;
mod ports;

use std::collections::VecDeque;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

pub(crate) use bits::PathBits;
use ports::Ports;

use crate::config::CheckedConfig;
use crate::driver::SourcePort;
use crate::rtt::Rtt;
use crate::sent::{Fate, Sent, SentPackets};
use crate::seq::Seq;
use crate::stats::{PathState, PathStats};
use crate::time::{Span, Time};

/// One path. See the module documentation.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) port: SourcePort,
    /// Counts replacements, so that packets of a former life of this slot do not confuse it.
    pub(crate) life: u32,
    pub(crate) state: PathState,
    pub(crate) rtt: Rtt,
    /// Its RTT without any queue, as far as known.
    base: Span,
    /// Packets whose fate was unknown when last looked at, in the order sent.
    outstanding: VecDeque<Seq>,
    next_seq: u32,
    /// Place of the latest-sent packet that was acknowledged, and when it was sent.
    acked: Option<(u32, Time)>,
    /// Smallest queueing delay of this round.
    round_queue: Option<Span>,
    round_marked: bool,
    last_ce: u8,
    /// Losses by silence in a row.
    timeouts: u32,
    /// Packets lost by silence since the path was heard last.
    silent: u32,
    /// When to probe a suspect path.
    probe_at: Time,
    /// Times that loss on this path proved spurious lately: widens the reordering that is tolerated.
    leniency: u32,
    packets: u64,
    bytes: u64,
    lost: u64,
    ce: u64,
    replaced: u32,
    /// How often its port has been given up in a row.
    failures: u32,
}

impl Path {
    fn new(port: SourcePort, config: &CheckedConfig) -> Path {
        Path {
            port,
            life: 0,
            state: PathState::Unproven,
            rtt: Rtt::new(config.initial_rtt),
            base: config.initial_rtt,
            outstanding: VecDeque::new(),
            next_seq: 0,
            acked: None,
            round_queue: None,
            round_marked: false,
            last_ce: 0,
            timeouts: 0,
            silent: 0,
            probe_at: Time::NEVER,
            leniency: 0,
            packets: 0,
            bytes: 0,
            lost: 0,
            ce: 0,
            replaced: 0,
            failures: 0,
        }
    }

    /// A packet of it has arrived, if late: it works, and needs no probe.
    fn answered(&mut self) {
        (self.state, self.timeouts, self.probe_at) = (PathState::Good, 0, Time::NEVER);
    }

    /// Its oldest packet in flight.
    fn oldest<'s>(&mut self, index: u8, sent: &'s SentPackets) -> Option<(Seq, &'s Sent)> {
        while let Some(&pn) = self.outstanding.front() {
            if let Some(s) = sent.get(pn)
                && s.fate == Fate::InFlight
                && s.path == index
            {
                return Some((pn, s));
            }
            self.outstanding.pop_front();
        }
        None
    }
}

/// What the choice among paths looks at, apart from the rest of them: many are looked at for each burst.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// Bytes.
    in_flight: u32,
    /// The queue last seen, in seconds per second that is left until it is forgotten: an old estimate says little, and in
    /// the end nothing, so that a path that recovered is found again.
    queue: f32,
    forgotten: Time,
}

impl Look {
    /// Expected delay in seconds beyond that of an idle path: its queue, and its share of what is in flight.
    fn score(&self, now: Time, per_byte: f64) -> f64 {
        f64::from(self.queue) * self.forgotten.since(now).as_secs_f64() + f64::from(self.in_flight) * per_byte
    }
}

/// What a round's worth of samples says about all paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundSignal {
    /// Median over paths of the smallest queueing delay.
    pub(crate) queue_delay: Option<Span>,
    /// Whether more than half of the paths with samples saw congestion marks.
    pub(crate) marked: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct PathSet {
    paths: Vec<Path>,
    /// One of each path.
    looks: Vec<Look>,
    /// Paths whose last packet met a queue of no more than `fast`, and when that was known, oldest first.
    fresh: VecDeque<(u8, Time)>,
    fast: Span,
    ports: Ports,
    scratch: Vec<Span>,
    rng: Xoshiro256PlusPlus,
    reorder_packets: u32,
    reorder_time: Span,
    replaced: u64,
    next_probe: Time,
    rounds: u32,
    /// Most paths were found to be longer than the shortest one: the smallest RTT of each counts. As a rule that of all does,
    /// since a path that was hardly used, or only while a queue stood, has that queue in its own.
    uneven: bool,
    /// The smallest RTT of the median path, if they are uneven.
    median_base: Span,
}

/// Rounds after which a step of leniency towards reordering is taken back (RFC 8985 decays it after 16 recoveries).
const LENIENT_ROUNDS: u32 = 16;

/// One of so many bursts takes no path because it was fast just now.
const EXPLORES: u32 = 4;
/// Random paths of which the best usable one is taken: an eighth of all, and so many at least. With two, a spine that few of
/// the paths cross stays behind the others when all are full: it is among the two too rarely. With many, senders follow
/// each other.
const MIN_CANDIDATES: usize = 8;
const MAX_CANDIDATES: usize = 32;
/// Round trips after which nothing is believed of a path's queue; and how long that is at the most, since a round trip in which
/// a host stood still says nothing of a queue.
const MEMORY_RTTS: u64 = 32;
const LONGEST_MEMORY: Span = Span::from_secs(1);
/// Round trips after which a suspect path is probed again when its probe got lost.
const PROBE_RTTS: u64 = 4;
/// Paths that are remembered as fast.
const MAX_FRESH: u8 = 64;
/// Bursts on an unproven path have at most so many packets.
pub(crate) const UNPROVEN_PACKETS: usize = 2;

impl PathSet {
    pub(crate) fn new(config: &CheckedConfig, mut rng: Xoshiro256PlusPlus) -> PathSet {
        // A random draw without replacement: the first steps of a shuffle.
        let mut pool: Vec<u16> = (0..config.path_pool).collect();
        let paths: Vec<Path> = (0..usize::from(config.paths))
            .map(|i| {
                let j = rng.random_range(i..pool.len());
                pool.swap(i, j);
                Path::new(SourcePort(pool[i]), config)
            })
            .collect();
        PathSet {
            looks: vec![Look::default(); paths.len()],
            paths,
            fresh: VecDeque::new(),
            fast: config.target_delay * 2,
            ports: Ports::new(config.path_pool),
            scratch: Vec::new(),
            rng,
            reorder_packets: config.reorder_packets.into(),
            reorder_time: config.reorder_time,
            replaced: 0,
            next_probe: Time::NEVER,
            rounds: 0,
            uneven: false,
            median_base: Span::ZERO,
        }
    }

    pub(crate) fn get(&self, index: u8) -> &Path {
        &self.paths[usize::from(index)]
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Paths replaced since the last call.
    pub(crate) fn take_replaced(&mut self) -> u64 {
        std::mem::take(&mut self.replaced)
    }

    /// A path for the next burst: one that was fast just now, else the best of some random usable ones, by expected delay.
    /// `avoid` is the path that lost what is to be sent. If no path looks usable, the one that was silent for the shortest
    /// time.
    pub(crate) fn pick(&mut self, now: Time, rate: f64, avoid: Option<u8>, patience: Span, sent: &SentPackets) -> u8 {
        let n = self.paths.len();
        if n == 1 {
            return 0;
        }
        // Some bursts look elsewhere, or a network without queues would be known only where it was first tried. They use up
        // an entry nevertheless: each acknowledgement brings one, and what is left over would send runs of bursts one way.
        let explores = self.rng.random_ratio(1, EXPLORES);
        if explores {
            self.fresh.pop_front();
        }
        while !explores && let Some((i, at)) = self.fresh.pop_front() {
            let recent = now.since(at) <= self.paths[usize::from(i)].rtt.min() * 2;
            if recent && Some(i) != avoid && self.usable(i, now, patience, sent) {
                return i;
            }
        }
        let mut drawn = [(0.0, 0); MAX_CANDIDATES];
        // Whether a path is usable takes longer to find out than its score.
        let mut drawn = &mut drawn[..(n / 8).max(MIN_CANDIDATES)];
        let per_byte = n as f64 / rate;
        for slot in &mut *drawn {
            let i = self.rng.random_range(0..n);
            *slot = (self.looks[i].score(now, per_byte), i as u8);
        }
        while let Some(best) = (0..drawn.len()).min_by(|&a, &b| drawn[a].0.total_cmp(&drawn[b].0)) {
            let i = drawn[best].1;
            if Some(i) != avoid && self.usable(i, now, patience, sent) {
                return i;
            }
            let last = drawn.len() - 1;
            drawn.swap(best, last);
            drawn = &mut drawn[..last];
        }
        let start = self.rng.random_range(0..n);
        let candidates = (0..n).map(|k| ((start + k) % n) as u8).filter(|&i| Some(i) != avoid);
        let mut fallback = None;
        for i in candidates {
            if self.usable(i, now, patience, sent) {
                return i;
            }
            let silent = self.paths[usize::from(i)].oldest(i, sent).map_or(Span::ZERO, |(_, s)| now.since(s.at));
            if fallback.is_none_or(|(least, _)| silent < least) {
                fallback = Some((silent, i));
            }
        }
        fallback.map_or(0, |(_, i)| i)
    }

    fn usable(&mut self, index: u8, now: Time, patience: Span, sent: &SentPackets) -> bool {
        let path = &mut self.paths[usize::from(index)];
        match path.state {
            PathState::Suspect => false,
            PathState::Unproven => path.oldest(index, sent).is_none(),
            PathState::Good => {
                let limit = path.rtt.timeout(patience);
                path.oldest(index, sent).is_none_or(|(_, s)| now.since(s.at) <= limit)
            }
        }
    }

    /// A packet leaves on the path; gives its place in the path's order.
    pub(crate) fn on_sent(&mut self, index: u8, pn: Seq, bytes: u16) -> u32 {
        let path = &mut self.paths[usize::from(index)];
        self.looks[usize::from(index)].in_flight += u32::from(bytes);
        path.packets += 1;
        path.bytes += u64::from(bytes);
        path.outstanding.push_back(pn);
        path.next_seq = path.next_seq.wrapping_add(1);
        path.next_seq
    }

    /// The place in the path's order that the next packet on it will get.
    pub(crate) fn next_seq(&self, index: u8) -> u32 {
        self.paths[usize::from(index)].next_seq.wrapping_add(1)
    }

    /// A packet that was in flight on the path was acknowledged. Returns how many of those before it were held to be lost
    /// with the path, which works after all.
    pub(crate) fn on_acked(&mut self, s: &Sent) -> u32 {
        let path = &mut self.paths[usize::from(s.path)];
        if path.life != s.path_life {
            return 0;
        }
        self.landed(s);
        let path = &mut self.paths[usize::from(s.path)];
        path.answered();
        path.failures = 0;
        if path.acked.is_none_or(|(seq, _)| (s.path_seq.wrapping_sub(seq) as i32) > 0) {
            path.acked = Some((s.path_seq, s.at));
        }
        std::mem::take(&mut path.silent)
    }

    /// A packet of the path's present life is in flight no more.
    fn landed(&mut self, s: &Sent) {
        let look = &mut self.looks[usize::from(s.path)];
        look.in_flight = look.in_flight.saturating_sub(s.bytes.into());
    }

    /// A packet in flight on the path is gone, with the path if that is `silent`.
    pub(crate) fn on_lost(&mut self, s: &Sent, silent: bool) {
        let path = &mut self.paths[usize::from(s.path)];
        if path.life == s.path_life {
            path.lost += 1;
            path.silent += u32::from(silent);
            self.landed(s);
        }
    }

    /// A packet of the path was declared lost, whatever was made of it: if that was the probe of a suspect path, it is not the
    /// last one, or nothing would ever be sent there again.
    pub(crate) fn probe_again(&mut self, s: &Sent, now: Time) {
        let path = &mut self.paths[usize::from(s.path)];
        if path.life == s.path_life && path.state == PathState::Suspect && path.probe_at == Time::NEVER {
            path.probe_at = now + path.rtt.srtt() * PROBE_RTTS;
            self.next_probe = self.next_probe.min(path.probe_at);
        }
    }

    /// A packet that was declared lost turned up after all.
    pub(crate) fn on_spurious(&mut self, s: &Sent) {
        let path = &mut self.paths[usize::from(s.path)];
        if path.life == s.path_life {
            path.leniency = (path.leniency + 1).min(8);
            (path.lost, path.silent) = (path.lost.saturating_sub(1), path.silent.saturating_sub(1));
            path.answered();
        }
    }

    /// An RTT sample of a packet on the path, `whole` being what is known of all paths. Returns the queueing delay in it.
    pub(crate) fn on_rtt(&mut self, now: Time, s: &Sent, rtt: Span, large: bool, longer: Span, whole: &Rtt) -> Span {
        let path = &mut self.paths[usize::from(s.path)];
        if path.life != s.path_life {
            return Span::ZERO;
        }
        let first = !path.rtt.is_sampled();
        path.rtt.sample(now, rtt, large, longer);
        if first {
            // With many paths each has few samples, and one alone would let it wait for three round trips.
            path.rtt.expect_var(whole.var());
        }
        path.base = if self.uneven { path.rtt.min() } else { whole.min() };
        let queue = rtt - path.base;
        // What was fast just now will be fast again.
        if queue <= self.fast && path.state == PathState::Good {
            if self.fresh.len() == usize::from(MAX_FRESH) {
                self.fresh.pop_front();
            }
            self.fresh.push_back((s.path, now));
        }
        let path = &mut self.paths[usize::from(s.path)];
        let memory = (path.rtt.srtt() * MEMORY_RTTS).min(LONGEST_MEMORY);
        let look = &mut self.looks[usize::from(s.path)];
        look.queue = ((path.rtt.srtt() - path.base).as_secs_f64() / memory.as_secs_f64().max(1e-9)) as f32;
        look.forgotten = now + memory;
        path.round_queue = Some(path.round_queue.map_or(queue, |q| q.min(queue)));
        queue
    }

    /// The receiver's count of congestion marks on the path.
    pub(crate) fn on_ce(&mut self, index: u8, count: u8) {
        let path = &mut self.paths[usize::from(index)];
        let new = count.wrapping_sub(path.last_ce);
        // The counts of an overtaken acknowledgement are older, not 200 marks newer.
        if new > 0 && new < 128 {
            path.last_ce = count;
            path.ce += u64::from(new);
            path.round_marked = true;
        }
    }

    /// Collects packets of the path that later ones overtook by too many packets or too much time. Returns when the rest
    /// should be looked at again (`NEVER` if nothing waits).
    // [ACK-9]
    pub(crate) fn detect_lost(&mut self, index: u8, now: Time, sent: &SentPackets, lost: &mut Vec<Seq>) -> Time {
        let (packets, base_time) = (self.reorder_packets, self.reorder_time);
        let path = &mut self.paths[usize::from(index)];
        let Some((acked_seq, acked_at)) = path.acked else { return Time::NEVER };
        let wait = (path.rtt.srtt() / 8).max(base_time) + path.rtt.srtt() / 8 * u64::from(path.leniency);
        let packets = packets + path.leniency;
        while let Some((pn, s)) = path.oldest(index, sent) {
            let overtaken = acked_seq.wrapping_sub(s.path_seq) as i32;
            if overtaken <= 0 {
                break;
            }
            let due = s.at + path.rtt.srtt() + wait;
            if overtaken as u32 >= packets || now >= due || acked_at.since(s.at) > path.rtt.srtt() + wait {
                lost.push(pn);
                path.outstanding.pop_front();
            } else {
                return due;
            }
        }
        Time::NEVER
    }

    /// When the oldest packet of any path times out, `rto` being the timeout for an RTT.
    pub(crate) fn next_timeout(&mut self, sent: &SentPackets, rto: impl Fn(&Rtt) -> Span) -> Time {
        let mut next = Time::NEVER;
        for i in 0..self.paths.len() {
            let path = &mut self.paths[i];
            let rto = rto(&path.rtt);
            if let Some((_, s)) = path.oldest(i as u8, sent) {
                next = next.min(s.at + rto);
            }
        }
        next
    }

    /// Collects the packets that have timed out; they stay where they are until their fate is settled.
    pub(crate) fn expired(&mut self, now: Time, sent: &SentPackets, rto: impl Fn(&Rtt) -> Span, lost: &mut Vec<Seq>) {
        for i in 0..self.paths.len() {
            let path = &mut self.paths[i];
            let rto = rto(&path.rtt);
            if path.oldest(i as u8, sent).is_none_or(|(_, s)| s.at + rto > now) {
                continue;
            }
            let expired = path.outstanding.iter().take_while(|&&pn| sent.get(pn).is_none_or(|s| s.at + rto <= now));
            lost.extend(expired);
        }
    }

    /// Whether a packet sent after `since` on any path but `index` was acknowledged.
    pub(crate) fn others_alive(&self, index: u8, since: Time) -> bool {
        let newest = |p: &Path| p.acked.is_some_and(|(_, sent_at)| sent_at > since);
        self.paths.iter().enumerate().any(|(i, p)| i != usize::from(index) && newest(p))
    }

    /// Packets timed out on the path while others got through. The first time it becomes suspect; then it is replaced, and
    /// all that is still out on it is lost.
    pub(crate) fn on_silence(&mut self, index: u8, now: Time, config: &CheckedConfig, lost: &mut Vec<Seq>) {
        let path = &mut self.paths[usize::from(index)];
        path.timeouts += 1;
        if path.timeouts >= 2 || path.state == PathState::Unproven {
            self.replace(index, now, config, lost);
        } else {
            path.state = PathState::Suspect;
            path.probe_at = now;
            self.next_probe = self.next_probe.min(now);
        }
    }

    /// Gives the path a fresh source port, if there is one to spare, and collects what was out on the old one.
    pub(crate) fn replace(&mut self, index: u8, now: Time, config: &CheckedConfig, lost: &mut Vec<Seq>) {
        let in_use = |port| self.paths.iter().any(|path| path.port == port);
        let Some(fresh) = self.ports.draw(&mut self.rng, in_use) else {
            // No port to spare: keep this one and go on probing it, less and less often.
            let path = &mut self.paths[usize::from(index)];
            path.state = PathState::Suspect;
            let pause = path.rtt.srtt().max(config.rto_min) * (1 << path.timeouts.min(10));
            path.probe_at = now + pause.min(Span::from_secs(1));
            self.next_probe = self.next_probe.min(path.probe_at);
            return;
        };
        let path = &self.paths[usize::from(index)];
        self.ports.retire(path.port, path.failures + 1, now);
        let path = self.give_port(index, fresh, config.initial_rtt);
        lost.extend(path.outstanding.drain(..));
        path.replaced += 1;
        self.replaced += 1;
    }

    /// The slot begins a new life on another port.
    fn give_port(&mut self, index: u8, port: SourcePort, initial_rtt: Span) -> &mut Path {
        let path = &mut self.paths[usize::from(index)];
        path.port = port;
        path.life = path.life.wrapping_add(1);
        path.state = PathState::Unproven;
        path.rtt = Rtt::new(if path.rtt.is_sampled() { path.rtt.srtt() } else { initial_rtt });
        (path.acked, path.round_queue) = (None, None);
        self.looks[usize::from(index)].in_flight = 0;
        (path.timeouts, path.silent, path.failures, path.leniency, path.probe_at) = (0, 0, 0, 0, Time::NEVER);
        path
    }

    /// Tries a port that was given up again, if its rest is over, in place of the slowest path.
    pub(crate) fn revive(&mut self, now: Time, rate: f64) {
        if !self.ports.may_revive(now) {
            return;
        }
        let Some(rested) = self.ports.find_rested(now) else { return };
        let good = (0..self.paths.len() as u16).map(|i| i as u8).filter(|&i| self.get(i).state == PathState::Good);
        let per_byte = self.paths.len() as f64 / rate;
        let score = |i: u8| self.looks[usize::from(i)].score(now, per_byte);
        let Some(slowest) = good.max_by(|&a, &b| score(a).total_cmp(&score(b))) else { return };
        let retired = self.ports.take(rested);
        let initial = self.get(slowest).rtt.srtt();
        let path = self.give_port(slowest, retired.port, initial);
        path.failures = retired.failures;
        path.probe_at = now;
        self.next_probe = self.next_probe.min(now);
    }

    /// Collects packets of all paths that should have arrived before something that was sent at `newest` did, given what
    /// is known of each path's delay and its variation, `whole` being the connection's.
    pub(crate) fn overdue(&mut self, newest: Time, whole: &Rtt, slack: Span, sent: &SentPackets, lost: &mut Vec<Seq>) {
        for i in 0..self.paths.len() {
            let path = &mut self.paths[i];
            let slower = path.rtt.srtt() - whole.min();
            let lenient = path.rtt.srtt() / 8 * u64::from(path.leniency);
            let allowed = slower + path.rtt.var().max(whole.var()) * 4 + lenient + slack;
            let Some((_, oldest)) = path.oldest(i as u8, sent) else { continue };
            if newest.since(oldest.at) > allowed {
                let late = |pn: &Seq| sent.get(*pn).is_none_or(|s| newest.since(s.at) > allowed);
                lost.extend(path.outstanding.iter().copied().take_while(late));
            }
        }
    }

    /// What looked like a queue is a longer way.
    pub(crate) fn forget_min(&mut self) {
        self.paths.iter_mut().for_each(|p| p.rtt.forget_min());
    }

    /// What looks like a queue may be that most paths have always needed longer than `short`: then that is no queue.
    pub(crate) fn find_detours(&mut self, short: Span) -> bool {
        self.median_base = self.median(|p| p.rtt.min());
        self.uneven = self.median_base > short;
        self.uneven
    }

    /// The lower median over the paths with an RTT sample; zero if there are none.
    fn median(&mut self, of: impl Fn(&Path) -> Span) -> Span {
        self.scratch.clear();
        self.scratch.extend(self.paths.iter().filter(|p| p.rtt.is_sampled()).map(of));
        lower_median(&mut self.scratch).unwrap_or_default()
    }

    /// What was taken for a longer way may have been a queue after all.
    pub(crate) fn doubt_detours(&mut self) {
        self.uneven = false;
    }

    /// The RTT of an idle network, `least` being the smallest one of all paths.
    pub(crate) fn base(&self, least: Span) -> Span {
        if self.uneven { self.median_base.max(least) } else { least }
    }

    /// When the next suspect path wants a probe.
    pub(crate) fn next_probe(&self) -> Time {
        self.next_probe
    }

    /// A path whose probe is due; it is considered sent.
    pub(crate) fn take_probe(&mut self, now: Time) -> Option<u8> {
        if self.next_probe > now {
            return None;
        }
        let index = self.paths.iter().position(|p| p.probe_at <= now);
        if let Some(index) = index {
            self.paths[index].probe_at = Time::NEVER;
        }
        self.next_probe = self.paths.iter().map(|p| p.probe_at).min().unwrap_or(Time::NEVER);
        index.map(|i| i as u8)
    }

    /// Ends a round: what its samples say.
    pub(crate) fn end_round(&mut self) -> RoundSignal {
        if self.uneven {
            self.median_base = self.median(|p| p.base);
        }
        self.scratch.clear();
        self.rounds = self.rounds.wrapping_add(1);
        let forgive = self.rounds.is_multiple_of(LENIENT_ROUNDS);
        let mut marked = 0;
        for path in &mut self.paths {
            if let Some(q) = path.round_queue.take() {
                self.scratch.push(q);
                marked += usize::from(path.round_marked);
                if forgive {
                    path.leniency = path.leniency.saturating_sub(1);
                }
            }
            path.round_marked = false;
        }
        RoundSignal { queue_delay: lower_median(&mut self.scratch), marked: 2 * marked > self.scratch.len() }
    }

    /// Snapshots of all paths.
    pub(crate) fn stats(&self) -> Vec<PathStats> {
        self.paths
            .iter()
            .map(|p| PathStats {
                port: p.port,
                state: p.state,
                srtt: p.rtt.srtt(),
                min_rtt: p.rtt.min(),
                packets: p.packets,
                bytes: p.bytes,
                lost: p.lost,
                ce: p.ce,
                replaced: p.replaced,
            })
            .collect()
    }
}

/// Half of the values or more are no less than it.
fn lower_median(values: &mut [Span]) -> Option<Span> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests;
