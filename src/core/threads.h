/* Threads: how many, and the one way to split rows so that results do not depend on the number.
 * Parallel loops are OpenMP over blocks that one thread computes each; whatever is summed over blocks is summed over
 * fixed blocks in block order. */
#ifndef DT_CORE_THREADS_H
#define DT_CORE_THREADS_H

/* Processors this process may use: affinity mask, cgroup CPU quota, OMP_NUM_THREADS if set. At least 1. */
int dtp_available_threads(void);

#endif
