# Runs fabtests' tests for EFA, without GPUs: 'fabtests.sh short' the ones that it calls so, and unit tests; 'fabtests.sh
# functional' those of what is not about sizes. Two addresses are two hosts for it, though both are this one.
set -e
here=$PWD
case $1 in
short) mark="short or unit" words=test ;;
functional) mark=functional words="av or cq or flood or fork or exit_early or multi or rnr or selection or shm_addr or unexpected" ;;
esac
cd /usr/local/share/fabtests/pytest
PATH=$here:$PATH exec pytest -p no:cacheprovider -q --tb=short -r fE --provider=efa --server-id=127.0.0.1 --client-id=127.0.0.2 \
    --oob-address-exchange --binpath=/usr/local/bin --timeout=120 -m "$mark" -k "($words) and not cuda and not neuron" efa
