"""Cases of what must be refused, discarded or not believed."""

import secrets
from dataclasses import replace

import wire
from echo import Echo
from endpoint import OPEN
from network import require

HELLO = wire.Hello(9, 9, 0, 1200, 64, 64, 1 << 20, 8, 0, 0, 0, 0)


def with_crc(data):
    """A datagram with a checksum that is right."""
    return data + wire.crc32c(data).to_bytes(4, "big")


def bad_datagrams(port):
    """What section 3 says must be discarded, beside an INIT of this port that need not be."""
    init = wire.encode(wire.Init(port, 0, HELLO))
    bare = init[:-4]
    for version in (0, 2, 15):
        yield "W-2", with_crc(bytes([version << 4 | 2]) + bare[1:])
    for kind in range(8, 16):
        yield "W-3", with_crc(bytes([0x10 | kind]) + bare[1:])
    for flag in (2, 4, 128):
        yield "W-4, W-7", with_crc(bytes([0x12, 1 | flag]) + bare[2:])
    yield "W-6", init[:-1] + bytes([init[-1] ^ 1])
    yield "W-7", bare.replace(b"\x12\x01", b"\x12\x00", 1)
    yield "W-7", with_crc(bare + b"\0")
    yield "W-7", with_crc(bare[:-1])
    yield "W-22", wire.encode(wire.Init(0, 0, HELLO))
    for bad in (dict(datagram=511), dict(packets=32), dict(packets=65), dict(packets=65536), dict(messages=0),
                dict(messages=32), dict(messages=1000), dict(messages=65536), dict(partials=0)):
        yield f"W-22 {bad}", wire.encode(wire.Init(port, 0, replace(HELLO, **bad)))
    yield "W-22", wire.encode(wire.Close(77, 0, 2, port))
    for length in (0, 1, 2, 5, 20):
        yield "truncated", init[:length]


def whole(mid, payload=b"", header=b""):
    return wire.Whole(mid, header, payload).encode()


def part(mid, total, offset, length):
    return wire.Part(mid, total, offset, b"", bytes(length)).encode()


def bad_frames(mid):
    """What section 5 says is malformed in a tracked packet; `mid` is a message id that is as it should be."""
    yield "W-12", b"\x06"
    yield "W-12", b"\xff"
    yield "W-13", b"\x00\x00\x01"
    yield "W-14", whole(mid, b"abc")[:-1]
    yield "W-14", b"\x01\x00\x00"
    yield "W-15", part(mid, 200, 0, 0)
    yield "W-15", part(mid, 128, 0, 128)
    yield "W-15", part(mid, 128, 64, 128)
    yield "W-15", part(mid, 200, 32, 64)
    yield "W-15", part(mid, 200, 0, 65)
    yield "W-15", part(mid, 200, 2**32 - 64, 128)
    yield "W-15", part(mid, 0, 0, 0)
    yield "W-16", whole(mid, b"", bytes(65))
    yield "W-18", wire.Ack(0, 0, words=(0,)).encode()[:-1]
    yield "W-19", b"\x05\x01" + bytes(4) + bytes([0, 0, 0, 0, 2, 0])
    yield "W-19", b"\x05\x01" + bytes(4) + bytes([0, 0, 0, 0, 0, 1])
    yield "W-19", b"\x05\x01" + bytes(9)


def refusals(args):
    """What must be refused is refused here, too."""
    def refused(why, decoding):
        try:
            decoding()
        except wire.Malformed:
            return
        raise AssertionError(f"not refused: {why}")
    for why, datagram in bad_datagrams(4000):
        refused(f"{why} {datagram.hex()}", lambda: wire.decode(datagram))
    for why, body in bad_frames(7):
        refused(f"{why} {body.hex()}", lambda: list(wire.frames(body, True)))
    for body in (b"\x00", whole(7), part(7, 200, 0, 64), b"\x03"):
        refused(f"W-12 {body.hex()}", lambda: list(wire.frames(body, False)))


def restart(args):
    """Another incarnation of ours is served at once, and the connection of the old one is gone [HS-6]."""
    echo = Echo(args)
    for _ in range(3):
        echo.exchange([1, 10_000])
        old = echo.connection
        echo.host.restart()
        packet = wire.Tracked(old.checksum, 0, old.theirs.cid, old.outbox.next_pn, old.outbox.floor(), echo.host.address[1],
                              0, whole(old.outbox.next_mid, b"late"))
        echo.exchange([10, 5000])
        echo.host.send(0, echo.peer, wire.encode(packet))
        unknown = wire.Unknown(old.theirs.cid, echo.connection.theirs.incarnation, echo.peer[1])
        echo.run(lambda: unknown in echo.host.heard, "UNKNOWN for the old connection")
        echo.exchange([3])
        require(b"late" not in echo.back, "a packet of the old connection was delivered")
    echo.close()


