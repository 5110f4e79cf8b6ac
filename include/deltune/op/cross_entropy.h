/* Language-model head fused with cross-entropy, over blocks of target rows: tokens x vocabulary never exists.
 *     loss = sum over rows t with target[t] >= 0 of weight[t] * (logsumexp(h_t W^T) - h_t W^T[target[t]])
 * The loss is the raw sum; gradients are those of loss * grad_scale (grad_scale = 1/N, N = targets of the whole
 * accumulation window). Forward computes loss and, when asked (dh present), gradients in the same pass;
 * there is no separate backward. Rows without target cost nothing. */
#ifndef DELTUNE_OP_CROSS_ENTROPY_H
#define DELTUNE_OP_CROSS_ENTROPY_H
#include <deltune/operators.h>

typedef struct dt_cross_entropy_result {
    double loss;     /* sum of weight * cross-entropy, f64 accumulation in row order */
    int64_t targets; /* rows with a target */
    int64_t correct; /* of these, argmax (lowest index on ties) == target */
} dt_cross_entropy_result;

typedef struct dt_cross_entropy_args {
    size_t struct_size;
    dt_tensor h;          /* [T_cap,H] final hidden states (after the last norm) */
    dt_tensor weight;     /* [V,H] F32 or BF16 */
    dt_tensor target;     /* [T_cap] I32: the token that row t must predict (label of t+1), < 0 = none */
    dt_tensor row_weight; /* [T_cap] f32 optional loss weights */
    int64_t T;
    float grad_scale;
    dt_cross_entropy_result *result; /* host memory, valid after dt_exec_synchronize */
    dt_tensor row_loss;              /* [T_cap] f32 optional: unweighted cross-entropy per row, 0 without target */
    dt_tensor dh;                    /* [T_cap,H] optional, written; 0 in rows without target */
    dt_tensor dweight;               /* [V,H] f32, optional, added to */
    /* recorded steps, both in device memory and optional */
    const dt_step_values *values;           /* grad_scale is read there */
    dt_cross_entropy_result *result_device; /* written instead of `result`, which may then be NULL */
} dt_cross_entropy_args;
#define DT_CROSS_ENTROPY_ARGS .struct_size = sizeof(dt_cross_entropy_args)
#endif
