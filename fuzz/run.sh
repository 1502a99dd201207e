#!/bin/sh
# Fuzzes one target with the stable toolchain: ./run.sh TARGET [SECONDS] [more libFuzzer options]
# Targets: card, decode, endpoint, garbage. New inputs are kept in fuzz/target/corpus, crashes in fuzz/artifacts;
# './run.sh TARGET fixed' does the same runs each time it is called, for tests; it keeps nothing.
# './run.sh TARGET minimise' adds what was found to the committed corpus, as few and as short inputs as possible.
set -eu
cd "$(dirname "$0")"
target=${1:?usage: run.sh card|decode|endpoint|garbage [SECONDS|fixed|minimise] [libFuzzer options]}
seconds=${2:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] && shift

# What cargo-fuzz asks of a nightly compiler (-Zsanitizer) is more than coverage needs: the pass itself is in every
# compiler. '--target' keeps these flags away from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-Cpasses=sancov-module \
 -Cllvm-args=-sanitizer-coverage-level=4 \
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
 -Cllvm-args=-sanitizer-coverage-pc-table \
 -Cllvm-args=-sanitizer-coverage-trace-compares \
 --cfg fuzzing"
export RUSTFLAGS
cargo build --quiet --release --locked --target "$host" --bin "$target"
bin=${CARGO_TARGET_DIR:-target}/$host/release/$target

found=${CARGO_TARGET_DIR:-target}/corpus/$target
mkdir -p "$found" "artifacts/$target"
if [ "$seconds" = minimise ]; then
    # Inputs with names are written by hand and stay; those named by their hash are chosen anew.
    old=$(mktemp -d)
    find "corpus/$target" -regextype posix-egrep -regex '.*/[0-9a-f]{40}' -exec mv -t "$old" {} +
    "$bin" -set_cover_merge=1 -use_counters=0 -rss_limit_mb=1024 -max_len=512 "$@" "corpus/$target" "$old" "$found"
    rm -rf "$old"
    du -sb "corpus/$target"
    exit
fi
budget=-max_total_time=$seconds
if [ "$seconds" = fixed ]; then
    found=$(mktemp -d)
    trap 'rm -rf "$found"' EXIT
    case $target in card) runs=8000 ;; endpoint) runs=16000 ;; *) runs=200000 ;; esac
    budget="-runs=$runs -seed=1 -reload=0"
    # The fuzzer looks at addresses, too.
    if setarch -R true 2>/dev/null; then same="setarch -R"; fi
fi
# shellcheck disable=SC2086 # These are words.
${same:-} "$bin" $budget -timeout=20 -rss_limit_mb=1024 -max_len=2048 \
    -artifact_prefix="artifacts/$target/" "$@" "$found" "corpus/$target"
