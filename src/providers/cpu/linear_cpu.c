#include "providers/cpu/common.h"
#include "providers/cpu/gemm.h"

/* Rows of the stacked A; by shape, since there is no data yet when sizes are asked. */
static int64_t stacked_rank(const dt_linear_args *a)
{
    return a->lora_a.rank == 2 ? a->lora_a.shape[0] : 0;
}

/* Elements of u = mask(x) A^T and of du = scale dy B, both [T_cap,R]. */
static size_t inner_elements(const dt_linear_args *a)
{
    return (size_t)((a->x.shape[0] * stacked_rank(a) + 15) / 16 * 16);
}

static size_t saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    return sizeof(float) * inner_elements(args); /* u */
}

/* u when it is not saved, or du; then the scratch of the threads. */
static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)backward;
    return sizeof(float) * inner_elements(args) + (size_t)exec->threads * dtp_gemm_scratch_bytes();
}

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_linear_args *a = args;
    for (int32_t j = 0; j < a->n_parts; j++)
        if (!dtp_is_f32(&a->part[j].y, "y", why, why_size) || !dtp_is_f32(&a->part[j].c, "c", why, why_size) ||
            !dtp_is_f32(&a->part[j].dy, "dy", why, why_size))
            return 0;
    return dtp_is_f32(&a->x, "x", why, why_size) && dtp_is_f32(&a->dx, "dx", why, why_size) &&
           dtp_is_f32(&a->dx_add, "dx_add", why, why_size);
}

/* One call in progress. */
typedef struct call {
    const dt_exec *exec;
    const dt_linear_args *a;
    dt_dropout dropout;
    const dt_dropout *mask; /* NULL without dropout */
    int64_t R;
    void *scratch;
} call;

static void begin(call *k, const dt_exec *exec, const dt_linear_args *a, void *workspace)
{
    *k = (call){.exec = exec,
                .a = a,
                .dropout = dtp_dropout_of(a),
                .R = stacked_rank(a),
                .scratch = (float *)workspace + inner_elements(a)};
    k->mask = a->dropout != 0 ? &k->dropout : NULL;
}

static dt_operand masked_x(const call *k)
{
    dt_operand x = dtp_operand(&k->a->x, DTP_N);
    x.mask = k->mask;
    return x;
}

/* u = mask(x) A^T, for all adapted parts at once. */
static void lora_inner(const call *k, float *u)
{
    dt_gemm g = {.m = k->a->T,
                 .n = k->R,
                 .n_products = 1,
                 .product = {{k->a->x.shape[1], 1, masked_x(k), dtp_operand(&k->a->lora_a, DTP_T)}},
                 .c = u,
                 .ldc = k->R};
    dtp_gemm(k->exec->threads, &g, k->scratch);
}

