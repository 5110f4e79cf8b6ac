/* Rotary position embedding on the first `rotary_dim` channels of each head, pairs (i, i + rotary_dim/2):
 *     out[i]       = x[i] cos(f_i) - x[i+half] sin(f_i)
 *     out[i+half]  = x[i+half] cos(f_i) + x[i] sin(f_i)        f_i = position * theta^(-2i/rotary_dim)
 * Other channels pass through. Source: Su et al., arXiv:2104.09864. */
#ifndef DELTUNE_OP_ROPE_H
#define DELTUNE_OP_ROPE_H
#include <deltune/operators.h>

typedef struct dt_rope_args {
    size_t struct_size;
    dt_tensor x, y;      /* [T_cap,heads,D], outer strides free; y may be x */
    dt_tensor positions; /* [T_cap] I32: restarts at 0 with each sample */
    int64_t T;
    float theta;
    int32_t rotary_dim; /* even, <= D */
    /* backward: the inverse rotation */
    dt_tensor dy, dx; /* dx may be dy */
} dt_rope_args;
#define DT_ROPE_ARGS .struct_size = sizeof(dt_rope_args)
#endif
