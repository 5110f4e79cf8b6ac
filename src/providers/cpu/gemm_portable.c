#define GEMM_KERNELS dtp_gemm_kernels_portable
#include "providers/cpu/gemm_kernels.h"
