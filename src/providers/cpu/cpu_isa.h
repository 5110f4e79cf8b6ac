/* Which instruction set the cpu kernels use: the best one of this processor, capped by DT_CPU=ref|avx2|avx512.
 * "ref" means the portable kernels. Not for: choosing providers (that is the dispatcher's work). */
#ifndef DT_PROVIDERS_CPU_CPU_ISA_H
#define DT_PROVIDERS_CPU_CPU_ISA_H

typedef enum dt_cpu_isa { DT_ISA_PORTABLE = 0, DT_ISA_AVX2, DT_ISA_AVX512, DT_ISA_COUNT } dt_cpu_isa;

/* Read once per process. A DT_CPU value that is not known is warned about once and ignored. */
dt_cpu_isa dtp_cpu_isa(void);
/* The best the processor and the operating system offer, without the cap. */
dt_cpu_isa dtp_cpu_isa_best(void);
/* "ref", "avx2", "avx512". */
const char *dtp_cpu_isa_name(dt_cpu_isa isa);
/* For tests, which run every level: replaces the cap from now on. Not while operators run. */
void dtp_cpu_isa_cap(dt_cpu_isa highest);

#endif
