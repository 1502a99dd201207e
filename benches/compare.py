"""Runs the measurements of compare.sh and renders them. Python's standard library only."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

# Loss in percent of what crosses a veth pair, in each direction.
LOSS = 1


class Place:
    """Where the two sides run."""

    def __init__(self, name, client_ns, server_ns, ip, payload, loss=False):
        self.name, self.client_ns, self.server_ns, self.ip = name, client_ns, server_ns, ip
        # UDP payload of a raw datagram.
        self.payload, self.loss = payload, loss


def start(options, ns, core, command, **more):
    """Starts a program in a namespace and on a core of its own."""

    def prepare():
        os.sched_setaffinity(0, {core})
        if options.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))

    return subprocess.Popen(["ip", "netns", "exec", ns, *command], preexec_fn=prepare, text=True, **more)


class Bench:
    def __init__(self, options):
        self.options = options
        self.port = 20000
        self.samples = {}
        self.failures = []

    def start(self, ns, core, command, **more):
        return start(self.options, ns, core, command, **more)

    def pair(self, place, server, client, limit):
        """Runs both sides; gives the client's output as JSON, and the cores that each side kept busy."""
        options = self.options
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        serving = self.start(place.server_ns, options.cores[1], server, **quiet)
        try:
            time.sleep(0.25)
            cpu, at = children_cpu(), time.monotonic()
            run = self.start(place.client_ns, options.cores[0], client, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                out, err = run.communicate(timeout=limit + 15)
            except subprocess.TimeoutExpired:
                run.kill()
                run.communicate()
                raise RuntimeError("no result in time")
            client_cpu = (children_cpu() - cpu) / (time.monotonic() - at)
            if run.returncode:
                raise RuntimeError((err or out).strip()[-200:] or f"exit code {run.returncode}")
        finally:
            # Not Popen.kill, which would reap a server that has ended by itself, and its CPU use with it.
            os.kill(serving.pid, signal.SIGKILL)
            _, _, usage = os.wait4(serving.pid, 0)
            serving.returncode = -signal.SIGKILL
        server_cpu = (usage.ru_utime + usage.ru_stime) / (time.monotonic() - at)
        return json.loads(out), (min(client_cpu, 1.0), min(server_cpu, 1.0))

    def tool(self, name):
        return os.path.join(self.options.bin, name)

    # ---- what is measured; each gives {metric: value} and CPU use

    def srd(self, place, *what):
        self.port += 1
        t = self.options.time
        server = [self.tool("srd"), "perf", "server", "--mode", "spin", "--bind", f"{place.ip}:{self.port}"]
        kind, *more = what
        client = [self.tool("srd"), "perf", kind, f"{place.ip}:{self.port}", "--mode", "spin", "--json", "--time", str(t)]
        result, _ = self.pair(place, server, client + more, t)
        if not result["complete"]:
            raise RuntimeError("incomplete")
        cpu = (result["cpu_cores"]["client"], result["cpu_cores"]["server"])
        if kind == "lat":
            return latencies(result["latency_us"]), cpu
        return {"gbps": result["bandwidth_gbps"], "mps": result["messages_per_s"] / 1e6}, cpu

    def plain(self, place, protocol, mode, *more):
        self.port += 1
        t = self.options.time
        addr = f"{place.ip}:{self.port}"
        client = [self.tool("examples/plain"), "client", protocol, addr, mode, "--time", str(t), *more]
        result, cpu = self.pair(place, [self.tool("examples/plain"), "server", protocol, addr], client, t)
        return (latencies(result["latency_us"]) if mode == "lat" else {"gbps": result["bandwidth_gbps"]}), cpu

    def raw(self, place, mode, *more):
        self.port += 1
        t = self.options.time
        addr = f"{place.ip}:{self.port}"
        bare = [flag for flag in more if flag == "--bare"]
        server = [self.tool("examples/raw_udp"), "server", "--listen", addr, "--time", str(t + 20), *bare]
        client = [self.tool("examples/raw_udp"), "client", addr, mode, "--time", str(t), *more]
        result, cpu = self.pair(place, server, client, t)
        if mode == "lat":
            return latencies(result["latency_us"]), cpu
        return {"gbps": result["bandwidth_gbps"], "mps": result["datagrams_per_s"] / 1e6}, cpu

    def iperf(self, place, congestion):
        self.port += 1
        t = max(1, round(self.options.time))
        server = ["iperf3", "-s", "-1", "-p", str(self.port), "-B", place.ip]
        client = ["iperf3", "-c", place.ip, "-p", str(self.port), "-t", str(t), "-C", congestion, "-J"]
        result, _ = self.pair(place, server, client, t)
        if "error" in result:
            raise RuntimeError(result["error"])
        use = result["end"]["cpu_utilization_percent"]
        cpu = (use["host_total"] / 100, use["remote_total"] / 100)
        return {"gbps": result["end"]["sum_received"]["bits_per_second"] / 1e9}, cpu

    def rows(self, place):
        """Names and measurements at a place, neighbours in time being those that are compared."""
        raw_size = ("--size", str(place.payload))
        lossless = [
            ("UDP ping-pong, plain sockets, 64 B", lambda: self.plain(place, "udp", "lat")),
            ("srd perf lat, 64 B", lambda: self.srd(place, "lat", "--size", "64")),
            ("UDP ping-pong through the driver, 64 B", lambda: self.raw(place, "lat")),
            ("TCP ping-pong, plain sockets, 64 B", lambda: self.plain(place, "tcp", "lat")),
            ("UDP ping-pong, plain sockets, 1 KB", lambda: self.plain(place, "udp", "lat", "--size", "1024")),
        ]
        both = [
            ("srd perf lat, 1 KB", lambda: self.srd(place, "lat", "--size", "1k")),
            ("srd perf rate, 64 B x 1024", lambda: self.srd(place, "rate", "--size", "64")),
            ("srd perf bw, 1 KB x 1024", lambda: self.srd(place, "bw", "--size", "1k", "--depth", "1024")),
            ("raw UDP, GSO/GRO, plain sockets", lambda: self.raw(place, "bw", "--bare", *raw_size)),
            ("srd perf bw, 8 KB x 256", lambda: self.srd(place, "bw", "--size", "8k", "--depth", "256")),
            ("raw UDP, GSO/GRO, through the driver", lambda: self.raw(place, "bw", *raw_size)),
            ("srd perf bw, 1 MB x 16", lambda: self.srd(place, "bw", "--size", "1M", "--depth", "16")),
            ("TCP, plain sockets, 256 KB writes", lambda: self.plain(place, "tcp", "bw")),
        ]
        both += [(f"TCP, iperf3, {cc}", lambda cc=cc: self.iperf(place, cc)) for cc in self.options.congestion]
        if not place.loss:
            return lossless + both
        tcp = ("TCP ping-pong, plain sockets, 1 KB", lambda: self.plain(place, "tcp", "lat", "--size", "1024"))
        return [tcp] + [row for row in both if not row[0].startswith("raw UDP")]

    def run(self, places):
        rounds, count = self.options.rounds, 0
        total = rounds * sum(len(self.rows(place)) for place in places)
        for _ in range(rounds):
            for place in places:
                set_loss(place)
                for name, measure in self.rows(place):
                    count += 1
                    note(f"\r{count}/{total} {place.name}: {name}\x1b[K")
                    try:
                        self.keep(place, name, *measure())
                    except (RuntimeError, ValueError, KeyError, OSError) as e:
                        self.failures.append(f"{place.name}: {name}: {e}")
                set_loss(place, off=True)
        note("\r\x1b[K")

    def keep(self, place, name, values, cpu):
        row = self.samples.setdefault(place.name, {}).setdefault(name, {})
        for metric, value in list(values.items()) + [("cpu_client", cpu[0]), ("cpu_server", cpu[1])]:
            row.setdefault(metric, []).append(value)

    def median(self, place, name, metric):
        values = self.samples.get(place, {}).get(name, {}).get(metric)
        return statistics.median(values) if values else None


def children_cpu():
    times = os.times()
    return times.children_user + times.children_system


def latencies(us):
    return {"p50": us["p50"], "p99": us["p99"], "p999": us["p999"]}


def note(text):
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


def set_loss(place, off=False):
    """Both ends drop what arrives, at random."""
    if not place.loss:
        return
    for ns in (place.client_ns, place.server_ns):
        nft = ["ip", "netns", "exec", ns, "nft"]
        if off:
            subprocess.run(nft + ["delete", "table", "inet", "loss"], check=True)
        else:
            rules = "table inet loss { chain in { type filter hook input priority 0; iif != lo numgen random mod 100 < %d drop; }; }"
            subprocess.run(nft + ["-f", "-"], input=rules % LOSS, text=True, check=True)


def congestion_controls():
    try:
        with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as f:
            available = f.read().split()
    except OSError:
        available = []
    return [cc for cc in ("cubic", "bbr") if cc in available] or available[:1]


def number(value, digits=2):
    return "" if value is None else f"{value:,.{digits}f}"


def render(bench, places):
    lines = []
    for place in places:
        rows = bench.samples.get(place.name, {})
        ceiling = {
            "64": bench.median(place.name, "UDP ping-pong, plain sockets, 64 B", "p50"),
            "1": bench.median(place.name, "UDP ping-pong, plain sockets, 1 KB", "p50"),
            "bw": bench.median(place.name, "raw UDP, GSO/GRO, plain sockets", "gbps"),
        }
        if place.loss:
            # Nothing raw survives loss; the lossless run of the same place is the ceiling.
            clear = place.name.split(",")[0] + ", lossless"
            ceiling["1"] = bench.median(clear, "UDP ping-pong, plain sockets, 1 KB", "p50")
            ceiling["bw"] = bench.median(clear, "raw UDP, GSO/GRO, plain sockets", "gbps")
        lines += ["", f"### {place.name}", ""]
        lines += ["| ping-pong, half RTT | p50 us | p99 us | p99.9 us | p50 / ceiling | cores |", "|---|--:|--:|--:|--:|--:|"]
        get = lambda name, metric: bench.median(place.name, name, metric)
        cores = lambda name: f"{number(get(name, 'cpu_client'))} + {number(get(name, 'cpu_server'))}"
        for name in rows:
            if "p50" in rows[name]:
                base = ceiling["1" if "1 KB" in name else "64"]
                ratio = get(name, "p50") / base if base else None
                figures = " | ".join(number(get(name, p)) for p in ("p50", "p99", "p999"))
                lines.append(f"| {name} | {figures} | {number(ratio)} | {cores(name)} |")
        lines += ["", "| stream | Gbit/s | min..max | M messages/s | Gbit/s / ceiling | cores |", "|---|--:|--:|--:|--:|--:|"]
        for name in rows:
            if "gbps" in rows[name]:
                values = rows[name]["gbps"]
                ratio = get(name, "gbps") / ceiling["bw"] if ceiling["bw"] else None
                span = f"{number(min(values), 1)}..{number(max(values), 1)}"
                lines.append(
                    f"| {name} | {number(get(name, 'gbps'), 1)} | {span} | {number(get(name, 'mps'))} | {number(ratio)} | {cores(name)} |"
                )
    return lines


def judge(bench):
    """The goals: (what, measured, wanted, met)."""
    clear, lossy = "veth MTU 9000, lossless", f"veth MTU 9000, {LOSS} % loss"
    get = bench.median
    goals = []

    def goal(what, value, wanted, at_most=False, unit=""):
        if value is None or wanted is None:
            return goals.append((what, "-", "-", False))
        met = value <= wanted if at_most else value >= wanted
        sign = "<=" if at_most else ">="
        goals.append((what, f"{value:.2f}{unit}", f"{sign} {wanted:.2f}{unit}", met))

    def ratio(a, b):
        return a / b if a and b else None

    raw, srd = "UDP ping-pong, plain sockets, 64 B", "srd perf lat, 64 B"
    goal("ping-pong 64 B, p50 / raw", ratio(get(clear, srd, "p50"), get(clear, raw, "p50")), 1.3, True, "x")
    goal("ping-pong 64 B, p99 / raw", ratio(get(clear, srd, "p99"), get(clear, raw, "p99")), 1.5, True, "x")
    rate = get(clear, "srd perf rate, 64 B x 1024", "mps")
    goal("64 B messages", rate, 4, unit=" M/s")
    goal("64 B messages, beyond", rate, 10, unit=" M/s")
    big = get(clear, "srd perf bw, 8 KB x 256", "gbps")
    goal("8 KB x 256 / raw GSO/GRO", ratio(big, get(clear, "raw UDP, GSO/GRO, plain sockets", "gbps")), 0.65, unit="x")
    iperf = [get(clear, f"TCP, iperf3, {cc}", "gbps") for cc in bench.options.congestion]
    for cc, value in zip(bench.options.congestion, iperf):
        goal(f"8 KB x 256 / iperf3 TCP, {cc}", ratio(big, value), 2, unit="x")
    goal("8 KB x 256 / TCP in 256 KB writes", ratio(big, get(clear, "TCP, plain sockets, 256 KB writes", "gbps")), 1, unit="x")
    goal("8 KB x 256", big, 37.6, unit=" Gbit/s")
    goal(f"8 KB x 256 at {LOSS} % loss / lossless", ratio(get(lossy, "srd perf bw, 8 KB x 256", "gbps"), big), 0.9, unit="x")
    goal(f"ping-pong 1 KB at {LOSS} % loss, p99", get(lossy, "srd perf lat, 1 KB", "p99"), 500, True, " us")
    goal(f"ping-pong 1 KB at {LOSS} % loss, p99.9", get(lossy, "srd perf lat, 1 KB", "p999"), 2000, True, " us")
    return goals


def arguments(name, description):
    """The options that all benches have."""
    parser = argparse.ArgumentParser(prog=f"{name}.sh", description=description)
    parser.add_argument("--quick", action="store_true", help="one round, a third of a second each: a look, no figures to quote")
    parser.add_argument("--rounds", type=int, help="interleaved rounds, of which medians are taken [default: 5]")
    parser.add_argument("--time", type=float, help="seconds per measurement, roughly [default: 1]")
    parser.add_argument("--realtime", action="store_true", help="run with real-time priority, on hosts that do other work, too")
    parser.add_argument("--cores", default=None, help="CPUs of client and server, such as 0,1 [default: the first two]")
    parser.add_argument("--json", default=f"{name}.json", metavar="FILE", help="write all samples there [default: %(default)s]")
    for internal in ("--bin", "--client", "--server"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    return parser


def parse(parser):
    """Reads the options, and settles those that were not given."""
    options = parser.parse_args()
    if not options.bin:
        parser.error(f"start {parser.prog}, which makes the namespaces")
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.time = options.time or (0.3 if options.quick else 1.0)
    usable = sorted(os.sched_getaffinity(0))
    try:
        options.cores = [int(c) for c in options.cores.split(",")] if options.cores else usable[:2]
    except ValueError:
        options.cores = []
    if len(options.cores) != 2 or not set(options.cores) <= set(usable):
        parser.error(f"two CPUs are needed, of these: {usable}")
    return options


def describe(options):
    """The host, in words."""
    return f"{os.uname().sysname} {os.uname().release}, CPUs {options.cores[0]} and {options.cores[1]}"


def main():
    parser = arguments("compare", "srd beside the raw ceiling and TCP, in one run")
    options = parse(parser)
    options.congestion = congestion_controls()
    c, s = options.client, options.server
    places = [
        Place("veth MTU 9000, lossless", c, s, "10.231.0.2", 8192),
        Place(f"veth MTU 9000, {LOSS} % loss", c, s, "10.231.0.2", 8192, loss=True),
        Place("veth MTU 1500, lossless", c, s, "10.231.1.2", 1400),
        Place(f"veth MTU 1500, {LOSS} % loss", c, s, "10.231.1.2", 1400, loss=True),
        Place("loopback, lossless", c, c, "127.0.0.1", 8192),
    ]
    bench = Bench(options)
    bench.run(places)
    goals = judge(bench)
    host = describe(options)
    print(f"## srd beside the ceiling: {options.rounds} rounds of {options.time} s, medians; {host}\n")
    print("| goal | measured | wanted | |\n|---|--:|--:|---|")
    for what, measured, wanted, met in goals:
        print(f"| {what} | {measured} | {wanted} | {'met' if met else 'MISSED'} |")
    print("\n".join(render(bench, places)))
    for failure in bench.failures:
        print(f"\nFailed: {failure}")
    with open(options.json, "w") as f:
        result = {"host": host, "rounds": options.rounds, "time_s": options.time, "samples": bench.samples}
        result["goals"] = [dict(zip(("goal", "measured", "wanted", "met"), g)) for g in goals]
        json.dump({**result, "failures": bench.failures}, f, indent=1)
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
