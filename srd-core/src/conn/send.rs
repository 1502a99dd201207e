//! Building packets: what goes out next, on which path, in bursts of equal datagrams.

use std::net::{IpAddr, SocketAddr};

use super::loss::CONGESTED_TIMEOUTS;
use super::{Asking, Conn, Cx, TailProbe};
use crate::acks::{MAX_PIECES, MIN_ROOM};
use crate::batch::TxBatch;
use crate::outbox::{Cut, Outbox, Piece};
use crate::path::UNPROVEN_PACKETS;
use crate::sent::SentInfo;
use crate::stats::PathState;
use crate::time::{Span, Time};
use crate::upper::{Recall, Upper, gather};
use crate::wire::{
    CHECKSUM_LEN, DataHeader, Sink, TRACKED_HEADER, UNTRACKED_HEADER, encode_untracked, flags, fragment_len,
    write_fragment_head, write_ping,
};

/// Payload up to this length is copied next to its header; longer payload is gathered by the driver.
const COPY_BELOW: u32 = 1024;
/// Datagrams in one burst, the limit of segmentation offload in kernels before 6.9.
const MAX_SEGMENTS: usize = 64;

/// Bursts that a sender may make up for in one after a pause of its own.
const LATE_BURSTS: u64 = 3;

/// Packet numbers that only probes may use, so that a full window does not silence them.
pub(super) const PROBE_NUMBERS: u32 = 32;

/// Packets that might leave, at the present rate, between two probes for paths: where hundreds of them are due, they must not
/// take all of a slow link, and then be lost again.
const PATH_PROBE_GAPS: u64 = 2;

/// Probes whose pace puts off what comes after them.
const PROBES_PACED: u64 = 8;

/// Round trips without a packet after which sending begins anew.
const RESTART_RTTS: u64 = 4;

/// Packets that must be able to leave in a round trip if a sender is not to wait for its share. Who sends less gains little,
/// and the queue that newcomers make is long against the time between two of its packets, which bunch in it.
const EARLY_PACKETS: f64 = 2.0;

/// How often the answer to a question for a share is put off while the number of senders grows by an eighth and more.
const MAX_PUT_OFF: u32 = 8;

/// Where packets go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: SocketAddr,
    pub(crate) from: Option<IpAddr>,
    /// The UDP port that we receive on.
    pub(crate) port: u16,
}

/// Where a packet stands in its burst.
#[derive(Clone, Copy, Debug)]
struct InBurst {
    /// Its length becomes that of all.
    first: bool,
    /// No other will follow.
    last: bool,
}

/// What a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// What waits in the outbox.
    Data,
    /// A PING, padded to this length.
    Ping(usize),
}

/// Whether the pieces of a packet are also in another one whose fate is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CopyOf {
    Original,
    Probe,
}

impl Conn {
    /// Whether data waits and may leave as soon as the pacer allows.
    fn may_send_data(&self, outbox: &Outbox) -> bool {
        if !outbox.is_waiting()
            || !self.confirmed
            || self.may_be_forgotten()
            || self.asking == Asking::Waiting
            || !outbox.sendable()
            || self.sent.len() + PROBE_NUMBERS >= self.remote.packet_window
        {
            return false;
        }
        if self.backoff >= CONGESTED_TIMEOUTS && self.in_flight > 0 {
            return false;
        }
        // One packet may always be out. Retransmissions may overshoot a little, so that new data cannot hold them up.
        let extra = if outbox.has_again() { 2 * u64::from(self.datagram.get()) } else { 0 };
        self.in_flight == 0 || self.in_flight < self.cc.window() + extra
    }

    /// When the pacer lets the next burst go.
    fn send_at(&self, outbox: &Outbox) -> Time {
        let unused = u64::from(self.datagram.get()).saturating_sub(outbox.waiting());
        self.pacer.next(if unused == 0 { Span::ZERO } else { Span::from_secs_f64(unused as f64 / self.cc.rate()) })
    }

