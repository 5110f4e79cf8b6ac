/* Gated RMS normalisation of the linear-attention output, per head: norm first, then the gate.
 *     y = (x * rsqrt(mean(x^2) + eps) * weight) * silu(z)
 * The weight is plain (not an offset from one) and shared by all heads. Backward in plain code: rms_norm_gated_ref.c.
 */
#ifndef DELTUNE_OP_RMS_NORM_GATED_H
#define DELTUNE_OP_RMS_NORM_GATED_H
#include <deltune/operators.h>

typedef struct dt_rms_norm_gated_args {
    size_t struct_size;
    dt_tensor x;      /* [T_cap,D] or [T_cap,heads,D] */
    dt_tensor z;      /* shape of x, outer strides free */
    dt_tensor weight; /* [D] F32 or BF16 */
    dt_tensor y;      /* shape of x */
    float eps;
    int64_t T;
    /* backward */
    dt_tensor dy, dx, dz; /* shape of x; dx may be dy itself */
    dt_tensor dweight;    /* [D] f32, optional, added to */
} dt_rms_norm_gated_args;
#define DT_RMS_NORM_GATED_ARGS .struct_size = sizeof(dt_rms_norm_gated_args)
#endif
