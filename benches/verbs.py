"""Runs the measurements of verbs.sh and renders them. Python's standard library only."""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from compare import arguments, describe, note, number, parse, start

SERVER = "10.231.0.2"
# What shares are of; the same work requests without the C interface; programs that use it; what must be slower than those.
NATIVE, API, OURS, PEER = "native", "api", "ours", "peer"
# Seconds for the server to listen, and for a measurement beyond what it should take.
START, GRACE = 10, 60


class Tool:
    """How a program is started, and how the one figure of interest is read from what its client says."""

    def __init__(self, name, kind, port, server, client, read, env=None):
        self.name, self.kind, self.port = name, kind, port
        self.server, self.client, self.read = server, client, read
        self.env = env or {}


class Row:
    """Programs that do the same, side by side. `unit` begins with us where less is better."""

    def __init__(self, title, unit, tools):
        self.title, self.unit, self.tools = title, unit, tools

    def is_time(self):
        return self.unit == "us"


def srd_perf(options, what, unit, *more):
    command = [options.srd, "perf"]
    client = command + [what, f"{SERVER}:20001", "--mode", "spin", "--json", "--time", str(options.time), *more]

    def read(out):
        seen = json.loads(out)
        if not seen["complete"]:
            raise RuntimeError("incomplete")
        if unit == "us":
            return seen["latency_us"]["p50"]
        return seen["messages_per_s"] / 1e6 if unit == "M/s" else seen["bandwidth_gbps"]

    server = command + ["server", "--mode", "spin", "--bind", f"{SERVER}:20001"]
    return Tool("srd perf", NATIVE, None, server, client, read)


def perftest(options, program, unit, size, count, *more, driver="udp"):
    arguments = ["-c", "SRD", "-x", "0", "-F", "-s", str(size), "-n", str(count), "--report_gbits", *more]
    command = [options.srd, "run", "--log", "error", "--driver", driver, "--", program, *arguments]

    def read(out):
        # The line below '#bytes', of which a latency has '#bytes #iterations t_min t_max t_typical ...'.
        lines = out.splitlines()
        at = next(k for k, line in enumerate(lines) if line.lstrip().startswith("#bytes"))
        fields = lines[at + 1].split()
        return float(fields[{"us": 4, "M/s": 4, "Gbit/s": 3}[unit]])

    return Tool(f"{program}, {driver}", OURS, 18515, command, command + [SERVER], read)


def rust_api(options, unit, what, size, count, depth):
    stream = os.path.join(options.bin, "examples", "stream")
    client = [stream, "client", f"{SERVER}:7473", what, "--size", str(size), "--count", str(count), "--depth", depth]

    def read(out):
        seen = json.loads(out)
        return seen["messages_per_s"] / 1e6 if unit == "M/s" else seen["bandwidth_gbps"]

    return Tool("Rust API", API, 7473, [stream, "server", f"{SERVER}:7473"], client, read)


def pingpong(options, provider, unit, size, count, driver=None):
    arguments = ["fi_pingpong", "-e", "rdm", "-p", provider, "-S", str(size), "-I", str(count)]
    ours = driver is not None
    command = [options.srd, "run", "--log", "error", "--driver", driver, "--"] + arguments if ours else arguments

    def read(out):
        # bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
        fields = out.split("Mxfers/sec")[1].split()
        return float(fields[6]) if unit == "us" else float(fields[5]) * 8 / 1000

    env = {"FI_EFA_ENABLE_SHM_TRANSFER": "0", "FI_EFA_USE_DEVICE_RDMA": "1"}
    name = f"fi_pingpong {provider}, {driver}" if ours else f"fi_pingpong {provider}"
    return Tool(name, OURS if ours else PEER, 47592, command, command + [SERVER], read, env)


