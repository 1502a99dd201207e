//! `srd demo`: the whole thing at work on one machine, without privileges.
//!
//! Two cards on the loopback interface exchange messages over several paths. A driver in between loses datagrams in both
//! directions, and half-way it swallows everything on one path. Every message carries its number and a pattern that follows
//! from number and seed; the receiver checks both. The verdict: every message that was sent has been delivered, once, intact.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use srd::udp::{UdpDriver, UdpOptions, WaitMode};
use srd::{
    BlackHole, Config, Driver as _, Endpoint, Engine, Faults, Faulty, Mailbox, Outbound, PeerId, RnrRetry, SendError,
    Share, Span, Time,
};

use crate::exit::{Exit, Fault, Result};
use crate::progress::Progress;
use crate::report::{Counters, Latencies, LatencyUs, PathReport, Snapshot};
use crate::units::{size_text, thousands};
use crate::{devices, interrupt, render, transport, units};

/// Options of `srd demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// Messages to send [default: as many as go through in 4 seconds]
    #[arg(long, short = 'n', value_name = "N", value_parser = units::count)]
    messages: Option<u64>,
    /// Bytes per message: 64, 8k, 1M
    #[arg(long, short, value_name = "SIZE", default_value = "8k", value_parser = units::size)]
    size: u32,
    /// Paths, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    paths: u16,
    /// Datagrams to lose at random in each direction, in per cent, 0 to 90
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = units::percent)]
    loss: u32,
    /// The path that dies half-way [default: one that the seed chooses]
    #[arg(long, value_name = "PATH")]
    kill_path: Option<u16>,
    /// Let all paths live
    #[arg(long, conflicts_with = "kill_path")]
    no_kill: bool,
    /// Decides which datagrams are lost and which path dies [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `srd demo` reports. The names are an interface.
#[derive(Debug, Serialize)]
struct DemoReport {
    /// Whether every message was delivered exactly once and intact.
    ok: bool,
    /// Whether the demonstration ran to its end.
    complete: bool,
    /// Messages accepted for sending.
    messages_sent: u64,
    /// Different messages delivered intact.
    messages_delivered: u64,
    /// Messages delivered again.
    duplicates: u64,
    /// Messages never delivered.
    lost: u64,
    /// Messages delivered with wrong bytes.
    damaged: u64,
    /// Messages whose sender was told that they failed.
    failed: u64,
    /// Share of messages that came after one that was sent later.
    out_of_order_share: f64,
    /// Gbit/s of payload delivered.
    goodput_gbps: f64,
    /// From posting a message to its completion.
    latency_us: LatencyUs,
    /// What decided about faults; give it to `--seed` to have the same again.
    seed: u64,
    /// Bytes per message.
    size: u32,
    /// Duration of the transfer.
    duration_s: f64,
    /// Packets sent again.
    retransmits: u64,
    /// What the network did.
    faults: FaultReport,
    /// What the sender did about it.
    counters: Counters,
    /// The path that died.
    killed: Option<Killed>,
    /// The sender's paths at the end.
    paths: Vec<PathReport>,
}

