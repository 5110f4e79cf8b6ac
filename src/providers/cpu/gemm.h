/* fp32 matrix products, with operands stored as F32 or BF16.
 *
 * Every element of the result is one chain of multiply-adds in a fixed order, whatever the shape around it and however
 * the work is split: a row of C depends on the same row of A alone, bit for bit, and the number of threads changes
 * nothing. A bf16 operand becomes fp32 while its panels are packed, so a bf16 weight costs no more than an fp32 one.
 * Measured against OpenBLAS: docs/numerics.md, "Matrix products". */
#ifndef DT_CPU_GEMM_H
#define DT_CPU_GEMM_H

#include "providers/cpu/dropout.h"
#include <stddef.h>

typedef enum dt_transpose { DTP_N = 0, DTP_T = 1 } dt_transpose;

/* A stored row-major matrix: row r starts at element r * ld. `trans` = use it transposed. */
typedef struct dt_operand {
    const void *data;
    dt_dtype dtype; /* F32 or BF16 */
    int64_t ld;
    dt_transpose trans;
    const dt_dropout *mask; /* optional, F32 only: the stored matrix is multiplied by this mask first */
} dt_operand;

/* alpha * op(A)[m,k] op(B)[k,n] */
typedef struct dt_product {
    int64_t k;
    float alpha;
    dt_operand a, b; /* A is F32 */
} dt_product;

enum { DT_GEMM_PRODUCTS = DT_LINEAR_MAX_PARTS + 1 };

/* C[m,n] = add + product[0] + product[1] + ...
 * `add` NULL = nothing is added and C is not read; it may be c itself (accumulate), or a matrix that does not overlap
 * it. With `mask_first` product[0] is multiplied by that mask (of C's rows and columns) before the sum. */
typedef struct dt_gemm {
    int64_t m, n;
    int32_t n_products;
    dt_product product[DT_GEMM_PRODUCTS];
    const dt_dropout *mask_first;
    const float *add;
    int64_t ld_add;
    float *c;
    int64_t ldc;
} dt_gemm;

/* `scratch`: dtp_gemm_scratch_bytes() for each thread, 64-byte aligned. */
void dtp_gemm(int threads, const dt_gemm *g, void *scratch);
/* The same on the calling thread alone. */
void dtp_gemm_serial(const dt_gemm *g, void *scratch);
size_t dtp_gemm_scratch_bytes(void);

static inline dt_operand dtp_operand(const dt_tensor *t, dt_transpose trans)
{
    return (dt_operand){t->data, t->dtype, t->stride[0], trans, NULL};
}
static inline dt_operand dtp_operand_f32(const float *data, int64_t ld, dt_transpose trans)
{
    return (dt_operand){data, DT_F32, ld, trans, NULL};
}

/* ---- the kernels underneath, for operators that pack once and multiply often ---- */

/* C[m,n] = alpha A[m,depth] B[depth,n] + add, with A(i,p) = a[i * a_row + p * a_column] and B in panels. */
typedef struct dt_block {
    int64_t m, n, depth;
    float alpha;
    const float *a;
    int64_t a_row, a_column;
    const float *panels;
    const float *add; /* NULL, c, or a matrix that does not overlap c */
    int64_t ld_add;
    float *c;
    int64_t ldc;
} dt_block;

typedef struct dt_gemm_kernels {
    /* op(B)[depth,n], unmasked, into panels: dtp_panel_floats(depth, n) floats, 64-byte aligned. */
    void (*pack)(float *panels, const dt_operand *b, int64_t depth, int64_t n);
    void (*multiply)(const dt_block *g);
    /* to[j * ld_to + i] = from[i * ld + j] for rows x columns of `from`. */
    void (*transpose)(float *to, int64_t ld_to, const float *from, int64_t ld, int64_t rows, int64_t columns);
} dt_gemm_kernels;

enum { DT_PANEL_MULTIPLE = 48 }; /* a multiple of every kernel's panel width */

static inline int64_t dtp_panel_floats(int64_t depth, int64_t n)
{
    return (n + DT_PANEL_MULTIPLE - 1) / DT_PANEL_MULTIPLE * DT_PANEL_MULTIPLE * depth;
}

/* Those of the instruction set in use. */
const dt_gemm_kernels *dtp_gemm_kernels(void);

extern const dt_gemm_kernels dtp_gemm_kernels_portable, dtp_gemm_kernels_avx2, dtp_gemm_kernels_avx512;

#endif
