#define MIXER_KERNELS dtp_mixer_kernels_avx2
#include "providers/cpu/mixer_kernels.h"
