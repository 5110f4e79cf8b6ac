/* DT_OP_CROSS_ENTROPY on CUDA: chunks of target rows, each logits = h E^T, loss and dlogits in place, dh = dlogits E.
 *
 * The host does not know how many rows have targets, so chunks are queued for all T rows; those behind the list hold
 * zeros, and in a recorded step do not run at all. dweight is added to once a chunk, which costs two passes over it:
 * with it chunks are larger. */
#include <deltune/op/cross_entropy.h>

#include "providers/cuda/cross_entropy.cuh"
#include "providers/cuda/device.cuh"
#include "providers/cuda/gemm.cuh"

struct cross_entropy_call {
    dt_exec *exec;
    const dt_cross_entropy_args *args;
    dt_err *err;
    cross_entropy_params p;
    dt_dtype dtype;
    int64_t chunk;
    void *gemm, *weight; /* weight: E in the dtype of activations, where it is another */
    size_t workspace_bytes;
};

static void *cross_entropy_take_bytes(char *base, size_t *used, int64_t bytes)
{
    void *at = base ? base + *used : NULL;
    *used += dtp_round_up((size_t)bytes, 256);
    return at;
}
static int64_t cross_entropy_chunk(const dt_cross_entropy_args *a)
{
    int64_t largest = a->dweight.rank == 2 ? 4096 : 1024;
    return dtp_min(a->h.shape[0], a->h.dtype == DT_F32 ? 512 : largest);
}
/* Looks at shapes only when `workspace` is NULL. */
static cross_entropy_call cross_entropy_plan(const dt_cross_entropy_args *a, void *workspace)
{
    cross_entropy_call c;
    memset(&c, 0, sizeof c);
    c.args = a;
    c.dtype = a->h.dtype;
    c.chunk = cross_entropy_chunk(a);
    int64_t element = (int64_t)dt_dtype_size(c.dtype);
    cross_entropy_params *p = &c.p;
    p->T = a->T, p->T_cap = a->h.shape[0], p->H = a->h.shape[1], p->V = a->weight.shape[0];
    p->V_pitch = (int64_t)dtp_round_up((size_t)p->V, 8);
    char *base = (char *)workspace;
    size_t used = 0;
    c.gemm = cross_entropy_take_bytes(base, &used, GEMM_WORKSPACE);
    p->count = (int32_t *)cross_entropy_take_bytes(base, &used, 4);
    p->result = (dt_cross_entropy_result *)cross_entropy_take_bytes(base, &used, sizeof *p->result);
    p->rows = (int32_t *)cross_entropy_take_bytes(base, &used, p->T_cap * 4);
    p->place = (int32_t *)cross_entropy_take_bytes(base, &used, p->T_cap * 4);
    p->loss = (float *)cross_entropy_take_bytes(base, &used, p->T_cap * 4);
    p->correct = (int32_t *)cross_entropy_take_bytes(base, &used, p->T_cap * 4);
    p->gathered = cross_entropy_take_bytes(base, &used, c.chunk * p->H * element);
    p->logits = cross_entropy_take_bytes(base, &used, c.chunk * p->V_pitch * element);
    if (a->dh.rank == 2)
        p->dgathered = cross_entropy_take_bytes(base, &used, p->T_cap * p->H * element);
    if (a->weight.dtype != c.dtype)
        c.weight = cross_entropy_take_bytes(base, &used, p->V * p->H * element);
    c.workspace_bytes = used;
    return c;
}
static void cross_entropy_bind(cross_entropy_call *c)
{
    const dt_cross_entropy_args *a = c->args;
    cross_entropy_params *p = &c->p;
    p->h = a->h.data, p->h_pitch = a->h.stride[0];
    p->dh = a->dh.data, p->dh_pitch = a->dh.stride[0];
    p->is_float = c->dtype == DT_F32;
    p->target = (const int32_t *)a->target.data;
    p->row_weight = (const float *)a->row_weight.data;
    p->values = a->values;
    p->grad_scale = a->grad_scale;
    p->row_loss = (float *)a->row_loss.data;
    p->gradients = dt_tensor_present(&a->dh);
    if (a->result_device)
        p->result = a->result_device;
}

static gemm_matrix cross_entropy_matrix(void *data, int64_t pitch, dt_dtype dtype)
{
    gemm_matrix m = {data, pitch, dtype};
    return m;
}
static gemm_matrix cross_entropy_weight(const cross_entropy_call *c)
{
    return c->weight ? cross_entropy_matrix(c->weight, c->p.H, c->dtype)
                     : cross_entropy_matrix(c->args->weight.data, c->args->weight.stride[0], c->dtype);
}
static dt_status cross_entropy_convert(const cross_entropy_call *c)
{
    gemm_matrix to = cross_entropy_weight(c);
    return c->weight ? dtp_gemm_convert(c->exec, &c->args->weight, &to, c->err) : DT_OK;
}

