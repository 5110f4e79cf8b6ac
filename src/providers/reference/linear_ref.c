#include "core/philox.h"
#include "providers/reference/reference.h"
#include <deltune/op/linear.h>

/* Workspace: u = mask(x) A^T and, in backward, du = scale dy B, both [T_cap,R] in double. */
static int64_t stacked_rank(const dt_linear_args *a)
{
    return a->lora_a.rank == 2 ? a->lora_a.shape[0] : 0; /* by shape: there is no data yet when sizes are asked */
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    const dt_linear_args *a = args;
    return sizeof(double) * (size_t)a->x.shape[0] * (size_t)stacked_rank(a) * (backward ? 2 : 1);
}

static double keep_factor(const dt_linear_args *a, int64_t t, int64_t i)
{
    if (a->dropout == 0)
        return 1;
    uint64_t element = (uint64_t)(t * a->x.shape[1] + i);
    dt_dropout_key key = {a->seed, a->step, a->micro, a->input};
    if (a->values)
        key = (dt_dropout_key){a->values->seed, a->values->step, a->values->micro, a->input};
    uint32_t mask = dt_dropout_mask8(key, element / 8, dt_dropout_threshold(a->dropout));
    return (mask >> (element % 8)) & 1 ? 1 / (1 - (double)a->dropout) : 0;
}

static void lora_inner(const dt_linear_args *a, double *u)
{
    int64_t R = stacked_rank(a);
    for (int64_t t = 0; t < a->T; t++) {
        for (int64_t r = 0; r < R; r++)
            u[t * R + r] = 0;
        for (int64_t i = 0; i < a->x.shape[1]; i++) {
            double masked = ref_load2(&a->x, t, i) * (R ? keep_factor(a, t, i) : 0);
            for (int64_t r = 0; r < R; r++)
                u[t * R + r] += masked * ref_load2(&a->lora_a, r, i);
        }
    }
}

static void part_forward(const dt_linear_args *a, const dt_linear_part *part, const double *u)
{
    int64_t R = stacked_rank(a);
    bool adapted = dt_tensor_present(&part->lora_b);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t o = 0; o < part->weight.shape[0]; o++) {
            double sum = 0, low_rank = 0;
            for (int64_t i = 0; i < a->x.shape[1]; i++)
                sum += ref_load2(&a->x, t, i) * ref_load2(&part->weight, o, i);
            for (int64_t r = 0; adapted && r < part->lora_b.shape[1]; r++)
                low_rank += u[t * R + part->lora_row + r] * ref_load2(&part->lora_b, o, r);
            double addend = dt_tensor_present(&part->c) ? ref_load2(&part->c, t, o) : 0;
            ref_store2(&part->y, t, o, sum + a->lora_scale * low_rank + addend);
        }
    ref_zero_rows(&part->y, a->T, part->y.shape[0]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_linear_args *a = args;
    lora_inner(a, workspace);
    for (int32_t j = 0; j < a->n_parts; j++)
        part_forward(a, &a->part[j], workspace);
    return DT_OK;
}

static void lora_inner_gradient(const dt_linear_args *a, double *du)
{
    int64_t R = stacked_rank(a);
    for (int64_t i = 0; i < a->T * R; i++)
        du[i] = 0;
    for (int32_t j = 0; j < a->n_parts; j++) {
        const dt_linear_part *part = &a->part[j];
        for (int64_t t = 0; dt_tensor_present(&part->lora_b) && t < a->T; t++)
            for (int64_t r = 0; r < part->lora_b.shape[1]; r++)
                for (int64_t o = 0; o < part->weight.shape[0]; o++)
                    du[t * R + part->lora_row + r] +=
                        a->lora_scale * ref_load2(&part->dy, t, o) * ref_load2(&part->lora_b, o, r);
    }
}

static void part_weight_gradients(const dt_linear_args *a, const dt_linear_part *part, const double *u)
{
    int64_t R = stacked_rank(a), in = a->x.shape[1];
    for (int64_t o = 0; o < part->weight.shape[0]; o++) {
        for (int64_t i = 0; dt_tensor_present(&part->dweight) && i < in; i++) {
            double sum = ref_load2(&part->dweight, o, i);
            for (int64_t t = 0; t < a->T; t++)
                sum += ref_load2(&part->dy, t, o) * ref_load2(&a->x, t, i);
            ref_store2(&part->dweight, o, i, sum);
        }
        for (int64_t r = 0; dt_tensor_present(&part->dlora_b) && r < part->dlora_b.shape[1]; r++) {
            double sum = 0;
            for (int64_t t = 0; t < a->T; t++)
                sum += ref_load2(&part->dy, t, o) * u[t * R + part->lora_row + r];
            ref_store2(&part->dlora_b, o, r, ref_load2(&part->dlora_b, o, r) + a->lora_scale * sum);
        }
    }
}

static void lora_a_gradient(const dt_linear_args *a, const double *du)
{
    int64_t R = stacked_rank(a);
    for (int64_t i = 0; i < a->x.shape[1]; i++)
        for (int64_t r = 0; r < R; r++) {
            double sum = ref_load2(&a->dlora_a, r, i);
            for (int64_t t = 0; t < a->T; t++)
                sum += du[t * R + r] * ref_load2(&a->x, t, i) * keep_factor(a, t, i);
            ref_store2(&a->dlora_a, r, i, sum);
        }
}

static void input_gradient(const dt_linear_args *a, const double *du)
{
    int64_t R = stacked_rank(a);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t i = 0; i < a->x.shape[1]; i++) {
            double sum = dt_tensor_present(&a->dx_add) ? ref_load2(&a->dx_add, t, i) : 0, low_rank = 0;
            for (int32_t j = 0; j < a->n_parts; j++)
                for (int64_t o = 0; o < a->part[j].weight.shape[0]; o++)
                    sum += ref_load2(&a->part[j].dy, t, o) * ref_load2(&a->part[j].weight, o, i);
            for (int64_t r = 0; r < R; r++)
                low_rank += du[t * R + r] * ref_load2(&a->lora_a, r, i);
            ref_store2(&a->dx, t, i, sum + (R ? low_rank * keep_factor(a, t, i) : 0));
        }
    ref_zero_rows(&a->dx, a->T, a->dx.shape[0]);
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_linear_args *a = args;
    double *u = workspace, *du = u + a->x.shape[0] * stacked_rank(a);
    lora_inner(a, u);
    lora_inner_gradient(a, du);
    for (int32_t j = 0; j < a->n_parts; j++)
        part_weight_gradients(a, &a->part[j], u);
    if (dt_tensor_present(&a->dlora_a))
        lora_a_gradient(a, du);
    if (dt_tensor_present(&a->dx))
        input_gradient(a, du);
    return DT_OK;
}

const dt_op_set dtp_ref_linear = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_LINEAR,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
