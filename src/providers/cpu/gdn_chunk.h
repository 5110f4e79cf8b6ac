/* What forward and backward of a chunk share: loading tiles, decays, the triangular system. Included once per
 * instruction set. Formulas: chunk form of Yang et al., arXiv:2412.06464, in the form that only solves with I + L:
 *     V' = (I + L)^-1 diag(beta) (V - diag(gamma) K S0),   L = slow(diag(beta) K K^T o E). */
#ifndef DT_CPU_GDN_CHUNK_H
#define DT_CPU_GDN_CHUNK_H

#include "providers/cpu/gdn_cpu.h"
#include "providers/cpu/gdn_product.h"

#include <math.h>
#include <string.h>

static const float norm_eps = 1e-6f;
/* exp of this is 0 long before; keeps sums of decays exact behind a token that forgets everything (also g = -inf). */
static const float lowest_log_decay = -1e5f;

/* ---- tiles ---- */

/* Rows t.. of one head of a tensor [T_cap,heads,D]; the next row is stride[0] further. */
static float *rows_of(const dt_tensor *x, int64_t t, int64_t head)
{
    return (float *)x->data + t * x->stride[0] + head * x->stride[1];
}

/* n rows of `width` floats; the padding is zeroed. */
static void load_tile(float *tile, int64_t padded, const float *rows, int64_t stride, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++, tile += padded, rows += stride) {
        int64_t j = 0;
        for (; j + VF <= width; j += VF)
            vf_store(tile + j, vf_load(rows + j));
        if (j < width) {
            vf_store(tile + j, vf_load_n(rows + j, width - j));
            j += VF;
        }
        for (; j < padded; j += VF)
            vf_store(tile + j, (vf){0});
    }
}

/* The same, the other way; row i is multiplied by factor[i] (NULL: 1). */
static void store_tile(float *rows, int64_t stride, const float *tile, int64_t padded, int64_t n, int64_t width,
                       const float *factor)
{
    for (int64_t i = 0; i < n; i++, tile += padded, rows += stride) {
        vf f = vf_set(factor ? factor[i] : 1.0f);
        int64_t j = 0;
        for (; j + VF <= width; j += VF)
            vf_store(rows + j, f * vf_load(tile + j));
        if (j < width)
            vf_store_n(rows + j, f * vf_load(tile + j), width - j);
    }
}

/* out[i,:] = factor[i] * in[i,:] for whole padded rows. */
static void scale_rows(float *out, const float *in, const float *factor, int64_t n, int64_t padded)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < padded; j += VF)
            vf_store(out + i * padded + j, vf_set(factor[i]) * vf_load(in + i * padded + j));
}

static float row_dot(const float *a, const float *b, int64_t padded)
{
    vf even = {0}, odd = {0};
    int64_t j = 0;
    for (; j + 2 * VF <= padded; j += 2 * VF) {
        even = vf_fma(vf_load(a + j), vf_load(b + j), even);
        odd = vf_fma(vf_load(a + j + VF), vf_load(b + j + VF), odd);
    }
    if (j < padded)
        even = vf_fma(vf_load(a + j), vf_load(b + j), even);
    return vf_sum(even + odd);
}

/* 4 floats from row r, 4 from row r + 4, ... : the quarters of one vector. Rows that do not exist are 0. */
VEC_INLINE vf load_quarters(const float *in, int64_t ldi, int r, int64_t rows)
{
    static const float zeros[4];
#define QUARTER(i) _mm_loadu_ps(r + 4 * (i) < rows ? in + (r + 4 * (i)) * ldi : zeros)
#if defined(__AVX512F__)
    __m512 v = _mm512_castps128_ps512(QUARTER(0));
    v = _mm512_insertf32x4(v, QUARTER(1), 1);
    v = _mm512_insertf32x4(v, QUARTER(2), 2);
    return (vf)_mm512_insertf32x4(v, QUARTER(3), 3);
#elif defined(__AVX2__)
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(QUARTER(0)), QUARTER(1), 1);
#else
    return vf_load(r < rows ? in + r * ldi : zeros);
