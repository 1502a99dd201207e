"""The packets of docs/protocol.md as values.

`decode` takes a datagram apart and refuses what must be refused, `encode` is its inverse, and `str` of a packet is one line
like those of srd-core's dissector. Nothing here knows of time, sockets or connections.
"""

import struct
from dataclasses import astuple, dataclass

VERSION = 1
CHECKSUM, ACK_NOW = 1, 2  # flags [W-4]
FEATURE_CHECKSUM = 1  # section 12
MAX_HEADER = 64  # [W-16]
MAX_FRAGMENTS = 76  # [W-21]
NOT_READY, REFUSED = 0, 1  # kinds of a REFUSE's entries [W-19]
TOO_LONG = 255  # status of the transport [REL-7]
BLOCK = 64  # fragments begin at multiples of it [W-15]
MOD = 2**32  # numbers count modulo this [W-20]
UNKNOWN_TIME = 65535  # residence [W-18]


class Malformed(Exception):
    """A datagram or frame that a receiver discards."""


class Violation(Malformed):
    """What is well-formed, but no correct sender would send."""


def require(holds, why):
    """Refuses what does not hold."""
    if not holds:
        raise Malformed(why)


def before(a, b):
    """Whether number `a` is before `b`, by distance [W-20]."""
    return 1 <= (b - a) % MOD < MOD // 2


