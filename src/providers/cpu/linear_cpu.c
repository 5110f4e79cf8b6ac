#include "providers/cpu/common.h"
#include "providers/cpu/dropout.h"
#include "providers/cpu/gemm.h"
#include <deltune/op/linear.h>
#include <omp.h>

/* Blocks of mask(x): rows x columns that a thread masks into its scratch and multiplies at once. */
enum { ROW_BLOCK = 64, COLUMN_BLOCK = 512 };

/* Rows of the stacked A; by shape, since there is no data yet when sizes are asked. */
static int64_t stacked_rank(const dt_linear_args *a)
{
    return a->lora_a.rank == 2 ? a->lora_a.shape[0] : 0;
}

/* Workspace: u = mask(x) A^T when it is not saved, and du = scale dy B, both [T_cap,R]; the scratch of the threads. */
typedef struct buffers {
    float *u, *du, *scratch;
} buffers;

static size_t inner_elements(const dt_linear_args *a)
{
    return (size_t)((a->x.shape[0] * stacked_rank(a) + 15) / 16 * 16);
}

static size_t thread_scratch_bytes(const dt_exec *exec)
{
    size_t gemm = dtp_gemm_scratch_bytes(exec->threads);
    size_t masked = sizeof(float) * ROW_BLOCK * COLUMN_BLOCK * (size_t)exec->threads;
    return gemm > masked ? gemm : masked;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)backward;
    return 2 * sizeof(float) * inner_elements(args) + thread_scratch_bytes(exec);
}

static size_t saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    return sizeof(float) * inner_elements(args); /* u */
}

static buffers buffers_of(const dt_linear_args *a, void *workspace)
{
    float *memory = workspace;
    return (buffers){memory, memory + inner_elements(a), memory + 2 * inner_elements(a)};
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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* u = mask(x) A^T */
static void lora_inner(const dt_exec *exec, const dt_linear_args *a, float *u, float *scratch)
{
    int64_t R = stacked_rank(a), in = a->x.shape[1], pitch = a->lora_a.stride[0];
    const float *lora_a = a->lora_a.data;
    if (a->dropout == 0) {
        dt_gemm product = {.m = a->T,
                           .n = R,
                           .k = in,
                           .alpha = 1,
                           .a = dtp_operand(&a->x, DTP_N),
                           .b = dtp_operand(&a->lora_a, DTP_T),
                           .c = u,
                           .ldc = R};
        dtp_gemm(exec->threads, &product, scratch);
        return;
    }
    dt_dropout dropout = dtp_dropout_of(a);
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *in)) schedule(static)
    for (int64_t t = 0; t < a->T; t += ROW_BLOCK) {
        float *masked = scratch + (size_t)omp_get_thread_num() * ROW_BLOCK * COLUMN_BLOCK;
        int64_t rows = smaller(ROW_BLOCK, a->T - t);
        for (int64_t i = 0; i < in; i += COLUMN_BLOCK) {
            int64_t columns = smaller(COLUMN_BLOCK, in - i);
            for (int64_t r = 0; r < rows; r++)
                dtp_dropout_apply(&dropout, t + r, i, columns, dtp_row(&a->x, t + r) + i, masked + r * columns);
            dtp_sgemm(DTP_N, DTP_T, rows, R, columns, 1, masked, columns, lora_a + i, pitch, i ? 1 : 0, u + t * R, R);
        }
    }
}

