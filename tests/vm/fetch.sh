#!/usr/bin/env bash
# Fetches what a virtual machine is made of, as packages of Debian, into a directory: ./fetch.sh DIRECTORY
#
#   tools/      QEMU with its libraries, and busybox
#   new/, old/  kernels with the modules that a network takes: the newest there is, and one without much of what AF_XDP can do
#
# Nothing is installed, and the sources of this machine's packages are left alone. What is there is not fetched again.
set -euo pipefail
mkdir -p "$1"
cd "$1"
here=$PWD
mirror=${SRD_VM_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg

for tool in apt-get dpkg-deb xz; do
    command -v $tool >/dev/null || { echo "vm: there is no $tool; this needs Debian, or a system with its tools" >&2; exit 1; }
done
[ -e $keys ] || { echo "vm: please install debian-archive-keyring" >&2; exit 1; }

# apt NAME SUITE...: prepares apt for these suites, in a world of its own without any package installed.
apt() {
    local world=$here/apt-$1 suite
    shift
    mkdir -p "$world"/{etc/apt.conf.d,etc/preferences.d,state/lists/partial,cache/archives/partial}
    : >"$world/status"
    for suite in "$@"; do echo "deb [signed-by=$keys] $mirror $suite main"; done >"$world/etc/sources.list"
    cat >"$world/conf" <<CONF
Dir "$world/";
Dir::Etc "etc";
Dir::State "state";
Dir::State::status "$world/status";
Dir::Cache "cache";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
    export APT_CONFIG=$world/conf
    apt-get update -qq
}

# The parts of a kernel, of which only the first depends on the rest of a system.
kernel() {
    local name=$1 package=$2 part release
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$package" |
        grep -E '^linux-(image|binary|modules)-[0-9]' | sort -u >parts
    mkdir -p debs
    (cd debs && xargs apt-get download -qq <../parts)
    for part in debs/*.deb; do
        dpkg-deb --fsys-tarfile "$part" | tar -x -C . --wildcards --no-anchored 'vmlinuz*' 'kernel/net' 'kernel/lib' 'kernel/crypto' \
            'kernel/arch/x86/crypto' 'kernel/fs/9p' 'kernel/fs/netfs' 'kernel/fs/fscache' 'kernel/fs/overlayfs' 'kernel/drivers/virtio' \
            'kernel/drivers/net/veth.ko*' 'kernel/drivers/net/macvlan.ko*' 'kernel/drivers/net/tun.ko*' 'kernel/drivers/net/bonding' \
            'kernel/drivers/net/*virtio_net.ko*' 'kernel/drivers/net/net_failover.ko*' 'kernel/drivers/net/ethernet/intel/igb' \
            'kernel/drivers/dca' 'kernel/drivers/i2c/algos' 2>/dev/null || true
    done
    rm -r debs parts
    [ -d usr/lib/modules ] || { mkdir -p usr && mv lib usr/; }
    release=$(ls usr/lib/modules)
    find . -name 'vmlinuz*' -exec mv {} kernel \;
    [ -s kernel ]
    ../tools/usr/bin/busybox depmod -b "$here/$name.part/usr" "$release"
}

# whole NAME COMMAND...: a directory that is complete, or not there.
whole() {
    local name=$1
    shift
    [ -d "$name" ] && return
    rm -rf "$name.part"
    mkdir "$name.part"
    (cd "$name.part" && "$@")
    mv "$name.part" "$name"
}

tools() {
    apt-get install -qq --yes --download-only qemu-system-x86 busybox-static
    for part in "$(dirname "$APT_CONFIG")"/cache/archives/*.deb; do dpkg-deb -x "$part" .; done
}

if ! [ -d tools ] || ! [ -d new ]; then
    apt new trixie trixie-backports
    whole tools tools
    whole new kernel new "linux-image-amd64/trixie-backports"
fi
if ! [ -d old ]; then
    apt old bookworm
    whole old kernel old linux-image-amd64
fi
rm -rf apt-new apt-old
