/* How much memory this process may still use: the least of what the machine has free, the cgroup's limit, and the
 * process's own limits. */
#ifndef DT_TRAIN_AVAILABLE_MEMORY_H
#define DT_TRAIN_AVAILABLE_MEMORY_H

#include <stdint.h>

/* Bytes; 0 when nothing is known. */
uint64_t dtp_available_memory(void);

#endif
