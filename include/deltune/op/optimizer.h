/* AdamW and the gradient norm over one flat buffer of trainable parameters. */
#ifndef DELTUNE_OP_OPTIMIZER_H
#define DELTUNE_OP_OPTIMIZER_H
#include <deltune/operators.h>

/* One tensor inside the flat buffer. */
typedef struct dt_param_segment {
    int64_t offset, count; /* elements */
    float weight_decay;
} dt_param_segment;

/* DT_OP_GRAD_NORM: sum of squares in f64, fixed order; names the first segment that holds a NaN or infinity. */
typedef struct dt_grad_norm_result {
    double sum_of_squares;
    int64_t first_nonfinite; /* segment index, or -1 */
} dt_grad_norm_result;
typedef struct dt_grad_norm_args {
    size_t struct_size;
    dt_tensor grad; /* [n] f32 */
    const dt_param_segment *segments;
    int64_t n_segments;
    dt_grad_norm_result *result; /* host memory, valid after dt_exec_synchronize */
    /* recorded steps, both in device memory and optional */
    dt_grad_norm_result *result_device;      /* written instead of `result`, which may then be NULL */
    const dt_param_segment *segments_device; /* a copy of `segments` */
} dt_grad_norm_args;
#define DT_GRAD_NORM_ARGS .struct_size = sizeof(dt_grad_norm_args)

/* DT_OP_ADAMW, Loshchilov & Hutter arXiv:1711.05101, eps after the bias-corrected root as in PyTorch:
 *     p <- p (1 - lr wd);  m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2
 *     p <- p - lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)          g is grad * grad_scale (clipping) */
typedef struct dt_adamw_args {
    size_t struct_size;
    dt_tensor param, grad, m, v;      /* [n] f32 */
    const dt_param_segment *segments; /* host memory; cover [0,n) in order */
    int64_t n_segments;
    float lr, beta1, beta2, eps, grad_scale;
    int64_t step; /* t, from 1 */
    /* recorded steps, all in device memory and optional */
    const dt_step_values *values; /* lr and step (as `update`) are read there */
    /* What DT_OP_GRAD_NORM found for `grad`; needs `values`. grad_scale is then
     * min(1, values.max_grad_norm / (sqrt(sum_of_squares) + 1e-6)), or 1 when values.max_grad_norm is 0; and when a
     * gradient is not finite (first_nonfinite >= 0) nothing at all is changed. */
    const dt_grad_norm_result *norm;
    const dt_param_segment *segments_device; /* a copy of `segments` */
} dt_adamw_args;
#define DT_ADAMW_ARGS .struct_size = sizeof(dt_adamw_args)
#endif