static void part_forward(const dt_exec *exec, const dt_linear_args *a, const dt_linear_part *part, const buffers *b)
{
    dt_gemm base = {.m = a->T,
                    .n = part->weight.shape[0],
                    .k = a->x.shape[1],
                    .alpha = 1,
                    .a = dtp_operand(&a->x, DTP_N),
                    .b = dtp_operand(&part->weight, DTP_T),
                    .add = part->c.data,
                    .ld_add = part->c.stride[0],
                    .c = part->y.data,
                    .ldc = part->y.stride[0]};
    dtp_gemm(exec->threads, &base, b->scratch);
    if (dt_tensor_present(&part->lora_b)) {
        dt_gemm adapter = {.m = a->T,
                           .n = base.n,
                           .k = part->lora_b.shape[1],
                           .alpha = a->lora_scale,
                           .a = dtp_operand_f32(b->u + part->lora_row, stacked_rank(a), DTP_N),
                           .b = dtp_operand(&part->lora_b, DTP_T),
                           .add = base.c,
                           .ld_add = base.ldc,
                           .c = base.c,
                           .ldc = base.ldc};
        dtp_gemm(exec->threads, &adapter, b->scratch);
    }
    dtp_zero_rows(&part->y, a->T, part->y.shape[0]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_linear_args *a = args;
    buffers b = buffers_of(a, workspace);
    if (saved)
        b.u = saved;
    if (dt_tensor_present(&a->lora_a))
        lora_inner(exec, a, b.u, b.scratch);
    for (int32_t j = 0; j < a->n_parts; j++)
        part_forward(exec, a, &a->part[j], &b);
    return DT_OK;
}

/* du = scale dy B and dB += scale dy^T u for one adapted part. */
static void part_lora_backward(const dt_exec *exec, const dt_linear_args *a, const dt_linear_part *part, const float *u,
                               const buffers *b)
{
    int64_t R = stacked_rank(a), rank = part->lora_b.shape[1];
    float *du = b->du + part->lora_row;
    dt_gemm inner = {.m = a->T,
                     .n = rank,
                     .k = part->weight.shape[0],
                     .alpha = a->lora_scale,
                     .a = dtp_operand(&part->dy, DTP_N),
                     .b = dtp_operand(&part->lora_b, DTP_N),
                     .add = du,
                     .ld_add = R,
                     .c = du,
                     .ldc = R};
    dtp_gemm(exec->threads, &inner, b->scratch);
    dt_gemm weight = {.m = part->weight.shape[0],
                      .n = rank,
                      .k = a->T,
                      .alpha = a->lora_scale,
                      .a = dtp_operand(&part->dy, DTP_T),
                      .b = dtp_operand_f32(u + part->lora_row, R, DTP_N),
                      .add = part->dlora_b.data,
                      .ld_add = part->dlora_b.stride[0],
                      .c = part->dlora_b.data,
                      .ldc = part->dlora_b.stride[0]};
    dtp_gemm(exec->threads, &weight, b->scratch);
}

/* dW += dy^T x */
static void part_weight_gradient(const dt_exec *exec, const dt_linear_args *a, const dt_linear_part *part,
                                 const buffers *b)
{
    dt_gemm product = {.m = part->weight.shape[0],
                       .n = a->x.shape[1],
                       .k = a->T,
                       .alpha = 1,
                       .a = dtp_operand(&part->dy, DTP_T),
                       .b = dtp_operand(&a->x, DTP_N),
                       .add = part->dweight.data,
                       .ld_add = part->dweight.stride[0],
                       .c = part->dweight.data,
                       .ldc = part->dweight.stride[0]};
    dtp_gemm(exec->threads, &product, b->scratch);
}

/* dA += du^T mask(x): each thread owns a block of columns and walks over the rows. */
static void lora_a_gradient(const dt_exec *exec, const dt_linear_args *a, const buffers *b)
{
    enum { COLUMNS = 64, ROWS = 512 };
    int64_t R = stacked_rank(a), in = a->x.shape[1], pitch = a->dlora_a.stride[0];
    dt_dropout dropout = dtp_dropout_of(a);
    float *gradient = a->dlora_a.data;
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *in)) schedule(static)
    for (int64_t i = 0; i < in; i += COLUMNS) {
        float *masked = b->scratch + (size_t)omp_get_thread_num() * ROWS * COLUMNS;
        int64_t columns = smaller(COLUMNS, in - i);
        for (int64_t t = 0; t < a->T; t += ROWS) {
            int64_t rows = smaller(ROWS, a->T - t);
            const float *x = dtp_row(&a->x, t) + i;
            int64_t ld = a->x.stride[0];
            if (a->dropout != 0) {
                for (int64_t r = 0; r < rows; r++)
                    dtp_dropout_apply(&dropout, t + r, i, columns, x + r * ld, masked + r * columns);
                x = masked;
                ld = columns;
            }
            dtp_sgemm(DTP_T, DTP_N, R, columns, rows, 1, b->du + t * R, R, x, ld, 1, gradient + i, pitch);
        }
    }
}