def cookies(args):
    """What a cookie is good for [HS-5], and INITs of a connection that is there [HS-6] [HS-7]."""
    echo = Echo(args)
    port = echo.host.address[1]

    def init(cid, cookie, **changes):
        return wire.Init(port, cookie, replace(HELLO, cid=cid, **changes))

    def ask(packet, kind):
        """The answer to a packet, which is to be of this kind."""
        echo.host.heard.clear()
        echo.host.send(0, echo.peer, wire.encode(packet))
        echo.host.run(lambda: echo.host.heard, "an answer")
        answer, = echo.host.heard
        require(isinstance(answer, kind), f"{answer} to {packet}")
        return answer

    first = ask(init(1, 0), wire.Retry)
    require(first.to == 1, first)
    # Valid for one address only; a path is none.
    other = Echo(args)
    port = other.host.address[1]
    echo.host.send(0, echo.peer, wire.encode(init(1, first.cookie)))
    other.host.run(lambda: other.host.heard, "RETRY")
    require(isinstance(other.host.heard[0], wire.Retry) and not echo.host.heard[1:], other.host.heard)
    port = echo.host.address[1]
    accept = ask(init(1, first.cookie), wire.Accept)
    require(accept.to == 1, accept)
    # An echo, whatever else it says.
    for again in (init(1, 0), init(1, 77, datagram=600), init(1, first.cookie)):
        require(ask(again, wire.Accept) == accept, "another ACCEPT")
    # Not valid once there is a connection; the next one is, as long as it lasts.
    second = ask(init(2, first.cookie), wire.Retry)
    require(second.cookie != first.cookie, second)
    require(ask(init(1, 0), wire.Accept) == accept, "the connection is gone")
    replaced = ask(init(2, second.cookie), wire.Accept)
    require(replaced.to == 2 and replaced.hello.cid != accept.hello.cid, replaced)
    require(replaced.hello.incarnation == accept.hello.incarnation, replaced)
    ask(init(3, second.cookie), wire.Retry)
    ask(init(3, first.cookie), wire.Retry)
    ask(wire.Tracked(0, 0, accept.hello.cid, 0, 0, port, 0, b"\x03"), wire.Unknown)
    # The endpoint proper makes the next one, of another incarnation.
    echo.exchange([1, 10_000])
    echo.close()


def forgeries(args):
    """What ends or changes a connection counts only with the right names [HS-8] [HS-9] [HS-14] [HS-16] [HS-20]."""
    echo = Echo(args)
    echo.exchange([1, 10_000])
    connection, port = echo.connection, echo.host.address[1]
    ours, theirs = connection.mine.cid, connection.theirs.cid
    echo.run(lambda: not connection.outbox.sent, "quiet")
    next_pn = connection.outbox.next_pn
    for packet in [
        wire.Unknown(ours, 1, port ^ 1),
        wire.Unknown(theirs, 1, port),
        wire.Closed(ours, port),
        wire.Retry(theirs, 5),
        wire.Accept(theirs, replace(HELLO, cid=5)),
        wire.Accept(ours, HELLO),
        wire.Close(theirs, (next_pn - 1) % 2**32, 0, port),  # older than what followed it
    ]:
        echo.host.send(0, echo.peer, wire.encode(packet))
        echo.exchange([2])
        require(echo.connection is connection and connection.state == OPEN, f"{packet} changed something")
    # And now the right ones; each connection is another.
    for packet, answered in [(wire.Unknown(ours, 1, port), False), (None, True)]:
        echo.run(lambda: not echo.connection.outbox.sent, "quiet")
        echo.host.heard.clear()
        connection = echo.connection
        packet = packet or wire.Close(connection.theirs.cid, connection.outbox.next_pn, 1, port)
        echo.host.send(0, echo.peer, wire.encode(packet))
        if answered:
            closed = wire.Closed(connection.theirs.cid, echo.peer[1])
            echo.run(lambda: closed in echo.host.heard, "CLOSED")
        connection.outbox.ping_due = True
        echo.run(lambda: not echo.connection, "UNKNOWN")
        echo.exchange([3, 3000])


