/* Kernels over one row of fp32 numbers: what the elementwise and normalising operators are made of.
 * One source, rows_kernels.h, compiled per instruction set; `n` is any length >= 0, pointers need no alignment,
 * memory outside [0,n) is neither read nor written. Outputs may be exactly the inputs where a comment says so. */
#ifndef DT_CPU_ROWS_H
#define DT_CPU_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* The scalars of one AdamW update; see op/optimizer.h. */
typedef struct dt_adamw_scalars {
    float decay;                      /* 1 - lr * weight_decay */
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_size;                  /* lr / (1 - beta1^t) */
    float root_scale;                 /* 1 / sqrt(1 - beta2^t) */
    float eps, grad_scale;
} dt_adamw_scalars;

struct dt_dropout;

typedef struct dt_row_kernels {
    void (*from_bf16)(float *out, const uint16_t *in, int64_t n);
    /* out = a + b; out may be a or b. */
    void (*add)(float *out, const float *a, const float *b, int64_t n);
    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, int64_t n);
    /* dx = residual + r (dn - n mean(dn n)), residual may be NULL; dw += dy n, dw may be NULL.
     * dx may be dy or residual. */
    void (*rms_norm_backward)(float *dx, const float *x, const float *dy, const float *w, const float *residual,
                              float *dw, float eps, int64_t n);
    /* y = x sigmoid(g); y may be x or g. Backward outputs may be any of the inputs. */
    void (*sigmoid_gate)(float *y, const float *x, const float *g, int64_t n);
    void (*sigmoid_gate_backward)(float *dx, float *dg, const float *x, const float *g, const float *dy, int64_t n);
    /* y = x silu(g); the same aliasing. */
    void (*swiglu)(float *y, const float *x, const float *g, int64_t n);
    void (*swiglu_backward)(float *dx, float *dg, const float *x, const float *g, const float *dy, int64_t n);
    /* (a, b) rotated by the angles whose cosine and sine are given, `half` pairs; in place or not. */
    void (*rotate)(float *out_a, float *out_b, const float *a, const float *b, const float *cosine, const float *sine,
                   int64_t half);
    float (*maximum)(const float *x, int64_t n); /* -inf for n == 0; ignores NaN */
    /* x = exp(x - shift), in place; returns the sum. */
    float (*exp_shifted)(float *x, float shift, int64_t n);
    /* x = exp(x - shift) * factor, in place. */
    void (*exp_scaled)(float *x, float shift, float factor, int64_t n);
    void (*scale)(float *x, float factor, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);
    /* dp = p (dp - mean) * factor: the gradient of a softmax row. */
    void (*softmax_backward)(float *dp, const float *p, float mean, float factor, int64_t n);
    /* out = base + mask * in; elements of the mask from `element` on; base NULL = 0. `out` may be `base` or `in`. */
    void (*dropout)(float *out, const float *base, const float *in, const struct dt_dropout *d, uint64_t element,
                    int64_t n);
    void (*adamw)(float *param, float *m, float *v, const float *grad, const dt_adamw_scalars *s, int64_t n);
    double (*sum_of_squares)(const float *x, int64_t n); /* in double */
} dt_row_kernels;

/* The kernels of the instruction set in use. */
const dt_row_kernels *dtp_row_kernels(void);

extern const dt_row_kernels dtp_row_kernels_portable, dtp_row_kernels_avx2, dtp_row_kernels_avx512;

#endif
