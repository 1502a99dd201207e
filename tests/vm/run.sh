#!/usr/bin/env bash
# Runs tests of AF_XDP in virtual machines: ./run.sh [MACHINE...], of
#
#   old      Linux 6.1, virtual cables: no TX metadata, no packets of several frames
#   new      the newest kernel, virtual cables, bonds and VLAN devices
#   virtio   the newest kernel, two NICs with zero copy, joined by a cable
#   igb      the same with NICs of several queues
#
# All by default. Needs neither root nor /dev/kvm: the machine is emulated, so how fast it is says nothing. It sees this machine's
# files, and cannot change them. The first run fetches about 220 MB (see fetch.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(uname -m)" = x86_64 ] || { echo "vm: this needs x86_64" >&2; exit 1; }
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
vm=$target/vm
tests/vm/fetch.sh "$vm"

# The test programs, as lines 'PACKAGE/TEST PROGRAM'.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=(--lib)
for test in xdp transfer network hostile life pages zero_copy; do tests+=(--test $test); done
cargo test --locked --no-run --message-format json -p srd -p srd-xdp -p verbs-shim "${tests[@]}" |
    sed -nE "s#.*\"manifest_path\":\"$PWD/(.*)Cargo.toml\".*\"name\":\"([a-z_]+)\".*\"executable\":\"([^\"]+)\".*#\1\2 \3#p" >"$work/tests"

# initramfs KERNEL: the init program, and the modules by which it reaches this machine's files.
initramfs() {
    local root=$work/initramfs modules module
    modules=$(basename "$vm/$1"/usr/lib/modules/*)
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,host,memory,root,"lib/modules/$modules"}
    cp tests/vm/init "$root/init"
    cp "$vm/tools/usr/bin/busybox" "$root/bin/"
    (
        cd "$vm/$1/usr/lib/modules/$modules"
        cp modules.* "$root/lib/modules/$modules/"
        for module in virtio_pci 9pnet_virtio 9p overlay; do
            # A module's line names what it needs; none if the kernel has it built in.
            sed -nE "\\#/$module\.ko[^:]*:# s/://p" modules.dep | xargs -r cp --parents -t "$root/lib/modules/$modules"
        done
    )
    (cd "$root" && find . | "$vm/tools/usr/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"
}

# boot KERNEL NICS DEVICE-OPTIONS...
boot() {
    local kernel=$1 nics=$2 lib=$vm/tools/usr/lib/x86_64-linux-gnu share=$vm/tools/usr/share
    shift 2
    initramfs "$kernel"
    : >"$work/status"
    echo "vm: Linux $(basename "$vm/$kernel"/usr/lib/modules/*), NICs: $nics" >&2
    timeout --kill-after=5 900 "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$vm/tools/usr/bin/qemu-system-x86_64" \
        -L "$share/qemu" -L "$share/seabios" -accel tcg -cpu max -machine q35 -smp 2 -m 2048 \
        -nodefaults -display none -no-reboot -serial stdio -serial "file:$work/status" \
        -kernel "$vm/$kernel/kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 SRD_VM=$vm SRD_KERNEL=$kernel SRD_NICS=$nics SRD_TESTS=$work/tests SRD_GUEST=$PWD/tests/vm/guest.sh" \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
        "$@" </dev/null
    [ "$(tr -d '\r' <"$work/status")" = 0 ] || failed+=" $nics on $kernel"
}

failed=
cable=(-netdev hubport,id=a,hubid=0 -netdev hubport,id=b,hubid=0)
[ $# -gt 0 ] || set -- old new virtio igb
for machine; do
    case $machine in
    old | new) boot "$machine" none ;;
    # The kernel has zero copy only where devices use addresses as it tells them.
    virtio)
        boot new virtio "${cable[@]}" -device virtio-net-pci,netdev=a,disable-legacy=on,iommu_platform=on \
            -device virtio-net-pci,netdev=b,disable-legacy=on,iommu_platform=on
        ;;
    igb)
        boot new igb "${cable[@]}" -device pcie-root-port,id=port-a,chassis=1 -device igb,netdev=a,bus=port-a \
            -device pcie-root-port,id=port-b,chassis=2 -device igb,netdev=b,bus=port-b
        ;;
    *) echo "vm: there is no machine $machine" >&2; exit 2 ;;
    esac
done
[ -z "$failed" ] || { echo "vm: failed:$failed" >&2; exit 1; }
