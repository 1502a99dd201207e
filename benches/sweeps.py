#!/usr/bin/env python3
"""Sweeps over the constants of the congestion control: `srd sim SCENARIO --sweep srd.NAME=A,B,...` for each of them over a
set of scenarios, as the table of docs/congestion-control.md. Python's standard library only."""

import argparse
import json
import subprocess
import sys

# Constants and values beside the one in use.
CONSTANTS = [
    ("target_delay", ["3us", "12us", "24us"]),
    ("proportional", ["0", "0.05", "0.5"]),
    ("integral", ["0", "0.03", "0.3"]),
    ("pull", ["0", "0.05", "0.5"]),
    ("additive", ["0", "0.05", "0.5"]),
    ("headroom", ["0.98", "0.995", "1"]),
    ("jitter", ["0", "0.3"]),
    ("paths", ["8", "16", "32", "64"]),
    ("burst_time", ["1us", "3us", "10us"]),
    ("initial_window", ["9KB", "64KB", "256KB"]),
    ("share_period", ["3us", "30us", "100us"]),
]

# What is measured: title, arguments, figure, and how it is written.
RATIO = "{:.3f}".format
WHOLE = "{:.0f}".format
UNFAIR = lambda ratio: f"{abs(ratio - 1):.1%}"
UNADVISED = ["--set", "srd.link_rate=unknown"]
EXPERIMENTS = [
    ("2 MB", ["paper-fig3"], "max_over_ideal", RATIO),
    ("64 KB", ["paper-fig3", "--set", "traffic.size=64KB"], "max_over_ideal", RATIO),
    ("endless", ["paper-fig4"], "worst_sample_over_fair", UNFAIR),
    ("join", ["join-leave"], "convergence_rtts", WHOLE),
    ("no shares", ["paper-fig3", *UNADVISED], "max_over_ideal", RATIO),
    ("racks", ["paper-fig6"], "max_over_ideal", RATIO),
    ("permutation", ["permutation", "--set", "network.radix=8", "--set", "network.mtu=4096"], "max_over_ideal", RATIO),
    ("legacy", ["legacy-traffic"], "max_over_ideal", RATIO),
    ("dead cable", ["link-failure"], "max_over_ideal", RATIO),
]


def measure(options, arguments, sweep):
    """The summaries of the worst seed: of each value of a sweep, or of the one run."""
    command = [options.srd, "sim", *arguments, "--seeds", str(options.seeds), "--compare", "none", "--json"]
    command += ["--sweep", sweep or "none"]
    print("+", *command, file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    report = json.loads(done.stdout)
    return [p["summary"] for p in report["sweep"]] if sweep else [report["summary"]]


def rows(options, names, sweep=None):
    """Prints a line for each value; a dash where flows did not end."""
    columns = []
    for _, arguments, figure, write in EXPERIMENTS:
        summaries = measure(options, arguments, sweep)
        columns.append(["-" if s["unfinished"] else write(s[figure]) for s in summaries])
    for name, *cells in zip(names, *columns):
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("constants", nargs="*", metavar="CONSTANT", help="all unless told otherwise")
    parser.add_argument("--seeds", type=int, default=10, help="the worst counts (default: 10)")
    parser.add_argument("--srd", default="srd", help="the command (default: the one in PATH)")
    options = parser.parse_args()
    names = [name for name, _ in CONSTANTS]
    unknown = [c for c in options.constants if c not in names]
    if unknown:
        parser.error(f"no such constant: {', '.join(unknown)}; there are {', '.join(names)}")
    print(f"| | {' | '.join(title for title, *_ in EXPERIMENTS)} |")
    print("|---|" + "---|" * len(EXPERIMENTS))
    rows(options, ["**in use**"])
    for constant, values in CONSTANTS:
        if not options.constants or constant in options.constants:
            names = [f"`{constant}` {value}" for value in values]
            rows(options, names, f"srd.{constant}={','.join(values)}")


if __name__ == "__main__":
    main()
