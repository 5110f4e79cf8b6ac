#!/usr/bin/env bash
# The one binary: depends on glibc alone (2.36 or older symbols), cannot reach a network, loads no accelerator library.
set -euo pipefail
build=$1
program=$build/deltune
[ -x "$program" ] || { echo "no program at $program"; exit 1; }
[ "${DT_SANITIZE:-0}" = 0 ] || { echo "skipped: a sanitizer build links more"; exit 77; }
status=0
complain() { echo "$1"; echo "$2"; status=1; }

if grep -q 'DELTUNE_STATIC_DEPS:BOOL=ON' "$build/CMakeCache.txt"; then
    needed=$(readelf -d "$program" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|ld-linux-aarch64)\.so' || true)
    [ -z "$needed" ] || complain "needs libraries besides glibc:" "$needed"
    # A newer glibc gives some functions newer symbols: there the program is for that system, not for older ones.
    here=$(getconf GNU_LIBC_VERSION | sed 's/glibc /GLIBC_/')
    newest=$(readelf -V "$program" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)
    if [ "$(printf '%s\nGLIBC_2.36\n' "$here" | sort -V | tail -1)" = GLIBC_2.36 ]; then
        [ "$(printf '%s\nGLIBC_2.36\n' "$newest" | sort -V | tail -1)" = GLIBC_2.36 ] || complain "needs a newer glibc than 2.36:" "$newest"
    fi
fi

network=$(nm -D --undefined-only "$program" | awk '{print $2}' | sed 's/@.*//' |
    grep -xE 'socket|connect|bind|listen|accept4?|getaddrinfo|gethostbyname(_r)?|send(to|msg)?|recv(from|msg)?' || true)
[ -z "$network" ] || complain "imports network functions:" "$network"

# The program alone: a plug-in that lies beside it would be opened, as `ops` should.
alone=$(mktemp -d)
trap 'rm -rf "$alone"' EXIT
cp "$program" "$alone"
loaded=$(LD_DEBUG=files "$alone/deltune" ops 2>&1 >/dev/null | grep -oE 'calling init: [^ ]+' | sort -u)
[ -n "$loaded" ] || complain "the loader printed nothing" "this test is broken"
accelerator=$(echo "$loaded" | grep -E 'cuda|cublas|nvidia|nccl|ascend|libmpi' || true)
[ -z "$accelerator" ] || complain "loads accelerator libraries without being asked:" "$accelerator"

# Without a plug-in `ops` says so; one beside the program, or in the installation's folder, is found and named.
"$alone/deltune" ops | grep -q '^device cuda is not available: .*no plug-in' || complain "ops does not say why there is no CUDA" ""
if [ -e "$build/libdeltune-cuda-emulated.so" ]; then
    for place in bin lib/deltune; do
        mkdir -p "$alone/$place/bin" "$alone/$place/lib/deltune"
        cp "$program" "$alone/$place/bin"
        cp "$build/libdeltune-cuda-emulated.so" "$alone/$place/$place/libdeltune-cuda.so"
        "$alone/$place/bin/deltune" ops --device cuda >"$alone/out" 2>&1 || complain "the plug-in in $place is not found" "$(cat "$alone/out")"
        grep -q "device cuda by .*$place/libdeltune-cuda.so" "$alone/out" || complain "the plug-in in $place is not named" "$(cat "$alone/out")"
    done
    echo >"$alone/bin/bin/libdeltune-cuda.so"
    "$alone/bin/bin/deltune" ops 2>&1 >/dev/null | grep -q 'plug-in not loaded: .*libdeltune-cuda.so' || complain "a broken plug-in is not named" ""
fi
exit $status
