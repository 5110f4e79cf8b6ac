#!/usr/bin/env bash
# Prints every #include that points from a room to one above it. Silent when the arrows are right.
cd "$(dirname "$0")/.." || exit 1
declare -A below=(
    [core]=""
    [operators]="core providers"
    [providers]="core operators"
    [text]="core"
    [data]="text core"
    [model]="operators core"
    [parallel]="core"
    [conformance]="model operators core"
    [train]="parallel model data text operators core"
    [cli]="train parallel conformance model data text operators core"
)
for room in "${!below[@]}"; do
    allowed="${below[$room]} $room"
    while IFS=: read -r file line include; do
        used=${include#*\"}
        used=${used%%/*}
        [[ -n "${below[$used]+known}" && " $allowed " != *" $used "* ]] && echo "$file:$line:$include"
    done < <(git ls-files "src/$room/*.c" "src/$room/*.h" | grep -vE '_test\.c$|_testing\.h$' | xargs -r grep -nE '^#include "[a-z_]+/' /dev/null)
done
exit 0
