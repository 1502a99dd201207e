#!/usr/bin/env bash
# Runs tests on AArch64, emulated by qemu-user: the core, the simulator, kernel UDP, cards, the C interface with its C programs,
# the demo, and perftest and libfabric of Debian's arm64. How fast it is says nothing, and the emulator orders memory as this
# machine does. Needs no privilege; the first run fetches about 20 MB. On AArch64 itself './x test' does all of it, and more.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(uname -m)" != aarch64 ] || { echo "arm: this is AArch64: run ./x test" >&2; exit 1; }
arm=aarch64-unknown-linux-gnu
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
root=$target/arm
host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
export "CARGO_TARGET_${host}_LINKER=$(command -v cc)"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root"

# Unpacked, not installed: their scripts are for another processor.
if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    mmdebstrap --quiet --variant=extract --architectures=arm64 --include=perftest,libfabric-bin bookworm "$root"
    touch "$root/complete"
fi

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

# Tests compile C programs: this compiler leaves a script in place of each, which runs it by the emulator.
mkdir "$work/bin"
cat >"$work/bin/cc" <<END
#!/usr/bin/env bash
set -eu
args=("\$@")
for ((k = 0; k < \$#; k++)); do
    if [ "\${args[k]}" = -o ]; then program=\${args[k + 1]} && args[k + 1]=\$program.arm; fi
done
aarch64-linux-gnu-gcc "\${args[@]}" -idirafter /usr/include
printf '#!/bin/sh\nexec qemu-aarch64 -L %q "\$0.arm" "\$@"\n' "$root" >"\$program"
chmod +x "\$program"
END
chmod +x "$work/bin/cc"

skips=()
skip() {
    local test
    for test; do skips+=(--skip "$test"); done
}
# The emulator runs no programs for those that it runs, and does not survive a fork of a process with threads.
skip a_peer_that_starts_again killed_in_the_middle sysfs_is_there_while set_user_id_programs
skip children_leave_the_parents devices_work_where_there_are_no_files
# It has a thread and memory of its own.
skip a_device_whose_descriptors lines_go_to_the_log a_sparse_region devices_come_and_go
# It takes its time, and has no seccomp, no process_vm_readv, and no end of a file within its mapping.
skip what_the_process_lacks much_can_be_forbidden memory_that_is_unmapped objects_are_made several_processing_units_make
# These are about the libraries of this machine.
skip every_symbol_of_debians libraries_of_the_system

# A tenth of the worlds, since it is slow.
export SRD_SIM_SEEDS=${SRD_SIM_SEEDS:-1000}
# It hands on little of what the kernel says of a datagram, so tests of that are not among these.
tests=(--lib)
for test in alloc card_counters card_hostile card_model card_status card_storm edges extremes fuzz_corpus late liar model pair \
    adversarial canary scenarios endpoint life api faults kill nic units layout programs rings symbols; do
    tests+=(--test $test)
done
PATH=$work/bin:$PATH cargo test --locked --target $arm --no-fail-fast \
    -p srd-core -p simnet -p srd-udp -p verbs-shim -p srd-verbs-c "${tests[@]}" -- "${skips[@]}"
cargo run --locked --target $arm -p srd --bin srd -- demo
cargo build --locked --target $arm -p srd-verbs-c

# pair PORT-OF-SERVER PORT-OF-CLIENT PROGRAM ARGS...: one side serves the other one. The first two are the options for it.
pair() {
    local port=$((20000 + RANDOM % 10000)) serves=$1 asks=$2 name=$3 emulated
    shift 3
    emulated=(timeout 300 qemu-aarch64 -L "$root" -E "LD_LIBRARY_PATH=$work/lib" -E SRD_ADDR=127.0.0.1 "$root/usr/bin/$name" "$@")
    echo "arm: $name $*" >&2
    "${emulated[@]}" "$serves" $port >"$work/server" 2>&1 &
    server=$!
    # Nobody tells when it listens, but whoever tries.
    for ((try = 0; ; try++)); do
        "${emulated[@]}" "$asks" $port 127.0.0.1 >"$work/client" 2>&1 && break
        if [ $try = 20 ] || ! kill -0 $server 2>/dev/null; then
            cat "$work/server" "$work/client"
            exit 1
        fi
        sleep 0.5
    done
    wait $server || { cat "$work/server" && exit 1; }
    server=
    cat "$work/client"
}

mkdir "$work/lib"
for name in libibverbs.so.1 libefa.so.1; do ln -s "$target/$arm/debug/libsrd_verbs.so" "$work/lib/$name"; done
pair -p -p ib_send_bw -c SRD -x 0 -a -n 200
pair -p -p ib_read_lat -c SRD -x 0 -s 4096 -n 200
FI_EFA_ENABLE_SHM_TRANSFER=0 pair -B -P fi_pingpong -p efa -e rdm -c -S all -I 5