/* dx += mask(du A) */
static void lora_input_gradient(const dt_exec *exec, const dt_linear_args *a, const buffers *b)
{
    int64_t R = stacked_rank(a), in = a->x.shape[1];
    if (a->dropout == 0) {
        dt_gemm product = {.m = a->T,
                           .n = in,
                           .k = R,
                           .alpha = 1,
                           .a = dtp_operand_f32(b->du, R, DTP_N),
                           .b = dtp_operand(&a->lora_a, DTP_N),
                           .add = a->dx.data,
                           .ld_add = a->dx.stride[0],
                           .c = a->dx.data,
                           .ldc = a->dx.stride[0]};
        dtp_gemm(exec->threads, &product, b->scratch);
        return;
    }
    dt_dropout dropout = dtp_dropout_of(a);
    const float *lora_a = a->lora_a.data;
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *in)) schedule(static)
    for (int64_t t = 0; t < a->T; t += ROW_BLOCK) {
        float *product = b->scratch + (size_t)omp_get_thread_num() * ROW_BLOCK * COLUMN_BLOCK;
        int64_t rows = smaller(ROW_BLOCK, a->T - t);
        for (int64_t i = 0; i < in; i += COLUMN_BLOCK) {
            int64_t columns = smaller(COLUMN_BLOCK, in - i);
            dtp_sgemm(DTP_N, DTP_N, rows, columns, R, 1, b->du + t * R, R, lora_a + i, a->lora_a.stride[0], 0, product,
                      columns);
            for (int64_t r = 0; r < rows; r++)
                dtp_dropout_add(&dropout, t + r, i, columns, product + r * columns, dtp_row(&a->dx, t + r) + i);
        }
    }
}

/* dx = dx_add + sum over parts of dy W, + mask(du A) */
static void input_gradient(const dt_exec *exec, const dt_linear_args *a, const buffers *b)
{
    const float *add = a->dx_add.data;
    int64_t ld_add = a->dx_add.stride[0];
    for (int32_t j = 0; j < a->n_parts; j++) {
        const dt_linear_part *part = &a->part[j];
        dt_gemm product = {.m = a->T,
                           .n = a->x.shape[1],
                           .k = part->weight.shape[0],
                           .alpha = 1,
                           .a = dtp_operand(&part->dy, DTP_N),
                           .b = dtp_operand(&part->weight, DTP_N),
                           .add = add,
                           .ld_add = ld_add,
                           .c = a->dx.data,
                           .ldc = a->dx.stride[0]};
        dtp_gemm(exec->threads, &product, b->scratch);
        add = a->dx.data;
        ld_add = a->dx.stride[0];
    }
    if (dt_tensor_present(&a->lora_a))
        lora_input_gradient(exec, a, b);
    dtp_zero_rows(&a->dx, a->T, a->dx.shape[0]);
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_linear_args *a = args;
    buffers b = buffers_of(a, workspace);
    bool adapted = dt_tensor_present(&a->lora_a);
    if (adapted) /* columns that no part reads stay without gradient */
        memset(b.du, 0, sizeof(float) * inner_elements(a));
    for (int32_t j = 0; j < a->n_parts; j++) {
        if (dt_tensor_present(&a->part[j].lora_b))
            part_lora_backward(exec, a, &a->part[j], saved, &b);
        if (dt_tensor_present(&a->part[j].dweight))
            part_weight_gradient(exec, a, &a->part[j], &b);
    }
    if (adapted)
        lora_a_gradient(exec, a, &b);
    if (dt_tensor_present(&a->dx))
        input_gradient(exec, a, &b);
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
