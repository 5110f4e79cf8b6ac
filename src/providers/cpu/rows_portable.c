#define ROW_KERNELS dtp_row_kernels_portable
#include "providers/cpu/rows_kernels.h"
