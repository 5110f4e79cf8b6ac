/* DT_OP_GDN on CUDA: plans memory, chooses between the chunk kernels and the token kernels, launches. */
#include <deltune/op/gdn.h>
#include <stdio.h>

#include "providers/cuda/device.cuh"
#include "providers/cuda/gdn_chain_sm90.cuh"
#include "providers/cuda/gdn_gradient.cuh"
#include "providers/cuda/gdn_intra.cuh"
#include "providers/cuda/gdn_table.cuh"

/* Bytes from the start of saved memory (of the workspace, when nothing is saved). */
typedef struct gdn_plan {
    int64_t chunks; /* at most */
    size_t counts, chunk, chain, rq, rk, at, h, bytes_without_h, bytes;
} gdn_plan;

static size_t take(size_t *at, size_t bytes)
{
    size_t from = *at;
    *at = dtp_round_up(from + bytes, 256);
    return from;
}
static gdn_plan make_plan(const dt_gdn_args *a)
{
    gdn_plan plan;
    size_t at = 0, images;
    int64_t heads = a->q.shape[1], value_heads = a->v.shape[1];
    plan.chunks = a->seqs.T_cap / CHUNK + a->seqs.n_seq_cap + 1;
    images = (size_t)(plan.chunks * value_heads);
    plan.counts = take(&at, 4 * sizeof(int32_t));
    plan.chunk = take(&at, (size_t)plan.chunks * sizeof(int4));
    plan.chain = take(&at, (size_t)a->seqs.n_seq_cap * sizeof(int4));
    plan.rq = take(&at, (size_t)(a->seqs.T_cap * heads) * sizeof(float));
    plan.rk = take(&at, (size_t)(a->seqs.T_cap * heads) * sizeof(float));
    plan.at = take(&at, images * AT_BYTES);
    plan.bytes_without_h = at;
    plan.h = take(&at, images * STATE_BYTES);
    plan.bytes = at;
    return plan;
}

static gdn_rows rows_of(const dt_tensor *t)
{
    gdn_rows r = {(uint16_t *)t->data, t->stride[0], t->stride[1]};
    return r;
}
static gdn_scalars scalars_of(const dt_tensor *t)
{
    gdn_scalars s = {(float *)t->data, t->stride[0]};
    return s;
}
static gdn_params make_params(const dt_gdn_args *a, const gdn_plan *plan, unsigned char *memory, bool keep_states)
{
    gdn_params p;
    memset(&p, 0, sizeof p);
    p.q = rows_of(&a->q), p.k = rows_of(&a->k), p.v = rows_of(&a->v), p.o = rows_of(&a->o);
    p.g = scalars_of(&a->g), p.beta = scalars_of(&a->beta);
    p.initial_state = (const float *)a->initial_state.data;
    p.final_state = (float *)a->final_state.data;
    p.cu_seqlens = a->seqs.cu_seqlens_device;
    p.n_seq = (int32_t)a->seqs.n_seq;
    p.n_seq_cap = (int32_t)a->seqs.n_seq_cap;
    p.heads = (int32_t)a->q.shape[1];
    p.value_heads = (int32_t)a->v.shape[1];
    p.group = p.value_heads / p.heads;
    p.K = (int32_t)a->q.shape[2];
    p.V = (int32_t)a->v.shape[2];
    p.T_cap = a->seqs.T_cap;
    p.scale = a->scale;
    p.table.counts = (int32_t *)(memory + plan->counts);
    p.table.chunk = (int4 *)(memory + plan->chunk);
    p.table.chain = (int4 *)(memory + plan->chain);
    p.rq = (float *)(memory + plan->rq);
    p.rk = (float *)(memory + plan->rk);
    p.at = memory + plan->at;
    p.h = keep_states ? memory + plan->h : NULL;
    return p;
}

/* How the copy engine sees the tensors; d_o and dv exist in backward only. */
static dt_status make_maps(chain_maps *maps, const gdn_params &p, bool needed, dt_err *err)
{
    const struct {
        tensor_map *map;
        const gdn_rows *rows;
        int heads, width;
    } all[] = {{&maps->q, &p.q, p.heads, p.K},
               {&maps->k, &p.k, p.heads, p.K},
               {&maps->v, &p.v, p.value_heads, p.V},
               {&maps->d_o, &p.d_o, p.value_heads, p.V},
               {&maps->dv, &p.dv, p.value_heads, p.V}};
    memset(maps, 0, sizeof *maps);
    for (size_t i = 0; needed && i < sizeof all / sizeof *all; i++) {
        const gdn_rows *r = all[i].rows;
        dt_status st = !r->data ? DT_OK
                                : dtp_cuda_map_rows(all[i].map, r->data, p.T_cap, all[i].heads, all[i].width, r->row,
                                                    r->head, err);
        if (st != DT_OK)
            return st;
    }
    return DT_OK;
}