#[derive(Debug, Serialize)]
struct FaultReport {
    /// Share of datagrams lost at random in each direction, in per cent.
    loss_percent: f64,
    /// Datagrams of the sender lost at random.
    lost_forward: u64,
    /// Datagrams of the receiver (acknowledgements) lost at random.
    lost_backward: u64,
    /// Datagrams swallowed by the dead path.
    swallowed: u64,
    /// Datagrams that the sockets of both cards dropped: nobody asked for those, the machine is too slow.
    socket_drops: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Killed {
    /// Number of the path.
    path: u16,
    /// Index of the source port that it used then.
    source_port: u16,
    /// When, from the beginning.
    at_s: f64,
}

/// Where both cards are.
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// How long to send when no number of messages is given.
const DEFAULT_TIME: Span = Span::from_secs(4);
/// Messages outstanding at once, as far as [`MAX_OUTSTANDING`] permits.
const DEPTH: u64 = 128;
/// Bytes outstanding at once, or a single message.
const MAX_OUTSTANDING: u64 = 64 << 20;
/// Without any progress for so long, the demonstration has failed.
const STALL: Span = Span::from_secs(10);
/// Longest sleep, so that signals and the end are noticed soon.
const NAP: Span = Span::from_millis(20);
/// How long the good-bye may take.
const GOODBYE: Span = Span::from_millis(200);

type Card = Engine<Faulty<UdpDriver>, Mailbox>;

pub(crate) fn run(args: &DemoArgs) -> Result<Exit> {
    if let Some(path) = args.kill_path.filter(|&path| path >= args.paths) {
        return Err(Fault::usage(format_args!("there is no path {path} to kill, paths are 0 to {}", args.paths - 1)));
    }
    interrupt::install()?;
    if let Some(silence) = devices::silence(HOST.into()) {
        return Err(Fault::setup(silence));
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => u64::from(transport::seed()?.iter().fold(0_u32, |a, &b| a.rotate_left(8) ^ u32::from(b))),
    };
    let mut sender = card(args, seed, Side::Sender)?;
    let mut receiver = card(args, seed, Side::Receiver)?;
    let peer = sender.peer(receiver.driver.local_addr()).ok_or_else(|| Fault::setup("the table of peers is full"))?;

    let shared = Shared::default();
    let (sent, checked) = std::thread::scope(|scope| {
        let checking = std::thread::Builder::new()
            .name("receiver".to_owned())
            .spawn_scoped(scope, || check(&mut receiver, seed, args.size, &shared))
            .map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context("cannot start a thread")))?;
        let sent = send(&mut sender, peer, args, seed, &shared);
        shared.over.store(true, Ordering::Release);
        let checked = checking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Fault>((sent?, checked?))
    })?;

    let report = DemoReport::new(args, seed, &sender, &receiver, sent, &checked);
    if args.json {
        render::json(&report)?;
    } else {
        render::text(&report.text(args))?;
    }
    match (report.complete, report.ok) {
        (false, _) if interrupt::requested() => {
            render::complain("interrupted; the result is partial");
            Ok(Exit::Interrupted)
        }
        (_, true) => Ok(Exit::Ok),
        (_, false) => Ok(Exit::Failed),
    }
}

#[derive(Clone, Copy)]
enum Side {
    Sender = 1,
    Receiver = 2,
}

/// One card with its bad network.
fn card(args: &DemoArgs, seed: u64, side: Side) -> Result<Card> {
    let options = UdpOptions {
        source_ports: transport::pool(args.paths),
        wait: WaitMode::Adaptive { spin: Duration::from_micros(50) },
        ..UdpOptions::default()
    };
    let driver = transport::bind(SocketAddr::new(HOST.into(), 0), options)?;
    let faults = Faults { loss: Share::per_million(args.loss), ..Faults::default() };
    let mut driver = Faulty::new(driver, faults, seed ^ side as u64);
    let config = Config { paths: args.paths, path_pool: transport::pool(args.paths), ..Config::default() };
    let config = config.check().map_err(|e| Fault::new(Exit::Usage, e))?;
    let now = driver.now();
    let endpoint = Endpoint::new(config, driver.local_addr(), transport::seed()?, now);
    // What can be outstanding, twice: the receiver reads faster than that.
    let budget = 2 * (depth(args.size) * (u64::from(args.size) + 256)) as usize;
    Ok(Engine::new(endpoint, driver, Mailbox::new(budget)))
}

/// Messages of this size outstanding at once.
fn depth(size: u32) -> u64 {
    (MAX_OUTSTANDING / u64::from(size)).clamp(1, DEPTH)
}

/// What the two threads tell each other.
#[derive(Default)]
struct Shared {
    /// Messages delivered so far, for the progress bar.
    delivered: AtomicU64,
    /// The sender is done.
    over: AtomicBool,
}

/// What the sender saw.
struct Sent {
    messages: u64,
    failed: u64,
    stalled: bool,
    interrupted: bool,
    duration: Span,
    latencies: Latencies,
    killed: Option<Killed>,
    paths: Vec<PathReport>,
}

