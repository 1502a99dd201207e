# Gives a virtual environment the libraries of NVIDIA's driver and runtime, in DIR/cuda: cuda.sh DIR. Without a GPU they say that
# there is none; programs that are linked with them do not start without.
set -e
cd "$1"
mkdir -p apt/lists driver cuda
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm non-free" >apt/sources
apt() {
    apt-get -qq -o Dir::Etc::SourceList="$PWD/apt/sources" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$PWD/apt/lists" \
        -o Dir::Cache="$PWD/apt" -o APT::Sandbox::User=root "$@"
}
apt update
apt download libcuda1
dpkg-deb --extract libcuda1_*.deb driver
rm -r apt libcuda1_*.deb
cd cuda
ln -sf ../driver/usr/lib/*/nvidia/current/libcuda.so.1 ../lib/python3*/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12 .