/* y = c + x W^T + scale u B^T */
static void part_forward(const call *k, const dt_linear_part *part, const float *u)
{
    const dt_linear_args *a = k->a;
    dt_gemm g = {.m = a->T,
                 .n = part->weight.shape[0],
                 .n_products = 1,
                 .product = {{a->x.shape[1], 1, dtp_operand(&a->x, DTP_N), dtp_operand(&part->weight, DTP_T)}},
                 .add = part->c.data,
                 .ld_add = part->c.stride[0],
                 .c = part->y.data,
                 .ldc = part->y.stride[0]};
    if (dt_tensor_present(&part->lora_b))
        g.product[g.n_products++] =
            (dt_product){part->lora_b.shape[1], a->lora_scale, dtp_operand_f32(u + part->lora_row, k->R, DTP_N),
                         dtp_operand(&part->lora_b, DTP_T)};
    dtp_gemm(k->exec->threads, &g, k->scratch);
    dtp_zero_rows(&part->y, a->T, part->y.shape[0]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_linear_args *a = args;
    float *u = saved ? saved : workspace;
    call k;
    begin(&k, exec, a, workspace);
    if (dt_tensor_present(&a->lora_a))
        lora_inner(&k, u);
    for (int32_t j = 0; j < a->n_parts; j++)
        part_forward(&k, &a->part[j], u);
    return DT_OK;
}

/* C += alpha op(A) op(B), the form of every parameter gradient. */
static void accumulate(const call *k, int64_t m, int64_t n, int64_t depth, float alpha, dt_operand a, dt_operand b,
                       float *c, int64_t ldc)
{
    dt_gemm g = {.m = m,
                 .n = n,
                 .n_products = 1,
                 .product = {{depth, alpha, a, b}},
                 .add = c,
                 .ld_add = ldc,
                 .c = c,
                 .ldc = ldc};
    dtp_gemm(k->exec->threads, &g, k->scratch);
}

/* du += scale dy B,  dB += scale dy^T u,  dW += dy^T x */
static void part_backward(const call *k, const dt_linear_part *part, const float *u, float *du)
{
    const dt_linear_args *a = k->a;
    int64_t out = part->weight.shape[0], rank = part->lora_b.shape[1];
    dt_operand dy = dtp_operand(&part->dy, DTP_N), dy_transposed = dtp_operand(&part->dy, DTP_T);
    if (dt_tensor_present(&part->lora_b)) {
        accumulate(k, a->T, rank, out, a->lora_scale, dy, dtp_operand(&part->lora_b, DTP_N), du + part->lora_row, k->R);
        accumulate(k, out, rank, a->T, a->lora_scale, dy_transposed, dtp_operand_f32(u + part->lora_row, k->R, DTP_N),
                   part->dlora_b.data, part->dlora_b.stride[0]);
    }
    if (dt_tensor_present(&part->dweight))
        accumulate(k, out, a->x.shape[1], a->T, 1, dy_transposed, dtp_operand(&a->x, DTP_N), part->dweight.data,
                   part->dweight.stride[0]);
}

/* dx = dx_add + mask(du A) + sum over parts of dy W: one chain, so that dx is written once. */
static void input_gradient(const call *k, const float *du)
{
    const dt_linear_args *a = k->a;
    dt_gemm g = {.m = a->T,
                 .n = a->x.shape[1],
                 .add = a->dx_add.data,
                 .ld_add = a->dx_add.stride[0],
                 .c = a->dx.data,
                 .ldc = a->dx.stride[0]};
    if (dt_tensor_present(&a->lora_a)) {
        g.mask_first = k->mask;
        g.product[g.n_products++] =
            (dt_product){k->R, 1, dtp_operand_f32(du, k->R, DTP_N), dtp_operand(&a->lora_a, DTP_N)};
    }
    for (int32_t j = 0; j < a->n_parts; j++)
        g.product[g.n_products++] = (dt_product){a->part[j].weight.shape[0], 1, dtp_operand(&a->part[j].dy, DTP_N),
                                                 dtp_operand(&a->part[j].weight, DTP_N)};
    dtp_gemm(k->exec->threads, &g, k->scratch);
    dtp_zero_rows(&a->dx, a->T, a->dx.shape[0]);
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_linear_args *a = args;
    float *du = workspace;
    call k;
    begin(&k, exec, a, workspace);
    memset(du, 0, sizeof(float) * inner_elements(a)); /* columns that no part reads stay without gradient */
    for (int32_t j = 0; j < a->n_parts; j++)
        part_backward(&k, &a->part[j], saved, du);
    if (dt_tensor_present(&a->lora_a)) /* dA += du^T mask(x) */
        accumulate(&k, k.R, a->x.shape[1], a->T, 1, dtp_operand_f32(du, k.R, DTP_T), masked_x(&k), a->dlora_a.data,
                   a->dlora_a.stride[0]);
    if (dt_tensor_present(&a->dx))
        input_gradient(&k, du);
    return DT_OK;
}

const dt_op_set dtp_cpu_linear = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_LINEAR,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .saved_bytes = saved_bytes,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
