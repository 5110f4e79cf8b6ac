#define MIXER_KERNELS dtp_mixer_kernels_portable
#include "providers/cpu/mixer_kernels.h"
