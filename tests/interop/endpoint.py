"""An endpoint of docs/protocol.md as a state machine, written from that page alone.

`Endpoint` is told of datagrams and of the time, and is asked for datagrams, events and its next deadline; it has no sockets and
no clock. inbox.py is what its connections receive, outbox.py what they send. It is meant to be right and readable, not fast: it
acknowledges with each turn, its timers are fixed, and its congestion control is a small window of packets (CC-1), without
pacing. It sends no *share* (CC-4), no probes of paths or of larger datagrams, and asks for nothing but acknowledgements.
"""

import hashlib
import secrets
from collections import deque
from dataclasses import dataclass, field

import wire
from inbox import Inbox
from outbox import OVERHEAD, Outbox, Outgoing
from wire import Malformed, before

OPENING, OPEN, CLOSING = "opening", "open", "closing"


@dataclass
class Options:
    """What an endpoint may be told. Times are in seconds."""

    datagram: int = 1200
    packets: int = 256  # windows as a receiver
    messages: int = 256
    message: int = 1 << 20
    partials: int = 8
    features: int = 0
    first: int | None = None  # where packet numbers and message ids begin; at random without
    paths: int = 3
    peers: int = 16
    in_flight: int = 16  # packets at once
    resend: float = 0.015  # first retransmission timeout, beside the peer's max ack delay
    pause: float = 0.002  # first repetition of INIT and CLOSE, and pause after *not ready*
    longest_pause: float = 0.1
    keepalive: float = 1.0
    peer_timeout: float = 5.0
    close_again: float = 0.1  # after a CLOSE that came to nothing


@dataclass(eq=False)
class Peer:
    """One main address [HS-1]."""

    address: tuple
    waiting: deque = field(default_factory=deque)
    connection: object = None
    incarnation: int | None = None
    wants_close: bool = False


class Budget:
    """A limited number of answers per second [SEC-2]."""

    def __init__(self, most=200):
        self.most = self.left = most
        self.since = 0.0

    def take(self, now):
        """Whether there is one left."""
        if now >= self.since + 1:
            self.since, self.left = now, self.most
        self.left -= 1
        return self.left >= 0


class Connection:
    """The state shared with one peer."""

    def __init__(self, peer, hello, now):
        self.peer, self.mine, self.theirs = peer, hello, None
        self.state, self.confirmed = OPENING, False
        self.cookie, self.attempts, self.again_at, self.started = 0, 0, now, now
        self.shutdown, self.close_at = 0, now
        self.active_at = self.heard_at = now

    def open(self, theirs, options, take, now):
        """Has the peer's hello."""
        self.theirs, self.state = theirs, OPEN
        self.inbox, self.outbox = Inbox(self.mine, theirs, take), Outbox(self.mine, theirs, options)
        self.checksum = wire.CHECKSUM if (self.mine.features | theirs.features) & wire.FEATURE_CHECKSUM else 0  # [W-8]
        self.again_at = self.active_at = self.heard_at = now

    def is_idle(self):
        """As [HS-16] means it."""
        return not (self.peer.waiting or self.outbox.active or self.outbox.in_flight() or self.inbox.half_received())

    def say_close(self, now, shutdown):
        """From now on."""
        self.state, self.shutdown = CLOSING, shutdown
        self.attempts, self.again_at, self.started = 0, now, now

    def pause(self, options):
        """Until the next repetition of INIT, CLOSE or a PING [HS-12] [HS-20]."""
        self.attempts += 1
        return min(options.pause * 2**self.attempts, options.longest_pause)