    /// Whether data waits and may leave now.
    fn may_send_now(&self, cx: &Cx<'_>, outbox: &Outbox) -> bool {
        cx.line.is_free(cx.now) && self.may_send_data(outbox) && self.send_at(outbox) <= cx.now
    }

    /// When [`transmit`](Self::transmit) or the timers next have something to do without any input.
    pub(crate) fn deadline(&self, cx: &Cx<'_>, outbox: &Outbox) -> Time {
        if matches!(self.tail_probe, TailProbe::Due(_)) || self.ping || self.owes_floor(outbox) {
            return cx.now;
        }
        let mut at = self.timer_at(cx, outbox).min(self.acks.due()).min(self.path_probe_at());
        if self.may_send_data(outbox) {
            let send_at = self.send_at(outbox);
            if send_at > cx.now || cx.line.is_free(cx.now) {
                at = at.min(send_at);
            }
        }
        if self.datagram.grow_at() < at && outbox.live() > 0 {
            at = self.datagram.grow_at();
        }
        at
    }

    /// Whether data would leave now if our link were free.
    pub(crate) fn waits_for_link(&self, cx: &Cx<'_>, outbox: &Outbox) -> bool {
        !cx.line.is_free(cx.now) && self.may_send_data(outbox) && self.send_at(outbox) <= cx.now
    }

