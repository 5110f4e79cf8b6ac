/* Linear maps that read one input, each with an optional low-rank adapter (LoRA):
 *     y_j = x W_j^T + scale * (mask(x) A_j^T) B_j^T + c_j
 * The A matrices of the adapted parts are stacked so that they are one product, and the parts share one dropout
 * mask: mask(x) = x * keep / (1 - p), keep from the counter-based generator of src/core/philox.h, so that backward
 * needs no more than the key. Source of LoRA: Hu et al., arXiv:2106.09685. */
#ifndef DELTUNE_OP_LINEAR_H
#define DELTUNE_OP_LINEAR_H
#include <deltune/operators.h>

enum { DT_LINEAR_MAX_PARTS = 4 };

typedef struct dt_linear_part {
    dt_tensor weight; /* [out,in] F32 or BF16, row pitch free */
    dt_tensor y;      /* [T_cap,out], row stride free; may be c */
    dt_tensor c;      /* [T_cap,out] optional addend (the residual stream) */
    dt_tensor lora_b; /* [out,rank] f32, absent = this part has no adapter */
    int64_t lora_row; /* first row of this part's A in lora_a; its rank is lora_b.shape[1] */
    /* backward */
    dt_tensor dy;      /* [T_cap,out] */
    dt_tensor dweight; /* [out,in] f32, optional, added to */
    dt_tensor dlora_b; /* [out,rank] f32, added to */
} dt_linear_part;

typedef struct dt_linear_args {
    size_t struct_size;
    dt_tensor x; /* [T_cap,in], row stride free; backward reads it again */
    int64_t T;   /* rows used; rows after it are written 0 (c ignored there) */
    int32_t n_parts;
    dt_linear_part part[DT_LINEAR_MAX_PARTS];
    dt_tensor lora_a; /* [R,in] f32, the stacked A; absent = no part has an adapter */
    float lora_scale; /* alpha / r, or alpha / sqrt(r) */
    float dropout;    /* 0 <= p < 1; 0 in evaluation */
    uint64_t seed;    /* dropout key: see dt_dropout_key */
    uint32_t step, micro, input;
    /* backward */
    dt_tensor dx;      /* [T_cap,in], written; absent = not needed (first layer of a frozen model) */
    dt_tensor dx_add;  /* optional [T_cap,in]: dx = dx_add + ...; may be dx itself */
    dt_tensor dlora_a; /* [R,in] f32, added to */
    /* Room for the adapters inside the products: columns [in, in + extension) of the rows of x, dx and every weight,
     * whose row pitches hold them, are scratch of the operator. They may hold anything before a forward; what it leaves
     * behind the weights its backward reads again. 0: there is none. Providers may ignore it. */
    int64_t extension;
    /* recorded steps: device memory; seed, step and micro are read there. NULL: the fields above are used */
    const dt_step_values *values;
} dt_linear_args;
#define DT_LINEAR_ARGS .struct_size = sizeof(dt_linear_args)
#endif
