"""Cases of the second implementation; tests/interop.rs runs them against ours.

`cases.py CASE` is one of the functions here and in hostile.py. What it finds wrong ends it with a traceback, behind the packet
log on standard error. Most talk to an echo of ours at `--peer`; `serve` is such an echo, and does as standard input says.
"""

import argparse
import json
import pathlib
import random
from dataclasses import replace

import hostile
import perf
import wire
from echo import Echo, host
from endpoint import CLOSING, OPEN
from network import require

SIZES = [0, 1, 2, 63, 64, 65, 450, 512, 1100, 1200, 4096, 10_000, 40_001]


def vectors(args):
    """All golden vectors, both ways."""
    found = 0
    for path in sorted(pathlib.Path(args.directory).glob("*.txt")):
        lines = path.read_text().splitlines()
        datagram = bytes.fromhex("".join(line for line in lines if line[0] not in "#="))
        packet = wire.decode(datagram)
        require(f"= {packet}" in lines, f"{path}: {packet}")
        require(wire.encode(packet) == datagram, f"{path}: encodes to {wire.encode(packet).hex()}")
        if isinstance(packet, (wire.Tracked, wire.Untracked)):
            require(b"".join(frame.encode() for frame in packet.frames()) == packet.body, f"{path}: frames")
        found += 1
    require(found >= 15, f"{found} vectors in {args.directory}")


def exchange(args):
    """Messages of all sizes, one by one and many at once, both ways; then the connection is closed."""
    echo = Echo(args)
    for size in args.sizes or SIZES:
        echo.exchange([size])
    sent = echo.exchange((args.sizes or SIZES) + [args.seed % 700 + size for size in range(100)])
    echo.close()
    echo.expect_back(sent)


def silence(args):
    """After all is done, a network that doubles everything does not keep two idle ends busy."""
    echo = Echo(args)
    echo.exchange(SIZES)
    begin = echo.host.packets
    echo.run(lambda: echo.host.now() > echo.host.last_packet + 0.2, "silence")
    require(echo.host.packets - begin < 200, f"{echo.host.packets - begin} packets after the last message")
    begin, until = echo.host.packets, echo.host.now() + 1.5
    echo.run(lambda: echo.host.now() > until, "keepalives")
    require(echo.host.packets - begin < 40, f"{echo.host.packets - begin} packets in 1.5 s without messages")


def not_ready(args):
    """A receiver that has no room until we say so; it refuses what it never has room for."""
    echo = Echo(args)
    token, = echo.send([30_000])
    require(echo.outcome(token) == "refused 0", echo.outcomes)
    sent = echo.send([4000] * 20)
    messages = lambda: [*echo.connection.peer.waiting, *echo.connection.outbox.active.values()]
    echo.run(lambda: any(message.attempts for message in messages()), "a message that is turned away")
    print("turned away", flush=True)
    echo.run(lambda: all(token in echo.outcomes for token in sent) and echo.back.total() >= len(sent), "delivery")
    echo.expect_back(sent)
    echo.close()
    echo.expect_back(sent)


def too_long(args):
    """A message longer than the receiver takes fails here, and is refused there."""
    echo = Echo(args)
    token, = echo.send([args.sizes[0] + 1])
    require(echo.outcome(token) == "too long", echo.outcomes)
    echo.connection.outbox.peer = replace(echo.connection.theirs, message=2**32 - 1)
    echo.connection.theirs = echo.connection.outbox.peer
    token, = echo.send([args.sizes[0] + 1])
    require(echo.outcome(token) == "refused 255", echo.outcomes)
    echo.exchange([args.sizes[0]])


def withdraw(args):
    """A message that is withdrawn halfway is never delivered, and nothing waits for it."""
    echo = Echo(args)
    echo.exchange([1])
    for _ in range(5):
        token, = echo.send([200_000])
        echo.host.turn()
        echo.host.endpoint.withdraw(token)
        echo.exchange([10_000])
    echo.close()
    require(all(len(data) < 200_000 for data in echo.back), "a message that was withdrawn came back")


