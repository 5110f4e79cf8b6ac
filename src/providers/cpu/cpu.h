/* The operator sets of the cpu provider. Each picks the kernels of the best instruction set when called. */
#ifndef DT_PROVIDERS_CPU_CPU_H
#define DT_PROVIDERS_CPU_CPU_H

#include <deltune/provider.h>

/* Host memory as a device. */
extern const dt_device_ops dtp_cpu_device_ops;

#endif
