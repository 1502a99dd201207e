"""Watches what the other side sends for what no correct sender does, also where a receiver need not notice it.

An endpoint is lenient where the protocol lets it be; this is not.
"""

import wire


class Judge:
    """Sees all packets of one host."""

    def __init__(self):
        self.hellos = {}  # ours, by connection id
        self.numbers = {}  # (id, packet number) -> datagram, of theirs
        self.messages = {}  # (id, message id) -> header and total, of theirs
        self.newest = {}  # id -> newest message id, of theirs
        self.gone = {}  # (id, packet number) -> path, of ours that the network did not lose

    def sent(self, datagram, lost):
        """A datagram of ours leaves."""
        try:
            packet = wire.decode(datagram)
        except wire.Malformed:
            return  # a case may send what it likes
        if isinstance(packet, (wire.Init, wire.Accept)):
            self.hellos[packet.hello.cid] = packet.hello
        if isinstance(packet, wire.Tracked) and not lost:
            self.gone[packet.cid, packet.pn] = packet.path

    def heard(self, datagram, connection_of):
        """A datagram of theirs arrives. Raises what is wrong with it."""
        packet = wire.decode(datagram)
        if not isinstance(packet, (wire.Tracked, wire.Untracked)) or packet.cid not in self.hellos:
            return
        hello, frames = self.hellos[packet.cid], list(packet.frames())
        self._holds(len(datagram) <= hello.datagram, "MTU-1", packet)
        fragments = [frame for frame in frames if isinstance(frame, (wire.Whole, wire.Part))]
        self._holds(len(fragments) <= wire.MAX_FRAGMENTS, "W-21", packet)
        if isinstance(packet, wire.Tracked):
            self._holds(self.numbers.setdefault((packet.cid, packet.pn), datagram) == datagram, "REL-1", packet)
            self._holds(packet.span < hello.packets, "REL-2", packet)
        for frame in fragments:
            same = self.messages.setdefault((packet.cid, frame.mid), (frame.header, frame.total))
            self._holds(same == (frame.header, frame.total), "W-16, REL-7", packet)
            self._holds(frame.total <= hello.message, "REL-12", packet)
            if wire.before(self.newest.setdefault(packet.cid, frame.mid), frame.mid):
                self.newest[packet.cid] = frame.mid
            self._holds((frame.mid - packet.floor) % 2**32 < hello.messages, "REL-4, REL-5", packet)
        connection = connection_of(packet.cid)
        for frame in frames:
            if isinstance(frame, wire.Ack) and connection and connection.theirs:
                self._acknowledgement(frame, connection.theirs.cid, packet)

    def _acknowledgement(self, ack, cid, packet):
        for number in ack.numbers():
            self._holds((cid, number) in self.gone, "REL-11: what was lost is acknowledged", packet)
        none = ack.newest == (ack.cumulative - 1) % 2**32
        self._holds(none or (cid, ack.newest) in self.gone, "W-18: newest", packet)
        self._holds(len(ack.paths) <= 32, "ACK-4", packet)
        self._holds(len({path for path, _, _, _ in ack.paths}) == len(ack.paths), "W-18: a path twice", packet)
        for path, _, behind, residence in ack.paths:
            if (behind, residence) != (0, wire.UNKNOWN_TIME):
                self._holds(self.gone.get((cid, (ack.newest - behind) % 2**32)) == path, "W-18: path", packet)

    def _holds(self, holds, what, packet):
        if not holds:
            raise AssertionError(f"{what}: {packet}")
