/* DT_OP_GDN on CUDA: plans memory, chooses between the chunk kernels and the token kernels, launches. */
#include <deltune/op/gdn.h>
#include <stdio.h>

#include "providers/cuda/device.cuh"
#include "providers/cuda/gdn_chain_sm90.cuh"
#include "providers/cuda/gdn_gradient.cuh"
#include "providers/cuda/gdn_intra.cuh"
#include "providers/cuda/gdn_table.cuh"
#include "providers/cuda/gdn_token.cuh"

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
    p.table.capacity = (int32_t)plan->chunks;
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
        dt_status st = !r->data || p.T_cap == 0 ? DT_OK /* the driver refuses a map without rows */
                                                : dtp_cuda_map_rows(all[i].map, r->data, p.T_cap, all[i].heads,
                                                                    all[i].width, r->row, r->head, err);
        if (st != DT_OK)
            return st;
    }
    return DT_OK;
}

static dt_status run_chain(dt_exec *exec, const gdn_params &p, const chain_maps &maps, const dtp_cuda_facts *facts,
                           dt_err *err)
{
    return facts->isa == ISA_WGMMA ? DT_LAUNCH(err, exec, facts->multiprocessors, HOPPER_CHAIN_THREADS, HC_SHARED,
                                               gdn_forward_sm90_kernel, p, maps)
                                   : DT_LAUNCH(err, exec, facts->multiprocessors, CHAIN_THREADS, CHAIN_SHARED,
                                               gdn_forward_kernel<ISA_MMA>, p);
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
    return st == DT_OK ? run_chain(exec, p, maps, facts, err) : st;
}
/* `states`: not saved, so the chain of forward runs first. */
static dt_status run_backward(dt_exec *exec, const gdn_params &p, const dtp_cuda_facts *facts, bool states, dt_err *err)
{
    bool hopper = facts->isa == ISA_WGMMA;
    int blocks = facts->multiprocessors;
    chain_maps maps, chain;
    dt_status st = make_maps(&maps, p, hopper, err);
    if (st == DT_OK && states) {
        gdn_params again = p;
        again.final_state = NULL;
        st = run_chain(exec, again, maps, facts, err);
    }
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

/* Whether the chunk kernels run: decided by what cannot change between planning, forward and backward. */
static bool chunked(const dt_gdn_args *a)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2];
    return a->q.dtype == DT_BF16 && a->qk_l2norm && K <= WIDTH && V <= WIDTH && K % 8 == 0 && V % 8 == 0;
}
/* What their 16-byte accesses and the copy engine need. */
static bool tileable(const dt_tensor *t)
{
    return !t->data || (((uintptr_t)t->data & 15) == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0);
}
static bool all_tileable(const dt_gdn_args *a)
{
    return tileable(&a->q) && tileable(&a->k) && tileable(&a->v) && tileable(&a->o) && tileable(&a->d_o) &&
           tileable(&a->dq) && tileable(&a->dk) && tileable(&a->dv);
}
static_assert((int)HC_SHARED <= (int)GRADIENT_SHARED && (int)CHAIN_SHARED <= (int)GRADIENT_SHARED &&
                  (int)GRADIENT_SHARED <= 232448,
              "what verify asks for, and what Hopper has");
#define ALIGNMENT_TEXT "rows of the CUDA gated delta rule must lie on 16 bytes, with strides that are multiples of 8"

/* ---- token kernels ---- */

