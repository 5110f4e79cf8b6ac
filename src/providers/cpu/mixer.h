/* Row kernels of what stands around the delta rule in its layer: causal convolution, gates, gated norm. One source,
 * mixer_kernels.h, compiled per instruction set; n is any length >= 0, pointers need no alignment, memory outside
 * [0,n) is neither read nor written. The counterpart of rows.h for these operators. */
#ifndef DT_CPU_MIXER_H
#define DT_CPU_MIXER_H

#include <stdbool.h>
#include <stdint.h>

enum { CONV_MAX_WIDTH = 8, CONV_MAX_ROWS = 4 };

/* A few neighbouring rows of the convolution, n neighbouring channels of them:
 *     p[r] = bias + sum_j w[j] in[r + j]
 * in[0] being the input width-1 tokens before the first row. Several rows at once load inputs, weights and the sums of
 * the weight gradient once instead of once per row. */
typedef struct dt_conv_rows {
    const float *in[CONV_MAX_ROWS + CONV_MAX_WIDTH - 1];
    const float *weight; /* w[j] at weight + j * ld_weight */
    int64_t ld_weight;
    const float *bias;
    int width, rows;
    bool silu;
    int64_t n;
} dt_conv_rows;

typedef struct dt_mixer_kernels {
    /* y = act(p) */
    void (*conv)(const dt_conv_rows *c, float *y, int64_t ldy);
    /* dp = dy act'(p) */
    void (*conv_gradient)(const dt_conv_rows *c, float *dp, int64_t ld_dp, const float *dy, int64_t ld_dy);
    /* dx[r] = sum_i w[width-1-i] dp[r+i]; the dp of the width-1 rows behind these ones are rows of `later`, which
     * become the first width-1 of dp from these rows on. dweight[j] += dp[r] in[r+j]; dbias += dp[r]. */
    void (*conv_backward)(const dt_conv_rows *c, float *dx, int64_t ld_dx, const float *dy, int64_t ld_dy, float *later,
                          int64_t ld_later, float *dweight, int64_t ld_dweight, float *dbias);

    /* g = -rate softplus(a + bias), beta = sigmoid(b); rate = exp(A_log). */
    void (*gates)(float *g, float *beta, const float *a, const float *b, const float *rate, const float *bias,
                  int64_t n);
    /* da, db; dA_log += dg g, dbias += da. Outputs may be the inputs a, b. */
    void (*gates_backward)(float *da, float *db, const float *a, const float *b, const float *rate, const float *bias,
                           const float *dg, const float *dbeta, float *dA_log, float *dbias, int64_t n);

    /* y = x / sqrt(mean(x^2) + eps) * w * silu(z) */
    void (*gated_norm)(float *y, const float *x, const float *z, const float *w, float eps, int64_t n);
    /* dx may be dy; dw += ..., dw may be NULL. */
    void (*gated_norm_backward)(float *dx, float *dz, const float *x, const float *z, const float *dy, const float *w,
                                float *dw, float eps, int64_t n);
} dt_mixer_kernels;

/* The kernels of the instruction set in use. */
const dt_mixer_kernels *dtp_mixer_kernels(void);

extern const dt_mixer_kernels dtp_mixer_kernels_portable, dtp_mixer_kernels_avx2, dtp_mixer_kernels_avx512;

#endif