def both_open(args):
    """Both sides open at once, whichever INIT gets through [HS-11]."""
    echo = Echo(args)
    print(*echo.host.address, flush=True)
    echo.host.out.gate = lambda datagram: datagram[0] & 15 != wire.Init.KIND  # ours do not
    sent = echo.send([100])
    echo.host.turn()
    ours = echo.connection.mine
    echo.run(lambda: echo.connection and echo.connection.state == OPEN, "the other side's INIT")
    require(echo.connection.mine == ours, "another hello")
    echo.run(lambda: sum(echo.back.values()) >= 2, "messages")
    require(all(echo.outcome(token) == "delivered" for token in sent), echo.outcomes)
    require(sorted(map(len, echo.back)) == [100, 5000], "messages of other sizes")


def take_back(args):
    """A CLOSE that crosses with data is taken back [HS-19]."""
    echo = Echo(args)
    echo.exchange([1, 2])
    echo.back.clear()
    echo.host.back.gate = lambda datagram: datagram[0] & 15 != wire.Tracked.KIND  # the echo does not come
    echo.host.heard.clear()
    sent = echo.send([300])
    echo.outcome(*sent)
    echo.run(lambda: any(isinstance(packet, wire.Tracked) for packet in echo.host.heard), "the echo's being lost")
    echo.host.endpoint.close(echo.peer)
    echo.run(lambda: echo.connection.state == CLOSING and echo.connection.attempts >= 3, "CLOSE")
    echo.host.back.gate = lambda datagram: True
    echo.run(lambda: echo.back.total() == 1, "echo")
    require(echo.connection.state == OPEN, "the CLOSE stands")
    echo.expect_back(sent)
    echo.exchange([20_000, 0])
    echo.close()


def keep_open(args):
    """The other side's CLOSE that crosses with data of ours is taken back, with all that follows from it [HS-19]."""
    echo = Echo(args)
    kind = lambda datagram: datagram[0] & 15
    closes = lambda: [packet for packet in echo.host.heard if isinstance(packet, wire.Close)]
    while not echo.connection:  # it may be idle too soon
        echo.exchange([1, 2])
    echo.host.heard.clear()
    echo.back.clear()
    echo.host.out.gate = lambda datagram: kind(datagram) != wire.Tracked.KIND
    sent = echo.send([300])  # so we are not idle, but it does not arrive
    old = wire.encode(replace(echo.host.last_tracked, flags=echo.connection.checksum | wire.ACK_NOW))
    echo.run(closes, "CLOSE")
    require(all(close.shutdown == 0 for close in closes()), closes())
    echo.host.heard.clear()
    echo.host.out.gate = lambda datagram: datagram == old or kind(datagram) != wire.Tracked.KIND
    echo.host.send(0, echo.peer, old)  # not newer than all before: not even acknowledged
    init = wire.Init(echo.host.address[1], 0, echo.connection.mine)
    echo.host.send(0, echo.peer, wire.encode(init))  # nor is this answered now [HS-7]
    echo.run(lambda: len(closes()) >= 3, "CLOSE again")
    require(all(isinstance(packet, wire.Close) for packet in echo.host.heard), echo.host.heard)
    # What takes the CLOSE back is acknowledged in a tracked packet, and no message comes before we acknowledge that.
    has_ack = lambda datagram: any(isinstance(frame, wire.Ack) for frame in wire.decode(datagram).frames())
    echo.host.out.gate = lambda datagram: kind(datagram) == wire.Tracked.KIND and not has_ack(datagram)
    echo.run(lambda: any(isinstance(packet, wire.Tracked) for packet in echo.host.heard), "its being taken back")
    echo.run(lambda: all(token in echo.outcomes for token in sent), "an acknowledgement")
    for packet in echo.host.heard:
        require(not isinstance(packet, wire.Untracked), packet)
        if isinstance(packet, wire.Tracked):
            require(not any(isinstance(frame, (wire.Whole, wire.Part)) for frame in packet.frames()), packet)
    echo.host.out.gate = lambda datagram: True
    echo.run(lambda: echo.back.total() >= 1, "echo")
    echo.expect_back(sent)
    echo.host.heard.clear()
    echo.run(lambda: not echo.connection, "another CLOSE, and our consent")


