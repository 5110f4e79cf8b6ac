#!/usr/bin/env bash
# docs/training.md lists the arguments exactly as `deltune sft --help-markdown` prints them. UPDATE=1 writes them there.
set -euo pipefail
build=$1
page=docs/training.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
    sed '/<!-- arguments: begin -->/q' "$page"
    "$build/deltune" sft --help-markdown | sed '1,3d'
    echo
    sed -n '/<!-- arguments: end -->/,$p' "$page"
} >"$work/page"
if [ "${UPDATE:-0}" = 1 ]; then
    cp "$work/page" "$page"
fi
diff -u "$page" "$work/page" || {
    echo "$page and the argument table differ; run: UPDATE=1 tests/docs_test.sh build"
    exit 1
}

# --help of every command fits 60 columns.
for command in $("$build/deltune" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    wide=$("$build/deltune" "$command" --help | awk 'length > 60')
    [ -z "$wide" ] || { echo "deltune $command --help has lines over 60 columns:"; echo "$wide"; exit 1; }
done