/// What the receiver saw.
#[derive(Default)]
struct Checked {
    /// One bit per message number.
    seen: Vec<u64>,
    delivered: u64,
    duplicates: u64,
    damaged: u64,
    out_of_order: u64,
    /// One more than the largest number seen.
    next: u64,
}

/// Sends until time or count is up, and waits for all completions.
fn send(card: &mut Card, peer: PeerId, args: &DemoArgs, seed: u64, shared: &Shared) -> Result<Sent> {
    let depth = depth(args.size);
    let begin = card.driver.now();
    let end = if args.messages.is_some() { Time::NEVER } else { begin + DEFAULT_TIME };
    let limit = args.messages.unwrap_or(u64::MAX);
    let mut bar = match args.messages {
        Some(n) => Progress::new(n, Span::MAX),
        None => Progress::new(DEFAULT_TIME.as_nanos(), DEFAULT_TIME),
    };
    let mut victim = victim(args, seed);
    let mut posted_at = vec![begin; depth as usize];
    let mut sent = Sent {
        messages: 0,
        failed: 0,
        stalled: false,
        interrupted: false,
        duration: Span::ZERO,
        latencies: Latencies::new(),
        killed: None,
        paths: Vec::new(),
    };
    let (mut completed, mut last, mut now) = (0, begin, begin);
    let mut payload = Vec::new();
    loop {
        let over = sent.messages == limit || now >= end || sent.interrupted;
        while !over && sent.messages < limit && sent.messages - completed < depth {
            pattern(seed, sent.messages, args.size, &mut payload);
            let header = sent.messages.to_be_bytes();
            let token = card.upper.post(&header, payload.clone().into());
            let (header_len, len) = (header.len() as u8, args.size);
            match card.endpoint.send(now, peer, Outbound { token, flow: 0, header_len, len, rnr: RnrRetry::Forever }) {
                Ok(()) => sent.messages += 1,
                Err(SendError::QueueFull { .. }) => {
                    card.upper.unpost(token);
                    break;
                }
                Err(e) => return Err(Fault::new(Exit::Failed, e)),
            }
            let slot = token.0 as usize;
            if posted_at.len() <= slot {
                posted_at.resize(slot + 1, now);
            }
            posted_at[slot] = now;
        }
        let moved = card.turn().map_err(Fault::driver)?;
        now = card.driver.now();
        while let Some((token, outcome)) = card.upper.poll_completed() {
            completed += 1;
            last = now;
            sent.failed += u64::from(outcome.is_err());
            sent.latencies.record(now.since(posted_at[token.0 as usize]));
        }
        sent.duration = now.since(begin);
        let half = if args.messages.is_some() { completed >= limit / 2 } else { sent.duration >= DEFAULT_TIME / 2 };
        if half && let Some(path) = victim.take() {
            sent.killed = kill(card, peer, path, now, sent.duration);
        }
        if bar.due(now) {
            let done = if args.messages.is_some() { completed } else { sent.duration.as_nanos() };
            bar.set(now, done, || format!("{} messages", thousands(shared.delivered.load(Ordering::Relaxed))));
        }
        sent.interrupted |= interrupt::requested();
        if over && completed == sent.messages {
            break;
        }
        if now.since(last) > STALL {
            sent.stalled = true;
            break;
        }
        if !moved {
            card.wait(Some(now + NAP)).map_err(Fault::driver)?;
        }
    }
    sent.duration = last.since(begin);
    sent.paths = PathReport::all(&card.endpoint.peer_stats(peer).paths);
    card.endpoint.close(now);
    let limit = now + GOODBYE;
    while !card.endpoint.is_closed() && card.driver.now() < limit {
        if !card.turn().map_err(Fault::driver)? {
            card.wait(Some(limit)).map_err(Fault::driver)?;
        }
    }
    Ok(sent)
}