def crossing(args):
    """Both sides open at once, and all INITs get through [HS-11]."""
    echo = Echo(args)
    print(*echo.host.address, flush=True)
    echo.run(lambda: echo.host.heard, "INIT")
    sent = echo.send([100])
    echo.run(lambda: echo.back.total() >= 2, "messages")
    require(all(echo.outcome(token) == "delivered" for token in sent), echo.outcomes)
    hellos = {packet.hello for packet in echo.host.heard if isinstance(packet, (wire.Init, wire.Accept))}
    require(len({hello.cid for hello in hellos}) == 1, f"several connections: {hellos}")


def marks(args):
    """Packets with a CE mark are counted by path, and told at once [ACK-2] [W-18]; ours are asked to be marked [CC-3]."""
    echo = Echo(args)
    echo.host.mark(1)
    echo.exchange([1, 10_000, 10_000])
    echo.run(lambda: not echo.connection.outbox.sent, "quiet")
    counts = {}
    for packet in echo.host.heard:
        if isinstance(packet, (wire.Tracked, wire.Untracked)):
            for frame in packet.frames():
                if isinstance(frame, wire.Ack):
                    counts.update((path, marks) for path, marks, _, _ in frame.paths)
    left = sum(path == 1 for path in echo.host.judge.gone.values())
    require(counts == {0: 0, 1: left, 2: 0}, f"marks {counts}, {left} packets on path 1")
    require(all(ecn == 2 for ecn, packet in zip(echo.host.ecn, echo.host.heard) if isinstance(packet, wire.Tracked)),
            f"ECN {echo.host.ecn}")


def asks(args):
    """A PING alone, without ACK-NOW, asks for the share, which both ways of saying it tell [CC-4] [CC-5] [W-22]."""
    echo = Echo(args)
    echo.exchange([1])
    require(0 < echo.connection.theirs.share <= args.sizes[0], echo.connection.theirs)
    with echo.by_hand() as box:
        ping = replace(echo.packet_by_hand(box, [b"\x03"]), flags=echo.connection.checksum)
        echo.host.send(0, echo.peer, wire.encode(ping))
        answers = lambda: [frame for packet in echo.host.heard if isinstance(packet, wire.Untracked)
                           for frame in packet.frames() if frame.newest == ping.pn]
        echo.run(answers, "an answer")
        require(0 < answers()[0].share <= args.sizes[0] and 0 < answers()[0].start <= args.sizes[0], answers()[0])


def perf_client(args):
    """Ping-pong with `srd perf server`."""
    perf.client(host(args), tuple(args.peer), *args.sizes)


def perf_server(args):
    """A server for `srd perf`."""
    server = host(args)
    print(*server.address, flush=True)
    perf.serve(server)


def shut_down(args):
    """We shut down."""
    echo = Echo(args)
    echo.exchange([1, 10_000])
    echo.host.endpoint.shut_down(echo.host.now())
    echo.run(lambda: any(isinstance(packet, wire.Closed) for packet in echo.host.heard), "CLOSED")
    require(not echo.connection, "the connection is still there")


def unconfirmed(args):
    """Who accepted sends no messages, but PINGs, until it knows that its ACCEPT arrived [HS-10]."""
    echo = Echo(args)
    print(*echo.host.address, flush=True)
    kind = lambda datagram: datagram[0] & 15
    echo.host.back.gate = lambda datagram: kind(datagram) != wire.Init.KIND
    echo.run(lambda: any(isinstance(packet, wire.Init) for packet in echo.host.heard), "INIT")
    hello = echo.host.heard[0].hello
    echo.host.out.gate = lambda datagram: kind(datagram) not in (wire.Tracked.KIND, wire.Untracked.KIND)
    sent = echo.send([10])
    tracked = lambda: [packet for packet in echo.host.heard if isinstance(packet, wire.Tracked)]
    echo.run(lambda: len(tracked()) >= 3, "PINGs")
    for packet in tracked():
        require(not any(isinstance(frame, (wire.Whole, wire.Part)) for frame in packet.frames()), packet)
    require(echo.connection.theirs == hello, "another hello than that of its INITs")  # [HS-11]
    echo.host.out.gate = lambda datagram: True
    echo.run(lambda: echo.back.total() >= 3, "messages")
    require(all(echo.outcome(token) == "delivered" for token in sent), echo.outcomes)


