/* Depthwise causal convolution over time inside each sample, optional silu.
 *     p[t] = bias + sum_j weight[j] * x[t-(W-1)+j]      terms before the sample come from initial_state, else 0
 *     y[t] = act(p[t])
 * States hold the last W inputs per channel, oldest first; final[s] = x[L-W+s]. Forward and exact adjoint
 * in plain code: src/providers/reference/causal_conv1d_ref.c. */
#ifndef DELTUNE_OP_CAUSAL_CONV1D_H
#define DELTUNE_OP_CAUSAL_CONV1D_H
#include <deltune/operators.h>

typedef struct dt_causal_conv1d_args {
    size_t struct_size;
    dt_tensor x;             /* [T_cap,C], row stride free */
    dt_tensor weight;        /* [C,W] F32 or BF16, 1 <= W <= 8 */
    dt_tensor bias;          /* [C] optional */
    dt_tensor y;             /* [T_cap,C], row stride free */
    dt_tensor initial_state; /* [n_seq,C,W] optional */
    dt_tensor final_state;   /* [n_seq,C,W] optional output */
    dt_seqs seqs;
    bool silu;
    /* backward */
    dt_tensor dy;             /* [T_cap,C] */
    dt_tensor dfinal_state;   /* [n_seq,C,W] optional */
    dt_tensor dx;             /* [T_cap,C] */
    dt_tensor dweight;        /* [C,W] f32, optional, added to */
    dt_tensor dbias;          /* [C] f32, optional, added to */
    dt_tensor dinitial_state; /* [n_seq,C,W] optional, written */
} dt_causal_conv1d_args;
#define DT_CAUSAL_CONV1D_ARGS .struct_size = sizeof(dt_causal_conv1d_args)

/* DT_OP_CAUSAL_CONV1D_STEP: one token of each of n streams (decode). Shifts x into state, then convolves. */
typedef struct dt_causal_conv1d_step_args {
    size_t struct_size;
    dt_tensor x;      /* [n,C] */
    dt_tensor weight; /* [C,W] */
    dt_tensor bias;   /* [C] optional */
    dt_tensor state;  /* [n,C,W] updated in place */
    dt_tensor y;      /* [n,C] */
    bool silu;
} dt_causal_conv1d_step_args;
#define DT_CAUSAL_CONV1D_STEP_ARGS .struct_size = sizeof(dt_causal_conv1d_step_args)
#endif
