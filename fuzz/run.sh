#!/bin/sh
# Fuzzes one target with the stable toolchain: ./run.sh TARGET [SECONDS] [more libFuzzer options]
# Targets: decode, endpoint, garbage. New inputs are kept in fuzz/target/corpus, crashes in fuzz/artifacts;
# './run.sh TARGET minimise' rewrites the committed corpus to the smallest set with the same coverage.
set -eu
cd "$(dirname "$0")"
target=${1:?usage: run.sh decode|endpoint|garbage [SECONDS|minimise] [libFuzzer options]}
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
    small=$(mktemp -d)
    "$bin" -merge=1 -rss_limit_mb=1024 "$@" "$small" "corpus/$target" "$found"
    rm -rf "corpus/$target"
    mv "$small" "corpus/$target"
    chmod 755 "corpus/$target"
    du -sh "corpus/$target"
    exit
fi
exec "$bin" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=1024 -max_len=2048 \
    -artifact_prefix="artifacts/$target/" "$@" "$found" "corpus/$target"
