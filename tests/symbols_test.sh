#!/usr/bin/env bash
# libdeltune.so exports exactly the functions that the public headers declare with DT_API, all named dt_*.
# Writable data of the library is limited to the names in tests/writable_data.txt, each with its reason.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$build/libdeltune.so" | awk '{print $3}' | grep -vE '^(_init|_fini|__asan_|__ubsan_|__odr_asan)' | sort >"$work/exported"
# A declaration may span lines: join them up to the semicolon, then take the name in front of the parameter list.
cat include/deltune/*.h include/deltune/op/*.h | sed 's@/\*.*\*/@@' | tr '\n' ' ' | tr ';' '\n' |
    sed -nE 's/.*\bDT_API\b[^(]*[ *](dt_[a-z0-9_]+)\(.*/\1/p' | sort -u >"$work/declared"

status=0
extra=$(comm -23 "$work/exported" "$work/declared")
[ -z "$extra" ] || { echo "exported, but in no public header:"; echo "$extra"; status=1; }
lacking=$(comm -13 "$work/exported" "$work/declared")
[ -z "$lacking" ] || { echo "declared in a public header, but not exported:"; echo "$lacking"; status=1; }
[ -s "$work/declared" ] || { echo "no declaration found: this test is broken"; status=1; }

if [ "${DT_SANITIZE:-0}" = 0 ]; then
    # .data.rel.ro holds constants that the loader relocates; it is read-only afterwards.
    objdump -t "$build/libdeltune.a" | awk '/ O \.(data|bss|tdata|tbss)/ && !/\.data\.rel\.ro/ {print $NF}' | sed 's/\.[0-9]*$//' |
        sort -u >"$work/writable"
    sed 's/ *#.*//' tests/writable_data.txt | grep . | sort -u >"$work/allowed"
    hidden=$(comm -23 "$work/writable" "$work/allowed")
    [ -z "$hidden" ] || { echo "hidden global state (writable data that tests/writable_data.txt does not list):"; echo "$hidden"; status=1; }
fi
echo "$(wc -l <"$work/exported") exported symbols"
exit $status
