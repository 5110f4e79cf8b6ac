#include "providers/cpu/mixer.h"

#include "providers/cpu/cpu_isa.h"

const dt_mixer_kernels *dtp_mixer_kernels(void)
{
    switch (dtp_cpu_isa()) {
#if defined(__x86_64__)
    case DT_ISA_AVX512: return &dtp_mixer_kernels_avx512;
    case DT_ISA_AVX2: return &dtp_mixer_kernels_avx2;
#endif
    default: return &dtp_mixer_kernels_portable;
    }
}
