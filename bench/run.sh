#!/usr/bin/env bash
# Builds the benchmark programs, then measures. usage: bench/run.sh BUILD [NAME...]
set -euo pipefail
build=$1
ninja -C "$build" --quiet bench-programs
command -v python3 >/dev/null || { echo "the benchmarks need python3 (its standard library alone)" >&2; exit 1; }
exec python3 "$(dirname "$0")/bench.py" "$@"
