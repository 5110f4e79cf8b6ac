/* DT_OP_EMBEDDING on CUDA: chooses the kernels and launches them. */
#include <deltune/op/embedding.h>

#include "providers/cuda/embedding.cuh"

static embedding_params embedding_make_params(const dt_embedding_args *a)
{
    embedding_params p;
    memset(&p, 0, sizeof p);
    p.ids = (const int32_t *)a->ids.data;
    p.weight = rows_view_of(&a->weight), p.y = rows_view_of(&a->y), p.dy = rows_view_of(&a->dy),
    p.dweight = rows_view_of(&a->dweight);
    p.T = a->T, p.T_cap = a->ids.shape[0];
    return p;
}
static dt_status embedding_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_embedding_args *a = (const dt_embedding_args *)args;
    embedding_params p = embedding_make_params(a);
    (void)saved, (void)workspace;
    p.vocabulary = a->weight.shape[0];
    p.width = (int32_t)a->weight.shape[1];
    if (rows_fast(&a->weight) && rows_fast(&a->y))
        return DT_LAUNCH(err, exec, dtp_blocks(p.width / 8, ROWS_THREADS) * dtp_blocks(p.T_cap, EMBEDDING_ROWS),
                         ROWS_THREADS, 0, embedding_forward_kernel, p);
    return DT_LAUNCH(err, exec, dtp_blocks(p.T_cap * p.width, ROWS_THREADS), ROWS_THREADS, 0,
                     embedding_plain_forward_kernel, p);
}
static size_t embedding_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    return backward ? (size_t)((const dt_embedding_args *)args)->ids.shape[0] * sizeof(int32_t) : 0;
}
static dt_status embedding_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_embedding_args *a = (const dt_embedding_args *)args;
    embedding_params p = embedding_make_params(a);
    (void)saved;
    p.order = (int32_t *)workspace;
    p.vocabulary = a->dweight.shape[0];
    p.width = (int32_t)a->dweight.shape[1];
    const int threads = EMBEDDING_SORT_ROWS * EMBEDDING_SORT_PARTS, bytes = threads * (int)sizeof(int);
    int64_t sort_blocks = dtp_blocks(p.T, EMBEDDING_SORT_ROWS);
    dt_status st = ((uintptr_t)p.ids & 15) == 0
                       ? DT_LAUNCH(err, exec, sort_blocks, threads, bytes, embedding_sort_kernel<true>, p)
                       : DT_LAUNCH(err, exec, sort_blocks, threads, bytes, embedding_sort_kernel<false>, p);
    if (st != DT_OK)
        return st;
    int64_t blocks = p.T * dtp_blocks(p.width, EMBEDDING_COLUMNS);
    if (rows_fast(&a->dy) && ((uintptr_t)a->dweight.data & 15) == 0 && a->dweight.stride[0] % 4 == 0)
        return DT_LAUNCH(err, exec, blocks, ROWS_THREADS, 0, embedding_backward_kernel<true>, p);
    return DT_LAUNCH(err, exec, blocks, ROWS_THREADS, 0, embedding_backward_kernel<false>, p);
}

extern "C" const dt_op_set dtp_cuda_embedding = {sizeof(dt_op_set),
                                                 DT_OP_EMBEDDING,
                                                 DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                 NULL,
                                                 NULL,
                                                 embedding_workspace_bytes,
                                                 embedding_forward,
                                                 embedding_backward,
                                                 NULL};
