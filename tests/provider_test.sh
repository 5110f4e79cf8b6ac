#!/usr/bin/env bash
# A third-party provider, as docs/providers.md tells: built out of tree against the installed package, named by ops, used by
# sft, passed by check - and five broken variants, each caught by name.
set -euo pipefail
build=$1
[ "${DT_SANITIZE:-0}" = 0 ] || { echo "skipped: the package is tested without sanitizers"; exit 77; }
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() { echo "FAILED: $1"; cat "$work/out" 2>/dev/null || true; exit 1; }

cmake --install "$build" --prefix "$work/prefix" >"$work/out" || complain "install"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name deltune.pc)")
export PKG_CONFIG_PATH
deltune=$work/prefix/bin/deltune

mkdir "$work/empty"
cp "$source/examples/provider-minimal/provider.c" "$work/empty"
cd "$work/empty"
# shellcheck disable=SC2046  # pkg-config prints words
$CC -std=c11 -O2 -fPIC -shared $(pkg-config --cflags deltune) provider.c -o libdeltune-minimal.so -lm || complain "build"

"$deltune" ops --plugin ./libdeltune-minimal.so --provider gdn=minimal >"$work/out"
grep -Eq '^gdn +minimal +1\.0 +chosen .*/libdeltune-minimal\.so' "$work/out" || complain "ops does not name the provider"
DELTUNE_PLUGIN_PATH=. "$deltune" ops >"$work/out"
grep -q minimal "$work/out" || complain "DELTUNE_PLUGIN_PATH does not find it"
"$deltune" check "$source"/tests/data/ops/gdn_*.safetensors --plugin ./libdeltune-minimal.so --provider minimal >"$work/out" ||
    complain "reference cases"
"$deltune" check --plugin ./libdeltune-minimal.so --provider minimal --operators gdn --generated --cases 4 >"$work/out" ||
    complain "generated calls"

"$deltune" sft --model "$source/tests/data/tiny_dense/model" --dataset "$source/tests/data/tiny_dense/tokens.jsonl" \
    --plugin ./libdeltune-minimal.so --provider gdn=minimal --packing true --max_length 96 --max_steps 2 \
    --gradient_accumulation_steps 1 --output_dir out >"$work/out" 2>&1 || complain "sft"
grep -Eq 'gdn +minimal' "$work/out" || complain "sft does not name the provider"
grep -q 'libdeltune-minimal.so' out/*/args.json || complain "args.json does not record what ran"

catch() { # NUMBER 'TEXT THAT NAMES THE FAULT' [EXTRA FLAG]
    # shellcheck disable=SC2046,SC2086
    $CC -std=c11 -O2 -fPIC -shared $(pkg-config --cflags deltune) -DDT_BROKEN="$1" ${3:-} "$source/tests/dispatch/broken.c" -o broken.so -lm
    if "$deltune" check --plugin ./broken.so --provider broken --operators gdn --generated --cases 4 --output_dir found >"$work/out"; then
        complain "broken variant $1 passed"
    fi
    grep -q "$2" "$work/out" || complain "broken variant $1 is not named: $2"
    echo "caught: $2"
}
catch 1 'leaks across samples'
ls found/*.safetensors >/dev/null || complain "no minimal reproduction was written"
"$deltune" check found/*.safetensors --plugin ./broken.so --provider broken >/dev/null && complain "the reproduction does not reproduce"
catch 2 'dg is wrong'
catch 3 'uses stale boundaries'
catch 4 'bytes behind o were written'
catch 5 'lacks backward' -DDT_BROKEN_NO_BACKWARD
