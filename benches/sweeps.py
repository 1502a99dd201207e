#!/usr/bin/env python3
"""Sweeps over the constants of the congestion control: `srd sim SCENARIO --sweep srd.NAME=A,B,...` for each of them over a
set of scenarios, as the tables of docs/congestion-control.md. Python's standard library only."""

import argparse
import json
import subprocess
import sys

# Constant and its values; the one in use comes first.
CONSTANTS = [
    ("target_delay", ["6us", "3us", "12us", "24us"]),
    ("proportional", ["0.15", "0", "0.05", "0.5"]),
    ("integral", ["0.1", "0", "0.03", "0.3"]),
    ("pull", ["0.2", "0", "0.05", "0.5"]),
    ("additive", ["0.15", "0", "0.05", "0.5"]),
    ("headroom", ["0.9975", "0.98", "0.995", "1"]),
    ("jitter", ["0.1", "0", "0.3"]),
    ("paths", ["64", "8", "16", "128"]),
    ("burst_time", ["1us", "0us", "3us", "10us"]),
    ("initial_window", ["16KB", "9KB", "64KB", "256KB"]),
    ("share_period", ["10us", "3us", "30us", "100us"]),
]

# What is measured: title, arguments, figure, and how it is written.
RATIO = "{:.3f}".format
WHOLE = "{:.0f}".format
UNFAIR = lambda ratio: f"{abs(ratio - 1):.1%}"
UNADVISED = ["--set", "srd.link_rate=unknown"]
EXPERIMENTS = [
    ("48 to 1, 2 MB: max", ["paper-fig3"], "max_over_ideal", RATIO),
    ("48 to 1, 64 KB: max", ["paper-fig3", "--set", "traffic.size=64KB"], "max_over_ideal", RATIO),
    ("48 to 1, endless: off the fair share", ["paper-fig4"], "worst_sample_over_fair", UNFAIR),
    ("4 join 4 and leave: round trips", ["join-leave"], "convergence_rtts", WHOLE),
    ("48 to 1, no shares: max", ["paper-fig3", *UNADVISED], "max_over_ideal", RATIO),
    ("racks, 8 uplinks full: max", ["paper-fig6"], "max_over_ideal", RATIO),
    ("permutation of 128: max", ["permutation", "--set", "network.radix=8"], "max_over_ideal", RATIO),
    ("two legacy flows: max", ["legacy-traffic"], "max_over_ideal", RATIO),
    ("a cable dies: max", ["link-failure"], "max_over_ideal", RATIO),
]


def measure(options, arguments, constant, values, figure):
    """The figure of the worst seed for each value; a dash where flows did not end."""
    command = [options.srd, "sim", *arguments, "--seeds", str(options.seeds), "--compare", "none", "--json"]
    command += ["--sweep", f"srd.{constant}={','.join(values)}"]
    print("+", *command, file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    points = [p["summary"] for p in json.loads(done.stdout)["sweep"]]
    return [None if p["unfinished"] else p[figure] for p in points]


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
    for constant, values in CONSTANTS:
        if options.constants and constant not in options.constants:
            continue
        print(f"| `{constant}` | **{values[0]}** | {' | '.join(values[1:])} |")
        print("|---|" + "---|" * len(values))
        for title, arguments, figure, write in EXPERIMENTS:
            figures = measure(options, arguments, constant, values, figure)
            cells = ["-" if f is None else write(f) for f in figures]
            print(f"| {title} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
