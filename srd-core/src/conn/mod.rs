//! An open connection: one reliability and congestion context for all messages between two endpoints.
//!
//! Wires the parts together and keeps the decisions: [`PathSet`] (which way), [`SentPackets`] (what is out there),
//! [`Acks`] and [`Inbox`] (what came in), a congestion controller (how fast). Opening and closing are the business of
//! `peer`; outgoing messages live in the peer's [`Outbox`], because they outlive an idle connection.

mod base;
mod datagram;
mod loss;
mod pacer;
mod round;
mod send;

pub(crate) use send::Route;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::acks::{Acks, Arrival};
use crate::cc::{self, Controller};
use crate::config::{CheckedConfig, Checksum};
use crate::driver::RxMeta;
use crate::endpoint::PeerId;
use crate::inbound::{Inbound, Sender};
use crate::inbox::{Inbox, Taken};
use crate::line::Line;
use crate::outbox::Outbox;
use crate::path::PathSet;
use crate::rtt::Rtt;
use crate::sent::SentPackets;
use crate::seq::Seq;
use crate::stats::Stats;
use crate::time::{Span, Time};
use crate::upper::{Token, Upper};
use crate::wire::{DataHeader, DecodeError, Frame, Frames, Hello, Refusal, features, flags, is_ping};

use base::BaseDoubt;
use datagram::DatagramSize;
use loss::Covered;
use pacer::Pacer;
use round::Round;

/// What every call needs from the endpoint.
pub(crate) struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a CheckedConfig,
    pub(crate) stats: &'a mut Stats,
    pub(crate) inbound: &'a mut Inbound,
    pub(crate) line: &'a mut Line,
    /// Messages whose memory was found to be gone.
    pub(crate) gone: &'a mut Vec<Token>,
    /// Clock and scheduling granularity, as configured or measured.
    pub(crate) granularity: Span,
    /// When this endpoint last woke from a stall; verdicts by time wait for what arrived meanwhile.
    pub(crate) stall_end: Time,
    /// How long this endpoint has been stalled altogether, as far as that does not count.
    pub(crate) lost: Span,
}

