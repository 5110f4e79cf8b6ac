#define GDN_KERNELS dtp_gdn_kernels_portable
#include "providers/cpu/gdn_kernels.h"