#endif
#undef QUARTER
}

#if defined(__AVX512F__)
#define LOW(x, y)       ((vf)_mm512_unpacklo_ps((__m512)(x), (__m512)(y)))
#define HIGH(x, y)      ((vf)_mm512_unpackhi_ps((__m512)(x), (__m512)(y)))
#define LOW_HALF(x, y)  ((vf)_mm512_unpacklo_pd((__m512d)(x), (__m512d)(y)))
#define HIGH_HALF(x, y) ((vf)_mm512_unpackhi_pd((__m512d)(x), (__m512d)(y)))
#elif defined(__AVX2__)
#define LOW(x, y)       ((vf)_mm256_unpacklo_ps((__m256)(x), (__m256)(y)))
#define HIGH(x, y)      ((vf)_mm256_unpackhi_ps((__m256)(x), (__m256)(y)))
#define LOW_HALF(x, y)  ((vf)_mm256_unpacklo_pd((__m256d)(x), (__m256d)(y)))
#define HIGH_HALF(x, y) ((vf)_mm256_unpackhi_pd((__m256d)(x), (__m256d)(y)))
#else
#define LOW(x, y)       __builtin_shufflevector(x, y, 0, 4, 1, 5)
#define HIGH(x, y)      __builtin_shufflevector(x, y, 2, 6, 3, 7)
#define LOW_HALF(x, y)  __builtin_shufflevector(x, y, 0, 1, 4, 5)
#define HIGH_HALF(x, y) __builtin_shufflevector(x, y, 2, 3, 6, 7)
#endif

/* 4 columns of VF rows become 4 rows: every quarter of the four vectors is a 4 x 4 square, all transposed at once. */
VEC_INLINE void transpose_four(float *out, int64_t ldo, const float *in, int64_t ldi, int64_t rows)
{
    vf a = load_quarters(in, ldi, 0, rows), b = load_quarters(in, ldi, 1, rows);
    vf c = load_quarters(in, ldi, 2, rows), d = load_quarters(in, ldi, 3, rows);
    vf ab_low = LOW(a, b), cd_low = LOW(c, d), ab_high = HIGH(a, b), cd_high = HIGH(c, d);
    vf_store(out, LOW_HALF(ab_low, cd_low));
    vf_store(out + ldo, HIGH_HALF(ab_low, cd_low));
    vf_store(out + 2 * ldo, LOW_HALF(ab_high, cd_high));
    vf_store(out + 3 * ldo, HIGH_HALF(ab_high, cd_high));
}

/* out[j,i] = in[i,j] for i < rows, j < cols (a multiple of 16); columns of out up to the next multiple of 16 are 0. */
static void transpose(float *out, int64_t ldo, const float *in, int64_t ldi, int64_t rows, int64_t cols)
{
    int64_t padded = (rows + 15) / 16 * 16;
    for (int64_t i = 0; i < padded; i += VF) {
        const float *from = in + i * ldi;
        if (i + VF <= rows)
            for (int64_t j = 0; j < cols; j += 4)
                transpose_four(out + j * ldo + i, ldo, from + j, ldi, VF);
        else
            for (int64_t j = 0; j < cols; j += 4)
                transpose_four(out + j * ldo + i, ldo, from + j, ldi, rows - i);
    }
}

/* ---- one chunk of one key head ---- */

/* Loads n rows of q or k and normalises them; factor[i] is what row i was multiplied by. */
static void load_normalised(const dt_gdn_plan *plan, const dt_tensor *x, int64_t head, int64_t t, int64_t n,
                            float *tile, float *factor)
{
    load_tile(tile, plan->Kp, rows_of(x, t, head), x->stride[0], n, plan->K);
    for (int64_t i = 0; i < n; i++) {
        float *row = tile + i * plan->Kp;
        factor[i] = plan->args->qk_l2norm ? 1.0f / sqrtf(row_dot(row, row, plan->Kp) + norm_eps) : 1.0f;
    }
    if (plan->args->qk_l2norm)
        scale_rows(tile, tile, factor, n, plan->Kp);
}

