"""A host that talks to an echo, and keeps account of what comes back."""

import random
from collections import Counter
from contextlib import contextmanager

import wire
from endpoint import Options
from network import Faults, Host, require


def host(args, take=lambda header, total: None):
    """A host as the arguments say. It is patient, since its peer may be descheduled for long."""
    options = Options(**{"peer_timeout": 20.0, **args.options})
    return Host(args.ip, args.seed, Faults(args.loss, args.copy, args.hold), options, take)


class Echo:
    """What a host hears from an echo."""

    def __init__(self, args, take=lambda header, total: None):
        self.host = host(args, take)
        self.peer, self.random = tuple(args.peer), random.Random(args.seed)
        self.back, self.outcomes = Counter(), {}

    @property
    def connection(self):
        peer = self.host.endpoint.peers.get(self.peer)
        return peer and peer.connection

    def read(self):
        """Takes events."""
        while self.host.endpoint.events:
            kind, *event = self.host.endpoint.events.popleft()
            if kind == "message":
                require(event[0] == self.peer, f"message from {event[0]}")
                self.back[event[2]] += 1
            else:
                self.outcomes[event[0]] = event[1]

    def run(self, until, what):
        """Turns until something holds."""
        self.host.run(lambda: self.read() or until(), what)

    def send(self, sizes):
        """Sends messages of these sizes, with headers that our upper storey does not look at."""
        messages = [self.random.randbytes(size) for size in sizes]
        return {self.host.endpoint.send(self.peer, data, self.random.randbytes(size % 65)): data
                for size, data in zip(sizes, messages)}

    def outcome(self, token):
        """Waits for that of a message."""
        self.run(lambda: token in self.outcomes, f"outcome of message {token}")
        return self.outcomes[token]

    def exchange(self, sizes):
        """Sends messages, and waits until each came back once."""
        self.back.clear()
        sent = self.send(sizes)
        self.run(lambda: all(token in self.outcomes for token in sent), "delivery")
        self.run(lambda: self.back.total() >= len(sent), "echo")
        self.expect_back(sent)
        return sent

    def expect_back(self, sent):
        """Each message came back once, so far."""
        require({self.outcomes[token] for token in sent} <= {"delivered"}, self.outcomes)
        sizes = lambda counter: sorted(map(len, counter.elements()))
        wanted = Counter(sent.values())
        require(self.back == wanted, f"missing: {sizes(wanted - self.back)}, too many: {sizes(self.back - wanted)}")

    @contextmanager
    def by_hand(self):
        """Waits until nothing is in flight. Then a case sends packets of the outbox that this gives, and no timer does."""
        box, options = self.connection.outbox, self.host.endpoint.options
        self.run(lambda: not box.sent, "quiet")
        box.expire, options.keepalive, keepalive = lambda now: None, 1e9, options.keepalive
        yield box
        del box.expire
        options.keepalive = keepalive
        box.sent.clear()

    def packet_by_hand(self, box, frames):
        """The next packet of the outbox."""
        flags = self.connection.checksum | wire.ACK_NOW
        return box.packet(self.host.now(), self.connection.theirs.cid, self.host.address[1], flags, frames, [])

    def close(self):
        """Closes the idle connection."""
        self.host.endpoint.close(self.peer)
        self.run(lambda: not self.connection, "closing")
