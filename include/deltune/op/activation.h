/* Elementwise gates of the two blocks.
 *     sigmoid_gate: y = x * sigmoid(gate)          (output gate of full attention)
 *     swiglu:       y = silu(gate) * x             (MLP; x is the "up" projection) */
#ifndef DELTUNE_OP_ACTIVATION_H
#define DELTUNE_OP_ACTIVATION_H
#include <deltune/operators.h>

typedef struct dt_gate_args { /* DT_OP_SIGMOID_GATE and DT_OP_SWIGLU */
    size_t struct_size;
    dt_tensor x, gate; /* [T_cap,C] or [T_cap,heads,D], same shape, outer strides free */
    dt_tensor y;       /* same shape; may be x when nothing needs x again */
    int64_t T;
    /* backward; reads x and gate again */
    dt_tensor dy;
    dt_tensor dx, dgate; /* may be x / gate themselves (overwritten in place) or dy */
} dt_gate_args;
#define DT_GATE_ARGS .struct_size = sizeof(dt_gate_args)
#endif
