/* The providers linked into the library. */
#include "providers/builtin.h"
#include "operators/registry.h"

const dt_provider *const dtp_builtin_providers[] = {&dtp_provider_cpu, &dtp_provider_reference, NULL};
