# Builds fabtests in a root file system of Debian 13, from Debian's source of its libfabric: build-fabtests.sh ROOT
set -e
root=$1
archive=$root/opt/libfabric.tar.xz
/usr/lib/apt/apt-helper -qq download-file http://deb.debian.org/debian/pool/main/libf/libfabric/libfabric_2.1.0.orig.tar.xz \
    "$archive" SHA256:1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df
tar -C "$root/opt" --strip-components=1 -xf "$archive" libfabric-2.1.0/fabtests
rm "$archive"
chroot "$root" sh -ec 'cd /opt/fabtests; ./autogen.sh; ./configure --quiet; make --silent -j2 install'
rm -r "$root/opt/fabtests"
