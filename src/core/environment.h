/* Environment variables for the library. The command line reads its own; nothing else does. */
#ifndef DT_CORE_ENVIRONMENT_H
#define DT_CORE_ENVIRONMENT_H

/* The value, borrowed until the environment changes; NULL when it is not set or empty. */
const char *dtp_environment(const char *name);

#endif
