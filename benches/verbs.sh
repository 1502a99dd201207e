#!/bin/sh
# Measures unmodified programs for EFA on the card beside 'srd perf' and beside what the same programs have without it:
# libfabric over UDP and TCP, UCX over TCP. All in one run, between two network namespaces of its own.
# Prints Markdown tables, and writes JSON with all samples. See docs/performance.md; 'verbs.sh --help' lists the options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/pair.sh"

for option in "$@"; do
    case $option in -h | --help) exec python3 "$here/verbs.py" --help ;; esac
done
need python3 python3
need cargo cargo
need ip iproute2
need ib_send_bw perftest
need fi_pingpong libfabric-bin
need ucx_perftest ucx-utils
check

(cd "$here/.." && cargo build --release --bin srd && cargo build --release -p srd-verbs-c && cargo build --release -p verbs-shim --example stream) >&2
make_pair 9000
run_and_wait python3 "$here/verbs.py" --bin "${CARGO_TARGET_DIR:-$here/../target}/release" --client "$client" --server "$server" "$@"
