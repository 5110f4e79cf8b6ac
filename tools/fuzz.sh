#!/usr/bin/env bash
# Runs every libFuzzer target of tests/fuzz for a number of seconds. Finds are kept in build-fuzz/finds/; a fixed one
# belongs into tests/fuzz/corpus/NAME/, which the ordinary test run replays.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

mkdir -p build-fuzz
CC=clang CXX=clang++ cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" \
    -DDELTUNE_FUZZ=ON -DDELTUNE_SANITIZE=ON >build-fuzz/configure.log 2>&1 || { cat build-fuzz/configure.log; exit 1; }
ninja -C build-fuzz --quiet fuzz-targets

failed=()
for target in build-fuzz/tests/fuzz/fuzz_*; do
    [ -x "$target" ] || continue
    name=${target##*/fuzz_}
    work=build-fuzz/corpus/$name finds=build-fuzz/finds/$name
    mkdir -p "$work" "$finds"
    seeds=()
    [ ! -d "tests/fuzz/corpus/$name" ] || seeds=("tests/fuzz/corpus/$name")
    printf '%-14s ' "$name"
    if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$finds/" "$work" "${seeds[@]}" >"build-fuzz/$name.log" 2>&1; then
        echo "clean, $(sed -n 's/stat::number_of_executed_units: *//p' "build-fuzz/$name.log") inputs in $seconds s"
    else
        echo "FAILED: see build-fuzz/$name.log and $finds/"
        failed+=("$name")
    fi
done
[ ${#failed[@]} = 0 ]
