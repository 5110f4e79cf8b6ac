#!/usr/bin/env bash
# ./dev setup --cuda: what is missing is named, on toolkits made up here.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=/usr/bin:/bin CUDA_PLACE=$work/place
unset CUDA_HOME DELTUNE_CUBLASLT
complain() { echo "FAILED: $1"; cat "$work/out"; exit 1; }
expect() { # EXIT-CODE TEXT...
    local code=0 text
    tools/cuda_setup.sh >"$work/out" 2>&1 || code=$?
    [ $code = "$1" ] || complain "exit code $code, expected $1"
    shift
    for text in "$@"; do grep -q -- "$text" "$work/out" || complain "does not say: $text"; done
}
toolkit() { # VERSION
    mkdir -p "$work/place/bin"
    printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V1"\n' "$1" >"$work/place/bin/nvcc"
    chmod +x "$work/place/bin/nvcc"
}
command -v nvcc >/dev/null && { echo "skipped: nvcc lies in /usr/bin"; exit 77; }
expect 1 'nvcc *MISSING: install the CUDA toolkit 12.3'
toolkit 12.1
expect 1 'is of CUDA 12.1; 12.3 or newer is needed'
toolkit 12.10
expect 1 'CUDA 12.10$' 'cublasLt.h *MISSING' 'cudart *MISSING'
mkdir -p "$work/place/include" "$work/place/targets/x/lib"
touch "$work/place/include/cublasLt.h"
expect 1 "cublasLt.h *$work/place/include" 'cudart *MISSING'
touch "$work/place/targets/x/lib/libcudart_static.a"
expect 0 'cudart *.*/libcudart_static.a'
DELTUNE_CUBLASLT=$work/missing expect 0 'libcublasLt *none here'
touch "$work/lt"
DELTUNE_CUBLASLT=$work/lt expect 0 "libcublasLt *$work/lt"
