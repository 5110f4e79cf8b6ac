#define GDN_KERNELS dtp_gdn_kernels_avx512
#include "providers/cpu/gdn_kernels.h"