/// Which path is to die.
fn victim(args: &DemoArgs, seed: u64) -> Option<u16> {
    if args.no_kill {
        None
    } else {
        // The only path there is stays alive, unless it is asked for.
        args.kill_path.or((args.paths > 1).then_some((seed % u64::from(args.paths)) as u16))
    }
}

/// From now on whatever is sent from the source port of this path vanishes.
fn kill(card: &mut Card, peer: PeerId, path: u16, now: Time, at: Span) -> Option<Killed> {
    let port = card.endpoint.peer_stats(peer).paths.get(usize::from(path))?.port;
    card.driver.black_hole(BlackHole::path(port, now));
    Some(Killed { path, source_port: port.0, at_s: at.as_secs_f64() })
}

/// Receives and checks until the sender is done and everything that has arrived is checked.
fn check(card: &mut Card, seed: u64, size: u32, shared: &Shared) -> Result<Checked> {
    let mut checked = Checked::default();
    let mut expected = Vec::new();
    loop {
        let over = shared.over.load(Ordering::Acquire);
        let moved = card.turn().map_err(Fault::driver)?;
        while let Some(message) = card.upper.poll_received() {
            checked.message(seed, size, &message.header, &message.data, &mut expected);
        }
        shared.delivered.store(checked.delivered, Ordering::Relaxed);
        if over && !moved {
            return Ok(checked);
        }
        if !moved {
            let limit = card.driver.now() + NAP;
            card.wait(Some(limit)).map_err(Fault::driver)?;
        }
    }
}

/// Numbers that the receiver has room to remember: far more than any demonstration sends.
const MAX_NUMBER: u64 = 1 << 36;

impl Checked {
    fn message(&mut self, seed: u64, size: u32, header: &[u8], data: &[u8], expected: &mut Vec<u8>) {
        let number = header.try_into().map(u64::from_be_bytes);
        let Some(number) = number.ok().filter(|&n| n < MAX_NUMBER) else {
            self.damaged += 1;
            return;
        };
        pattern(seed, number, size, expected);
        if data != expected.as_slice() {
            self.damaged += 1;
            return;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            self.duplicates += 1;
            return;
        }
        self.seen[word] |= bit;
        self.delivered += 1;
        if number < self.next {
            self.out_of_order += 1;
        } else {
            self.next = number + 1;
        }
    }
}