impl Cx<'_> {
    /// A clock that stands while this endpoint is held up for long: by it, silence is the silence of others, and has a bound
    /// however often that happens.
    pub(crate) fn awake(&self) -> Time {
        self.now - self.lost
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Conn {
    peer: PeerId,
    /// What we told the peer, and what it told us.
    pub(crate) local: Hello,
    pub(crate) remote: Hello,
    /// The peer has shown that it knows our id: data may go out.
    confirmed: bool,
    checksum: bool,
    datagram: DatagramSize,

    sent: SentPackets,
    paths: PathSet,
    rtt: Rtt,
    /// What the hosts add to the round trip: how long the peer sits on packets before it acknowledges them, and our own
    /// loop on the acknowledgement.
    host: Rtt,
    /// When the peer was last seen to have been held up.
    held_up_at: Time,
    cc: Box<dyn Controller>,
    /// The peer's last advice on our rate, bytes per second.
    share: Option<f64>,
    /// The rate at which all that may send to the peer could begin at once, as far as it told us.
    start: Option<f64>,
    pacer: Pacer,
    /// Nothing was to be sent and nothing in flight.
    idle: bool,
    asking: Asking,
    in_flight: u64,
    /// When the latest-sent packet that was acknowledged was sent.
    newest_acked_at: Time,
    /// When to look for overdue packets again.
    next_scan: Time,
    round: Round,
    doubt: BaseDoubt,
    /// The path that lost what waits to be sent again.
    lost_on: Option<u8>,
    last_sent_at: Time,
    /// Retransmission timeouts in a row without any acknowledgement.
    backoff: u32,
    /// When probes asked a silent peer last.
    asked_at: Time,
    /// Before this, no path is probed.
    may_probe_paths_at: Time,
    tail_probe: TailProbe,
    loss_at: Time,
    /// The end of the stall for which a timeout was put off since the last news.
    pardoned: Option<Time>,
    reorder_at: Time,
    lost_scratch: Vec<Seq>,
    /// The last acknowledgement, whose conclusions have not been drawn.
    unsettled: Option<Covered>,

    acks: Acks,
    inbox: Inbox,
    /// The peer's place among those who send to us.
    sender: Sender,
    /// A packet has come on this connection.
    met: bool,
    /// The peer asks for its share; how many sent when it was last looked at, and how often the answer was put off.
    asked: Option<(u32, u32)>,
    refused_scratch: Vec<(Seq, Refusal)>,
    /// A PING should go out.
    ping: bool,
    /// Messages before this id were withdrawn, and the receiver has not been told yet: a packet with a floor that is as far
    /// does so.
    withdrawn: Option<Seq>,

    pub(crate) last_heard: Time,
    /// Since when we have been waiting for any sign of the peer, by [`Cx::awake`].
    waiting_since: Option<Time>,
    /// When a message was last sent or received.
    pub(crate) last_used: Time,
    /// When a good-bye was last taken back.
    reopened_at: Time,
}

/// Whether a PING asks for our share of the receiver's link, because much is to be sent after a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    No,
    /// Nothing leaves before the answer.
    Waiting,
    /// Meanwhile data leaves at the rate at which all could begin.
    Early,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TailProbe {
    Idle,
    /// So many are to be sent.
    Due(u32),
    Done,
}

impl Conn {
    pub(crate) fn new(
        cx: &Cx<'_>,
        peer: PeerId,
        local: Hello,
        remote: Hello,
        link_datagram: u16,
        first_window: u32,
        mut rng: Xoshiro256PlusPlus,
    ) -> Conn {
        let config = cx.config;
        // [MTU-1]
        let datagram = config.max_datagram.min(link_datagram).min(remote.max_datagram);
        Conn {
            peer,
            local,
            remote,
            confirmed: false,
            checksum: config.checksum == Checksum::Crc32c || remote.features & features::CHECKSUM != 0,
            datagram: DatagramSize::new(datagram),
            sent: SentPackets::new(local.first_pn, remote.packet_window),
            pacer: Pacer::new(Xoshiro256PlusPlus::from_rng(&mut rng)),
            paths: PathSet::new(config, rng),
            rtt: Rtt::new(config.initial_rtt),
            host: Rtt::new(Span::ZERO),
            held_up_at: Time::ZERO,
            cc: cc::new_controller(config, datagram, first_window, remote.share.rate()),
            share: remote.share.rate(),
            start: None,
            idle: true,
            asking: Asking::No,
            in_flight: 0,
            newest_acked_at: Time::ZERO,
            next_scan: Time::ZERO,
            round: Round::new(cx.now, local.first_pn),
            doubt: BaseDoubt::default(),
            lost_on: None,
            last_sent_at: cx.now,
            backoff: 0,
            asked_at: Time::ZERO,
            may_probe_paths_at: Time::ZERO,
            tail_probe: TailProbe::Idle,
            loss_at: Time::NEVER,
            pardoned: None,
            reorder_at: Time::NEVER,
            lost_scratch: Vec::new(),
            unsettled: None,
            acks: Acks::new(remote.first_pn, config),
            inbox: Inbox::new(
                remote.first_message,
                config.message_window,
                config.max_message,
                config.max_partial_messages,
            ),
            sender: Sender::Silent,
            met: false,
            asked: None,
            refused_scratch: Vec::new(),
            ping: false,
            withdrawn: None,
            last_heard: cx.now,
            waiting_since: None,
            last_used: cx.now,
            reopened_at: Time::ZERO,
        }
    }

    /// Largest datagram to send now, in bytes.
    pub(crate) fn datagram(&self) -> u16 {
        self.datagram.get()
    }

    /// The first hop to the peer carries no more than this.
    pub(crate) fn limit_datagram(&mut self, max: u16) {
        self.datagram.limit(max);
    }

    /// The peer asked for this connection and will want to send.
    pub(crate) fn admit(&mut self, cx: &mut Cx<'_>) {
        cx.inbound.admitted(cx.now, &mut self.sender);
    }

    /// The peer knows our id.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = true;
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Sends a PING as soon as possible.
    pub(crate) fn request_ping(&mut self) {
        self.ping = true;
    }

    /// A good-bye was taken back.
    pub(crate) fn reopen(&mut self, now: Time) {
        // A numbered packet from after the good-bye makes echoes of it void.
        self.ping = true;
        self.reopened_at = now;
        // Or it would close again before anything was acknowledged.
        self.last_used = now;
    }

    /// Whether the peer may still agree to a good-bye that was taken back: it is not known to have a packet from after it.
    // [HS-19]
    fn may_be_forgotten(&self) -> bool {
        self.newest_acked_at < self.reopened_at
    }

    /// A message waits that may not be sent yet: asks whether the peer knows the connection, unless that is asked already.
    // [HS-10]
    pub(crate) fn seek_confirmation(&mut self) {
        self.ping |= !self.confirmed && self.in_flight == 0;
    }

    /// Messages were withdrawn, the last of them before id `end`.
    // [REL-14]
    pub(crate) fn withdrew(&mut self, end: Seq) {
        self.withdrawn = Some(end);
    }

    /// Whether the floor has passed what was withdrawn, and the receiver should hear of it.
    fn owes_floor(&self, outbox: &Outbox) -> bool {
        self.withdrawn.is_some_and(|end| !outbox.floor().is_before(end))
    }

    /// Whether we have nothing under way.
    pub(crate) fn is_done(&self, outbox: &Outbox) -> bool {
        outbox.live() == 0 && self.in_flight == 0
    }

    /// Whether neither side has, as far as we know.
    pub(crate) fn is_quiet(&self, outbox: &Outbox) -> bool {
        self.is_done(outbox) && !self.inbox.has_partials()
    }

    /// The number that the next packet will have.
    pub(crate) fn next_pn(&self) -> Seq {
        self.sent.next()
    }

    /// Whether a packet with number `pn` or a later one has arrived.
    pub(crate) fn has_received_from(&self, pn: Seq) -> bool {
        !self.acks.newest().is_before(pn)
    }

    /// How long the peer has been silent although it owes an answer.
    pub(crate) fn silence(&self, cx: &Cx<'_>) -> Span {
        self.waiting_since.map_or(Span::ZERO, |since| cx.awake().since(since))
    }

    /// When the peer will have been silent for `patience`.
    pub(crate) fn silent_at(&self, cx: &Cx<'_>, patience: Span) -> Time {
        self.waiting_since.map_or(Time::NEVER, |since| since + cx.lost + patience)
    }

    /// When the peer has been silent, and not asked, for so long that a PING should ask.
    pub(crate) fn keepalive_at(&self, cx: &Cx<'_>) -> Time {
        self.last_heard.max(self.last_sent_at) + cx.config.keepalive
    }

    /// Asks the peer for a sign of life.
    pub(crate) fn keep_alive(&mut self, cx: &mut Cx<'_>) {
        self.ping = true;
        cx.stats.keepalives += 1;
    }

    /// [REL-7] The peer sent again what we have: it may miss our acknowledgements. They go out at once, and a PING with them,
    /// since only packets that are acknowledged themselves show which of our paths still work.
    fn on_duplicate(&mut self, cx: &mut Cx<'_>) {
        cx.stats.duplicates += 1;
        self.ping |= self.in_flight == 0;
    }

    fn heard(&mut self, cx: &Cx<'_>) {
        self.last_heard = cx.now;
        self.waiting_since = (self.in_flight > 0).then_some(cx.awake());
    }

    /// A tracked packet arrived.
    pub(crate) fn handle_tracked<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        header: &DataHeader,
        frames: &[u8],
        meta: &RxMeta,
        outbox: &mut Outbox,
        upper: &mut U,
    ) {
        if self.must_have_checksum(header.flags) {
            cx.stats.rx_bad_checksum += 1;
            return;
        }
        match self.acks.arrival(header.pn, header.span) {
            Arrival::New => {}
            Arrival::Duplicate => {
                // [ACK-1] The network has made it: what the peer sends again has a number of its own.
                cx.stats.duplicates += 1;
                self.acks.note(cx.now, header.pn, header.path, meta.at, meta.ecn, true);
                return;
            }
            Arrival::Violation => {
                cx.stats.rx_violations += 1;
                return;
            }
        }
        if !self.inbox.advance(header.floor, upper) {
            cx.stats.rx_violations += 1;
            return;
        }
        self.confirmed = true;
        if !std::mem::replace(&mut self.met, true) {
            cx.inbound.met();
        }
        let mut refused = std::mem::take(&mut self.refused_scratch);
        refused.clear();
        let outcome = self.handle_frames(cx, Frames::new(frames, true), meta, outbox, upper, &mut refused);
        match outcome {
            Ok(()) => {
                self.heard(cx);
                if refused.is_empty() {
                    // [REL-11]
                    self.acks.received(header.pn);
                } else {
                    self.acks.refused(header.pn, &refused);
                }
                let ack_now = header.flags & flags::ACK_NOW != 0;
                // [CC-5]
                let asks = is_ping(frames) && !ack_now;
                cx.inbound.read(cx.now, meta.at);
                cx.inbound.heard(cx.now, &mut self.sender, frames.len(), self.inbox.has_partials(), asks);
                if asks {
                    self.asked = Some((cx.inbound.senders(), 0));
                }
                self.acks.note(cx.now, header.pn, header.path, meta.at, meta.ecn, ack_now);
            }
            Err(fault) => fault.count(cx.stats),
        }
        self.refused_scratch = refused;
    }

    /// An untracked packet arrived.
    pub(crate) fn handle_untracked<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        packet_flags: u8,
        frames: &[u8],
        meta: &RxMeta,
        outbox: &mut Outbox,
        upper: &mut U,
    ) {
        if self.must_have_checksum(packet_flags) {
            cx.stats.rx_bad_checksum += 1;
            return;
        }
        self.confirmed = true;
        if let Err(fault) = self.handle_frames(cx, Frames::new(frames, false), meta, outbox, upper, &mut Vec::new()) {
            fault.count(cx.stats);
        }
    }

    /// A packet without a checksum on a connection that agreed on them is a packet whose flags were corrupted.
    // [W-8]
    pub(crate) fn must_have_checksum(&self, packet_flags: u8) -> bool {
        self.checksum && packet_flags & flags::CHECKSUM == 0
    }

    fn handle_frames<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        frames: Frames<'_>,
        meta: &RxMeta,
        outbox: &mut Outbox,
        upper: &mut U,
        refused: &mut Vec<(Seq, Refusal)>,
    ) -> Result<(), Fault> {
        let mut first = true;
        for frame in frames {
            // [W-11]
            match frame? {
                Frame::Fragment { message, total, offset, header, payload } => {
                    self.last_used = cx.now;
                    match self.inbox.take(self.peer, message, total, offset, header, payload, upper) {
                        Taken::New(None) => {}
                        Taken::New(Some(len)) => {
                            cx.stats.messages_received += 1;
                            cx.stats.message_bytes_received += u64::from(len);
                        }
                        Taken::Duplicate => self.on_duplicate(cx),
                        Taken::Refused(refusal) => {
                            if refused.len() == crate::acks::MAX_PIECES {
                                // [W-21]
                                return Err(Fault::Violation);
                            }
                            refused.push((message, refusal));
                        }
                        Taken::Violation => return Err(Fault::Violation),
                    }
                }
                Frame::Ping => {}
                Frame::Ack(ack) => self.handle_ack(cx, &ack, meta.at, std::mem::take(&mut first), outbox, upper)?,
                Frame::Refuse(refuse) => {
                    self.handle_refuse(cx, &refuse, meta.at, std::mem::take(&mut first), outbox, upper)?
                }
            }
        }
        Ok(())
    }

    /// Whether the peer counts as one of those that send to us.
    pub(crate) fn sends(&self, inbound: &Inbound) -> bool {
        inbound.counts(self.sender)
    }

    /// Tells the peer of its share, if it counts as one of those that send; says whether it does.
    pub(crate) fn tell_share(&mut self, inbound: &Inbound) -> bool {
        let sends = self.sends(inbound);
        // Who asks gets an answer when it is known who else does.
        if sends && self.asked.is_none() {
            self.acks.remind(Time::ZERO);
        }
        sends
    }

    /// Whether the peer has had advice on the rate with which to begin.
    pub(crate) fn has_met(&self) -> bool {
        self.met
    }

    /// Tells the peer with what rate to begin, if it has had that advice before; says whether it has. Who sends just now will
    /// hear of it with its packets, if there are more.
    pub(crate) fn tell_start(&mut self, cx: &Cx<'_>) -> bool {
        if self.met {
            let sends = self.sends(cx.inbound);
            self.acks.remind(if sends { cx.inbound.forgets_by(cx.now) } else { cx.now });
        }
        self.met
    }

    /// The connection ends: places of half-delivered messages go back to the upper storey.
    pub(crate) fn abandon<U: Upper>(&mut self, cx: &mut Cx<'_>, upper: &mut U) {
        cx.inbound.left(&mut self.sender);
        if std::mem::take(&mut self.met) {
            cx.inbound.parted();
        }
        self.inbox.abandon(upper);
    }

    /// Smoothed RTT of the connection.
    pub(crate) fn srtt(&self) -> Span {
        self.rtt.srtt()
    }

    pub(crate) fn snapshot(&self, outbox: &Outbox) -> crate::PeerStats {
        crate::PeerStats {
            established: true,
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min(),
            rate: self.cc.rate() as u64,
            window: self.cc.window(),
            in_flight: self.in_flight,
            datagram: self.datagram.get(),
            messages: outbox.live(),
            paths: self.paths.stats(),
        }
    }
}

/// Why the rest of a packet was not handled.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Malformed,
    Violation,
}

impl Fault {
    fn count(self, stats: &mut Stats) {
        match self {
            Fault::Malformed => stats.rx_malformed += 1,
            Fault::Violation => stats.rx_violations += 1,
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(_: DecodeError) -> Fault {
        Fault::Malformed
    }
}