/* One block a multiprocessor; a row's result does not depend on which block has it. */
static dt_status cross_entropy_launch_rows(const cross_entropy_call *c, int64_t first, int64_t rows)
{
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(c->exec, &facts);
    return DT_LAUNCH(c->err, c->exec, dtp_min(rows, facts.multiprocessors), CROSS_ENTROPY_THREADS,
                     1024 + CROSS_ENTROPY_HELD, cross_entropy_row_kernel, c->p, (int32_t)first, (int32_t)rows);
}
/* Rows [first, first + rows) of the list, from hidden states to gradients by place. */
static dt_status cross_entropy_run_chunk(const cross_entropy_call *c, int64_t first, int64_t rows)
{
    const cross_entropy_params *p = &c->p;
    gemm_product logits = {rows, p->V, p->H}, dh = {rows, p->H, p->V}, dweight = {p->V, p->H, rows};
    logits.a = dweight.b = cross_entropy_matrix(p->gathered, p->H, c->dtype);
    logits.b = dh.b = cross_entropy_weight(c);
    logits.b_transposed = true;
    logits.d = dh.a = dweight.a = cross_entropy_matrix(p->logits, p->V_pitch, c->dtype);
    dt_status st =
        DT_LAUNCH(c->err, c->exec, dtp_min(dtp_blocks(rows * p->H, 8 * CROSS_ENTROPY_COPY_THREADS), 2048),
                  CROSS_ENTROPY_COPY_THREADS, 0, cross_entropy_gather_kernel, *p, (int32_t)first, (int32_t)rows);
    if (st == DT_OK)
        st = dtp_gemm(c->exec, &logits, c->gemm, c->err);
    if (st != DT_OK)
        return st;
    if (!p->is_float && p->V % 8 == 0)
        st = cross_entropy_launch_rows(c, first, rows);
    else
        st = DT_LAUNCH(c->err, c->exec, rows, CROSS_ENTROPY_THREADS, 1024, cross_entropy_plain_row_kernel, *p,
                       (int32_t)first);
    if (st != DT_OK || !p->gradients)
        return st;
    dh.d =
        cross_entropy_matrix((char *)p->dgathered + (size_t)(first * p->H) * dt_dtype_size(c->dtype), p->H, c->dtype);
    st = dtp_gemm(c->exec, &dh, c->gemm, c->err);
    if (st != DT_OK || !dt_tensor_present(&c->args->dweight))
        return st;
    dweight.a_transposed = true;
    dweight.c = dweight.d = cross_entropy_matrix(c->args->dweight.data, c->args->dweight.stride[0], DT_F32);
    return dtp_gemm(c->exec, &dweight, c->gemm, c->err);
}
#include "providers/cuda/cross_entropy_recorded.cuh"

static dt_status cross_entropy_fetch_result(const cross_entropy_call *c)
{
    if (c->args->result_device)
        return DT_OK;
#ifdef DT_EMULATE
    dt_cross_entropy_result *to = c->args->result, *from = c->p.result;
    dtp_cuda_emulate(c->exec, [=]() { *to = *from; });
    return DT_OK;
#else
    return dtp_cuda_status(cudaMemcpyAsync(c->args->result, c->p.result, sizeof *c->p.result, cudaMemcpyDeviceToHost,
                                           (cudaStream_t)c->exec->stream),
                           "copy the result of cross_entropy", c->err);
#endif
}
static dt_status cross_entropy_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    cross_entropy_call c = cross_entropy_plan((const dt_cross_entropy_args *)args, workspace);
    c.exec = exec, c.err = err;
    (void)saved;
    cross_entropy_bind(&c);
    dt_status st = cross_entropy_convert(&c);
    if (st == DT_OK)
        st = DT_LAUNCH(err, exec, 1, CROSS_ENTROPY_THREADS, 1024, cross_entropy_list_kernel, c.p);
    bool conditions = c.p.T > c.chunk && cross_entropy_recording(&c);
    for (int64_t first = 0; st == DT_OK && first < c.p.T; first += c.chunk) {
        int64_t rows = dtp_min(c.chunk, c.p.T - first);
        st = conditions ? cross_entropy_record_chunk(&c, first, rows) : cross_entropy_run_chunk(&c, first, rows);
    }
    if (st == DT_OK && c.p.gradients)
        st = DT_LAUNCH(err, exec, dtp_min(dtp_blocks(c.p.T_cap * c.p.H, 8 * CROSS_ENTROPY_COPY_THREADS), 2048),
                       CROSS_ENTROPY_COPY_THREADS, 0, cross_entropy_scatter_kernel, c.p);
    if (st == DT_OK)
        st = DT_LAUNCH(err, exec, 1, CROSS_ENTROPY_THREADS, CROSS_ENTROPY_THREADS * 12, cross_entropy_sum_kernel, c.p);
    return st == DT_OK ? cross_entropy_fetch_result(&c) : st;
}

static size_t cross_entropy_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    return cross_entropy_plan((const dt_cross_entropy_args *)args, NULL).workspace_bytes;
}
static int cross_entropy_probe(int device_index, char *why, size_t why_size)
{
    return dtp_gemm_probe(device_index, why, why_size);
}

extern "C" const dt_op_set dtp_cuda_cross_entropy = {sizeof(dt_op_set),
                                                     DT_OP_CROSS_ENTROPY,
                                                     DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                     NULL,
                                                     NULL,
                                                     cross_entropy_workspace_bytes,
                                                     cross_entropy_forward,
                                                     NULL,
                                                     cross_entropy_probe};
