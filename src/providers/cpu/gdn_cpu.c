/* Gated delta rule of the cpu provider: sizes, the order of work, and the choice of kernels. See gdn_cpu.h. */
#include "providers/cpu/gdn_cpu.h"

#include "providers/cpu/common.h"
#include "providers/cpu/cpu_isa.h"

#include <omp.h>
#include <stdlib.h>

static int64_t padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}

const dt_gdn_kernels *dtp_gdn_kernels(void)
{
    switch (dtp_cpu_isa()) {
#if defined(__x86_64__)
    case DT_ISA_AVX512: return &dtp_gdn_kernels_avx512;
    case DT_ISA_AVX2: return &dtp_gdn_kernels_avx2;
#endif
    default: return &dtp_gdn_kernels_portable;
    }
}

/* ---- memory ---- */

static float *cut(float **memory, int64_t *used, int64_t floats)
{
    float *part = *memory ? *memory + *used : NULL;
    *used += padded(floats);
    return part;
}

int64_t dtp_gdn_scratch(const dt_gdn_plan *plan, bool backward, float *memory, dt_gdn_scratch *s)
{
    enum { C = GDN_CHUNK };
    int64_t used = 0, K = plan->K, Kp = plan->Kp, Vp = plan->Vp, wide = Kp > Vp ? Kp : Vp;
    float **const rows[] = {&s->q_factor,     &s->k_factor, &s->beta,  &s->gamma, &s->eta,
                            &s->scaled_gamma, &s->g_high,   &s->g_low, &s->dg,    &s->dbeta};
    float **const squares[] = {&s->kk, &s->qk, &s->p, &s->l};
    float **const backward_squares[] = {&s->decay, &s->x, &s->m, &s->x_sum, &s->m_sum};
    *s = (dt_gdn_scratch){0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = cut(&memory, &used, C);
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        *squares[i] = cut(&memory, &used, C * C);
    s->inverse = cut(&memory, &used, C * GDN_BLOCK);
    s->q = cut(&memory, &used, 2 * C * Kp);
    s->kt = cut(&memory, &used, Kp * C);
    s->work = cut(&memory, &used, C * wide);
    s->state = cut(&memory, &used, plan->group * K * Vp);
    if (!backward) {
        s->v = cut(&memory, &used, C * Vp);
        s->u = cut(&memory, &used, C * Vp);
        return used;
    }
    for (size_t i = 0; i < sizeof backward_squares / sizeof *backward_squares; i++)
        *backward_squares[i] = cut(&memory, &used, C * C);
    s->d_o = cut(&memory, &used, C * Vp);
    s->z = cut(&memory, &used, C * Vp);
    s->corrected_t = cut(&memory, &used, Vp * C);
    s->state_t = cut(&memory, &used, Vp * (Kp > 2 * C ? Kp : 2 * C));
    s->dstate_t = cut(&memory, &used, Vp * Kp);
    s->dq = cut(&memory, &used, C * Kp);
    s->dk = cut(&memory, &used, C * Kp);
    s->initial = cut(&memory, &used, K * Vp);
    return used;
}

static dt_gdn_plan plan_of(const dt_gdn_args *a)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2];
    return (dt_gdn_plan){
        .args = a, .K = K, .V = V, .Kp = padded(K), .Vp = padded(V), .group = a->v.shape[1] / a->q.shape[1]};
}

/* A sample of L tokens has ceil(L/64) - 1 states that must be kept, so all of them have at most T/64. */
static int64_t states_floats(const dt_gdn_plan *plan)
{
    return plan->args->seqs.T_cap / GDN_CHUNK * plan->args->v.shape[1] * plan->K * plan->Vp;
}

static size_t gdn_saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    dt_gdn_plan plan = plan_of(args);
    int64_t rows = plan.args->v.shape[1] * plan.args->seqs.T_cap;
    return (size_t)(states_floats(&plan) + rows * plan.Vp) * sizeof(float);
}

typedef struct {
    int64_t length, sample;
} sized;

/* Workspace: samples by length [n_seq], first_slot [n_seq], then the scratch of each thread. */
static size_t tables_bytes(const dt_gdn_args *a)
{
    int64_t n = a->seqs.n_seq_cap > a->seqs.n_seq ? a->seqs.n_seq_cap : a->seqs.n_seq;
    return ((size_t)n * (sizeof(sized) + sizeof(int64_t)) + 63) / 64 * 64;
}

static size_t gdn_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    dt_gdn_plan plan = plan_of(args);
    dt_gdn_scratch s;
    int64_t floats = dtp_gdn_scratch(&plan, backward, NULL, &s);
    return tables_bytes(args) + (size_t)exec->threads * (size_t)floats * sizeof(float);
}

/* ---- calls ---- */

static int longer_first(const void *pa, const void *pb)
{
    const sized *a = pa, *b = pb;
    if (a->length != b->length)
        return a->length < b->length ? 1 : -1;
    return (a->sample > b->sample) - (a->sample < b->sample);
}

/* All items, the longest samples first, so that no thread starts a long one when the others are done. */
static void run(const dt_exec *exec, dt_gdn_plan *plan, const void *saved, void *workspace, bool backward)
{
    const dt_gdn_args *a = plan->args;
    const int32_t *cu = a->seqs.cu_seqlens;
    int64_t n_seq = a->seqs.n_seq, key_heads = a->q.shape[1], slot = 0;
    sized *order = workspace;
    int64_t *first_slot = (int64_t *)(order + n_seq);
    for (int64_t n = 0; n < n_seq; n++) {
        order[n] = (sized){cu[n + 1] - cu[n], n};
        first_slot[n] = slot;
        slot += order[n].length > 0 ? gdn_chunks(order[n].length) - 1 : 0;
    }
    qsort(order, (size_t)n_seq, sizeof *order, longer_first);
    plan->first_slot = first_slot;
    if (saved) {
        plan->states = (float *)(uintptr_t)saved;
        plan->corrected = plan->states + states_floats(plan);
    }

    const dt_gdn_kernels *kernels = dtp_gdn_kernels();
    dt_gdn_scratch layout;
    int64_t floats = dtp_gdn_scratch(plan, backward, NULL, &layout);
    float *scratch = (float *)((char *)workspace + tables_bytes(a));
#pragma omp parallel for schedule(dynamic) num_threads(dtp_threads_for(exec, a->seqs.T * a->v.shape[1] * plan->K))
    for (int64_t item = 0; item < n_seq * key_heads; item++) {
        float *memory = scratch + omp_get_thread_num() * floats;
        int64_t sample = order[item / key_heads].sample, key_head = item % key_heads;
        (backward ? kernels->backward : kernels->forward)(plan, memory, sample, key_head);
    }
}

static dt_status gdn_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_gdn_args *a = args;
    dt_gdn_plan plan = plan_of(a);
    run(exec, &plan, saved, workspace, false);
    dtp_zero_rows(&a->o, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

static dt_status gdn_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_gdn_args *a = args;
    dt_gdn_plan plan = plan_of(a);
    run(exec, &plan, saved, workspace, true);
    const dt_tensor *gradients[] = {&a->dq, &a->dk, &a->dv, &a->dg, &a->dbeta};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        dtp_zero_rows(gradients[i], a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

static int gdn_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_gdn_args *a = args;
    return dtp_is_f32(&a->q, "q", why, why_size);
}

const dt_op_set dtp_cpu_gdn = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .verify = gdn_verify,
    .saved_bytes = gdn_saved_bytes,
    .workspace_bytes = gdn_workspace_bytes,
    .forward = gdn_forward,
    .backward = gdn_backward,
};
