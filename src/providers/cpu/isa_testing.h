/* Runs a test on every instruction set of this machine. For tests only. */
#ifndef DT_CPU_ISA_TESTING_H
#define DT_CPU_ISA_TESTING_H

#include "core/test.h"

#include "providers/cpu/cpu_isa.h"

static void for_each_isa(void (*test)(void))
{
    for (int isa = DT_ISA_PORTABLE; isa <= (int)dtp_cpu_isa_best(); isa++) {
        dtp_cpu_isa_cap((dt_cpu_isa)isa);
        print_message("[ %s ]\n", dtp_cpu_isa_name(dtp_cpu_isa()));
        test();
    }
    dtp_cpu_isa_cap(dtp_cpu_isa_best());
}

/* A cmocka test `name` that runs `all_NAME` on each instruction set. */
#define ISA_TEST(name)                                                                                                 \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for_each_isa(all_##name);                                                                                      \
    }

#endif