/* q, k, k^T and the lower triangles of k k^T and q k^T. */
static void load_keys(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t key_head, int64_t t, int64_t n)
{
    s->k = s->q + n * plan->Kp;
    load_normalised(plan, &plan->args->q, key_head, t, n, s->q, s->q_factor);
    load_normalised(plan, &plan->args->k, key_head, t, n, s->k, s->k_factor);
    transpose(s->kt, GDN_CHUNK, s->k, plan->Kp, n, plan->Kp);
    product g = {.shape = PRODUCT_C_LOWER,
                 .m = n,
                 .n = (n + 15) / 16 * 16,
                 .k = plan->K,
                 .a = s->k,
                 .a_row = plan->Kp,
                 .a_col = 1,
                 .b = s->kt,
                 .ldb = GDN_CHUNK,
                 .c = s->kk,
                 .ldc = GDN_CHUNK,
                 .alpha = 1.0f};
    product_run(&g);
    g.a = s->q;
    g.c = s->qk;
    product_run(&g);
}

/* ---- one chunk of one value head ---- */

static void load_gates(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t head, int64_t t, int64_t n)
{
    const dt_gdn_args *a = plan->args;
    const float *g = (const float *)a->g.data + t * a->g.stride[0] + head;
    const float *beta = (const float *)a->beta.data + t * a->beta.stride[0] + head;
    double sum = 0.0; /* within the chunk only, and exact enough that differences of large sums stay exact */
    for (int64_t i = 0; i < n; i++) {
        float step = g[i * a->g.stride[0]];
        sum += (double)(step < lowest_log_decay ? lowest_log_decay : step);
        s->g_high[i] = (float)sum;
        s->g_low[i] = (float)(sum - (double)s->g_high[i]);
        s->beta[i] = beta[i * a->beta.stride[0]];
    }
    for (int64_t i = n; i < GDN_CHUNK; i++)
        s->g_high[i] = s->g_low[i] = s->beta[i] = 0.0f;
    vf last_high = vf_set(s->g_high[n - 1]), last_low = vf_set(s->g_low[n - 1]);
    for (int64_t i = 0; i < n; i += VF) {
        vf high = vf_load(s->g_high + i), low = vf_load(s->g_low + i), e = vf_exp(high);
        vf gamma = vf_fma(e, low, e);
        vf_store(s->gamma + i, gamma);
        vf_store(s->scaled_gamma + i, vf_set(a->scale) * gamma);
        vf_store(s->eta + i, vf_exp((last_high - high) + (last_low - low)));
    }
}

/* P and L from the products of the key head; E itself when `keep` (backward). Entries right of the diagonal that the
 * products of lower triangles read are zeros. exp sees the difference, and the mask comes last: an exponent above the
 * diagonal may overflow. */
static void apply_decay(dt_gdn_scratch *s, int64_t n, bool keep)
{
    vi lane;
    for (int i = 0; i < VF; i++)
        lane[i] = i;
    for (int64_t i = 0; i < n; i++) {
        vf high = vf_set(s->g_high[i]), low = vf_set(s->g_low[i]), beta = vf_set(s->beta[i]);
        vi row = (vi){0} + (int32_t)i;
        int64_t at = i * GDN_CHUNK, end = least(GDN_CHUNK, i + PRODUCT_ROWS);
        for (int64_t j = 0; j < end; j += VF) {
            vf zero = {0}, e = zero, p = zero, l = zero;
            if (j <= i) {
                vi column = lane + (int32_t)j, below = column < row, kept = column <= row;
                e = vf_exp((high - vf_load(s->g_high + j)) + (low - vf_load(s->g_low + j)));
                p = vf_select(kept, vf_load(s->qk + at + j) * e, zero);
                l = vf_select(below, beta * vf_load(s->kk + at + j) * e, zero);
                e = vf_select(kept, e, zero);
            }
            vf_store(s->p + at + j, p);
            vf_store(s->l + at + j, l);
            if (keep)
                vf_store(s->decay + at + j, e);
        }
    }
}

