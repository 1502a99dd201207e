# Unpacks the tests of rdma-core as shipped, and runs them: pyverbs.sh DEVICE [ARGS]
set -e
device=$1
shift
new=$(mktemp -d)
cp -r /usr/share/doc/rdma-core/tests "$new"
gunzip -f "$new"/tests/*.gz
cd "$new"
exec /usr/bin/python3 tests/run_tests.py --dev "$device" -v "$@"
