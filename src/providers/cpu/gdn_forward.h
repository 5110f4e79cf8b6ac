/* Forward of one item. Included once per instruction set. */
#ifndef DT_CPU_GDN_FORWARD_H
#define DT_CPU_GDN_FORWARD_H

#include "providers/cpu/gdn_chunk.h"

/* V', the corrected values of one chunk, into `corrected`. Rows of the caller are far apart and usually not in cache:
 * one pass that only copies them waits once for many, which beats products that meet them one by one. */
static void forward_values(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t head, int64_t t, int64_t n,
                           const float *before, float *corrected)
{
    const dt_tensor *v = &plan->args->v;
    int64_t Vp = plan->Vp;
    load_tile(s->v, Vp, rows_of(v, t, head), v->stride[0], n, plan->V);
    if (before) { /* V - diag(gamma) K S0 */
        product g = {.m = n,
                     .n = Vp,
                     .k = plan->K,
                     .a = s->k,
                     .a_row = plan->Kp,
                     .a_col = 1,
                     .b = before,
                     .ldb = Vp,
                     .c = s->v,
                     .ldc = Vp,
                     .alpha = -1.0f,
                     .alpha_row = s->gamma,
                     .d = s->v,
                     .ldd = Vp,
                     .beta = 1.0f};
        product_run(&g);
    }
    solve(plan, s, corrected, s->v, s->beta, n);
}

/* O = scale (diag(gamma) Q S0 + P V') */
static void forward_output(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t head, int64_t t, int64_t n,
                           const float *before, const float *corrected)
{
    const dt_tensor *o = &plan->args->o;
    int64_t Vp = plan->Vp;
    if (before) {
        product g = {.m = n,
                     .n = Vp,
                     .k = plan->K,
                     .a = s->q,
                     .a_row = plan->Kp,
                     .a_col = 1,
                     .b = before,
                     .ldb = Vp,
                     .c = s->work,
                     .ldc = Vp,
                     .alpha = 1.0f,
                     .alpha_row = s->scaled_gamma};
        product_run(&g);
    }
    product inside = {.shape = PRODUCT_A_LOWER,
                      .m = n,
                      .n = Vp,
                      .k = n,
                      .a = s->p,
                      .a_row = GDN_CHUNK,
                      .a_col = 1,
                      .b = corrected,
                      .ldb = Vp,
                      .c = s->work,
                      .ldc = Vp,
                      .alpha = plan->args->scale,
                      .d = before ? s->work : NULL,
                      .ldd = Vp,
                      .beta = 1.0f};
    product_run(&inside);
    store_tile(rows_of(o, t, head), o->stride[0], s->work, Vp, n, plan->V, NULL);
}

/* One chunk of one value head. `before` NULL: the state is 0; `after` NULL: nobody needs the state behind the chunk;
 * after may be before. */
static void forward_chunk(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t head, int64_t t, int64_t n,
                          const float *before, float *after)
{
    int64_t Vp = plan->Vp;
    float *corrected = plan->corrected ? plan->corrected + (head * plan->args->seqs.T_cap + t) * Vp : s->u;
    load_gates(plan, s, head, t, n);
    apply_decay(s, n, false);
    invert_blocks(s, n);
    forward_values(plan, s, head, t, n, before, corrected);
    forward_output(plan, s, head, t, n, before, corrected);
    if (after) { /* S1 = gamma_last S0 + K^T diag(eta) V' */
        scale_rows(s->work, corrected, s->eta, n, Vp);
        product g = {.m = plan->K,
                     .n = Vp,
                     .k = n,
                     .a = s->k,
                     .a_row = 1,
                     .a_col = plan->Kp,
                     .b = s->work,
                     .ldb = Vp,
                     .c = after,
                     .ldc = Vp,
                     .alpha = 1.0f,
                     .d = before,
                     .ldd = Vp,
                     .beta = s->gamma[n - 1]};
        product_run(&g);
    }
}

static void gdn_forward_item(const dt_gdn_plan *plan, float *memory, int64_t sample, int64_t key_head)
{
    const dt_gdn_args *a = plan->args;
    int64_t K = plan->K, V = plan->V, Vp = plan->Vp, head0 = key_head * plan->group;
    int64_t first = a->seqs.cu_seqlens[sample], length = a->seqs.cu_seqlens[sample + 1] - first;
    int64_t chunks = gdn_chunks(length);
    bool has_initial = dt_tensor_present(&a->initial_state), wants_final = dt_tensor_present(&a->final_state);
    dt_gdn_scratch s;
    dtp_gdn_scratch(plan, false, memory, &s);

    for (int64_t i = 0; i < plan->group; i++) {
        float *state = s.state + i * K * Vp;
        if (has_initial)
            load_tile(state, Vp, rows_of(&a->initial_state, sample, head0 + i), a->initial_state.stride[2], K, V);
        else
            memset(state, 0, (size_t)(K * Vp) * sizeof *state); /* what a sample of length 0 ends with */
    }
    for (int64_t c = 0; c < chunks; c++) {
        dt_gdn_span span = gdn_chunk(length, c);
        int64_t t = first + span.begin, n = span.n;
        load_keys(plan, &s, key_head, t, n);
        for (int64_t i = 0; i < plan->group; i++) {
            float *running = s.state + i * K * Vp, *before = NULL, *after = NULL;
            if (c > 0)
                before = plan->states ? gdn_slot(plan, sample, c, head0 + i) : running;
            else if (has_initial)
                before = running;
            if (c + 1 < chunks)
                after = plan->states ? gdn_slot(plan, sample, c + 1, head0 + i) : running;
            else if (wants_final)
                after = running;
            forward_chunk(plan, &s, head0 + i, t, n, before, after);
        }
    }
    for (int64_t i = 0; i < plan->group && wants_final; i++)
        store_tile(rows_of(&a->final_state, sample, head0 + i), a->final_state.stride[2], s.state + i * K * Vp, Vp, K,
                   V, NULL);
}

#endif
