#!/bin/sh
# Measures srd beside the raw ceiling and TCP, all in one run, between two network namespaces of its own and on loopback.
# Prints a Markdown table, and writes JSON with all samples. See docs/performance.md; 'compare.sh --help' lists the options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/pair.sh"

for option in "$@"; do
    case $option in -h | --help) exec python3 "$here/compare.py" --help ;; esac
done
need python3 python3
need cargo cargo
need ip iproute2
need nft nftables
need iperf3 iperf3
check

(cd "$here/.." && cargo build --release --bin srd && cargo build --release -p srd-udp --examples) >&2
make_pair 9000 1500
run_and_wait python3 "$here/compare.py" --bin "${CARGO_TARGET_DIR:-$here/../target}/release" --client "$client" --server "$server" "$@"
