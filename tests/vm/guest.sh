#!/usr/bin/env bash
# What is tested in the virtual machine. Its status goes to the second serial port.
#
# SRD_TESTS names a file with lines 'PACKAGE/TEST PROGRAM'; SRD_NICS says which NICs there are.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=0
set -u
echo 1 >/proc/sys/kernel/printk
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
failed=0

# check NAME [ARGUMENTS]: runs a test program, one test after the other. A test that skips itself counts as failed, as here is all
# that it could want; and so do words that select none.
check() {
    local name=$1 program said=/run/said
    shift
    program=$(sed -n "s#^$name ##p" "$SRD_TESTS")
    echo "== $name $*"
    timeout --kill-after=5 240 "$program" --test-threads 1 --nocapture "$@" >$said 2>&1
    local status=$?
    # What passed in one line each, and all of what did not.
    if [ $status = 0 ]; then grep -E '^test result|skipped:|^AF_XDP' $said; else tail -c 20000 $said; fi
    if [ $status != 0 ] || grep -qE 'skipped:|ok\. 0 passed' $said; then
        failed=$((failed + 1))
        echo "== FAILED: $name $* (status $status)"
    fi
}

case $SRD_NICS in
none)
    # Virtual cables, bonds, VLAN and tap devices.
    modprobe tun
    for name in srd_xdp transfer network hostile life pages; do check srd-xdp/$name; done
    ;;
virtio)
    modprobe virtio_net
    # Both ends are in this machine, each on a host of its own.
    SRD_TESTBED_NICS=$(basename -a $(readlink -f /sys/class/net/eth*/device) | xargs)
    export SRD_TESTBED_NICS
    check srd-xdp/zero_copy
    # These NICs have one queue.
    check srd-xdp/srd_xdp tags
    # That one is about how soon things happen, and a device that is emulated takes its time.
    check srd-xdp/transfer --skip spinning
    check srd-xdp/hostile
    check srd-xdp/network vlans links neighbour
    check srd-xdp/life --skip share --skip killed --skip run_out --skip all_queues
    check srd-xdp/pages
    check verbs-shim/xdp cards
    check xdp killed_at auto verbose doctor
    ;;
igb)
    modprobe igb
    SRD_TESTBED_NICS=$(basename -a $(readlink -f /sys/class/net/eth*/device) | xargs)
    export SRD_TESTBED_NICS
    check srd-xdp/zero_copy
    check srd-xdp/life share killed run_out all_queues
    check verbs-shim/xdp unit_has
    check xdp processes_share
    ;;
esac
[ $failed = 0 ] && echo "vm: all passed after $(cut -d' ' -f1 /proc/uptime) s" || echo "vm: $failed failed"
echo $failed >/dev/ttyS1
"$SRD_VM/tools/usr/bin/busybox" poweroff -f