def strangers(args):
    """Datagrams that belong to nothing, and those that must be discarded."""
    echo = Echo(args)
    host, port = echo.host, echo.host.address[1]

    def answer(datagram, wanted):
        """Sends it, and waits for this answer and no other."""
        host.send(1, echo.peer, datagram)
        host.run(lambda: host.heard, wanted)
        require(len(host.heard) == 1 and str(host.heard[0]).startswith(wanted), f"{host.heard}, not {wanted}")
        host.heard.clear()

    def fence():
        """What was sent before is answered by now."""
        cid = secrets.randbits(64)
        answer(wire.encode(wire.Init(port, 0, replace(HELLO, cid=cid))), f"RETRY to={cid:016x}")

    fence()
    for why, datagram in bad_datagrams(port):
        host.log(f"to be discarded: {why}")
        host.send(2, echo.peer, datagram)
        fence()
    for wrong in (1, 2**64 - 1):
        answer(wire.encode(wire.Init(port, wrong, HELLO)), f"RETRY to={HELLO.cid:016x}")  # [HS-4]
    for cid in (0, 77, 2**64 - 1):
        ping = wire.Tracked(0, 0, cid, 5, 5, port, 0, b"\x03")
        answer(wire.encode(ping), f"UNKNOWN cid={cid:016x}")  # [HS-13]
        answer(wire.encode(replace(ping, span=40_000, body=b"\xff")), f"UNKNOWN cid={cid:016x}")
        answer(wire.encode(replace(ping, flags=3)), f"UNKNOWN cid={cid:016x}")
        silent = [replace(ping, port=0), replace(ping, body=b""), wire.Untracked(0, cid, wire.Ack(0, 2**32 - 1).encode()),
                  wire.Retry(cid, 5), wire.Accept(cid, HELLO), wire.Unknown(cid, 1, port), wire.Closed(cid, port),
                  wire.Close(cid, 0, 0, 0)]
        for packet in silent:
            host.send(0, echo.peer, wire.encode(packet))
            fence()
        damaged = bytearray(wire.encode(replace(ping, flags=1)))
        damaged[15] ^= 4
        host.send(0, echo.peer, bytes(damaged))
        fence()
        for shutdown in (0, 1):
            answer(wire.encode(wire.Close(cid, 0, shutdown, port)), f"CLOSED cid={cid:016x}")  # [HS-18]
    require(not echo.host.endpoint.peers, "state")
    echo.exchange([1])


def violations(args):
    """Packets of a connection that are malformed or violations are not acknowledged; those beside them are."""
    echo = Echo(args)
    echo.exchange([1, 10_000])
    with echo.by_hand() as box:
        violations_by_hand(echo, box)
    echo.exchange([5, 5000])


def violations_by_hand(echo, box):
    host, theirs = echo.host, echo.connection.theirs

    def acknowledged(**changes):
        """Sends a packet that is changed like this, then a PING; whether the first one is acknowledged when the second one is."""
        good = echo.packet_by_hand(box, [b"\x03"])
        host.log(f"by hand: {changes}")
        host.send(0, echo.peer, wire.encode(replace(good, **changes)))
        fence = echo.packet_by_hand(box, [b"\x03"])
        host.send(0, echo.peer, wire.encode(replace(fence, span=1)))
        told = set()
        real = box.on_ack

        def on_ack(ack):
            told.update(ack.numbers())
            told.update(pn for pn in (good.pn, fence.pn) if wire.before(pn, ack.cumulative))
            return real(ack)

        box.on_ack = on_ack
        echo.run(lambda: fence.pn in told, "an acknowledgement of the packet beside it")
        box.on_ack = real
        box.sent.pop(good.pn, None)  # it is given up, so that the next span passes it
        return good.pn in told

    if echo.connection.checksum:
        require(not acknowledged(flags=wire.ACK_NOW), "acknowledged: W-8")
    require(not acknowledged(flags=wire.CHECKSUM | wire.ACK_NOW | 4), "acknowledged: W-4")
    require(not acknowledged(cid=(theirs.cid + 1) % 2**64), "acknowledged: HS-23")
    mid, window = box.next_mid, theirs.messages
    back = echo.back.total()
    require(acknowledged(), "a PING")
    require(acknowledged(body=b""), "nothing")
    require(acknowledged(body=b"\x03" + bytes(40)), "padding")
    require(acknowledged(floor=(mid - 9) % 2**32), "a floor of long ago")  # [REL-6]
    require(acknowledged(body=whole((mid - 1) % 2**32, b"twice")), "a message of long ago")  # [REL-7]
    for why, body in bad_frames(mid):
        require(not acknowledged(body=body), f"acknowledged: {why} {body.hex()}")
    for why, changes in [
        ("REL-3 span", dict(span=theirs.packets)),
        ("REL-3 span", dict(span=65535)),
        ("REL-3 leap", dict(pn=(box.next_pn + 2**20 + 99) % 2**32)),
        ("REL-6 floor", dict(floor=(mid + window + 1) % 2**32)),
        ("REL-7 message id", dict(body=whole((mid + window) % 2**32))),
        ("ACK-5 cumulative", dict(body=wire.Ack((echo.connection.inbox.base + 2**20) % 2**32, 0).encode())),
        ("ACK-5 newest", dict(body=wire.Ack(theirs.pn, (theirs.pn + 2**20) % 2**32).encode())),
        ("RNR-5", dict(body=wire.Refuse((theirs.pn + 2**20) % 2**32, ()).encode())),
    ]:
        require(not acknowledged(**changes), f"acknowledged: {why}")
    require(acknowledged(body=part(mid, 300, 0, 64)), "a part")
    require(not acknowledged(body=part(mid, 301, 64, 64)), "acknowledged: REL-7 total")
    require(acknowledged(body=part(mid, 300, 64, 236)), "the rest")
    box.next_mid = (mid + 1) % 2**32
    echo.run(lambda: echo.back.total() > back, "echo")
    require(echo.back.total() == back + 1 and echo.back[bytes(300)] == 1, "another message")
    # Frames before the fault count [W-11], and what they carried is not taken twice.
    require(not acknowledged(body=whole(mid + 1, b"before a fault") + b"\xff"), "acknowledged: W-11")
    echo.run(lambda: echo.back[b"before a fault"], "echo")
    require(acknowledged(body=whole(mid + 1, b"before a fault")), "the message again")
    box.next_mid = (mid + 2) % 2**32