    /// Adds one burst to the batch, the most urgent one. Says whether there was any.
    pub(crate) fn transmit<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        outbox: &mut Outbox,
        upper: &U,
        batch: &mut TxBatch,
    ) -> bool {
        if self.in_flight == 0 {
            if !outbox.is_waiting() {
                self.idle = true;
            } else if std::mem::take(&mut self.idle) {
                self.start(cx, outbox);
            }
        }
        // An answer that fits into one datagram leaves before the conclusions from the last acknowledgement are drawn.
        let at_once = self.tail_probe == TailProbe::Idle
            && outbox.waiting() <= self.datagram.get().into()
            && !outbox.has_again()
            && self.may_send_now(cx, outbox);
        if !at_once {
            self.settle(cx, outbox);
        }
        // The question may have got lost.
        if !self.ping && self.in_flight == 0 {
            self.asking = Asking::No;
        }
        // Without this acknowledgement the peer may be about to agree to an echo of our good-bye.
        self.ping |= self.may_be_forgotten() && self.acks.due() <= cx.now;
        if self.sent.len() + PROBE_NUMBERS >= self.remote.packet_window && self.knows_trips() {
            // Room for new packets is worth more than the memory of lost ones.
            self.sent.forget(cx.now);
        }
        if outbox.is_waiting() && self.may_probe_paths_at <= cx.now {
            self.paths.revive(cx.now, self.cc.rate());
        }
        if self.wants_probe(cx, outbox) {
            self.make_number(cx, outbox);
        }
        if let TailProbe::Due(left) = self.tail_probe {
            self.tail_probe = if left > 1 { TailProbe::Due(left - 1) } else { TailProbe::Done };
            self.send_tail_probe(cx, route, outbox, upper, batch);
            return true;
        }
        if self.path_probe_at() <= cx.now
            && let Some(path) = self.paths.take_probe(cx.now)
        {
            self.may_probe_paths_at = cx.now + self.gap() * PATH_PROBE_GAPS;
            self.send_ping(cx, route, path, self.datagram.get().into(), outbox, upper, batch);
            return true;
        }
        if outbox.live() > 0
            && let Some(size) = self.datagram.take_probe(cx.now)
        {
            let path = self.pick(cx, None);
            self.send_ping(cx, route, path, size.into(), outbox, upper, batch);
            return true;
        }
        if self.asking == Asking::Early && std::mem::take(&mut self.ping) {
            // The question first: who hears it counts us before anything of us arrives.
            let path = self.pick(cx, None);
            self.send_ping(cx, route, path, 0, outbox, upper, batch);
            return true;
        }
        // Nothing since then takes the permission back.
        if at_once || self.may_send_now(cx, outbox) {
            self.send_data(cx, route, outbox, upper, batch);
            return true;
        }
        // Our own link is no reason to send faster.
        self.round.limited |= outbox.is_waiting() && !self.waits_for_link(cx, outbox);
        if self.ping || self.owes_floor(outbox) {
            self.ping = false;
            let path = self.pick(cx, None);
            self.send_ping(cx, route, path, 0, outbox, upper, batch);
            return true;
        }
        if self.acks.due() <= cx.now && !self.put_off(cx) {
            let path = self.pick(cx, None);
            batch.begin_burst(route.to, route.from, self.paths.get(path).port);
            self.write_ack_packet(cx, upper, self.datagram.get().into(), batch);
            return true;
        }
        false
    }

    /// Whether to let an answer to a peer that asks for its share wait, because ever more ask.
    fn put_off(&mut self, cx: &Cx<'_>) -> bool {
        let Some((before, times)) = self.asked.take() else { return false };
        let senders = cx.inbound.senders();
        let growing = senders > before + before / 8 && times < MAX_PUT_OFF;
        if growing {
            self.asked = Some((senders, times + 1));
            self.acks.postpone(cx.now);
        }
        growing
    }

    /// Sending begins, for the first time or after a pause: what was known of queues is old, and many may begin at once.
    fn start(&mut self, cx: &Cx<'_>, outbox: &Outbox) {
        if self.rtt.is_sampled() {
            if cx.now.since(self.last_sent_at) <= self.rtt.srtt() * RESTART_RTTS + cx.granularity {
                return;
            }
            self.cc.on_restart();
            if self.share.is_some() && outbox.waiting() > cx.config.initial_window.into() {
                self.ping = true;
                // [CC-7]
                let few = f64::from(self.datagram.get()) * EARLY_PACKETS / self.rtt.min().as_secs_f64().max(1e-9);
                self.asking = match self.start {
                    Some(start) if start >= few => {
                        self.cc.begin(start);
                        self.repace(cx);
                        Asking::Early
                    }
                    _ => Asking::Waiting,
                };
                return;
            }
        }
        self.spread(cx);
    }

    /// Many may begin at once at a rate at which each sends rarely: then not all at the same moment.
    pub(super) fn spread(&mut self, cx: &Cx<'_>) {
        let gap = self.share.map_or(Span::ZERO, |share| Span::from_secs_f64(f64::from(self.datagram.get()) / share));
        if gap > cx.config.target_delay {
            self.pacer.hold(cx.now, gap);
        }
    }

    /// Whether a packet other than data is to leave that needs a number.
    fn wants_probe(&self, cx: &Cx<'_>, outbox: &Outbox) -> bool {
        matches!(self.tail_probe, TailProbe::Due(_))
            || self.ping
            || self.owes_floor(outbox)
            || self.path_probe_at() <= cx.now
            || (self.datagram.grow_at() <= cx.now && outbox.live() > 0)
    }

    /// When a path is to be probed next. Not while all are silent: that is asked about by other means, and ever more rarely.
    fn path_probe_at(&self) -> Time {
        if self.backoff >= CONGESTED_TIMEOUTS {
            return Time::NEVER;
        }
        self.paths.next_probe().max(self.may_probe_paths_at)
    }

    fn pick(&mut self, cx: &Cx<'_>, avoid: Option<u8>) -> u8 {
        self.paths.pick(cx.now, self.cc.rate(), avoid, cx.granularity, &self.sent)
    }

    fn send_data<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        outbox: &mut Outbox,
        upper: &U,
        batch: &mut TxBatch,
    ) {
        let avoid = if outbox.has_again() { self.lost_on } else { None };
        let rate = self.cc.rate();
        let path = self.paths.pick(cx.now, rate, avoid, cx.granularity, &self.sent);
        let window = self.cc.window();
        let room = window.saturating_sub(self.in_flight).max(1);
        // What might have left before leaves now anyway: better in one burst than in two, which cost two calls. Not where the
        // network sets the pace, though: there short bursts are for its queues.
        let late = if self.round.limited { Span::ZERO } else { cx.now.since(self.pacer.next(Span::ZERO)) };
        let late = late.min(cx.config.burst_time * LATE_BURSTS);
        let timely = (rate * (cx.config.burst_time + late).as_secs_f64()) as u64;
        let budget = timely.min(room).min(cx.config.max_burst.into());
        let mut max_packets = MAX_SEGMENTS;
        if self.paths.get(path).state == PathState::Unproven {
            max_packets = UNPROVEN_PACKETS;
        }

        batch.begin_burst(route.to, route.from, self.paths.get(path).port);
        let datagram = usize::from(self.datagram.get());
        // Acknowledgements ride along when all that waits fits into one datagram, else as the last and shorter segment.
        let ack_len = if self.acks.pending() { self.acks.len() } else { 0 };
        let overhead = (TRACKED_HEADER + CHECKSUM_LEN + ack_len) as u64;
        let ack_first = ack_len > 0 && outbox.waiting() + overhead <= datagram as u64;
        let overhead_of_packet = TRACKED_HEADER + self.trailer();
        let (mut bytes, mut packets, mut segment) = (0, 0, datagram);
        loop {
            let limit = if packets == 0 { datagram } else { segment };
            let last = packets + 1 == max_packets;
            let len = self.write_packet(
                cx,
                route,
                path,
                Load::Data,
                limit,
                ack_first && packets == 0,
                InBurst { first: packets == 0, last },
                outbox,
                upper,
                batch,
            );
            bytes += len as u64;
            packets += 1;
            if packets == 1 {
                segment = len;
            }
            let goes_on = packets < max_packets
                && bytes + len as u64 <= budget
                && bytes as usize + segment <= cx.config.max_burst as usize
                && len == segment
                && self.may_send_data(outbox)
                && outbox.next_fits(segment - overhead_of_packet, datagram - overhead_of_packet);
            if !goes_on {
                break;
            }
        }
        if self.acks.pending() && packets < MAX_SEGMENTS {
            let len = UNTRACKED_HEADER + self.trailer() + self.acks.len();
            if len <= segment
                && bytes as usize + len <= cx.config.max_burst as usize
                && (bytes as usize).is_multiple_of(segment)
            {
                self.write_ack_packet(cx, upper, segment, batch);
            }
        }
        self.pace(cx, bytes);
        if !outbox.has_again() {
            self.lost_on = None;
        }
    }

    /// So many bytes left.
    fn pace(&mut self, cx: &Cx<'_>, bytes: u64) {
        let rate = self.cc.rate();
        let per_byte = 1.0 / rate;
        let credit = cx.granularity.min(Span::from_secs_f64(f64::from(cx.config.max_burst) * per_byte))
            + Span::from_secs_f64(2.0 * f64::from(self.datagram.get()) * per_byte);
        self.pacer.on_sent(cx.now, bytes, rate, credit, cx.config.tuning.jitter);
        self.limit_wait(cx);
    }

    /// A wait lasts no longer than a burst and some probes take.
    pub(super) fn limit_wait(&mut self, cx: &Cx<'_>) {
        let bytes = u64::from(cx.config.max_burst) + PROBES_PACED * u64::from(self.datagram.get());
        self.pacer.limit(cx.now, bytes, self.cc.rate());
    }

    #[cold]
    fn send_ping<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        path: u8,
        size: usize,
        outbox: &mut Outbox,
        upper: &U,
        batch: &mut TxBatch,
    ) {
        batch.begin_burst(route.to, route.from, self.paths.get(path).port);
        let len = self.write_packet(
            cx,
            route,
            path,
            Load::Ping(size),
            size.max(self.datagram.get().into()),
            self.acks.pending() && self.may_be_forgotten(),
            InBurst { first: true, last: true },
            outbox,
            upper,
            batch,
        );
        // Small ones cost next to nothing, and what they ask is wanted at once.
        if size > 0 {
            self.pace(cx, len as u64);
        }
    }

    /// Sends the payload of the oldest packet again, on another path, without a verdict on it.
    #[cold]
    fn send_tail_probe<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        outbox: &mut Outbox,
        upper: &U,
        batch: &mut TxBatch,
    ) {
        cx.stats.tail_probes += 1;
        let oldest = self.sent.oldest_in_flight().map(|(_, s)| *s);
        let path = self.pick(cx, oldest.map(|s| s.path));
        let mut cuts = [None::<Cut>; MAX_PIECES];
        if let Some(s) = oldest {
            for (cut, piece) in cuts.iter_mut().zip(self.sent.pieces(&s)) {
                *cut = outbox.recut(piece);
            }
        }
        batch.begin_burst(route.to, route.from, self.paths.get(path).port);
        batch.begin_packet();
        self.write_header(route, outbox, path, batch);
        let room = usize::from(self.datagram.get()) - self.trailer();
        let mut pieces = 0;
        for cut in cuts.into_iter().flatten() {
            let header = upper.header(cut.token);
            let len = fragment_len(header.len() as u8, cut.piece.len == cut.total) + cut.piece.len as usize;
            if batch.packet_len() + len <= room && self.write_piece(cx, &cut, header, upper, batch) {
                pieces += 1;
            }
        }
        if pieces == 0 {
            write_ping(batch);
        } else {
            cx.stats.retransmits += 1;
            cx.stats.retransmit_bytes += batch.packet_len() as u64;
        }
        let len = self.finish_packet(cx, path, pieces, flags::ACK_NOW, CopyOf::Probe, upper, batch);
        // The first after an acknowledgement may be all that a message waits for. Further ones keep the pace, or hundreds of
        // senders would keep full for ever the queue that lost their packets.
        if self.backoff > 0 {
            self.pace(cx, len as u64);
        }
    }

    fn trailer(&self) -> usize {
        if self.checksum { CHECKSUM_LEN } else { 0 }
    }

    fn write_header(&mut self, route: Route, outbox: &Outbox, path: u8, batch: &mut TxBatch) {
        if self.owes_floor(outbox) {
            self.withdrawn = None;
        }
        let pn = self.sent.next();
        let header = DataHeader {
            flags: if self.checksum { flags::CHECKSUM } else { 0 },
            // [REL-2]
            span: pn.since(self.sent.base()) as u16,
            cid: self.remote.cid,
            pn,
            floor: outbox.floor(),
            port: route.port,
            path,
        };
        header.encode(batch);
    }

    /// Writes a piece of a message, unless its memory is gone.
    // Inlined for the reason that `Outbox::cut` is.
    #[inline(always)]
    fn write_piece<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        cut: &Cut,
        header: &[u8],
        upper: &U,
        batch: &mut TxBatch,
    ) -> bool {
        let Piece { message, offset, len, .. } = cut.piece;
        let mark = batch.mark();
        write_fragment_head(message, cut.total, offset, len as u16, header, batch);
        let left =
            if cut.again { batch.append(|into| upper.recall(cut.token, offset, len, into)) } else { Recall::Kept };
        match left {
            Recall::Kept if len > COPY_BELOW => batch.payload(cut.token, offset, len),
            Recall::Kept => gather(upper, cut.token, offset, len, |slice| batch.put(slice)),
            Recall::Copied => {}
            Recall::Gone => {
                batch.take_back(mark);
                cx.gone.push(cut.token);
                return false;
            }
        }
        self.sent.add_piece(cut.piece);
        true
    }

    /// Writes one tracked packet of at most `limit` bytes and returns its length.
    fn write_packet<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        path: u8,
        load: Load,
        limit: usize,
        with_ack: bool,
        in_burst: InBurst,
        outbox: &mut Outbox,
        upper: &U,
        batch: &mut TxBatch,
    ) -> usize {
        batch.begin_packet();
        self.write_header(route, outbox, path, batch);
        let limit = limit - self.trailer();
        if with_ack && limit > batch.packet_len() + MIN_ROOM {
            // A byte is left for a PING.
            self.acks.write(cx.now, limit - batch.packet_len() - 1, cx.inbound.advice(), batch);
            cx.stats.acks_sent += 1;
        }
        let full_room = usize::from(self.datagram.get()) - self.trailer() - TRACKED_HEADER;
        let mut pieces = 0;
        let mut again = false;
        let mut set = 0;
        match load {
            Load::Data => {
                while usize::from(pieces) < MAX_PIECES {
                    let room = limit.saturating_sub(batch.packet_len());
                    let Some(cut) = outbox.cut(room, pieces == 0, full_room) else { break };
                    let header = upper.header(cut.token);
                    if self.write_piece(cx, &cut, header, upper, batch) {
                        again |= cut.again;
                        pieces += 1;
                    }
                }
                self.last_used = cx.now;
            }
            Load::Ping(size) => {
                write_ping(batch);
                batch.pad(size.saturating_sub(batch.packet_len() + self.trailer()));
                if self.asking == Asking::No {
                    set |= flags::ACK_NOW;
                }
            }
        }
        if pieces == 0 && load == Load::Data {
            write_ping(batch);
        }
        let len = batch.packet_len();
        if again {
            cx.stats.retransmits += 1;
            cx.stats.retransmit_bytes += len as u64;
        }
        let more = outbox.is_waiting() && !in_burst.last;
        if load == Load::Data && more && len < limit && len * 8 >= limit * 7 {
            // Nearly full: fill up, so that all segments of the burst are equal. Not the first one if what comes next is
            // no longer: then its length is theirs.
            if !in_burst.first || !outbox.next_fits(len - TRACKED_HEADER, full_room) {
                batch.pad(limit - len);
            }
        }
        // [ACK-3]
        if again || !outbox.is_waiting() || self.in_flight + len as u64 >= self.cc.window() {
            set |= flags::ACK_NOW;
        }
        self.finish_packet(cx, path, pieces, set, CopyOf::Original, upper, batch)
    }

    fn finish_packet<U: Upper>(
        &mut self,
        cx: &mut Cx<'_>,
        path: u8,
        pieces: u8,
        set: u8,
        copy: CopyOf,
        upper: &U,
        batch: &mut TxBatch,
    ) -> usize {
        batch.set_bits(1, set);
        if self.checksum {
            batch.checksum(upper);
        }
        let len = batch.packet_len();
        batch.end_packet();
        let info = SentInfo {
            at: cx.now,
            bytes: len as u16,
            path,
            path_life: self.paths.get(path).life,
            probe: copy == CopyOf::Probe,
            path_seq: self.paths.next_seq(path),
        };
        let pn = self.sent.push(info, pieces);
        self.paths.on_sent(path, pn, len as u16);
        // [CC-2]
        self.in_flight += len as u64;
        self.last_sent_at = cx.now;
        cx.line.on_sent(cx.now, len as u64, cx.granularity);
        self.waiting_since.get_or_insert(cx.awake());
        self.guard(cx, path);
        cx.stats.tx_packets += 1;
        cx.stats.tx_data_packets += u64::from(pieces > 0);
        cx.stats.tx_bytes += len as u64;
        len
    }

    fn write_ack_packet<U: Upper>(&mut self, cx: &mut Cx<'_>, upper: &U, limit: usize, batch: &mut TxBatch) {
        batch.begin_packet();
        encode_untracked(if self.checksum { flags::CHECKSUM } else { 0 }, self.remote.cid, batch);
        self.acks.write(cx.now, limit - UNTRACKED_HEADER - self.trailer(), cx.inbound.advice(), batch);
        if self.checksum {
            batch.checksum(upper);
        }
        cx.stats.acks_sent += 1;
        cx.stats.tx_packets += 1;
        cx.stats.tx_bytes += batch.packet_len() as u64;
        cx.line.on_sent(cx.now, batch.packet_len() as u64, cx.granularity);
        batch.end_packet();
    }
}