def blocks(offset, length):
    """The blocks that a run of bytes covers [REL-9]; an empty message counts as one."""
    return range(offset // BLOCK, max(-(-(offset + length) // BLOCK), 1))


def _crc_table():
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        yield value


_CRC_TABLE = tuple(_crc_table())


def crc32c(data):
    """CRC32C (Castagnoli) [W-6]."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


# Frames, section 5.


@dataclass(frozen=True)
class Padding:
    """Zeros to the end of the packet [W-13]."""

    length: int

    def encode(self):
        return bytes(self.length)

    def __str__(self):
        return ""


@dataclass(frozen=True)
class Whole:
    """A message at once [W-14]."""

    mid: int
    header: bytes
    payload: bytes
    offset = 0

    @property
    def total(self):
        return len(self.payload)

    def encode(self):
        return struct.pack(">BBHI", 1, len(self.header), len(self.payload), self.mid) + self.header + self.payload

    def __str__(self):
        return f"msg {self.mid} whole {len(self.payload)} hdr {len(self.header)}"


@dataclass(frozen=True)
class Part:
    """A run of bytes of a message [W-15]."""

    mid: int
    total: int
    offset: int
    header: bytes
    payload: bytes

    def encode(self):
        head = struct.pack(">BBHIII", 2, len(self.header), len(self.payload), self.mid, self.total, self.offset)
        return head + self.header + self.payload

    def __str__(self):
        end = self.offset + len(self.payload)
        return f"msg {self.mid} {self.offset}..{end} of {self.total} hdr {len(self.header)}"


@dataclass(frozen=True)
class Ping:
    """Does nothing, but its packet is acknowledged [W-17]."""

    def encode(self):
        return b"\x03"

    def __str__(self):
        return "ping"


@dataclass(frozen=True)
class Ack:
    """What arrived [W-18]. `paths` has (path, CE count, behind, residence)."""

    cumulative: int
    newest: int
    share: int = 0
    start: int = 0
    words: tuple = ()
    paths: tuple = ()

    def numbers(self):
        """The packets whose bits are set."""
        for index, word in enumerate(self.words):
            for bit in range(64):
                if word >> bit & 1:
                    yield (self.cumulative + 64 * index + bit) % MOD

    def encode(self):
        head = (4, len(self.paths), len(self.words), self.cumulative, self.newest, self.share, self.start)
        words = struct.pack(f">{len(self.words)}Q", *self.words)
        return struct.pack(">BBHIIII", *head) + words + b"".join(struct.pack(">BBHH", *path) for path in self.paths)

    def __str__(self):
        runs = []
        for number in self.numbers():
            if runs and (runs[-1][1] + 1) % MOD == number:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        text = f"ack <{self.cumulative} newest {self.newest} share {self.share} start {self.start}"
        text += "".join(f" +{a}" if a == b else f" +{a}..{b}" for a, b in runs)
        for path, marks, behind, residence in self.paths:
            text += f" path {path}@{(self.newest - behind) % MOD} ce {marks} {_duration(residence)}"
        return text


@dataclass(frozen=True)
class Refuse:
    """Which messages of a packet were not taken [W-19]. `entries` has (message id, kind, status)."""

    pn: int
    entries: tuple

    def encode(self):
        head = struct.pack(">BBI", 5, len(self.entries), self.pn)
        return head + b"".join(struct.pack(">IBB", *entry) for entry in self.entries)

    def __str__(self):
        outcomes = (f" {m}:not-ready" if kind == NOT_READY else f" {m}:status-{s}" for m, kind, s in self.entries)
        return f"refuse pn {self.pn}" + "".join(outcomes)


def _duration(residence):
    ns = residence * 64
    if residence == UNKNOWN_TIME:
        return "-"
    unit, digits = (10**6, "ms") if ns >= 10**6 else (10**3, "µs") if ns >= 10**3 else (1, "ns")
    return f"{ns / unit:.6f}".rstrip("0").rstrip(".") + digits


class _Reader:
    """Bytes from the front."""

    def __init__(self, data):
        self.data = data

    def take(self, length):
        require(len(self.data) >= length, "truncated")
        head, self.data = self.data[:length], self.data[length:]
        return head

    def unpack(self, layout):
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


def frames(body, tracked):
    """The frames of a packet in order; those before a malformed one are still given [W-11]."""
    reader = _Reader(body)
    while reader.data:
        kind = reader.data[0]
        require(kind <= 5, "unassigned frame type")  # [W-12]
        require(tracked or kind >= 4, "frame that an untracked packet cannot have")  # [W-10] [W-12]
        if kind == 0:
            padding = reader.take(len(reader.data))
            require(not any(padding), "padding is not zero")  # [W-13]
            yield Padding(len(padding))
        elif kind == 1:
            _, header_len, length, mid = reader.unpack(">BBHI")
            require(header_len <= MAX_HEADER, "long header")  # [W-16]
            yield Whole(mid, reader.take(header_len), reader.take(length))
        elif kind == 2:
            _, header_len, length, mid, total, offset = reader.unpack(">BBHIII")
            require(header_len <= MAX_HEADER, "long header")  # [W-16]
            end = offset + length
            require(0 < length != total and end <= total, "length of a part")  # [W-15]
            require(offset % BLOCK == 0 and (length % BLOCK == 0 or end == total), "alignment of a part")  # [W-15]
            yield Part(mid, total, offset, reader.take(header_len), reader.take(length))
        elif kind == 3:
            reader.take(1)
            yield Ping()
        elif kind == 4:
            _, paths, words, cumulative, newest, share, start = reader.unpack(">BBHIIII")
            words = reader.unpack(f">{words}Q")
            paths = tuple(reader.unpack(">BBHH") for _ in range(paths))
            yield Ack(cumulative, newest, share, start, words, paths)
        else:
            _, count, pn = reader.unpack(">BBI")
            entries = tuple(reader.unpack(">IBB") for _ in range(count))
            for _, outcome, status in entries:
                require(outcome == REFUSED or (outcome == NOT_READY and status == 0), "outcome of a message")  # [W-19]
            yield Refuse(pn, entries)


# Packets, section 3.


class _Data:
    """What tracked and untracked packets share."""

    def frames(self):
        """The frames, see the function of this name."""
        return frames(self.body, self.KIND == Tracked.KIND)

    def _tail(self):
        flags = " ack-now" * bool(self.flags & ACK_NOW) + " crc" * bool(self.flags & CHECKSUM)
        try:
            shown = ", ".join(filter(None, map(str, self.frames())))
        except Malformed as error:
            shown = f"malformed: {error}"
        return flags + (f": {shown}" if shown else "")


@dataclass(frozen=True)
class Tracked(_Data):
    """[W-9]; `body` has the frames."""

    flags: int
    span: int
    cid: int
    pn: int
    floor: int
    port: int
    path: int
    body: bytes
    KIND, LAYOUT = 0, ">HQIIHB"

    def __str__(self):
        head = f"tracked cid={self.cid:016x} pn={self.pn} span={self.span} floor={self.floor}"
        return f"{head} port={self.port} path={self.path}{self._tail()}"


@dataclass(frozen=True)
class Untracked(_Data):
    """[W-10]; `body` has the frames."""

    flags: int
    cid: int
    body: bytes
    KIND, LAYOUT = 1, ">Q"

    def __str__(self):
        return f"untracked cid={self.cid:016x}{self._tail()}"


@dataclass(frozen=True)
class Hello:
    """What a side says of itself [W-22]."""

    cid: int
    incarnation: int
    features: int
    datagram: int
    packets: int
    messages: int
    message: int
    partials: int
    pn: int
    mid: int
    ack_delay: int
    share: int
    LAYOUT = "QQIHIIIIIIII"

    def check(self):
        """Refuses values out of range [W-22]."""
        require(self.datagram >= 512, "max datagram")
        for window in (self.packets, self.messages):
            require(64 <= window <= 32768 and window & (window - 1) == 0, "window")
        require(self.partials >= 1, "max partials")

    def __str__(self):
        return (
            f"cid={self.cid:016x} incarnation={self.incarnation:016x} features={self.features:x} datagram={self.datagram} "
            f"packets={self.packets} messages={self.messages} message={self.message} pn={self.pn} id={self.mid} "
            f"ack-delay={self.ack_delay}us share={self.share}kB/s"
        )


@dataclass(frozen=True)
class Init:
    """Asks for a connection [HS-4]."""

    port: int
    cookie: int
    hello: Hello
    KIND, LAYOUT = 2, ">HQ"

    def __str__(self):
        return f"INIT port={self.port} cookie={self.cookie:016x} {self.hello}"


@dataclass(frozen=True)
class Retry:
    """Asks for a cookie [HS-4]."""

    to: int
    cookie: int
    KIND, LAYOUT = 3, ">QQ"

    def __str__(self):
        return f"RETRY to={self.to:016x} cookie={self.cookie:016x}"


@dataclass(frozen=True)
class Accept:
    """Makes the connection [HS-6]."""

    to: int
    hello: Hello
    KIND, LAYOUT = 4, ">Q"

    def __str__(self):
        return f"ACCEPT to={self.to:016x} {self.hello}"


@dataclass(frozen=True)
class Unknown:
    """Such a connection is not known [HS-13]."""

    cid: int
    incarnation: int
    port: int
    KIND, LAYOUT = 5, ">QQH"

    def __str__(self):
        return f"UNKNOWN cid={self.cid:016x} incarnation={self.incarnation:016x} port={self.port}"


@dataclass(frozen=True)
class Close:
    """Offers or announces the end [HS-16] [HS-17]."""

    cid: int
    next: int
    shutdown: int
    port: int
    KIND, LAYOUT = 6, ">QIBH"

    def __str__(self):
        return f"CLOSE cid={self.cid:016x} next={self.next} {'shutdown' if self.shutdown else 'idle'} port={self.port}"


@dataclass(frozen=True)
class Closed:
    """Agrees to the end [HS-16]."""

    cid: int
    port: int
    KIND, LAYOUT = 7, ">QH"

    def __str__(self):
        return f"CLOSED cid={self.cid:016x} port={self.port}"


_KINDS = {packet.KIND: packet for packet in (Tracked, Untracked, Init, Retry, Accept, Unknown, Close, Closed)}


def decode(datagram):
    """The packet in a datagram. The frames of data packets are not looked at."""
    require(len(datagram) >= 2, "truncated")
    require(datagram[0] >> 4 == VERSION, "version")  # [W-2]
    packet = _KINDS.get(datagram[0] & 15)
    require(packet, "unassigned kind")  # [W-3]
    flags = datagram[1]
    require(flags & ~(CHECKSUM | ACK_NOW) == 0, "unassigned flag")  # [W-4]
    if flags & CHECKSUM:
        require(len(datagram) >= 6 and crc32c(datagram[:-4]) == int.from_bytes(datagram[-4:], "big"), "checksum")  # [W-6]
        datagram = datagram[:-4]
    reader = _Reader(datagram[2:])
    if issubclass(packet, _Data):
        return packet(flags, *reader.unpack(packet.LAYOUT), reader.data)
    require(flags == CHECKSUM, "flags of a control packet")  # [W-7]
    fields = reader.unpack(packet.LAYOUT)
    if packet in (Init, Accept):
        hello = Hello(*reader.unpack(">" + Hello.LAYOUT))
        hello.check()
        fields += (hello,)
    require(not reader.data, "length of a control packet")  # [W-7]
    require(packet is not Init or fields[0] != 0, "port of INIT")  # [W-22]
    require(packet is not Close or fields[2] <= 1, "shutdown of CLOSE")  # [W-22]
    return packet(*fields)


def encode(packet):
    """The datagram of a packet."""
    layout = packet.LAYOUT
    if isinstance(packet, _Data):
        flags, *fields, body = (getattr(packet, name) for name in packet.__dataclass_fields__)
    else:
        flags, fields, body = CHECKSUM, astuple(packet), b""
        if isinstance(packet, (Init, Accept)):
            *fields, hello = fields
            fields, layout = (*fields, *hello), layout + Hello.LAYOUT
    data = struct.pack(">BB", VERSION << 4 | packet.KIND, flags) + struct.pack(layout, *fields) + body
    return data + crc32c(data).to_bytes(4, "big") if flags & CHECKSUM else data
