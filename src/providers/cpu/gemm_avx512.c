#define GEMM_KERNELS dtp_gemm_kernels_avx512
#include "providers/cpu/gemm_kernels.h"
