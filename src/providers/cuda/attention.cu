/* DT_OP_ATTENTION on CUDA: chooses the kernels and launches them. */
#include <deltune/op/attention.h>

#include "providers/cuda/attention_backward_sm90.cuh"
#include "providers/cuda/attention_forward.cuh"
#include "providers/cuda/attention_plain.cuh"
#include "providers/cuda/device.cuh"

static attention_rows attention_rows_of(const dt_tensor *t)
{
    attention_rows r = {t->data, t->stride[0], t->stride[1], t->dtype == DT_F32};
    return r;
}
static attention_params attention_make_params(const dt_attention_args *a)
{
    const dt_seqs *keys = a->kv_seqs.n_seq ? &a->kv_seqs : &a->seqs;
    attention_params p;
    memset(&p, 0, sizeof p);
    p.q = attention_rows_of(&a->q), p.k = attention_rows_of(&a->k), p.v = attention_rows_of(&a->v);
    p.o = attention_rows_of(&a->o), p.d_o = attention_rows_of(&a->d_o);
    p.dq = attention_rows_of(&a->dq), p.dk = attention_rows_of(&a->dk), p.dv = attention_rows_of(&a->dv);
    p.q_cu = a->seqs.cu_seqlens_device, p.k_cu = keys->cu_seqlens_device;
    p.n_seq_cap = (int32_t)a->seqs.n_seq_cap;
    p.heads = (int32_t)a->q.shape[1], p.kv_heads = (int32_t)a->k.shape[1], p.D = (int32_t)a->q.shape[2];
    p.group = p.heads / p.kv_heads;
    p.tokens = ATTENTION_ROWS / p.group;
    p.magic = (65536 + p.group - 1) / p.group;
    p.T_cap = a->seqs.T_cap, p.key_cap = keys->T_cap;
    p.scale = a->scale, p.scale_log2 = a->scale * 1.4426950408889634f;
    return p;
}

static bool attention_row_ready(const dt_tensor *t)
{
    const int64_t far = 1 << 24; /* inside a tile 32 bits must do */
    return !t->data || (t->dtype == DT_BF16 && ((uintptr_t)t->data & 15) == 0 && t->stride[0] % 8 == 0 &&
                        t->stride[1] % 8 == 0 && t->stride[0] <= far && t->stride[1] <= far);
}
/* The tile kernels' domain. Backward needs what their forward saves; whatever saved it, the plain kernels need less. */
static bool attention_by_tiles(const dt_attention_args *a, const dtp_cuda_facts *facts)
{
    int64_t D = a->q.shape[2];
    int needed =
        facts->isa == ISA_WGMMA ? (int)attention_sm90_shape<256>::SHARED : (int)attention_backward_shape<256>::SHARED;
    return (D == 64 || D == 128 || D == 256) && a->q.shape[1] / a->k.shape[1] <= ATTENTION_ROWS && a->scale > 0 &&
           facts->shared_bytes >= needed && attention_row_ready(&a->q) && attention_row_ready(&a->k) &&
           attention_row_ready(&a->v) && attention_row_ready(&a->o);
}
static bool attention_backward_by_tiles(const dt_attention_args *a, const dtp_cuda_facts *facts)
{
    return attention_by_tiles(a, facts) && attention_row_ready(&a->d_o) && attention_row_ready(&a->dq) &&
           attention_row_ready(&a->dk) && attention_row_ready(&a->dv);
}
/* Slots for tiles of `size` tokens; see attention_find. */
static int64_t attention_slots(const attention_params *p, int64_t size)
{
    return p->T_cap / size + p->n_seq_cap + 1;
}

/* Their maps; those of absent tensors stay empty. */
static dt_status attention_make_maps(attention_maps *maps, const attention_params &p, dt_err *err)
{
    const struct {
        tensor_map *map;
        const attention_rows *x;
        int64_t rows;
        int heads, box_heads, box_rows;
    } all[] = {{&maps->q, &p.q, p.T_cap, p.heads, p.group, p.tokens},
               {&maps->d_o, &p.d_o, p.T_cap, p.heads, p.group, p.tokens},
               {&maps->k, &p.k, p.key_cap, p.kv_heads, 1, ATTENTION_ROWS},
               {&maps->v, &p.v, p.key_cap, p.kv_heads, 1, ATTENTION_ROWS}};
    memset(maps, 0, sizeof *maps);
    for (const auto &m : all) {
        dt_status st = !m.x->data ? DT_OK
                                  : dtp_cuda_map_box(m.map, m.x->data, m.rows, m.heads, p.D, m.x->row, m.x->head,
                                                     m.box_heads, m.box_rows, err);
        if (st != DT_OK)
            return st;
    }
    return DT_OK;
}