def turned_away(args):
    """Refusals to the letter: up to 76 of a packet [W-21], the same for a copy [RNR-1], and for what comes later [RNR-2]."""
    echo = Echo(args)
    echo.exchange([1])
    with echo.by_hand() as box:
        turned_away_by_hand(echo, box)
    echo.exchange([5, 500])


def turned_away_by_hand(echo, box):
    host, theirs = echo.host, echo.connection.theirs
    total = theirs.message // 64 * 64 + 65  # longer than it takes; the last byte makes a short fragment
    mid = box.next_mid
    all_refused = tuple(((mid + k) % 2**32, wire.REFUSED, wire.TOO_LONG) for k in range(76))

    def send(frames, span=0):
        packet = replace(echo.packet_by_hand(box, frames), span=span, floor=mid)  # all of these are in progress
        host.send(0, echo.peer, wire.encode(packet))
        return packet

    def ends(skip, count):
        return [wire.Part((mid + skip + k) % 2**32, total, total - 1, b"", b"x").encode() for k in range(count)]

    def frames(kind):
        return [frame for packet in host.heard if isinstance(packet, (wire.Tracked, wire.Untracked))
                for frame in packet.frames() if isinstance(frame, kind)]

    def answers(packet):
        """The entries of the REFUSE frames that answer it."""
        return [frame.entries for frame in frames(wire.Refuse) if frame.pn == packet.pn]

    def fence(packet):
        """`cumulative` of the first ACK of a PING after a packet whose fate is not known."""
        ping = send([b"\x03"], span=1)
        told = lambda: [ack.cumulative for ack in frames(wire.Ack) if ping.pn in ack.numbers()]
        echo.run(told, "an acknowledgement after the packet")
        return told()[0]

    packet = send(ends(0, 76))
    for count in (1, 2, 3):
        echo.run(lambda: len(answers(packet)) == count, "REFUSE")
        host.send(0, echo.peer, wire.encode(packet))
    require(set(answers(packet)) == {all_refused}, answers(packet))
    # Later fragments of them, beside a message that is taken: only they are listed.
    packet = send(ends(5, 1) + [whole((mid + 76) % 2**32, b"taken")])
    echo.run(lambda: answers(packet) and echo.back[b"taken"] == 1, "REFUSE and echo")
    require(answers(packet) == [all_refused[5:6]], answers(packet))
    # Two fragments of one of them, which say different things: that is not looked at [REL-7].
    packet = send(ends(7, 1) + [part((mid + 7) % 2**32, 256, 64, 64)])
    echo.run(lambda: answers(packet), "REFUSE")
    require(set(answers(packet)[0]) == set(all_refused[7:8]), answers(packet))
    # Such packets are not received, so `cumulative` stays before them until a span passes them [RNR-1].
    require(fence(packet) == packet.pn, "`cumulative` passed a packet that was turned away")
    # 77 in one packet are a violation: it is not answered.
    packet = send(ends(77, 77))
    require(fence(packet) == packet.pn and not answers(packet), "77 fragments were turned away")
    box.next_mid = (mid + 154) % 2**32  # those before the fault were turned away, too [W-11]
