#!/usr/bin/env bash
# Pages list arguments exactly as `deltune COMMAND --help-markdown` prints them, between the two marks
# "<!-- arguments: begin -->" and "<!-- arguments: end -->". UPDATE=1 writes them there.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check_page() { # PAGE COMMAND
    local page=$1 command=$2
    {
        sed '/<!-- arguments: begin -->/q' "$page"
        "$build/deltune" "$command" --help-markdown | sed '1,3d'
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
}
check_page docs/training.md sft
check_page docs/inference.md infer

# --help of every command fits 60 columns.
for command in $("$build/deltune" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    wide=$("$build/deltune" "$command" --help | awk 'length > 60')
    [ -z "$wide" ] || { echo "deltune $command --help has lines over 60 columns:"; echo "$wide"; exit 1; }
done
