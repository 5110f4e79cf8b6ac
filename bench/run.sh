#!/usr/bin/env bash
# Builds the benchmark programs, then measures. usage: bench/run.sh BUILD [NAME...]; "cuda" needs a card and stands alone.
set -euo pipefail
build=$1
command -v python3 >/dev/null || { echo "the benchmarks need python3 (its standard library alone)" >&2; exit 1; }
if [ "${2:-}" = cuda ]; then
    ninja -C "$build" -t query deltune-cuda >/dev/null 2>&1 ||
        { echo "the CUDA plug-in is not part of this build: ./dev setup --cuda says what is missing" >&2; exit 1; }
    ninja -C "$build" --quiet deltune deltune-cuda cuda_check cuda_gemm_bench
    exec python3 "$(dirname "$0")/cuda/bench.py" "$build" "${@:3}"
fi
ninja -C "$build" --quiet bench-programs
exec python3 "$(dirname "$0")/bench.py" "$@"