template <int D, int GROUPS>
static dt_status attention_launch_forward_sm90(dt_exec *exec, const attention_params &p, dt_err *err)
{
    auto kernel = attention_forward_sm90_kernel<D, GROUPS>;
    attention_maps maps;
    dt_status st = attention_make_maps(&maps, p, err);
    return st != DT_OK ? st
                       : DT_LAUNCH(err, exec, attention_slots(&p, GROUPS * p.tokens) * p.kv_heads, GROUPS * 128,
                                   (attention_forward_sm90_shape<D, GROUPS>::SHARED), kernel, p, maps);
}
template <int D>
static dt_status attention_run_forward(dt_exec *exec, const attention_params &p, bool hopper, dt_err *err)
{
    auto kernel = attention_forward_kernel<D>;
    if (!hopper)
        return DT_LAUNCH(err, exec, attention_slots(&p, p.tokens) * p.kv_heads, ATTENTION_FORWARD_THREADS,
                         attention_forward_shape<D>::SHARED, kernel, p);
    /* Two warpgroups a block once there are enough tiles for all multiprocessors. */
    return p.T_cap <= 512 ? attention_launch_forward_sm90<D, 1>(exec, p, err)
                          : attention_launch_forward_sm90<D, 2>(exec, p, err);
}
template <int D>
static dt_status attention_run_backward(dt_exec *exec, const attention_params &p, bool hopper, dt_err *err)
{
    const int64_t key_slots = attention_slots(&p, ATTENTION_ROWS), query_slots = attention_slots(&p, p.tokens);
    const int64_t blocks = (key_slots + query_slots) * p.kv_heads;
    dt_status st = DT_LAUNCH(err, exec, dtp_min(dtp_blocks(p.T_cap * p.heads, ATTENTION_MEAN_THREADS / (D / 8)), 4096),
                             ATTENTION_MEAN_THREADS, 0, attention_mean_kernel<D>, p);
    if (st != DT_OK)
        return st;
    if (!hopper)
        return DT_LAUNCH(err, exec, blocks, ATTENTION_BACKWARD_THREADS, attention_backward_shape<D>::SHARED,
                         attention_backward_kernel<D>, p, (int32_t)key_slots, (int32_t)query_slots);
    attention_maps maps;
    st = attention_make_maps(&maps, p, err);
    return st != DT_OK
               ? st
               : DT_LAUNCH(err, exec, blocks, ATTENTION_SM90_THREADS, attention_sm90_shape<D>::SHARED,
                           attention_backward_sm90_kernel<D>, p, maps, (int32_t)key_slots, (int32_t)query_slots);
}

static size_t attention_factor_bytes(const dt_attention_args *a)
{
    return dtp_round_up((size_t)(a->q.shape[0] * a->q.shape[1]) * sizeof(float), 256);
}
/* Saved: lse, then the rest of o; the factors fill whole 16 bytes, as a row of the rest needs. */
static void attention_set_saved(attention_params *p, const dt_attention_args *a, void *saved)
{
    p->lse = (float *)saved;
    p->rest = saved ? (uint8_t *)saved + attention_factor_bytes(a) : NULL;
}
static size_t attention_saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    const dt_attention_args *a = (const dt_attention_args *)args;
    return attention_factor_bytes(a) +
           (a->q.dtype == DT_BF16 ? attention_factor_bytes(a) / 4 * (size_t)a->q.shape[2] : 0);
}
static size_t attention_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    return backward ? attention_factor_bytes((const dt_attention_args *)args) : 0;
}
static dt_status attention_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_attention_args *a = (const dt_attention_args *)args;
    attention_params p = attention_make_params(a);
    dtp_cuda_facts facts;
    (void)workspace;
    dtp_cuda_device_facts(exec, &facts);
    attention_set_saved(&p, a, saved);
    if (!attention_by_tiles(a, &facts))
        return DT_LAUNCH(err, exec, p.T_cap * p.heads, ATTENTION_PLAIN_THREADS, ATTENTION_PLAIN_BYTES(p.D),
                         attention_plain_forward_kernel, p);
    /* Rows of a key cache behind the last key need not be finite: only the portable kernels leave them out. */
    const bool hopper = facts.isa == ISA_WGMMA && a->kv_seqs.n_seq == 0;
    return p.T_cap == 0 ? DT_OK /* the driver refuses a map without rows */
           : p.D == 256 ? attention_run_forward<256>(exec, p, hopper, err)
           : p.D == 128 ? attention_run_forward<128>(exec, p, hopper, err)
                        : attention_run_forward<64>(exec, p, hopper, err);
}
static dt_status attention_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_attention_args *a = (const dt_attention_args *)args;
    attention_params p = attention_make_params(a);
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    attention_set_saved(&p, a, (void *)(uintptr_t)saved); /* the parameters are shared with forward, which writes it */
    p.mean = (float *)workspace;
    if (!attention_backward_by_tiles(a, &facts)) {
        dt_status st = DT_LAUNCH(err, exec, p.T_cap * p.heads, ATTENTION_PLAIN_THREADS, ATTENTION_PLAIN_BYTES(p.D),
                                 attention_plain_queries_kernel, p);
        return st != DT_OK ? st
                           : DT_LAUNCH(err, exec, p.T_cap * p.kv_heads, ATTENTION_PLAIN_THREADS,
                                       ATTENTION_PLAIN_BYTES(p.D), attention_plain_keys_kernel, p);
    }
    const bool hopper = facts.isa == ISA_WGMMA;
    return p.T_cap == 0 ? DT_OK
           : p.D == 256 ? attention_run_backward<256>(exec, p, hopper, err)
           : p.D == 128 ? attention_run_backward<128>(exec, p, hopper, err)
                        : attention_run_backward<64>(exec, p, hopper, err);
}

extern "C" const dt_op_set dtp_cuda_attention = {sizeof(dt_op_set),
                                                 DT_OP_ATTENTION,
                                                 DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
                                                 NULL,
                                                 attention_saved_bytes,
                                                 attention_workspace_bytes,
                                                 attention_forward,
                                                 attention_backward,
                                                 NULL};
