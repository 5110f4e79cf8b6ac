#include "providers/cpu/common.h"
#include <deltune/op/embedding.h>

/* Columns of the weight gradient that one thread sums over all rows: row order for every thread count. */
enum { COLUMN_BLOCK = 64 };

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_embedding_args *a = args;
    return dtp_is_f32(&a->y, "y", why, why_size) && dtp_is_f32(&a->dy, "dy", why, why_size);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    const dt_embedding_args *a = args;
    const int32_t *ids = a->ids.data;
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t H = a->weight.shape[1], pitch = a->weight.stride[0];
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *H)) schedule(static)
    for (int64_t t = 0; t < a->T; t++) {
        if (a->weight.dtype == DT_BF16)
            kernels->from_bf16(dtp_row(&a->y, t), (const uint16_t *)a->weight.data + ids[t] * pitch, H);
        else
            memcpy(dtp_row(&a->y, t), (const float *)a->weight.data + ids[t] * pitch, (size_t)H * sizeof(float));
    }
    dtp_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    const dt_embedding_args *a = args;
    const int32_t *ids = a->ids.data;
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t H = a->dweight.shape[1];
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *H)) schedule(static)
    for (int64_t column = 0; column < H; column += COLUMN_BLOCK) {
        int64_t n = H - column < COLUMN_BLOCK ? H - column : COLUMN_BLOCK;
        for (int64_t t = 0; t < a->T; t++) {
            float *sum = dtp_row(&a->dweight, ids[t]) + column;
            kernels->add(sum, sum, dtp_row(&a->dy, t) + column, n);
        }
    }
    return DT_OK;
}

const dt_op_set dtp_cpu_embedding = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_EMBEDDING,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .forward = forward,
    .backward = backward,
};
