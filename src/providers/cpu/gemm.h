/* Matrix products over all threads of a call, with the same bits for any number of them: fixed blocks of the output,
 * each computed by one thread, always in the same order. Operands may be bf16: panels of them become fp32 in a
 * scratch of the size of a cache, never as a whole. */
#ifndef DT_CPU_GEMM_H
#define DT_CPU_GEMM_H

#include "providers/cpu/blas.h"
#include <deltune/exec.h>

/* A stored row-major matrix: row r starts at element r * ld. `trans` = use it transposed. */
typedef struct dt_operand {
    const void *data;
    dt_dtype dtype; /* F32 or BF16 */
    int64_t ld;
    dt_transpose trans;
} dt_operand;

/* C[m,n] = alpha * A[m,k] B[k,n] + add, row-major; A and B after their transposition.
 * `add` NULL = nothing is added and C is not read; it may be c itself (accumulate), or another matrix that does not
 * overlap it. At most one of A and B may be BF16. */
typedef struct dt_gemm {
    int64_t m, n, k;
    float alpha;
    dt_operand a, b;
    const float *add;
    int64_t ld_add;
    float *c;
    int64_t ldc;
} dt_gemm;

/* The same on the calling thread alone; `scratch` of one thread. */
void dtp_gemm_serial(const dt_gemm *g, void *scratch);
/* `scratch`: dtp_gemm_scratch_bytes(threads) bytes, 64-byte aligned. */
void dtp_gemm(int threads, const dt_gemm *g, void *scratch);
size_t dtp_gemm_scratch_bytes(int threads);

static inline dt_operand dtp_operand(const dt_tensor *t, dt_transpose trans)
{
    return (dt_operand){t->data, t->dtype, t->stride[0], trans};
}
static inline dt_operand dtp_operand_f32(const float *data, int64_t ld, dt_transpose trans)
{
    return (dt_operand){data, DT_F32, ld, trans};
}

#endif
