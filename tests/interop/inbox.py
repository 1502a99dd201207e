"""What arrives on a connection: which packets, which messages, and what is to be said of them."""

from dataclasses import dataclass

import wire
from wire import MOD, Violation, before, blocks

DELIVERED = "delivered"


@dataclass
class Partial:
    """A message that is partly here."""

    data: bytearray
    missing: set  # blocks [REL-9]


class Inbox:
    """Which packets and messages of a connection have arrived."""

    def __init__(self, mine, theirs, take):
        self.window, self.message_window, self.longest, self.partials = mine.packets, mine.messages, mine.message, mine.partials
        self.take = take
        self.base, self.seen = theirs.pn, set()  # [REL-3]
        self.newest = self.latest = (self.base - 1) % MOD  # received; arrived, whatever became of it
        self.floor, self.messages = theirs.mid, {}  # [REL-6]; id -> Partial, DELIVERED or (kind, status)
        self.completed = []
        self.paths, self.refusals, self.ack_due = {}, [], False

    def half_received(self):
        """How many messages are partly here."""
        return sum(isinstance(state, Partial) for state in self.messages.values())

    def admit(self, now, packet):
        """Whether a packet is new, and what its span and its floor say."""
        if packet.span >= self.window:
            raise Violation("span")  # [REL-3]
        oldest = (packet.pn - packet.span) % MOD
        if before(self.base, oldest):
            if (oldest - self.base) % MOD > 2**20:
                raise Violation("leap")
            self.base = oldest
            self.seen = {pn for pn in self.seen if not before(pn, oldest)}
        if before(packet.pn, self.base) or packet.pn in self.seen:
            self._arrived(now, packet)  # a duplicate is acknowledged [ACK-1]
            return False
        if before(self.latest, packet.pn):
            self.latest = packet.pn
        if before(self.floor, packet.floor):  # [REL-6]
            if (packet.floor - self.floor) % MOD > self.message_window:
                raise Violation("floor")
            self.floor = packet.floor
            self.messages = {mid: state for mid, state in self.messages.items() if not before(mid, self.floor)}
        return True

    def handle(self, now, packet, report):
        """The frames of a new packet; `report` takes acknowledgements and refusals."""
        turned_away, count = {}, 0
        for frame in packet.frames():  # if one is malformed, this packet is not acknowledged [W-11]
            if isinstance(frame, (wire.Whole, wire.Part)):
                outcome = self._fragment(frame)
                if outcome:
                    turned_away[frame.mid] = outcome
                    count += 1
                    if count > wire.MAX_FRAGMENTS:
                        raise Violation("fragments")  # [W-21]
            elif isinstance(frame, (wire.Ack, wire.Refuse)):
                report(frame)
        if turned_away:  # in place of an acknowledgement; a copy will be new [RNR-1]
            self.refusals.append(wire.Refuse(packet.pn, tuple((mid, *outcome) for mid, outcome in turned_away.items())))
        else:
            self.seen.add(packet.pn)
            if before(self.newest, packet.pn):
                self.newest = packet.pn
            while self.base in self.seen:
                self.seen.remove(self.base)
                self.base = (self.base + 1) % MOD
        self._arrived(now, packet)

    def _arrived(self, now, packet):
        self.ack_due = True
        if packet.path not in self.paths or before(self.paths[packet.path][0], packet.pn):
            self.paths[packet.path] = packet.pn, now

    def _fragment(self, frame):
        """Takes a fragment, or says with which kind and status its message is turned away."""
        state = self.messages.get(frame.mid)
        if before(frame.mid, self.floor) or state == DELIVERED:
            return None  # a duplicate [REL-7]
        if (frame.mid - self.floor) % MOD >= self.message_window:
            raise Violation("message id")  # [REL-7]
        if isinstance(state, tuple):
            return state  # [RNR-2]
        if state is None:  # the first fragment decides [REL-8]
            if frame.total > self.longest:
                outcome = wire.REFUSED, wire.TOO_LONG  # [REL-7]
            elif isinstance(frame, wire.Part) and self.half_received() >= self.partials:
                outcome = wire.NOT_READY, 0  # [RNR-8]
            else:
                outcome = self.take(frame.header, frame.total)
            if outcome:
                self.messages[frame.mid] = outcome
                return outcome
            state = self.messages[frame.mid] = Partial(bytearray(frame.total), set(blocks(0, frame.total)))
        if len(state.data) != frame.total:
            raise Violation("total")  # [REL-7]
        state.data[frame.offset : frame.offset + len(frame.payload)] = frame.payload
        state.missing -= set(blocks(frame.offset, len(frame.payload)))
        if not state.missing:  # [REL-8]
            self.messages[frame.mid] = DELIVERED
            self.completed.append((frame.header, bytes(state.data)))
        return None

    def answers(self, now):
        """The frames that are due: refusals and an acknowledgement."""
        if not self.ack_due:
            return []
        words = [0] * (max(((pn - self.base) % MOD // 64 + 1 for pn in self.seen), default=0))
        for pn in self.seen:
            words[(pn - self.base) % MOD // 64] |= 1 << (pn - self.base) % 64
        last = (self.base - 1) % MOD
        newest = last if before(self.newest, last) else self.newest
        entries = []
        for path in list(self.paths)[:32]:  # [ACK-4]
            pn, at = self.paths.pop(path)
            behind, residence = (newest - pn) % MOD, min(int((now - at) * 1e9) // 64, wire.UNKNOWN_TIME)
            if behind > 0xFFFF:  # refused and later than newest, or a copy of long ago [W-18]
                behind, residence = 0, wire.UNKNOWN_TIME
            entries.append((path, 0, behind, residence))
        frames = [*self.refusals, wire.Ack(self.base, newest, words=tuple(words), paths=tuple(entries))]
        self.refusals, self.ack_due = [], False
        return frames
