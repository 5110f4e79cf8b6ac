#include "providers/cpu/cpu_isa.h"

#include "core/environment.h"
#include "core/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static const char *const isa_names[DT_ISA_COUNT] = {"ref", "avx2", "avx512"};

/* The level in use plus one; 0 = not read yet. Racing first calls store the same value. */
static atomic_int level_in_use;

const char *dtp_cpu_isa_name(dt_cpu_isa isa)
{
    return (unsigned)isa < DT_ISA_COUNT ? isa_names[isa] : "?";
}

dt_cpu_isa dtp_cpu_isa_best(void)
{
#if defined(__x86_64__)
    /* These also check that the operating system saves the wide registers. */
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return DT_ISA_AVX512;
    if (avx2)
        return DT_ISA_AVX2;
#endif
    return DT_ISA_PORTABLE;
}

void dtp_cpu_isa_cap(dt_cpu_isa highest)
{
    dt_cpu_isa best = dtp_cpu_isa_best();
    atomic_store_explicit(&level_in_use, 1 + (int)(best < highest ? best : highest), memory_order_relaxed);
}

static dt_cpu_isa cap_from_environment(void)
{
    const char *text = dtp_environment("DT_CPU");
    if (!text)
        return DT_ISA_AVX512;
    for (int i = 0; i < DT_ISA_COUNT; i++)
        if (strcmp(text, isa_names[i]) == 0)
            return (dt_cpu_isa)i;
    dt_warning("DT_CPU=%s is not known (ref, avx2, avx512); using the best of this processor", text);
    return DT_ISA_AVX512;
}

dt_cpu_isa dtp_cpu_isa(void)
{
    int level = atomic_load_explicit(&level_in_use, memory_order_relaxed);
    if (level == 0) {
        dtp_cpu_isa_cap(cap_from_environment());
        level = atomic_load_explicit(&level_in_use, memory_order_relaxed);
    }
    return (dt_cpu_isa)(level - 1);
}
