#!/usr/bin/env bash
# The decode loop under valgrind: no invalid or uninitialised access, no leak. AVX2 code, since valgrind knows no AVX-512.
set -euo pipefail
build=$1
command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 77; }
[ "${DT_SANITIZE:-0}" = 0 ] || { echo "skipped: a sanitizer build does not run under valgrind"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$build/deltune" init --config data/sample/config.json --tokenizer data/sample --output_dir "$work/model" >"$work/log" 2>&1
DT_CPU=avx2 valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect,possible \
    --errors-for-leak-kinds=definite,indirect,possible \
    "$build/deltune" infer --model "$work/model" --prompt "你好" --max_new_tokens 6 --temperature 0.8 --threads 1 >"$work/out" 2>&1 || {
    cat "$work/out"
    exit 1
}
