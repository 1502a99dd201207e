# Sourced by the scripts here: what they need, and two network namespaces that are gone when they end, however they end.

missing=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }

# Ends the script if something is missing.
check() {
    if [ -n "$missing" ]; then
        echo "${0##*/}: missing:$missing (install these packages)" >&2
        exit 2
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "${0##*/}: must be root, to make network namespaces" >&2
        exit 2
    fi
}

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

# Makes the namespaces $client and $server, joined by a veth pair for each MTU: 10.231.0.1 and .2, 10.231.1.1 and .2, ...
make_pair() {
    trap clean_up EXIT
    trap 'exit 130' HUP INT TERM
    ip netns add "$client"
    ip netns add "$server"
    for ns in "$client" "$server"; do ip -n "$ns" link set lo up; done
    i=0
    for mtu in "$@"; do
        ip link add "c$mtu" mtu "$mtu" netns "$client" type veth peer name "s$mtu" mtu "$mtu" netns "$server"
        ip -n "$client" addr add "10.231.$i.1/24" dev "c$mtu"
        ip -n "$server" addr add "10.231.$i.2/24" dev "s$mtu"
        ip -n "$client" link set "c$mtu" up
        ip -n "$server" link set "s$mtu" up
        i=$((i + 1))
    done
}

# Runs a command in the background, because the shell minds signals only while it waits; gives its exit code.
run_and_wait() {
    "$@" &
    child=$!
    trap 'kill "$child" 2>/dev/null; exit 130' HUP INT TERM
    wait "$child"
}
