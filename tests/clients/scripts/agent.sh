#!/bin/sh
# What mpirun calls in the place of ssh: agent.sh ADDRESS COMMAND...; AGENT_NAMESPACE is the other host.
shift
exec ip netns exec "$AGENT_NAMESPACE" unshare --uts sh -c "hostname second; $*"
