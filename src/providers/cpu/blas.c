#include "providers/cpu/blas.h"

#include "core/log.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dtp_sgemm(dt_transpose trans_a, dt_transpose trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    if (m == 0 || n == 0)
        return;
    /* OpenBLAS stays on the calling thread inside an active parallel region. A region of one thread is not active,
     * and there it would start threads of its own and split the product differently. */
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (threads > 1)
        omp_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (blasint)m,
                (blasint)n, (blasint)k, alpha, a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
    if (threads > 1)
        omp_set_num_threads(threads);
}

const char *dtp_blas_description(void)
{
    return openblas_get_config();
}

int dtp_blas_start(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return 1;
}
