#!/usr/bin/env bash
# Installs into an empty prefix and builds examples/ against the package: C and C++, shared and static.
set -euo pipefail
build=$1
[ "${DT_SANITIZE:-0}" = 0 ] || { echo "skipped: the package is tested without sanitizers"; exit 77; }
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --prefix "$prefix" >"$prefix/log" || { cat "$prefix/log"; exit 1; }
for file in bin/deltune include/deltune/operators.h; do
    [ -e "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
"$prefix/bin/deltune" --version

pc=$(dirname "$(find "$prefix" -name deltune.pc)")
export PKG_CONFIG_PATH=$pc
libdir=$(pkg-config --variable=libdir deltune)
cd "$prefix"
# shellcheck disable=SC2046  # pkg-config prints words
{
    $CC -std=c11 -Wall -Werror "$OLDPWD/examples/packed_samples.c" $(pkg-config --cflags --libs deltune) -o shared_c
    $CC -std=c11 -Wall -Werror "$OLDPWD/examples/packed_samples.c" $(pkg-config --cflags deltune) \
        "$libdir/libdeltune.a" $(pkg-config --static --libs deltune | sed 's/-ldeltune//') -o static_c
}
cat >user.cpp <<'CPP'
#include <deltune/operators.h>
#include <cstdio>
int main()
{
    dt_err err{};
    dt_ctx *ctx = nullptr;
    if (dt_ctx_create(&ctx, &err) != DT_OK) {
        std::puts(err.text);
        return 1;
    }
    dt_ctx_free(ctx);
    return dt_op_by_name("gdn") == DT_OP_GDN ? 0 : 1;
}
CPP
# shellcheck disable=SC2046
$CXX -std=c++17 -Wall -Werror user.cpp $(pkg-config --cflags --libs deltune) -o shared_cpp
for program in shared_c static_c shared_cpp; do
    LD_LIBRARY_PATH=$libdir "./$program" || { echo "$program failed"; exit 1; }
done