/// The payload of a message: a sequence that nothing but seed and number determine.
fn pattern(seed: u64, number: u64, size: u32, out: &mut Vec<u8>) {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (seed ^ number.wrapping_mul(ODD)).wrapping_mul(ODD) | 1;
    out.clear();
    out.resize(size as usize, 0);
    for chunk in out.chunks_mut(8) {
        state = state.wrapping_mul(ODD).rotate_left(29).wrapping_add(number);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

impl DemoReport {
    fn new(args: &DemoArgs, seed: u64, sender: &Card, receiver: &Card, sent: Sent, checked: &Checked) -> DemoReport {
        let lost = sent.messages.saturating_sub(checked.delivered);
        let counters = Counters::between(&Snapshot::default(), &Snapshot::new(&sender.endpoint, sender.driver.inner()));
        let received =
            Counters::between(&Snapshot::default(), &Snapshot::new(&receiver.endpoint, receiver.driver.inner()));
        let (forward, backward) = (sender.driver.counts(), receiver.driver.counts());
        let complete = !sent.interrupted && !sent.stalled;
        let clean = lost + checked.duplicates + checked.damaged + sent.failed == 0;
        let seconds = sent.duration.as_secs_f64();
        DemoReport {
            ok: complete && clean && checked.delivered == sent.messages && sent.messages > 0,
            complete,
            messages_sent: sent.messages,
            messages_delivered: checked.delivered,
            duplicates: checked.duplicates,
            lost,
            damaged: checked.damaged,
            failed: sent.failed,
            out_of_order_share: checked.out_of_order as f64 / checked.delivered.max(1) as f64,
            goodput_gbps: if seconds > 0.0 {
                checked.delivered as f64 * f64::from(args.size) * 8.0 / 1e9 / seconds
            } else {
                0.0
            },
            latency_us: sent.latencies.report(1.0),
            seed,
            size: args.size,
            duration_s: seconds,
            retransmits: counters.retransmits,
            faults: FaultReport {
                loss_percent: f64::from(args.loss) / 1e4,
                lost_forward: forward.lost,
                lost_backward: backward.lost,
                swallowed: forward.swallowed,
                socket_drops: counters.socket_drops() + received.socket_drops(),
            },
            counters,
            killed: sent.killed,
            paths: sent.paths,
        }
    }

    /// The report for people.
    fn text(&self, args: &DemoArgs) -> String {
        let DemoReport { messages_sent, messages_delivered, duplicates, lost, damaged, failed, faults, .. } = self;
        let death = self.killed.map_or("all paths live".to_owned(), |k| {
            format!("path {} (port #{}) dies after {:.2} s", k.path, k.source_port, k.at_s)
        });
        let verdict = match (self.complete, self.ok) {
            (_, true) => "ok: every message was delivered exactly once, intact".to_owned(),
            (true, false) => "FAILED: not every message was delivered exactly once, intact".to_owned(),
            (false, _) if interrupt::requested() => "none: interrupted".to_owned(),
            (false, _) => format!("FAILED: no progress for {} s", STALL.as_secs_f64()),
        };
        let swallowed = self
            .killed
            .map_or(String::new(), |_| format!(", {} swallowed by the dead path", thousands(faults.swallowed)));
        [
            format!(
                "srd demo: two cards on 127.0.0.1, {} paths, {} % of datagrams lost, {death} (seed {})",
                args.paths, faults.loss_percent, self.seed
            ),
            String::new(),
            format!("  messages      {} of {} sent", thousands(*messages_sent), size_text(self.size)),
            format!(
                "                {} delivered, {duplicates} twice, {lost} lost, {damaged} damaged, {failed} failed",
                thousands(*messages_delivered)
            ),
            format!("                {:.1} % out of order", 100.0 * self.out_of_order_share),
            format!("  goodput       {:.2} Gbit/s over {:.2} s", self.goodput_gbps, self.duration_s),
            format!("  latency       {} (post to completion)", self.latency_us.line()),
            format!(
                "  network       {} datagrams lost forward, {} back{swallowed}, {} dropped by sockets",
                thousands(faults.lost_forward),
                thousands(faults.lost_backward),
                thousands(faults.socket_drops)
            ),
            format!("  sender        {}", self.counters.line()),
            String::new(),
            PathReport::table(&self.paths).trim_fmt(),
            String::new(),
            format!("verdict: {verdict}"),
        ]
        .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(checked: &mut Checked, number: u64, data: &[u8]) {
        checked.message(7, 100, &number.to_be_bytes(), data, &mut Vec::new());
    }

    #[test]
    fn checker_sees_every_kind_of_mistake() {
        let message = |number| {
            let mut data = Vec::new();
            pattern(7, number, 100, &mut data);
            data
        };
        let mut checked = Checked::default();
        for number in [0, 2, 1, 200, 3] {
            feed(&mut checked, number, &message(number));
        }
        assert_eq!((checked.delivered, checked.out_of_order, checked.next), (5, 2, 201));
        feed(&mut checked, 2, &message(2));
        assert_eq!((checked.delivered, checked.duplicates), (5, 1));
        let mut bad = message(4);
        bad[99] ^= 1;
        feed(&mut checked, 4, &bad);
        feed(&mut checked, 4, &message(5));
        feed(&mut checked, 4, &message(4)[..99]);
        feed(&mut checked, u64::MAX, &[]);
        checked.message(7, 100, b"short", &[], &mut Vec::new());
        assert_eq!((checked.delivered, checked.damaged), (5, 5));
    }

    #[test]
    fn patterns_differ() {
        let of = |seed, number| {
            let mut data = Vec::new();
            pattern(seed, number, 64, &mut data);
            data
        };
        let all: std::collections::BTreeSet<_> = (0..100).flat_map(|n| [of(1, n), of(2, n)]).collect();
        assert_eq!(all.len(), 200);
    }
}
