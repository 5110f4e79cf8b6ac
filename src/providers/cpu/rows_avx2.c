#define ROW_KERNELS dtp_row_kernels_avx2
#include "providers/cpu/rows_kernels.h"
