/* RMS normalisation over the last dimension: y = x * rsqrt(mean(x^2) + eps) * w, with w = weight (plain) or
 * 1 + weight (zero-centred: layer norms and q/k norms of Qwen3.5). Arithmetic in fp32, one rounding.
 * Source: Zhang & Sennrich, arXiv:1910.07467; backward in plain code: rms_norm_ref.c. */
#ifndef DELTUNE_OP_RMS_NORM_H
#define DELTUNE_OP_RMS_NORM_H
#include <deltune/operators.h>

typedef struct dt_rms_norm_args {
    size_t struct_size;
    dt_tensor x;      /* [T_cap,D] or [T_cap,heads,D], outer strides free */
    dt_tensor weight; /* [D] F32 or BF16 */
    dt_tensor y;      /* shape of x; may be x itself only when nothing is saved */
    float eps;
    bool zero_centered;
    int64_t T; /* rows used; rows after it are written 0 */
    /* backward */
    dt_tensor dy;            /* shape of x */
    dt_tensor dx;            /* shape of x; may be dy or residual_grad itself */
    dt_tensor residual_grad; /* optional, shape of x: dx = residual_grad + (gradient through the norm) */
    dt_tensor dweight;       /* [D] f32, optional, added to */
} dt_rms_norm_args;
#define DT_RMS_NORM_ARGS .struct_size = sizeof(dt_rms_norm_args)
#endif
