#!/bin/sh
# Files of a device have its counters and its GID: 'files.sh DEVICE PROGRAM...', of a program that sends.
set -e
port=/sys/class/infiniband/$1/ports/1
shift
sends() { cat $port/hw_counters/send_wrs; }
test "$(sends)" -eq 0
"$@"
echo "$(sends) sends"
test "$(sends)" -gt 0
! grep -q '0000:0000:0000:0000$' $port/gids/0
echo files: ok
