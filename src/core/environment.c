#include "core/environment.h"

#include <stdlib.h>

const char *dtp_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}
