"""Both ends of `srd perf`, as src/perf/control.rs describes what they say to each other."""

import json

from network import require

MAGIC = b"SRDP\1%c\0\0"
START, READY, BUSY, REFUSED, STOP, RESULT = (MAGIC % operation for operation in range(1, 7))
COUNTERS = (
    "tx_packets rx_packets lost_packets retransmits spurious_retransmits timeouts tail_probes duplicates acks_sent "
    "receiver_not_ready paths_replaced receive_buffer_drops send_drops"
).split()


def client(host, server, size, count):
    """Runs ping-pong with a server, and looks at what it counted."""
    def hear(wanted):
        """The next message, which has this header."""
        host.run(lambda: any(event[0] == "message" for event in host.endpoint.events), "an answer")
        while True:
            event = host.endpoint.events.popleft()
            if event[0] == "message":
                _, _, header, data = event
                require(header == wanted, f"{header}, not {wanted}: {data[:200]}")
                return data
            require(event[2] == "delivered", event)

    start = dict(test="lat", size=size, depth=1, bidir=False)
    host.endpoint.send(server, json.dumps(start).encode(), START)
    hear(READY)
    for _ in range(count):
        host.endpoint.send(server, bytes(size))
        require(len(hear(b"")) == size, "length of an answer")
    host.endpoint.send(server, b"{}", STOP)
    result = json.loads(hear(RESULT))
    require(result["messages_received"] == count, result)
    host.endpoint.close(server)
    host.run(lambda: not host.endpoint.is_connected(server), "closing")


def serve(host):
    """Serves one client until its connection is closed."""
    start, peer, received, delivered, tokens, stopping = None, None, 0, 0, set(), False

    def fill():
        """Keeps as many messages under way as a two-way test wants."""
        while start["bidir"] and not stopping and len(tokens) < start["depth"]:
            tokens.add(host.endpoint.send(peer, bytes(start["size"])))

    while peer is None or host.endpoint.is_connected(peer):
        host.turn()
        while host.endpoint.events:
            kind, *event = host.endpoint.events.popleft()
            if kind == "sent":
                if event[0] in tokens:
                    require(event[1] == "delivered", event)
                    tokens.remove(event[0])
                    delivered += 1
                    fill()
                continue  # of RESULT nothing may be heard, as the client leaves when it has it
            peer, header, data = event
            if header == START:
                start = json.loads(data)
                host.endpoint.send(peer, b"{}", READY)
                fill()
            elif header == STOP:
                stopping = True
            else:
                require((header, len(data)) == (b"", start["size"]), f"header {header}, {len(data)} bytes")
                received += 1
                if start["test"] == "lat":
                    host.endpoint.send(peer, data)
        if stopping and not tokens:
            stopping, start = False, dict(start, bidir=False)
            result = dict(duration_s=1.0, cpu_cores=0.5, messages_received=received, messages_sent=delivered,
                          counters=dict.fromkeys(COUNTERS, 0))
            host.endpoint.send(peer, json.dumps(result).encode(), RESULT)
    require(start and received, "no test")
    print("received", received, flush=True)