def ucx(test, unit, size, count):
    command = ["ucx_perftest", "-p", "13337"]
    client = ["ucx_perftest", SERVER, "-p", "13337", "-t", test, "-s", str(size), "-n", str(count), "-f", "-v", "-w", "100"]

    def read(out):
        seen = list(csv.DictReader(line for line in map(str.strip, out.splitlines()) if "," in line and " " not in line))[-1]
        if unit == "us":
            return float(seen["50.0_percentile_lat"])
        return float(seen["overall_mr"]) / 1e6 if unit == "M/s" else float(seen["overall_bw"]) * 2**20 * 8 / 1e9

    return Tool(f"UCX tcp, {test}", PEER, 13337, command, client, read, {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "c9000,s9000"})


def rows(options):
    def count(per_second):
        return max(100, int(per_second * options.time))

    # Enough that what libfabric does at its start, 70 to 90 ms of making buffers, does not count.
    latency = count(300_000)
    table = [
        Row(
            "latency, 64 B",
            "us",
            [
                srd_perf(options, "lat", "us", "--size", "64"),
                perftest(options, "ib_send_lat", "us", 64, latency),
                perftest(options, "ib_send_lat", "us", 64, latency, driver="xdp"),
                pingpong(options, "efa", "us", 64, latency, "udp"),
                pingpong(options, "efa", "us", 64, latency, "xdp"),
                pingpong(options, "tcp;ofi_rxm", "us", 64, latency),
                pingpong(options, "udp;ofi_rxd", "us", 64, latency),
                ucx("tag_lat", "us", 64, latency),
            ],
        ),
        Row(
            "rate, 64 B",
            "M/s",
            [
                srd_perf(options, "rate", "M/s", "--size", "64", "--depth", "512"),
                rust_api(options, "M/s", "send", 64, count(2_000_000), "512"),
                perftest(options, "ib_send_bw", "M/s", 64, count(2_000_000), "-t", "512", "-r", "512"),
                ucx("tag_bw", "M/s", 64, count(500_000)),
            ],
        ),
    ]
    for size, text in [(4096, "4k"), (8192, "8k"), (65536, "64k"), (1 << 20, "1M")]:
        depth = "128" if size <= 8192 else "32"
        n = count(4e9 / size)
        # A send of EFA is one packet.
        what = "send" if size <= 8192 else "read"
        table.append(
            Row(
                f"bandwidth, {text}",
                "Gbit/s",
                [
                    srd_perf(options, "bw", "Gbit/s", "--size", text, "--depth", depth),
                    rust_api(options, "Gbit/s", what, size, n, depth),
                    perftest(options, f"ib_{what}_bw", "Gbit/s", size, n, "-t", depth, *(["-r", "512"] if what == "send" else [])),
                    ucx("tag_bw", "Gbit/s", size, n // 2),
                ],
            )
        )
    for kb in [4, 8, 16, 32, 64, 128, 256, 512, 1024]:
        size = kb << 10
        unit, transfers = ("us", latency) if kb <= 8 else ("Gbit/s", count(4e9 / size))
        table.append(
            Row(
                f"ping-pong, {kb} KB",
                unit,
                [
                    pingpong(options, "efa", unit, size, transfers, "udp"),
                    pingpong(options, "efa", unit, size, transfers, "xdp"),
                    pingpong(options, "tcp;ofi_rxm", unit, size, transfers),
                    pingpong(options, "udp;ofi_rxd", unit, size, transfers // 8),
                ],
            )
        )
    return table


class Bench:
    def __init__(self, options):
        self.options, self.samples, self.failures = options, {}, []

    def start(self, ns, core, command, env, **more):
        return start(self.options, ns, core, command, env={**os.environ, **env}, **more)

    def measure(self, tool):
        """Runs both sides of a tool and reads its figure."""
        options = self.options
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = self.start(options.server, options.cores[1], tool.server, tool.env, **quiet)
        try:
            await_server(server, tool.port)
            client = self.start(options.client, options.cores[0], tool.client, tool.env, **pipes)
            try:
                out, _ = client.communicate(timeout=options.time * 5 + GRACE)
            except subprocess.TimeoutExpired:
                client.kill()
                client.communicate()
                raise RuntimeError("no result in time")
            if client.returncode:
                raise RuntimeError(out.strip()[-300:] or f"exit code {client.returncode}")
            return tool.read(out)
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()

    def run(self, table):
        count, total = 0, self.options.rounds * sum(len(row.tools) for row in table)
        for _ in range(self.options.rounds):
            for row in table:
                for tool in row.tools:
                    count += 1
                    note(f"\r{count}/{total} {row.title}: {tool.name}\x1b[K")
                    try:
                        value = self.measure(tool)
                    except (RuntimeError, ValueError, KeyError, IndexError, StopIteration, OSError) as e:
                        self.failures.append(f"{row.title}: {tool.name}: {e!r}")
                        continue
                    self.samples.setdefault(row.title, {}).setdefault(tool.name, []).append(value)
        note("\r\x1b[K")

    def median(self, row, tool):
        values = self.samples.get(row.title, {}).get(tool.name)
        return statistics.median(values) if values else None


def await_server(server, port):
    """Waits until the server listens on a TCP port of its namespace; without a port, until it has a UDP socket."""
    until = time.monotonic() + START
    kind, wanted = ("tcp", f":{port:04X} ") if port else ("udp", ":4E21 ")
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        sockets = ""
        for table in (kind, kind + "6"):
            try:
                with open(f"/proc/{server.pid}/net/{table}") as f:
                    sockets += f.read()
            except OSError:
                pass
        # sl local remote state: 0A listens
        lines = [line.split() for line in sockets.splitlines()]
        if any(wanted.strip() in f[1][-5:] and (not port or f[3] == "0A") for f in lines if len(f) > 3):
            return
        time.sleep(0.01)
    raise RuntimeError("the server does not listen")


def advantage(row, ours, other):
    """How many times better; None where a figure is missing."""
    if not ours or not other:
        return None
    return other / ours if row.is_time() else ours / other


def render(bench, table):
    lines = []
    for row in table:
        lines += ["", f"### {row.title}", "", f"| | {row.unit} | min..max | of srd perf | ours is better by |", "|---|--:|--:|--:|--:|"]
        value = {kind: [bench.median(row, t) for t in row.tools if t.kind == kind] for kind in (NATIVE, OURS, PEER)}
        native = value[NATIVE][0] if value[NATIVE] else None
        for tool in row.tools:
            mine = bench.median(row, tool)
            samples = bench.samples.get(row.title, {}).get(tool.name, [])
            span = f"{number(min(samples))}..{number(max(samples))}" if samples else "failed"
            share = advantage(row, mine, native) if tool.kind in (API, OURS) else None
            better = advantage(row, like(bench, row, tool), mine) if tool.kind == PEER else None
            lines.append(f"| {tool.name} | {number(mine)} | {span} | {number(share)} | {number(better)} |")
    return lines


def like(bench, row, peer):
    """The figure of ours that a peer is compared with: the same program's if it runs on the card, else perftest's. With the
    better driver, as the peers have one each."""
    ours = [tool for tool in row.tools if tool.kind == OURS]
    same = [tool for tool in ours if tool.name.split()[0] == peer.name.split()[0]]
    values = [value for value in (bench.median(row, tool) for tool in same or ours) if value]
    best = min if row.is_time() else max
    return best(values, default=None)


def main():
    parser = arguments("verbs", "programs for EFA on the card, beside what they have without it")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows whose title has this word: latency, rate, bandwidth, ping-pong")
    options = parse(parser)
    options.srd = os.path.join(options.bin, "srd")
    table = [row for row in rows(options) if options.only in row.title]
    bench = Bench(options)
    bench.run(table)
    host = describe(options)
    print(f"## Programs for EFA on the card: {options.rounds} rounds of {options.time} s, medians; {host}")
    print("\n".join(render(bench, table)))
    for failure in bench.failures:
        print(f"\nFailed: {failure}")
    with open(options.json, "w") as f:
        json.dump({"host": host, "rounds": options.rounds, "samples": bench.samples, "failures": bench.failures}, f, indent=1)
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
