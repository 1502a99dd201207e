#!/bin/sh
# What mpirun calls in the place of ssh: agent.sh ADDRESS COMMAND...; AGENT_NAMESPACE is the other host.
export SRD_ADDR=$1
shift
exec ip netns exec "$AGENT_NAMESPACE" unshare --uts sh -c "hostname second; $*"
