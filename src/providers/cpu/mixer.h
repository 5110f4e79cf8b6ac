/* Row kernels of what stands around the delta rule in its layer: causal convolution, gates, gated norm. One source,
 * mixer_kernels.h, compiled per instruction set; n is any length >= 0, pointers need no alignment, memory outside
 * [0,n) is neither read nor written. The counterpart of rows.h for these operators. */
#ifndef DT_CPU_MIXER_H
#define DT_CPU_MIXER_H

#include <stdbool.h>
#include <stdint.h>

enum { CONV_MAX_WIDTH = 8 };

/* One row of the convolution, n neighbouring channels: p = bias + sum_j w[j] tap[j], tap[j] being the row of inputs
 * j - (width-1) tokens away. */
typedef struct dt_conv_row {
    const float *tap[CONV_MAX_WIDTH];
    const float *weight; /* [width,...] row j at weight + j * ld_weight */
    int64_t ld_weight;
    const float *bias;
    int width;
    bool silu;
    int64_t n;
} dt_conv_row;

typedef struct dt_mixer_kernels {
    /* y = act(p) */
    void (*conv)(const dt_conv_row *row, float *y);
    /* dp = dy act'(p) */
    void (*conv_gradient)(const dt_conv_row *row, float *dp, const float *dy);
    /* dp too; dx = sum_i w[width-1-i] later[i], later[0] = dp and later[i] the dp of i tokens later;
     * dweight[j] += dp tap[j] with leading dimension ld_dweight; dbias += dp. */
    void (*conv_backward)(const dt_conv_row *row, float *dx, float *dp, const float *dy, const float *const *later,
                          float *dweight, int64_t ld_dweight, float *dbias);

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
