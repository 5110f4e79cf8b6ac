/* The one place that calls OpenBLAS. Row-major fp32 matrix products on the calling thread.
 *
 * Every call runs on the thread that makes it, inside or outside a parallel loop, so that the result depends on the
 * shapes only and never on how many threads there are. Parallelism is the caller's: OpenMP loops over fixed blocks.
 * Not for: bf16 weights (cpu/gemm.h converts panels of them). */
#ifndef DT_CPU_BLAS_H
#define DT_CPU_BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dt_transpose { DTP_N = 0, DTP_T = 1 } dt_transpose;

/* C[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C, all row-major, leading dimensions in elements of the stored
 * matrices. beta == 0 never reads C. Any of m, n, k may be 0. */
void dtp_sgemm(dt_transpose trans_a, dt_transpose trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* Makes the library usable: warns about a flavour that oversubscribes, picks a core type the CPU can run when the
 * library does not know the CPU, and compares small products with plain loops. Runs once; later calls return the
 * first answer. Returns 1, or 0 with what is wrong and what to do in `why`. */
int dtp_blas_start(char *why, size_t why_size);

/* "OpenBLAS 0.3.21 ... Haswell": what is linked and which kernels it runs. Static memory. */
const char *dtp_blas_description(void);

#endif
