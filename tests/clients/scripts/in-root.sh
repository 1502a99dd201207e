# Runs a command in another root file system, which has DIR under the same name: in-root.sh ROOT DIR COMMAND...
# Wants a mount namespace.
set -e
root=$1 dir=$2
shift 2
# A mount point, as 'ip netns exec' wants of its root.
mount --bind "$root" "$root"
for tree in /proc /sys /dev; do
    mount --rbind "$tree" "$root$tree"
done
mount -t tmpfs none "$root/run"
mount -t tmpfs -o mode=1777 none "$root/tmp"
mkdir -p "$root/run/netns" "$root$dir"
mount --rbind /run/netns "$root/run/netns"
mount --bind "$dir" "$root$dir"
# Not with chroot: there nobody may make user namespaces.
mkdir "$root/run/old"
pivot_root "$root" "$root/run/old"
umount --lazy /run/old
exec env --chdir="$dir" "$@"