def replaced(args):
    """Who accepted an attempt that we have given up gets our answer to its own [HS-9]."""
    echo = Echo(args)
    print(*echo.host.address, flush=True)
    endpoint = echo.host.endpoint
    is_connection = lambda datagram: datagram[0] & 15 in (wire.Tracked.KIND, wire.Untracked.KIND)
    echo.host.back.gate = lambda datagram: not is_connection(datagram) and datagram[0] & 15 != wire.Init.KIND
    echo.host.out.gate = lambda datagram: not is_connection(datagram)
    echo.run(lambda: any(isinstance(packet, wire.Init) for packet in echo.host.heard), "INIT")
    theirs = echo.host.heard[0].hello
    sent = echo.send([10])
    echo.run(lambda: echo.connection and echo.connection.state == OPEN, "ACCEPT of the first attempt")
    first, peer = echo.connection, endpoint.peers[echo.peer]
    del endpoint.by_cid[first.mine.cid]
    peer.waiting.extend(first.outbox.active.values())
    endpoint._connect(peer, echo.host.now())
    endpoint._opened(peer.connection, theirs, echo.host.now())
    echo.host.back.gate = lambda datagram: True
    echo.host.out.gate = lambda datagram: True
    endpoint._send(echo.peer, wire.Accept(theirs.cid, peer.connection.mine))
    echo.run(lambda: echo.back.total() >= 3, "messages")
    require(all(echo.outcome(token) == "delivered" for token in sent), echo.outcomes)
    require(echo.connection is peer.connection and echo.connection.theirs == theirs, "another connection")


def serve(args):
    """An echo. Tells what happens in lines, and does what lines say: `restart`, `forget`, `shut-down`, `turn-away P`."""
    chance = random.Random(args.seed)
    tell = lambda *words: print(*words, flush=True)

    def take(header, total):
        if total == 7777:
            return wire.REFUSED, 33
        if chance.random() < args.turn_away:
            tell("turned-away")
            return wire.NOT_READY, 0
        return None

    echo = host(args, take)
    if args.longest:
        echo.back.gate = lambda datagram: len(datagram) <= args.longest
    tell(*echo.address)
    addresses, connected = set(), set()
    while True:
        echo.turn(lines=True)
        while echo.endpoint.events:
            kind, *event = echo.endpoint.events.popleft()
            if kind == "message":
                addresses.add(event[0])
                connected.add(event[0])
                tell("message", len(event[2]))
                echo.endpoint.send(event[0], event[2])
            else:
                tell("sent", event[1])
        now_connected = {address for address in addresses if echo.endpoint.is_connected(address)}
        for _ in connected - now_connected:
            tell("disconnected")
        connected = now_connected
        while echo.lines:
            word, *rest = echo.lines.popleft().split()
            echo.log(f"told to {word}")
            if word == "restart":
                echo.restart()
            elif word == "forget":
                echo.endpoint.peers.clear()
                echo.endpoint.by_cid.clear()
            elif word == "turn-away":
                args.turn_away = float(rest[0])
            elif word == "shut-down":
                echo.endpoint.shut_down(echo.now())
            tell("done", word)


def main():
    cases = (vectors, exchange, silence, not_ready, too_long, withdraw, both_open, crossing, unconfirmed, replaced, take_back,
             keep_open, shut_down, marks, asks, perf_client, perf_server, serve, hostile.refusals, hostile.restart,
             hostile.cookies, hostile.forgeries, hostile.strangers, hostile.violations, hostile.turned_away)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[case.__name__ for case in cases])
    parser.add_argument("--peer", type=lambda text: (text.rpartition(":")[0].strip("[]"), int(text.rpartition(":")[2])))
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--directory", help="of the golden vectors")
    parser.add_argument("--options", type=json.loads, default={}, help="of the endpoint, as JSON")
    parser.add_argument("--sizes", type=json.loads, help="of messages")
    parser.add_argument("--seed", type=int, default=1)
    for fault in ("loss", "copy", "hold", "turn-away"):
        parser.add_argument(f"--{fault}", type=float, default=0)
    parser.add_argument("--longest", type=int, help="datagram that gets through")
    args = parser.parse_args()
    next(case for case in cases if case.__name__ == args.case)(args)


if __name__ == "__main__":
    main()