static dt_status run_forward(dt_exec *exec, const gdn_params &p, int64_t chunks, const dtp_cuda_facts *facts,
                             dt_err *err)
{
    bool hopper = facts->isa == ISA_WGMMA;
    int64_t items = chunks * p.heads;
    chain_maps maps;
    dt_status st = make_maps(&maps, p, hopper, err);
    if (st == DT_OK)
        st = DT_LAUNCH(err, exec, 1, TABLE_THREADS, (32 + TABLE_SORTED) * 4, gdn_table_kernel, p.cu_seqlens,
                       p.n_seq_cap, p.table);
    if (st == DT_OK)
        st = hopper ? DT_LAUNCH(err, exec, items, INTRA_THREADS, INTRA_SHARED, gdn_intra_kernel<ISA_WGMMA>, p, maps)
                    : DT_LAUNCH(err, exec, items, INTRA_THREADS, INTRA_SHARED, gdn_intra_kernel<ISA_MMA>, p, maps);
    if (st == DT_OK)
        st = hopper ? DT_LAUNCH(err, exec, facts->multiprocessors, HOPPER_CHAIN_THREADS, HC_SHARED,
                                gdn_forward_sm90_kernel, p, maps)
                    : DT_LAUNCH(err, exec, facts->multiprocessors, CHAIN_THREADS, CHAIN_SHARED,
                                gdn_forward_kernel<ISA_MMA>, p);
    return st;
}
static dt_status run_backward(dt_exec *exec, const gdn_params &p, const dtp_cuda_facts *facts, dt_err *err)
{
    bool hopper = facts->isa == ISA_WGMMA;
    int blocks = facts->multiprocessors;
    chain_maps maps, chain;
    dt_status st = make_maps(&maps, p, hopper, err);
    chain = maps;
    chain.v = maps.d_o;
    if (st == DT_OK)
        st = hopper ? DT_LAUNCH(err, exec, blocks, HOPPER_CHAIN_THREADS, HC_SHARED, gdn_backward_sm90_kernel, p, chain)
                    : DT_LAUNCH(err, exec, blocks, CHAIN_THREADS, CHAIN_SHARED, gdn_backward_kernel<ISA_MMA>, p);
    if (st == DT_OK)
        st = hopper ? DT_LAUNCH(err, exec, blocks, GRADIENT_THREADS, GRADIENT_SHARED, gdn_gradient_kernel<ISA_WGMMA>, p,
                                maps)
                    : DT_LAUNCH(err, exec, blocks, GRADIENT_THREADS, GRADIENT_SHARED, gdn_gradient_kernel<ISA_MMA>, p,
                                maps);
    return st;
}

static bool tileable(const dt_tensor *t)
{
    return !t->data || (((uintptr_t)t->data & 15) == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0);
}
/* The chunk kernels' domain. */
static bool chunked(const dt_gdn_args *a)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2];
    return a->q.dtype == DT_BF16 && a->qk_l2norm && K <= WIDTH && V <= WIDTH && K % 8 == 0 && V % 8 == 0 &&
           tileable(&a->q) && tileable(&a->k) && tileable(&a->v) && tileable(&a->o) && tileable(&a->d_o) &&
           tileable(&a->dq) && tileable(&a->dk) && tileable(&a->dv);
}

static int gdn_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    (void)exec;
    if (!chunked(a)) {
        snprintf(why, why_size, "the CUDA gated delta rule takes BF16 rows of at most 128 columns with qk_l2norm");
        return 0;
    }
    return 1;
}
static size_t gdn_saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    return make_plan((const dt_gdn_args *)args).bytes;
}
static size_t gdn_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    gdn_plan plan = make_plan(a);
    dtp_cuda_facts facts;
    if (!backward)
        return plan.bytes_without_h;
    dtp_cuda_device_facts(exec, &facts);
    return (size_t)(plan.chunks * a->v.shape[1]) * STATE_BYTES + (size_t)facts.multiprocessors * PARTIAL_BYTES;
}

static dt_status gdn_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    gdn_plan plan = make_plan(a);
    gdn_params p = make_params(a, &plan, (unsigned char *)(saved ? saved : workspace), saved != NULL);
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    return run_forward(exec, p, plan.chunks, &facts, err);
}
static dt_status gdn_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    gdn_plan plan = make_plan(a);
    gdn_params p = make_params(a, &plan, (unsigned char *)(uintptr_t)saved, true);
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    p.d_o = rows_of(&a->d_o), p.dq = rows_of(&a->dq), p.dk = rows_of(&a->dk), p.dv = rows_of(&a->dv);
    p.dg = scalars_of(&a->dg), p.dbeta = scalars_of(&a->dbeta);
    p.dfinal_state = (const float *)a->dfinal_state.data;
    p.dinitial_state = (float *)a->dinitial_state.data;
    p.dh = (unsigned char *)workspace;
    p.partial = (float *)(p.dh + (size_t)(plan.chunks * p.value_heads) * STATE_BYTES);
    return run_backward(exec, p, &facts, err);
}

extern "C" const dt_op_set dtp_cuda_gdn = {
    sizeof(dt_op_set),
    DT_OP_GDN,
    DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    gdn_verify,
    gdn_saved_bytes,
    gdn_workspace_bytes,
    gdn_forward,
    gdn_backward,
    NULL};