/* The diagonal blocks of (I + L)^-1, by forward substitution row by row; the blocks advance together because each
 * row waits for the one above it. */
static void invert_blocks(dt_gdn_scratch *s, int64_t n)
{
    enum { VECS = GDN_BLOCK / VF };
    for (int64_t i = 0; i < GDN_BLOCK; i++)
        for (int64_t b = 0; b * GDN_BLOCK + i < n; b++) {
            const float *l = s->l + (b * GDN_BLOCK + i) * GDN_CHUNK + b * GDN_BLOCK;
            float *inverse = s->inverse + b * GDN_BLOCK * GDN_BLOCK;
            vf row[VECS];
            for (int v = 0; v < VECS; v++)
                row[v] = (vf){0};
            for (int64_t j = 0; j < i; j++)
                for (int v = 0; v < VECS; v++)
                    row[v] -= vf_set(l[j]) * vf_load(inverse + j * GDN_BLOCK + v * VF);
            for (int v = 0; v < VECS; v++)
                vf_store(inverse + i * GDN_BLOCK + v * VF, row[v]);
            inverse[i * GDN_BLOCK + i] = 1.0f;
        }
}

/* out = (I + L)^-1 diag(factor) in, block by block from the top. */
static void solve(const dt_gdn_plan *plan, dt_gdn_scratch *s, float *out, const float *in, const float *factor,
                  int64_t n)
{
    int64_t width = plan->Vp;
    for (int64_t begin = 0; begin < n; begin += GDN_BLOCK) {
        int64_t rows = least(GDN_BLOCK, n - begin);
        product rest = {.shape = PRODUCT_FULL,
                        .m = rows,
                        .n = width,
                        .k = begin,
                        .a = s->l + begin * GDN_CHUNK,
                        .a_row = GDN_CHUNK,
                        .a_col = 1,
                        .b = out,
                        .ldb = width,
                        .c = s->work,
                        .ldc = width,
                        .alpha = -1.0f,
                        .d = in + begin * width,
                        .ldd = width,
                        .beta = 1.0f,
                        .beta_row = factor + begin};
        product_run(&rest);
        product block = {.shape = PRODUCT_A_LOWER,
                         .m = rows,
                         .n = width,
                         .k = rows,
                         .a = s->inverse + begin * GDN_BLOCK,
                         .a_row = GDN_BLOCK,
                         .a_col = 1,
                         .b = s->work,
                         .ldb = width,
                         .c = out + begin * width,
                         .ldc = width,
                         .alpha = 1.0f};
        product_run(&block);
    }
}

/* z = (I + L)^-T z, block by block from the bottom. */
static void solve_transposed(const dt_gdn_plan *plan, dt_gdn_scratch *s, float *z, int64_t n)
{
    int64_t width = plan->Vp;
    for (int64_t begin = (n - 1) / GDN_BLOCK * GDN_BLOCK; begin >= 0; begin -= GDN_BLOCK) {
        int64_t end = least(begin + GDN_BLOCK, n), rows = end - begin;
        product rest = {.shape = PRODUCT_FULL,
                        .m = rows,
                        .n = width,
                        .k = n - end,
                        .a = s->l + end * GDN_CHUNK + begin,
                        .a_row = 1,
                        .a_col = GDN_CHUNK,
                        .b = z + end * width,
                        .ldb = width,
                        .c = s->work,
                        .ldc = width,
                        .alpha = -1.0f,
                        .d = z + begin * width,
                        .ldd = width,
                        .beta = 1.0f};
        product_run(&rest);
        product block = {.shape = PRODUCT_A_UPPER,
                         .m = rows,
                         .n = width,
                         .k = rows,
                         .a = s->inverse + begin * GDN_BLOCK,
                         .a_row = 1,
                         .a_col = GDN_BLOCK,
                         .b = s->work,
                         .ldb = width,
                         .c = z + begin * width,
                         .ldc = width,
                         .alpha = 1.0f};
        product_run(&block);
    }
}

#endif
