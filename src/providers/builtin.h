/* The providers that are part of the library. The dispatcher registers them; nobody else names them. */
#ifndef DT_PROVIDERS_BUILTIN_H
#define DT_PROVIDERS_BUILTIN_H

#include <deltune/provider.h>

/* Every operator in plain C with double accumulation: the oracle of all others. Lowest priority. */
extern const dt_provider dtp_provider_reference;
/* Vector kernels for this processor; also drives the CPU as a device (host memory). */
extern const dt_provider dtp_provider_cpu;

#endif
