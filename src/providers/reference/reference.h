/* What the reference operators share: their sets, and element access in double.
 * These operators are the oracle of every test: plain loops that follow the formulas of the contract, accumulate in
 * double, and are slow on purpose. Activations F32 or BF16, weights F32 or BF16. */
#ifndef DT_PROVIDERS_REFERENCE_REFERENCE_H
#define DT_PROVIDERS_REFERENCE_REFERENCE_H

#include <deltune/provider.h>
#include <math.h>

extern const dt_op_set dtp_ref_embedding;
extern const dt_op_set dtp_ref_rms_norm;
extern const dt_op_set dtp_ref_rms_norm_gated;
extern const dt_op_set dtp_ref_linear;
extern const dt_op_set dtp_ref_rope;
extern const dt_op_set dtp_ref_attention;
extern const dt_op_set dtp_ref_sigmoid_gate;
extern const dt_op_set dtp_ref_swiglu;
extern const dt_op_set dtp_ref_causal_conv1d;
extern const dt_op_set dtp_ref_causal_conv1d_step;
extern const dt_op_set dtp_ref_gdn_gates;
extern const dt_op_set dtp_ref_gdn;
extern const dt_op_set dtp_ref_gdn_step;
extern const dt_op_set dtp_ref_cross_entropy;
extern const dt_op_set dtp_ref_adamw;
extern const dt_op_set dtp_ref_grad_norm;

/* Element offsets of a view. */
static inline int64_t ref_at2(const dt_tensor *t, int64_t i, int64_t j)
{
    return i * t->stride[0] + j * t->stride[1];
}
static inline int64_t ref_at3(const dt_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
}
static inline int64_t ref_at4(const dt_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l)
{
    return ref_at3(t, i, j, k) + l * t->stride[3];
}

/* F64 never passes the contracts; the tests of this room use it to take central differences without rounding noise. */
static inline double ref_load(const dt_tensor *t, int64_t offset)
{
    switch (t->dtype) {
    case DT_BF16: return (double)dt_bf16_to_f32(((const uint16_t *)t->data)[offset]);
    case DT_F64: return ((const double *)t->data)[offset];
    default: return (double)((const float *)t->data)[offset];
    }
}

static inline void ref_store(const dt_tensor *t, int64_t offset, double value)
{
    switch (t->dtype) {
    case DT_BF16: ((uint16_t *)t->data)[offset] = dt_f32_to_bf16((float)value); break;
    case DT_F64: ((double *)t->data)[offset] = value; break;
    default: ((float *)t->data)[offset] = (float)value;
    }
}

static inline double ref_load2(const dt_tensor *t, int64_t i, int64_t j)
{
    return ref_load(t, ref_at2(t, i, j));
}
static inline double ref_load3(const dt_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return ref_load(t, ref_at3(t, i, j, k));
}
static inline void ref_store2(const dt_tensor *t, int64_t i, int64_t j, double value)
{
    ref_store(t, ref_at2(t, i, j), value);
}
static inline void ref_store3(const dt_tensor *t, int64_t i, int64_t j, int64_t k, double value)
{
    ref_store(t, ref_at3(t, i, j, k), value);
}

/* [T,D] seen as [T,1,D], so that operators on rows and on heads share one loop; [T,heads,D] as it is. */
static inline dt_tensor ref_heads(dt_tensor t)
{
    return t.rank == 2 ? dt_tensor_split_last(t, t.shape[1]) : t;
}

/* Parameter gradients are F32 and added to. */
static inline void ref_add(const dt_tensor *t, int64_t offset, double value)
{
    ref_store(t, offset, ref_load(t, offset) + value);
}

static inline double ref_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}
static inline double ref_silu(double x)
{
    return x * ref_sigmoid(x);
}
static inline double ref_silu_derivative(double x)
{
    double s = ref_sigmoid(x);
    return s * (1.0 + x * (1.0 - s));
}

/* Writes 0 to rows first..end-1 of a view of rank 2 or 3; an absent view is left alone. */
static inline void ref_zero_rows(const dt_tensor *t, int64_t first, int64_t end)
{
    if (!dt_tensor_present(t))
        return;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            if (t->rank == 2)
                ref_store(t, ref_at2(t, i, j), 0.0);
            else
                for (int64_t k = 0; k < t->shape[2]; k++)
                    ref_store(t, ref_at3(t, i, j, k), 0.0);
        }
}

#endif
