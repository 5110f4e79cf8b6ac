#!/usr/bin/env bash
# Says what is missing for the CUDA plug-in: to build it, and to run it here. Exit status 1 when it cannot be built.
# A toolkit that is not in PATH is looked for in CUDA_HOME, then in /usr/local/cuda.
set -uo pipefail
least=12.3 # src/providers/cuda: wgmma and bulk copies of sm_90a
lacking=0
found() { printf '  %-12s %s\n' "$1" "$2"; }
missing() { printf '  %-12s MISSING: %s\n' "$1" "$2"; lacking=1; }

nvcc=$(command -v nvcc || true)
for home in "${CUDA_HOME:-}" "${CUDA_PLACE-/usr/local/cuda}"; do
    [ -n "$nvcc" ] || [ -z "$home" ] || [ ! -x "$home/bin/nvcc" ] || nvcc=$home/bin/nvcc
done
echo "to build the CUDA plug-in:"
if [ -z "$nvcc" ]; then
    missing nvcc "install the CUDA toolkit $least or newer, and put nvcc in PATH or its folder in CUDA_HOME
               (NVIDIA's packages for Debian and Ubuntu: cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0)"
else
    version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    if [ -z "$version" ]; then missing nvcc "$nvcc does not print a version"
    elif [ "$(printf '%s\n' "$least" "$version" | sort -V | head -1)" != "$least" ]; then missing nvcc "$nvcc is of CUDA $version; $least or newer is needed"
    else found nvcc "$nvcc, CUDA $version"; fi
    root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    first_of() { compgen -G "$1" || compgen -G "$2" || true; }
    header=$(first_of "$root/include/cublasLt.h" "$root/targets/*/include/cublasLt.h" | head -1)
    if [ -n "$header" ]; then found cublasLt.h "$header"; else missing cublasLt.h "install the development files of cuBLAS (libcublas-dev-13-0)"; fi
    runtime=$(first_of "$root/lib*/libcudart_static.a" "$root/targets/*/lib/libcudart_static.a" | head -1)
    if [ -n "$runtime" ]; then found cudart "$runtime"; else missing cudart "install libcudart_static.a (cuda-cudart-dev-13-0)"; fi
fi

echo "to run it:"
unavailable() { printf '  %-12s %s\n' "$1" "none here: $2"; }
library=${DELTUNE_CUBLASLT:-}
[ -n "$library" ] || library=$( { ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libcublasLt\.so\.1[23]\)$/\1/p'
    compgen -G "${CUDA_PLACE-/usr/local/cuda}/lib*/libcublasLt.so.1[23]"; } | sort -V | tail -1)
if [ -n "$library" ] && [ -e "$library" ]; then found libcublasLt "$library"
else unavailable libcublasLt "libcublasLt.so.13 or .12 in the loader's path, in /usr/local/cuda, or named in DELTUNE_CUBLASLT"; fi
if card=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null) && [ -n "$card" ]; then
    found driver "$(printf '%s' "$card" | head -1) (compute capability 8.0 or newer)"
else unavailable driver "no card, or no driver; the plug-in can be built and tested without (its kernels run emulated)"; fi
exit $lacking