/* Bytes of shared memory: two states and eight vectors. */
static size_t token_shared_bytes(const dt_gdn_args *a)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], width = K > V ? K : V;
    return (size_t)(2 * K * (V + 1) + 8 * width) * sizeof(float);
}
static int token_threads(const dt_gdn_args *a)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], width = K > V ? K : V;
    return (int)((width + 31) / 32 * 32);
}
typedef struct token_plan {
    gdn_plan table; /* only its table is used */
    size_t states, saved_bytes;
    size_t history, dq_h, dk_h, work_bytes;
} token_plan;
static token_plan make_token_plan(const dt_gdn_args *a)
{
    token_plan plan;
    size_t state = (size_t)(a->q.shape[2] * a->v.shape[2]) * sizeof(float), at;
    size_t rows = (size_t)(a->seqs.T_cap * a->v.shape[1] * a->q.shape[2]) * sizeof(float);
    plan.table = make_plan(a);
    at = plan.table.rq;
    plan.states = take(&at, (size_t)(plan.table.chunks * a->v.shape[1]) * state);
    plan.saved_bytes = at;
    at = 0;
    plan.history = take(&at, TOKEN_BLOCKS * CHUNK * state);
    plan.dq_h = take(&at, rows);
    plan.dk_h = take(&at, rows);
    plan.work_bytes = at;
    return plan;
}
static token_rows token_rows_of(const dt_tensor *t)
{
    token_rows r = {t->data, t->stride[0], t->stride[1], t->dtype == DT_F32};
    return r;
}
static token_params make_token_params(const dt_gdn_args *a, const gdn_params *c)
{
    token_params p;
    memset(&p, 0, sizeof p);
    p.q = token_rows_of(&a->q), p.k = token_rows_of(&a->k), p.v = token_rows_of(&a->v), p.o = token_rows_of(&a->o);
    p.d_o = token_rows_of(&a->d_o), p.dq = token_rows_of(&a->dq), p.dk = token_rows_of(&a->dk);
    p.dv = token_rows_of(&a->dv);
    p.g = c->g, p.beta = c->beta, p.dg = scalars_of(&a->dg), p.dbeta = scalars_of(&a->dbeta);
    p.initial_state = c->initial_state, p.final_state = c->final_state;
    p.dfinal_state = (const float *)a->dfinal_state.data, p.dinitial_state = (float *)a->dinitial_state.data;
    p.n_seq = c->n_seq, p.heads = c->heads, p.value_heads = c->value_heads, p.group = c->group;
    p.K = c->K, p.V = c->V, p.l2norm = a->qk_l2norm;
    p.T_cap = c->T_cap;
    p.scale = c->scale;
    p.table = c->table;
    return p;
}
static dt_status token_forward(dt_exec *exec, const dt_gdn_args *a, unsigned char *memory, bool keep, dt_err *err)
{
    token_plan plan = make_token_plan(a);
    gdn_params c = make_params(a, &plan.table, memory, false);
    token_params p = make_token_params(a, &c);
    p.states = keep ? (float *)(memory + plan.states) : NULL;
    dt_status st = DT_LAUNCH(err, exec, 1, TABLE_THREADS, (32 + TABLE_SORTED) * 4, gdn_table_kernel, c.cu_seqlens,
                             c.n_seq_cap, c.table);
    return st != DT_OK ? st
                       : DT_LAUNCH(err, exec, dtp_min(a->seqs.n_seq_cap * p.value_heads, 1024), token_threads(a),
                                   (int)token_shared_bytes(a), gdn_token_forward_kernel, p);
}
static dt_status token_backward(dt_exec *exec, const dt_gdn_args *a, unsigned char *memory, unsigned char *work,
                                dt_err *err)
{
    token_plan plan = make_token_plan(a);
    gdn_params c = make_params(a, &plan.table, memory, false);
    token_params p = make_token_params(a, &c);
    p.states = (float *)(memory + plan.states);
    p.history = (float *)(work + plan.history);
    p.dq_h = (float *)(work + plan.dq_h), p.dk_h = (float *)(work + plan.dk_h);
    dt_status st =
        DT_LAUNCH(err, exec, TOKEN_BLOCKS, token_threads(a), (int)token_shared_bytes(a), gdn_token_backward_kernel, p);
    return st != DT_OK ? st
                       : DT_LAUNCH(err, exec, dtp_blocks(p.T_cap * p.heads, 8), 256, 0, gdn_token_finish_kernel, p);
}

/* ---- the operator set ---- */

static int gdn_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    int needed = chunked(a) ? (int)GRADIENT_SHARED /* the most of its kernels */ : (int)token_shared_bytes(a);
    if (chunked(a) && !all_tileable(a)) {
        snprintf(why, why_size, "%s", ALIGNMENT_TEXT);
        return 0;
    }
    if (needed <= facts.shared_bytes && token_threads(a) <= 1024)
        return 1;
    snprintf(
        why, why_size,
        "the CUDA gated delta rule needs %d bytes of shared memory a block for heads of %lld x %lld, the card has %d",
        needed, (long long)a->q.shape[2], (long long)a->v.shape[2], facts.shared_bytes);
    return 0;
}
static size_t gdn_saved_bytes(const dt_exec *exec, const void *args)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    (void)exec;
    if (!chunked(a))
        return make_token_plan(a).saved_bytes;
    return a->save_less ? make_plan(a).bytes_without_h : make_plan(a).bytes;
}
static size_t gdn_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    gdn_plan plan = make_plan(a);
    (void)exec;
    if (!chunked(a))
        return backward ? make_token_plan(a).work_bytes : plan.rq;
    if (!backward)
        return plan.bytes_without_h;
    return (size_t)(plan.chunks * a->v.shape[1]) * STATE_BYTES * (a->save_less ? 2 : 1);
}

static dt_status gdn_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    unsigned char *memory = (unsigned char *)(saved ? saved : workspace);
    if (!chunked(a))
        return token_forward(exec, a, memory, saved != NULL, err);
    gdn_plan plan = make_plan(a);
    gdn_params p = make_params(a, &plan, memory, saved != NULL && !a->save_less);
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    return run_forward(exec, p, plan.chunks, &facts, err);
}
static dt_status gdn_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_args *a = (const dt_gdn_args *)args;
    unsigned char *memory =
        (unsigned char *)(uintptr_t)saved; /* the parameters are shared with forward, which writes it */
    if (!chunked(a))
        return token_backward(exec, a, memory, (unsigned char *)workspace, err);
    if (!all_tileable(a)) /* forward may have been checked before these tensors existed */
        return dt_fail(err, DT_E_UNSUPPORTED, "%s", ALIGNMENT_TEXT);
    gdn_plan plan = make_plan(a);
    gdn_params p = make_params(a, &plan, memory, true);
    dtp_cuda_facts facts;
    dtp_cuda_device_facts(exec, &facts);
    p.d_o = rows_of(&a->d_o), p.dq = rows_of(&a->dq), p.dk = rows_of(&a->dk), p.dv = rows_of(&a->dv);
    p.dg = scalars_of(&a->dg), p.dbeta = scalars_of(&a->dbeta);
    p.dfinal_state = (const float *)a->dfinal_state.data;
    p.dinitial_state = (float *)a->dinitial_state.data;
    p.dh = (unsigned char *)workspace;
    if (a->save_less) {
        if (!a->o.data)
            return dt_fail(err, DT_E_ARG, "o is missing, from which the states that were not saved come");
        p.h = p.dh;
        p.dh += (size_t)(plan.chunks * p.value_heads) * STATE_BYTES;
    }
    return run_backward(exec, p, &facts, a->save_less, err);
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
