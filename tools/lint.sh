#!/usr/bin/env bash
# Formatting, clang-tidy and the naming rules that a compiler does not check. Prints what is wrong; silent when all is well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
bad=0
complain() { printf '%s\n' "$1:" "$2" >&2; bad=1; }

mapfile -t sources < <(git ls-files '*.c' '*.h')

out=$(clang-format --dry-run -Werror "${sources[@]}" 2>&1 | grep -E 'error:' | head -40)
[ -z "$out" ] || complain "not formatted (./dev format)" "$out"

# Names: no POSIX-reserved _t, no leading underscore, headers guarded by their path's name.
out=$(grep -nE '^(typedef .*|\} *)\b[a-z0-9_]+_t;' "${sources[@]}")
[ -z "$out" ] || complain "type names must not end in _t" "$out"
out=$(grep -nE '^(static |extern )?[a-z].*\b_[a-zA-Z][a-zA-Z0-9_]*\(' "${sources[@]}" | grep -vE '__attribute__|_mm|_Static_assert|_Generic')
[ -z "$out" ] || complain "names must not start with an underscore" "$out"
# Environment variables are read by the command line and core only.
out=$(grep -nE '\b(secure_)?getenv\(' "${sources[@]}" | grep -vE '^(src/core/|src/cli/|tests/|bench/|[^:]*_test\.c:)')
[ -z "$out" ] || complain "environment variables are read in src/core and src/cli only" "$out"
# A library never ends the process.
out=$(git ls-files -z 'src/*.c' ':!src/cli/*' ':!*_test.c' | xargs -0 grep -nE '(^|[^_a-z])(exit|abort)\(')
[ -z "$out" ] || complain "the library must not end the process" "$out"
# Rooms are used downwards only (docs/architecture.md).
out=$(tools/check_rooms.sh)
[ -z "$out" ] || complain "includes that point upwards" "$out"

mapfile -t scripts < <(git ls-files dev .ci/run '*.sh')
for script in "${scripts[@]}"; do
    out=$(bash -n "$script" 2>&1) || complain "$script" "$out"
done
if command -v shellcheck >/dev/null; then
    out=$(shellcheck -S warning "${scripts[@]}") || complain "shellcheck" "$out"
fi

# Only files the build compiles for this machine have an entry in compile_commands.json.
mapfile -t units < <(for file in "${sources[@]}"; do
    case $file in *.c) grep -q "/$file\"" "$build/compile_commands.json" && echo "$file" ;; esac
done)
out=$(printf '%s\0' "${units[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet 2>/dev/null | grep -E '(warning|error):' | sort -u)
[ -z "$out" ] || complain "clang-tidy" "$out"

[ $bad = 0 ] && echo "lint: clean (${#sources[@]} files, ${#units[@]} through clang-tidy)"
exit $bad
