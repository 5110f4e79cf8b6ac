#include "providers/reference/reference.h"
#include <deltune/op/embedding.h>

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_embedding_args *a = args;
    const int32_t *ids = a->ids.data;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t j = 0; j < a->weight.shape[1]; j++)
            ref_store2(&a->y, t, j, ref_load2(&a->weight, ids[t], j));
    ref_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_embedding_args *a = args;
    const int32_t *ids = a->ids.data;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t j = 0; j < a->dweight.shape[1]; j++)
            ref_store2(&a->dweight, ids[t], j, ref_load2(&a->dweight, ids[t], j) + ref_load2(&a->dy, t, j));
    return DT_OK;
}

const dt_op_set dtp_ref_embedding = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_EMBEDDING,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .forward = forward,
    .backward = backward,
};
