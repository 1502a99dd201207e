"""An endpoint on real sockets, behind a bad network that a seed repeats.

Each direction has a generator of its own, which decides by the order of datagrams what becomes of each. Everything that passes
is written to standard error, with its fate: `>` sent, `<` received, `x` lost, `2` doubled, `~` held back.
"""

import os
import random
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

import wire
from endpoint import Endpoint
from judge import Judge

LIMIT = 20.0  # seconds; what takes longer hangs


def require(holds, what):
    """Like `assert`, in every mode of the interpreter."""
    if not holds:
        raise AssertionError(what)


@dataclass(frozen=True)
class Faults:
    """Probabilities, for each datagram of either direction."""

    loss: float = 0.0
    copy: float = 0.0
    hold: float = 0.0  # until 1 to 8 others have passed, or 10 ms


class Way:
    """One direction of the network."""

    def __init__(self, seed, faults):
        self.random, self.faults, self.held = random.Random(seed), faults, []
        self.gate = lambda datagram: True  # a case may close it for some

    def pass_on(self, now, item, datagram):
        """What becomes of an item, as a mark, and the items that get through now."""
        self.held = [(left - 1, until, held) for left, until, held in self.held]
        copies = 2 if self.random.random() < self.faults.copy else 1
        chance, holds = self.random.random(), self.random.random() < self.faults.hold
        left = self.random.randint(1, 8)
        if chance < self.faults.loss or not self.gate(datagram):
            return "x", self.due(now)
        if holds:
            self.held.append((left, now + 0.01, item))
            return "~", [item] * (copies - 1) + self.due(now)
        return "2" if copies == 2 else " ", [item] * copies + self.due(now)

    def due(self, now):
        """Items that were held back long enough."""
        out = [item for left, until, item in self.held if left <= 0 or until <= now]
        self.held = [held for held in self.held if held[0] > 0 and held[1] > now]
        return out


class Host:
    """An endpoint, its sockets and its network."""

    def __init__(self, ip, seed=0, faults=Faults(), options=None, take=lambda header, total: None):
        self.ip, self.options, self.take = ip, options, take
        self.began = time.monotonic()
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        self.main, *self.paths = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(4))
        for each in (self.main, *self.paths):  # every path is a source port
            each.bind((ip, 0))
            each.setblocking(False)
        self.main.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if family == socket.AF_INET:
            self.main.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.address = self.main.getsockname()[:2]
        self.out, self.back = Way(f"{seed} out", faults), Way(f"{seed} back", faults)
        self.packets = 0  # in both directions
        self.last_packet = 0.0
        self.lines, self.unread = deque(), b""
        self.heard, self.ecn = [], []  # packets, and their ECN bits
        self.last_tracked = None  # of ours
        self.judge = Judge()
        self.restart()

    def restart(self):
        """Another incarnation at the same address."""
        self.endpoint = Endpoint(self.address[1], self.options, self.take)

    def mark(self, path):
        """Packets of a path leave with the mark CE (IPv4)."""
        self.paths[path].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3)

    def now(self):
        return time.monotonic() - self.began

    def log(self, text):
        print(f"{self.now():9.6f} {text}", file=sys.stderr)

    def turn(self, lines=False):
        """Waits until there is something to do, but not for long, and does it.

        With `lines`, it reads standard input, too, and ends the process with it.
        """
        self.flush()
        now = self.now()
        held = [until for way in (self.out, self.back) for _, until, _ in way.held]
        wait = max(min([self.endpoint.deadline(now), now + 0.05, *held]) - now, 0)
        ready, _, _ = select.select([self.main] + [sys.stdin] * lines, [], [], wait)
        if sys.stdin in ready:
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                sys.exit(0)
            *whole, self.unread = (self.unread + data).split(b"\n")
            self.lines.extend(line.decode() for line in whole)
        if self.main in ready:
            for _ in range(64):
                try:
                    datagram, ancillary, _, source = self.main.recvmsg(65536, 64)
                except BlockingIOError:
                    break
                self.ecn += [data[0] & 3 for _, _, data in ancillary]
                now = self.now()
                mark, through = self.back.pass_on(now, (source[0], datagram), datagram)
                self._note("<", mark, source, datagram)
                self._arrive(now, through)
        self._arrive(self.now(), self.back.due(self.now()))
        self.flush()

    def flush(self):
        """Sends what the endpoint has to send."""
        now = self.now()
        for path, address, packet in self.endpoint.poll(now):
            self.send(path, address, wire.encode(packet))
        self._depart(self.out.due(now))

    def send(self, path, address, datagram):
        """Sends a datagram over the network."""
        mark, through = self.out.pass_on(self.now(), (path, address, datagram), datagram)
        self._note(">", mark, address, datagram)
        self.judge.sent(datagram, mark == "x")
        self._depart(through)

    def run(self, until, what):
        """Turns until something holds."""
        end = time.monotonic() + LIMIT
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"{what} takes too long")
            self.turn()

    def _arrive(self, now, items):
        for ip, datagram in items:
            self.judge.heard(datagram, self.endpoint.by_cid.get)
            self.endpoint.receive(now, ip, datagram)
            require(not self.endpoint.discarded, f"discarded: {self.endpoint.discarded}")

    def _depart(self, items):
        for path, address, datagram in items:
            try:
                self.paths[path].sendto(datagram, address)
            except OSError as error:  # of an earlier datagram, or the buffer is full: lost, as on any network
                self.log(f"not sent: {error}")

    def _note(self, way, mark, address, datagram):
        self.packets, self.last_packet = self.packets + 1, self.now()
        try:
            text = packet = wire.decode(datagram)
            self.heard += [packet] * (way == "<")
            if way == ">" and isinstance(packet, wire.Tracked):
                self.last_tracked = packet
        except wire.Malformed as error:
            text = f"{error}: {datagram.hex()}"
        self.log(f"{way}{mark} {address[1]} {len(datagram)} {text}")