class Endpoint:
    """One incarnation at one main address. Messages that arrive, and outcomes of those sent, are in `events`:
    ("message", address, header, data) and ("sent", token, outcome), where the outcome of success is "delivered"."""

    def __init__(self, port, options=None, take=lambda header, total: None):
        self.port, self.options, self.take = port, options or Options(), take
        self.incarnation = secrets.randbits(64)  # [HS-3]
        self.key = secrets.token_bytes(32)
        self.peers, self.by_cid, self.used = {}, {}, set()
        self.output, self.events, self.token = [], deque(), 0
        self.retries, self.answers = Budget(), Budget()
        self.is_shut = False
        self.discarded = []  # why

    # What the application asks for.

    def send(self, address, data, header=b""):
        """Queues a message; the token that it gives is in the event that tells the outcome."""
        peer = self._peer(address)
        peer.wants_close = False
        self.token += 1
        peer.waiting.append(Outgoing(self.token, header, data, peer.incarnation))
        return self.token

    def withdraw(self, token):
        """Sends no more of a message [REL-14]."""
        for peer in self.peers.values():
            peer.waiting = deque(message for message in peer.waiting if message.token != token)
            box = peer.connection and peer.connection.state != OPENING and peer.connection.outbox
            for mid in [mid for mid, message in (box.active if box else {}).items() if message.token == token]:
                del box.active[mid]
                box.ping_due = True

    def close(self, address):
        """Says CLOSE when the connection is idle [HS-16]."""
        self._peer(address).wants_close = True

    def shut_down(self, now):
        """Says CLOSE to all, idle or not [HS-17]."""
        self.is_shut = True
        for peer in self.peers.values():
            connection = peer.connection
            if connection and connection.state == OPENING:
                self._end(connection, "closed")
            elif connection:
                self._fail([*connection.outbox.active.values()], "closed")
                connection.outbox.active.clear()
                connection.say_close(now, 1)
            self._fail(peer.waiting, "closed")
            peer.waiting.clear()

    def is_connected(self, address):
        """Whether there is a connection of any state."""
        return address in self.peers and self.peers[address].connection is not None

    def _peer(self, address):
        return self.peers.setdefault(address, Peer(address))

    # What the network tells.

    def receive(self, now, ip, datagram):
        """A datagram from this source address."""
        try:
            packet = wire.decode(datagram)
            handler = getattr(self, "_on_" + type(packet).__name__.lower())
            handler(now, ip, packet)
        except Malformed as error:
            self.discarded.append(str(error))  # and nothing else [SEC-6]

    def _on_init(self, now, ip, init):
        if self.is_shut:
            return  # [HS-4]
        address, hello = (ip, init.port), init.hello
        peer = self.peers.get(address)
        connection = peer and peer.connection
        is_open = bool(connection) and connection.state != OPENING
        if is_open and (connection.theirs.cid, connection.theirs.incarnation) == (hello.cid, hello.incarnation):
            if connection.state == OPEN:
                self._send(address, wire.Accept(hello.cid, connection.mine))  # an echo [HS-7]
            return
        local = connection.mine.cid if is_open else 0
        if init.cookie not in (self._cookie(now - 16, address, local), self._cookie(now, address, local)):
            if self.retries.take(now):
                self._send(address, wire.Retry(hello.cid, self._cookie(now, address, local)))  # [HS-4]
            return
        if not connection and sum(bool(peer.connection) for peer in self.peers.values()) >= self.options.peers:
            return  # [HS-6]
        peer = self._peer(address)
        if is_open:
            restarted = connection.theirs.incarnation != hello.incarnation
            self._end(connection, "restarted" if restarted else "given up")  # [HS-15]
        if not peer.connection:
            self._connect(peer, now)
        self._opened(peer.connection, hello, now)  # with the hello of our INITs, if there were any [HS-11]
        self._send(address, wire.Accept(hello.cid, peer.connection.mine))

    def _on_retry(self, now, ip, retry):
        connection = self.by_cid.get(retry.to)
        if connection and connection.state == OPENING and retry.cookie != connection.cookie:
            connection.cookie, connection.again_at = retry.cookie, now  # [HS-8]

    def _on_accept(self, now, ip, accept):
        connection = self.by_cid.get(accept.to)
        if not connection or connection.state == CLOSING:
            return
        if connection.state == OPEN and accept.hello.cid == connection.theirs.cid:
            self._confirm(connection)
        elif connection.state == OPENING or not connection.confirmed:
            self._opened(connection, accept.hello, now)  # [HS-9]
            self._confirm(connection)
            connection.outbox.ping_due = True  # unless there is data [HS-10]

    def _on_tracked(self, now, ip, packet):
        connection = self.by_cid.get(packet.cid)
        if not connection or connection.peer.address[0] != ip:  # [HS-23]
            answer = wire.Unknown(packet.cid, self.incarnation, self.port)
            if packet.port and len(wire.encode(packet)) >= len(wire.encode(answer)) and self.answers.take(now):
                self._send((ip, packet.port), answer)  # [HS-13]
            return
        if connection.state == OPENING or connection.shutdown:
            return  # [HS-10] [HS-19]
        self._check(connection, packet)
        if connection.state == CLOSING and not before(connection.inbox.latest, packet.pn):
            return  # [HS-19]
        if not connection.inbox.admit(now, packet):
            return
        if connection.state == CLOSING:
            connection.state = OPEN  # the CLOSE is taken back [HS-19]
            connection.close_at = now + self.options.close_again  # [HS-16]
            connection.outbox.reclaim, connection.outbox.ping_due = connection.outbox.next_pn, True
        connection.active_at = connection.heard_at = now  # [HS-21]
        self._confirm(connection)
        try:
            connection.inbox.handle(now, packet, lambda frame: self._report(now, connection, frame))
        finally:
            for header, data in connection.inbox.completed:
                self.events.append(("message", connection.peer.address, header, data))
            connection.inbox.completed.clear()

    def _on_untracked(self, now, ip, packet):
        connection = self.by_cid.get(packet.cid)
        if connection and connection.peer.address[0] == ip and connection.state != OPENING:
            self._check(connection, packet)
            self._confirm(connection)
            connection.active_at = now
            for frame in packet.frames():
                self._report(now, connection, frame)

    def _on_unknown(self, now, ip, unknown):
        peer = self.peers.get((ip, unknown.port))
        connection = peer and peer.connection
        if connection and connection.state != OPENING and connection.theirs.cid == unknown.cid:
            restarted = connection.theirs.incarnation != unknown.incarnation
            self._end(connection, "restarted" if restarted else "given up")  # [HS-14]

    def _on_close(self, now, ip, close):
        connection = self.by_cid.get(close.cid)
        if connection and connection.state == OPENING:
            return  # [HS-18]
        is_quiet = connection and connection.is_idle() and before(connection.inbox.latest, close.next)
        if connection and not close.shutdown and not is_quiet:
            connection.outbox.ping_due = True  # takes it back at the other side, if we are open [HS-20]
            return
        if connection:
            self._end(connection, "closed")
        if close.port and self.answers.take(now):
            self._send((ip, close.port), wire.Closed(close.cid, self.port))  # [HS-18]

    def _on_closed(self, now, ip, closed):
        peer = self.peers.get((ip, closed.port))
        connection = peer and peer.connection
        if connection and connection.state == CLOSING and connection.theirs.cid == closed.cid:
            self._end(connection, "closed")  # [HS-20]

    def _check(self, connection, packet):
        if connection.checksum and not packet.flags & wire.CHECKSUM:
            raise Malformed("no checksum")  # [W-8]

    def _report(self, now, connection, frame):
        """An ACK or REFUSE."""
        away = []
        if isinstance(frame, wire.Ack):
            done, news = connection.outbox.on_ack(frame)
        else:
            done, away, news = connection.outbox.on_refuse(frame)
        if news:
            connection.heard_at = now  # [HS-21]
        for message in done:
            self.events.append(("sent", message.token, "delivered"))
        for message, kind, status in away:
            if kind == wire.REFUSED:
                self.events.append(("sent", message.token, f"refused {status}"))  # [RNR-4]
                continue
            message.attempts += 1  # again, under another id [RNR-3]
            message.ready_at = now + min(self.options.pause * 2**message.attempts, self.options.longest_pause)  # [RNR-7]
            connection.peer.waiting.append(message)

    # Connections.

    def _cookie(self, now, address, local):
        """[HS-5]"""
        state = repr((address, int(now // 16), local)).encode()
        return int.from_bytes(hashlib.blake2s(state, key=self.key, digest_size=8).digest(), "big") or 1

    def _connect(self, peer, now):
        """A connection that is being opened, under a new id [HS-2]."""
        cid = secrets.randbits(64)
        while cid in self.used:
            cid = secrets.randbits(64)
        self.used.add(cid)
        o = self.options
        pn, mid = (secrets.randbits(32) if o.first is None else o.first for _ in range(2))
        hello = wire.Hello(
            cid, self.incarnation, o.features, o.datagram, o.packets, o.messages, o.message, o.partials, pn, mid, 1000, 0
        )
        peer.connection = self.by_cid[cid] = Connection(peer, hello, now)

    def _opened(self, connection, hello, now):
        connection.open(hello, self.options, self.take, now)
        peer = connection.peer
        strange = [message for message in peer.waiting if message.incarnation not in (None, hello.incarnation)]
        self._fail(strange, "restarted")  # [HS-15]
        peer.waiting = deque(message for message in peer.waiting if message not in strange)

    def _confirm(self, connection):
        """The peer knows our id [HS-10]."""
        if not connection.confirmed:
            connection.confirmed, connection.peer.incarnation = True, connection.theirs.incarnation

    def _end(self, connection, why):
        """The connection is over [HS-15] [REL-13]."""
        del self.by_cid[connection.mine.cid]
        peer = connection.peer
        peer.connection, peer.wants_close = None, False
        if connection.state != OPENING:
            self._fail(connection.outbox.active.values(), why)
        if connection.state == OPENING or (why == "restarted" and connection.confirmed):
            self._fail(peer.waiting, why)
            peer.waiting.clear()

    def _fail(self, messages, why):
        self.events.extend(("sent", message.token, why) for message in messages)

    # What is to be sent.

    def _send(self, address, packet, path=0):
        self.output.append((path, address, packet))

    def poll(self, now):
        """What is to be sent now: (path, address, packet)."""
        for peer in list(self.peers.values()):
            if not peer.connection and not self.is_shut and any(message.ready_at <= now for message in peer.waiting):
                self._connect(peer, now)
            if peer.connection:
                poll = {OPENING: self._poll_opening, OPEN: self._poll_open, CLOSING: self._poll_closing}
                poll[peer.connection.state](now, peer.connection)
        output, self.output = self.output, []
        return output

    def _poll_opening(self, now, connection):
        if now >= connection.started + self.options.peer_timeout:
            self._end(connection, "never answered")  # [HS-12]
        elif now >= connection.again_at:
            connection.again_at = now + connection.pause(self.options)
            self._send(connection.peer.address, wire.Init(self.port, connection.cookie, connection.mine))

    def _poll_closing(self, now, connection):
        over = connection.attempts >= 5 if connection.shutdown else now >= connection.started + self.options.peer_timeout
        if now < connection.again_at:
            return
        if over:
            self._end(connection, "no answer")  # [HS-20]
            return
        connection.again_at = now + connection.pause(self.options)
        close = wire.Close(connection.theirs.cid, connection.outbox.next_pn, connection.shutdown, self.port)
        self._send(connection.peer.address, close)

    def _poll_open(self, now, connection):
        box, peer = connection.outbox, connection.peer
        box.expire(now)
        if not box.sent and not box.todo:
            connection.heard_at = now  # nothing is in flight that could be answered [HS-21]
        if now >= connection.heard_at + self.options.peer_timeout:
            self._end(connection, "timeout")  # [HS-21]
            return
        if now >= connection.active_at + self.options.keepalive:
            box.ping_due = True  # [HS-21]
        if not connection.confirmed and peer.waiting and now >= connection.again_at:
            connection.again_at = now + connection.pause(self.options)
            box.ping_due = True  # [HS-10]
        too_long = [message for message in peer.waiting if len(message.data) > connection.theirs.message]
        self._fail(too_long, "too long")  # [REL-12]
        peer.waiting = deque(message for message in peer.waiting if message not in too_long)
        answers = [frame.encode() for frame in connection.inbox.answers(now)]
        if answers and box.reclaim is not None:
            box.ping_due = True  # acknowledgements only in tracked packets [HS-19]
        answers = self._send_tracked(now, connection, answers)
        if box.reclaim is None:
            self._send_answers(now, connection, answers)
        if peer.wants_close and connection.confirmed and connection.is_idle() and now >= connection.close_at:
            if box.reclaim is None and not box.ping_due:
                connection.say_close(now, 0)  # [HS-16]
                self._poll_closing(now, connection)

    def _send_tracked(self, now, connection, answers):
        """Sends what there is, with as many of the answers as fit; gives the others."""
        box = connection.outbox
        may_carry = connection.confirmed and box.reclaim is None  # [HS-10] [HS-19]
        while box.may_send():
            room, frames = box.size - OVERHEAD, []
            while answers and len(answers[0]) <= room:
                room -= len(answers[0])
                frames.append(answers.pop(0))
            data, pieces = box.fill(room, connection.peer.waiting, now) if may_carry else ([], [])
            if not data and not box.ping_due:
                return frames + answers
            frames += data or [wire.Ping().encode()]
            box.ping_due = False
            flags = connection.checksum | wire.ACK_NOW  # [ACK-3]
            packet = box.packet(now, connection.theirs.cid, self.port, flags, frames, pieces)
            self._send(connection.peer.address, packet, packet.path)
            connection.active_at = now
        return answers

    def _send_answers(self, now, connection, answers):
        """Sends them in untracked packets."""
        while answers:
            body = b""
            while answers and 14 + len(body) + len(answers[0]) <= 512:  # [MTU-1]
                body += answers.pop(0)
            self._send(connection.peer.address, wire.Untracked(connection.checksum, connection.theirs.cid, body))
            connection.active_at = now

    def deadline(self, now):
        """When `poll` should be called again at the latest."""
        times = [now + self.options.keepalive]
        for peer in self.peers.values():
            connection = peer.connection
            times += [message.ready_at for message in peer.waiting if message.ready_at > now]
            if not connection:
                continue
            if connection.state != OPEN or not connection.confirmed:
                times.append(connection.again_at)
            if connection.state == OPEN:
                times += [connection.outbox.deadline() or times[0], connection.active_at + self.options.keepalive]
                times += [connection.close_at] if peer.wants_close else []
        return min(time if time > now else now + 0.001 for time in times)
