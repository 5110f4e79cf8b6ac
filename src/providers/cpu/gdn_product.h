/* Products of small matrices that live in cache: the inner loop of the chunked delta rule. Included once per
 * instruction set; everything is static.
 *
 *     C[i,:] = alpha alpha_row[i] sum_p A(i,p) B[p,:]  +  beta beta_row[i] D[i,:]
 *
 * A is read one scalar at a time, so it may be stored either way round and need not be packed; B, C and D are
 * row-major with whole vectors in a row (leading dimensions multiples of 16). A block of PRODUCT_ROWS x PRODUCT_VECS
 * vectors of C stays in registers over the whole sum; with operands in cache this runs at the speed of the FMA units
 * (docs/performance-notes.md, "CPU delta rule"). C may be D; it must not overlap A or B. */
#ifndef DT_CPU_GDN_PRODUCT_H
#define DT_CPU_GDN_PRODUCT_H

#include "providers/cpu/vec.h"

#include <stddef.h>

/* Of 32 registers 24 accumulate with AVX-512; of 16, 12 otherwise. */
#if defined(__AVX512F__)
enum { PRODUCT_ROWS = 6, PRODUCT_VECS = 4 };
#else
enum { PRODUCT_ROWS = 6, PRODUCT_VECS = 2 };
#endif

/* Which part of a product is there to compute. */
typedef enum {
    PRODUCT_FULL,
    PRODUCT_A_LOWER, /* A(i,p) == 0 for p > i */
    PRODUCT_A_UPPER, /* A(i,p) == 0 for p < i */
    PRODUCT_C_LOWER  /* only C[i,j] with j <= i is wanted; the rest of C is undefined */
} product_shape;

typedef struct {
    product_shape shape;
    int64_t m, n, k; /* n is a multiple of VF */
    const float *a;
    int64_t a_row, a_col; /* A(i,p) = a[i * a_row + p * a_col] */
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    float alpha;
    const float *alpha_row; /* NULL: 1 */
    const float *d;         /* NULL: nothing is added */
    int64_t ldd;
    float beta;
    const float *beta_row; /* NULL: 1 */
} product;

/* Rows i..i+rows-1, `vecs` vectors from column j, summed over p in [from, to). Constants after inlining. */
VEC_INLINE void product_block(const product *g, int rows, int vecs, int64_t i, int64_t j, int64_t from, int64_t to)
{
    vf sum[PRODUCT_ROWS][PRODUCT_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            sum[r][v] = (vf){0};

    const float *a = g->a + i * g->a_row + from * g->a_col, *b = g->b + from * g->ldb + j;
    int64_t a_row = g->a_row, a_col = g->a_col, ldb = g->ldb;
    for (int64_t p = from; p < to; p++, a += a_col, b += ldb) {
        vf bv[PRODUCT_VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            bv[v] = vf_load(b + v * VF);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf x = vf_set(a[r * a_row]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                sum[r][v] = vf_fma(x, bv[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf alpha = vf_set(g->alpha_row ? g->alpha * g->alpha_row[i + r] : g->alpha);
        float *c = g->c + (i + r) * g->ldc + j;
        if (!g->d) {
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                vf_store(c + v * VF, alpha * sum[r][v]);
            continue;
        }
        vf beta = vf_set(g->beta_row ? g->beta * g->beta_row[i + r] : g->beta);
        const float *d = g->d + (i + r) * g->ldd + j;
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            vf_store(c + v * VF, vf_fma(alpha, sum[r][v], beta * vf_load(d + v * VF)));
    }
}

typedef void product_fn(const product *g, int64_t i, int64_t j, int64_t from, int64_t to);

#define PRODUCT_FN(rows, vecs)                                                                                         \
    static void product_##rows##_##vecs(const product *g, int64_t i, int64_t j, int64_t from, int64_t to)              \
    {                                                                                                                  \
        product_block(g, rows, vecs, i, j, from, to);                                                                  \
    }
#define PRODUCT_FNS(vecs)                                                                                              \
    PRODUCT_FN(1, vecs)                                                                                                \
    PRODUCT_FN(2, vecs)                                                                                                \
    PRODUCT_FN(3, vecs)                                                                                                \
    PRODUCT_FN(4, vecs)                                                                                                \
    PRODUCT_FN(5, vecs)                                                                                                \
    PRODUCT_FN(6, vecs)
#define PRODUCT_LIST(vecs)                                                                                             \
    {                                                                                                                  \
        product_1_##vecs, product_2_##vecs, product_3_##vecs, product_4_##vecs, product_5_##vecs, product_6_##vecs     \
    }

PRODUCT_FNS(1)
PRODUCT_FNS(2)
#if defined(__AVX512F__)
PRODUCT_FNS(3)
PRODUCT_FNS(4)
#endif

static product_fn *const product_fns[PRODUCT_VECS][PRODUCT_ROWS] = {
    PRODUCT_LIST(1),
    PRODUCT_LIST(2),
#if defined(__AVX512F__)
    PRODUCT_LIST(3),
    PRODUCT_LIST(4),
#endif
};

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Column panels outside, so that one panel of B stays in the first-level cache while all rows of A pass over it. */
static void product_run(const product *g)
{
    enum { PANEL = PRODUCT_VECS * VF };
    for (int64_t j = 0; j < g->n; j += PANEL)
        for (int64_t i = 0; i < g->m; i += PRODUCT_ROWS) {
            int64_t rows = least(PRODUCT_ROWS, g->m - i), end = g->n, from = 0, to = g->k;
            switch (g->shape) {
            case PRODUCT_FULL: break;
            case PRODUCT_A_LOWER: to = least(to, i + rows); break;
            case PRODUCT_A_UPPER: from = least(i, to); break;
            case PRODUCT_C_LOWER: end = least(end, (i + rows + VF - 1) / VF * VF); break;
            }
            int64_t vecs = least(PANEL, end - j) / VF;
            if (vecs > 0)
                product_fns[vecs - 1][rows - 1](g, i, j, from, to);
        }
}

#endif
