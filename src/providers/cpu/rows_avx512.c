#define ROW_KERNELS dtp_row_kernels_avx512
#include "providers/cpu/rows_kernels.h"
