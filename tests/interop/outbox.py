"""What leaves on a connection in tracked packets, and what becomes of it."""

from collections import deque
from dataclasses import dataclass, field

import wire
from wire import MOD, Violation, before, blocks

OVERHEAD = 27  # of a tracked packet, with a checksum


@dataclass(eq=False)
class Outgoing:
    """A message that is to be sent."""

    token: int
    header: bytes
    data: bytes
    incarnation: int | None  # the peer's, as far as it was known [HS-15]
    ready_at: float = 0.0
    attempts: int = 0
    cut: bool = False
    confirmed: set = field(default_factory=set)  # blocks, of this attempt


@dataclass
class Sent:
    """A tracked packet whose fate is not known."""

    at: float
    path: int
    order: int  # among the packets of its path
    size: int
    pieces: list
    lost_at: float | None = None


class Outbox:
    """What a connection sends in tracked packets, and what became of it."""

    def __init__(self, mine, theirs, options):
        self.peer, self.options = theirs, options
        self.next_pn, self.next_mid = mine.pn, mine.mid
        self.size = min(options.datagram, theirs.datagram)  # [MTU-1]
        self.sent = {}  # number -> Sent, oldest first
        self.active = {}  # id -> Outgoing, oldest first
        self.todo = deque()  # (id, offset, length)
        self.orders, self.confirmed_orders = {}, {}  # per path
        self.window, self.backoff, self.large_lost, self.path = options.in_flight, 0, 0, 0
        self.ping_due = False
        self.reclaim = None  # number of the first packet after a CLOSE that was taken back, until one is confirmed [HS-19]

    def floor(self):
        """The oldest message id whose outcome is not known [REL-5]."""
        return next(iter(self.active), self.next_mid)

    def span(self):
        """That of the next packet [W-9]."""
        return (self.next_pn - next(iter(self.sent), self.next_pn)) % MOD

    def in_flight(self):
        """Packets neither acknowledged nor declared lost [CC-2]."""
        return sum(packet.lost_at is None for packet in self.sent.values())

    def timeout(self):
        """After which a packet is lost."""
        return min(self.options.resend * 2**self.backoff, 0.5) + min(self.peer.ack_delay, 100_000) / 1e6  # [W-22]

    def may_send(self):
        """Whether the windows let another packet go [REL-2] [CC-1]."""
        return self.in_flight() < self.window and self.span() < self.peer.packets

    def on_ack(self, ack):
        """Handles an ACK. Gives the messages that are done, and whether it told anything new."""
        if before(self.next_pn, ack.cumulative) or not before(ack.newest, self.next_pn):
            raise Violation("acknowledged before it was sent")  # [ACK-5]
        told = [pn for pn in self.sent if before(pn, ack.cumulative)]  # given up is not among them [ACK-6]
        told += [pn for pn in ack.numbers() if pn in self.sent]
        done = [message for pn in told for message in self._confirm(pn, ())]
        return done, bool(told)

    def on_refuse(self, refuse):
        """Handles a REFUSE. Gives the messages that are done, those turned away with kind and status, and whether it is news."""
        if not before(refuse.pn, self.next_pn):
            raise Violation("refused before it was sent")  # [RNR-5]
        news = refuse.pn in self.sent
        listed = {mid for mid, _, _ in refuse.entries}
        done = self._confirm(refuse.pn, listed) if news else []  # [RNR-1]
        away = [(self.active.pop(mid), kind, status) for mid, kind, status in refuse.entries if mid in self.active]
        return done, away, news  # ids that are not in progress are ignored [RNR-5]

    def _confirm(self, pn, but):
        """A packet arrived: all of it, but the messages of these ids."""
        packet = self.sent.pop(pn)
        if self.reclaim is not None and not before(pn, self.reclaim):
            self.reclaim = None
        self.confirmed_orders[packet.path] = max(self.confirmed_orders.get(packet.path, 0), packet.order)
        self.window, self.backoff = min(self.window + 1, self.options.in_flight), 0
        if packet.size > 512:
            self.large_lost = 0
        done = []
        for mid, offset, length in packet.pieces:
            message = self.active.get(mid)
            if message and mid not in but:
                message.confirmed.update(blocks(offset, length))
                if len(message.confirmed) == len(blocks(0, len(message.data))):
                    done.append(self.active.pop(mid))  # [REL-10]
        return done

    def expire(self, now):
        """Finds lost packets, by others of their own path or by time [ACK-9], and gives up those lost long ago [REL-2]."""
        late = False
        for packet in [packet for packet in self.sent.values() if packet.lost_at is None]:
            overtaken = packet.order + 3 <= self.confirmed_orders.get(packet.path, 0)
            if not overtaken and now < packet.at + self.timeout():
                continue
            late |= not overtaken
            packet.lost_at = now
            self.window = max(self.window // 2, 2)
            self.large_lost += packet.size > 512
            if self.large_lost >= 8:
                self.size = 512  # [MTU-3]
            self.ping_due |= not packet.pieces
            for mid, offset, length in packet.pieces:
                half = length // 2 // wire.BLOCK * wire.BLOCK
                if mid in self.active and self.active[mid].cut and half:  # cut anew, which receivers must bear [REL-9]
                    self.todo.appendleft((mid, offset + half, length - half))
                    length = half
                self.todo.appendleft((mid, offset, length))
        self.backoff += late
        while self.sent:
            number, packet = next(iter(self.sent.items()))
            if packet.lost_at is None or (now < packet.lost_at + 2 * self.timeout() and self.span() < self.peer.packets // 2):
                break
            del self.sent[number]

    def deadline(self):
        """When `expire` has something to do."""
        ends = [packet.at + self.timeout() for packet in self.sent.values() if packet.lost_at is None]
        return min(ends, default=None)

    def fill(self, room, waiting, now):
        """Frames of messages for one packet, and which pieces of them it has."""
        frames, pieces = [], []
        self.todo = deque(piece for piece in self.todo if self._wanted(piece))
        while len(frames) < wire.MAX_FRAGMENTS:  # [W-21]
            if not self.todo and not self._begin(waiting, now):
                break
            fragment = next(filter(None, (self._cut(piece, room) for piece in self.todo)), None)
            if fragment is None:
                break
            frames.append(fragment.encode())
            pieces.append((fragment.mid, fragment.offset, len(fragment.payload)))
            room -= len(frames[-1])
        return frames, pieces

    def _wanted(self, piece):
        mid, offset, length = piece
        return mid in self.active and not self.active[mid].confirmed.issuperset(blocks(offset, length))

    def _begin(self, waiting, now):
        """Gives the next message an id [REL-4]."""
        message = next((message for message in waiting if message.ready_at <= now), None)
        if message is None or (self.next_mid - self.floor()) % MOD >= self.peer.messages:
            return False
        waiting.remove(message)
        message.cut, message.confirmed = False, set()
        self.active[self.next_mid] = message
        self.todo.append((self.next_mid, 0, len(message.data)))
        self.next_mid = (self.next_mid + 1) % MOD
        return True

    def _cut(self, piece, room):
        """As much of a piece as fits, taken from `todo`."""
        mid, offset, length = piece
        message = self.active[mid]
        header, total = message.header, len(message.data)
        if length == total and 8 + len(header) + total <= room:
            self.todo.remove(piece)
            return wire.Whole(mid, header, message.data)
        if not message.cut and 8 + len(header) + total <= self.size - OVERHEAD:
            return None  # it will fit into a packet of its own
        if not message.cut and sum(other.cut for other in self.active.values()) >= self.peer.partials:
            return None  # [RNR-8]
        room -= 16 + len(header)
        if length > room:
            length = room // wire.BLOCK * wire.BLOCK  # [W-15]
        if length <= 0:
            return None
        message.cut = True
        self.todo.remove(piece)
        if length < piece[2]:
            self.todo.appendleft((mid, offset + length, piece[2] - length))
        return wire.Part(mid, total, offset, header, message.data[offset : offset + length])

    def packet(self, now, cid, port, flags, frames, pieces):
        """The next tracked packet."""
        path = self.path = (self.path + 1) % self.options.paths
        order = self.orders[path] = self.orders.get(path, 0) + 1
        packet = wire.Tracked(flags, self.span(), cid, self.next_pn, self.floor(), port, path, b"".join(frames))
        self.sent[self.next_pn] = Sent(now, path, order, OVERHEAD + len(packet.body), pieces)
        self.next_pn = (self.next_pn + 1) % MOD  # [REL-1]
        return packet
