#define GDN_KERNELS dtp_gdn_kernels_avx2
#include "providers/cpu/gdn_kernels.h"
