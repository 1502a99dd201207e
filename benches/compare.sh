#!/bin/sh
# Measures srd beside the raw ceiling and TCP, all in one run, between two network namespaces of its own and on loopback.
# Prints a Markdown table, and writes JSON with all samples. See docs/performance.md; 'compare.sh --help' lists the options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

for option in "$@"; do
    case $option in -h | --help) exec python3 "$here/compare.py" --help ;; esac
done

missing=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need python3 python3
need cargo cargo
need ip iproute2
need nft nftables
need iperf3 iperf3
if [ -n "$missing" ]; then
    echo "compare.sh: missing:$missing (install these packages)" >&2
    exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "compare.sh: must be root, to make network namespaces" >&2
    exit 2
fi

# Unique, so that several can run at once; interface names have at most 15 characters.
tag=srdcmp$$
client=$tag-c server=$tag-s
clean_up() {
    trap - EXIT HUP INT TERM
    for ns in "$client" "$server"; do
        for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || :; done
        ip netns del "$ns" 2>/dev/null || :
    done
}
trap clean_up EXIT
trap 'exit 130' HUP INT TERM

(cd "$here/.." && cargo build --release --bin srd && cargo build --release -p srd-udp --examples) >&2
bin=${CARGO_TARGET_DIR:-$here/../target}/release

ip netns add "$client"
ip netns add "$server"
for ns in "$client" "$server"; do ip -n "$ns" link set lo up; done
# One pair per MTU.
i=0
for mtu in 9000 1500; do
    ip link add "c$mtu" mtu "$mtu" netns "$client" type veth peer name "s$mtu" mtu "$mtu" netns "$server"
    ip -n "$client" addr add "10.231.$i.1/24" dev "c$mtu"
    ip -n "$server" addr add "10.231.$i.2/24" dev "s$mtu"
    ip -n "$client" link set "c$mtu" up
    ip -n "$server" link set "s$mtu" up
    i=$((i + 1))
done

# In the background, because the shell minds signals only while it waits.
python3 "$here/compare.py" --bin "$bin" --client "$client" --server "$server" "$@" &
python=$!
trap 'kill "$python" 2>/dev/null; exit 130' HUP INT TERM
wait "$python"
