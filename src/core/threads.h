/* Threads: how many, and the one way to split rows so that results do not depend on the number.
 * Parallel loops are OpenMP over fixed blocks; each block is computed by one thread; reductions over blocks run in
 * block order. BLAS is called inside such loops only, where OpenBLAS's OpenMP flavour stays single-threaded. */
#ifndef DT_CORE_THREADS_H
#define DT_CORE_THREADS_H

/* Processors this process may use: affinity mask, cgroup CPU quota, OMP_NUM_THREADS if set. At least 1. */
int dtp_available_threads(void);

#endif
