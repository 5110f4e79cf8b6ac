/* The built-in table of the ThreadSanitizer build: host memory alone. OpenMP, which the real providers use, is not
 * instrumented and would drown the report in false alarms. */
#include "operators/registry.h"
#include "providers/cpu/cpu.h"

static const dt_provider host = {.abi = DT_PROVIDER_ABI,
                                 .struct_size = sizeof(dt_provider),
                                 .name = "host",
                                 .version = "1",
                                 .device = DT_DEVICE_CPU,
                                 .device_ops = &dtp_cpu_device_ops};

const dt_provider *const dtp_builtin_providers[] = {&host, NULL};
