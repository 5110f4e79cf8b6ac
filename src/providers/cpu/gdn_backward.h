/* Backward of one item. Included once per instruction set.
 *
 * With Z = (I + L)^-T dV' the part of the triangular system needs no product with an explicit inverse:
 *     dL = -slow(Z V'^T),  d(V - diag(gamma) K S0) = diag(beta) Z,
 * and with H = Z S0^T, which dK needs anyway, K S0 is not needed again: rowsum(Z o diag(gamma) K S0) = gamma (H . k).
 * Products of q and k tiles with token x token matrices are linear in these, so the matrices are summed over the
 * value heads of the key head first (x_sum, m_sum) and multiplied once. */
#ifndef DT_CPU_GDN_BACKWARD_H
#define DT_CPU_GDN_BACKWARD_H

#include "providers/cpu/gdn_chunk.h"

/* One chunk of one value head. */
typedef struct {
    const dt_gdn_plan *plan;
    dt_gdn_scratch *s;
    int64_t head, t, n;
    const float *before;    /* S0, NULL: 0 */
    const float *corrected; /* V' */
    float *dstate;          /* dS1, becomes dS0 */
    bool has_dstate;        /* dS1 is not 0 */
    bool wants_dbefore;     /* dS0 is needed */
} chunk;

/* One row: dv = beta z; returns z . v. */
static float store_value_gradient(float *dv, const float *z, const float *v, float beta, int64_t width)
{
    vf sum = {0}, factor = vf_set(beta);
    FOR_EACH_VECTOR(width)
    {
        vf x = LOAD(z);
        sum = vf_fma(x, LOAD(v), sum);
        STORE(dv, factor * x);
    }
    return vf_sum(sum);
}

/* dV' = scale P^T dO + diag(eta) K dS1;  Z = (I + L)^-T dV';  dV = diag(beta) Z;  dbeta = rowsum(Z o V) + ... */
static void backward_values(const chunk *c)
{
    const dt_gdn_plan *plan = c->plan;
    const dt_gdn_args *a = plan->args;
    dt_gdn_scratch *s = c->s;
    int64_t n = c->n, Vp = plan->Vp;
    if (c->has_dstate) {
        product g = {.m = n,
                     .n = Vp,
                     .k = plan->K,
                     .a = s->k,
                     .a_row = plan->Kp,
                     .a_col = 1,
                     .b = c->dstate,
                     .ldb = Vp,
                     .c = s->z,
                     .ldc = Vp,
                     .alpha = 1.0f,
                     .alpha_row = s->eta};
        product_run(&g);
    }
    product inside = {.shape = PRODUCT_A_UPPER,
                      .m = n,
                      .n = Vp,
                      .k = n,
                      .a = s->p,
                      .a_row = 1,
                      .a_col = GDN_CHUNK,
                      .b = s->d_o,
                      .ldb = Vp,
                      .c = s->z,
                      .ldc = Vp,
                      .alpha = a->scale,
                      .d = c->has_dstate ? s->z : NULL,
                      .ldd = Vp,
                      .beta = 1.0f};
    product_run(&inside);
    solve_transposed(plan, s, s->z, n);
    const float *v = rows_of(&a->v, c->t, c->head);
    float *dv = rows_of(&a->dv, c->t, c->head);
    for (int64_t i = 0; i < n; i++)
        s->dbeta[i] =
            store_value_gradient(dv + i * a->dv.stride[0], s->z + i * Vp, v + i * a->v.stride[0], s->beta[i], plan->V);
}

/* X = scale low(dO V'^T) o E and M = -slow(Z V'^T) o E: their part of dg and dbeta; adds them to the sums.
 *
 * With F = slow(X o QK^T + diag(beta) M o KK^T), g_t decays exactly the pairs j < t <= i, so its part is the sum of
 * F_ij over these. The textbook form, differences of row and column sums and then a running sum, gives the same from
 * large numbers that cancel: under strong decay nothing but their rounding is left. Here rows run from the last one
 * up, `behind` holds sum_{i >= t} F_ij for every j, and what stands left of t in it is the part of dg_t. */
static void backward_scores(const chunk *c)
{
    dt_gdn_scratch *s = c->s;
    int64_t n = c->n, Vp = c->plan->Vp;
    transpose(s->corrected_t, GDN_CHUNK, c->corrected, Vp, n, Vp);
    product g = {.shape = PRODUCT_C_LOWER,
                 .m = n,
                 .n = (n + 15) / 16 * 16,
                 .k = c->plan->V,
                 .a = s->d_o,
                 .a_row = Vp,
                 .a_col = 1,
                 .b = s->corrected_t,
                 .ldb = GDN_CHUNK,
                 .c = s->x,
                 .ldc = GDN_CHUNK,
                 .alpha = c->plan->args->scale};
    product_run(&g);
    g.a = s->z;
    g.c = s->m;
    g.alpha = -1.0f;
    product_run(&g);

    vi lane;
    for (int i = 0; i < VF; i++)
        lane[i] = i;
    vf behind[GDN_CHUNK / VF];
    for (int b = 0; b < GDN_CHUNK / VF; b++)
        behind[b] = (vf){0};
    for (int64_t i = n - 1; i >= 0; i--) {
        vf beta = vf_set(s->beta[i]), dg = {0}, dbeta = {0}, zero = {0};
        vi row = (vi){0} + (int32_t)i;
        for (int64_t b = 0; b * VF <= i; b++) {
            int64_t at = i * GDN_CHUNK + b * VF;
            vi column = lane + (int32_t)(b * VF), below = column < row;
            vf e = vf_load(s->decay + at);
            vf x = vf_select(column <= row, vf_load(s->x + at) * e, zero);
            vf m = vf_select(below, vf_load(s->m + at) * e, zero);
            vf mk = vf_select(below, m * vf_load(s->kk + at), zero);
            vf f = vf_select(below, vf_fma(x, vf_load(s->qk + at), beta * mk), zero);
            behind[b] += f;
            dg += vf_select(below, behind[b], zero);
            dbeta += mk;
            vf_store(s->x_sum + at, vf_load(s->x_sum + at) + x);
            vf_store(s->m_sum + at, vf_fma(beta, m, vf_load(s->m_sum + at)));
        }
        s->dbeta[i] += vf_sum(dbeta);
        s->dg[i] = vf_sum(dg);
    }
}

/* tile += diag(factor) work; dot = rowsum(work o with). */
static void add_rows(const chunk *c, float *tile, const float *with, const float *factor, float *dot)
{
    int64_t Kp = c->plan->Kp;
    for (int64_t i = 0; i < c->n; i++) {
        const float *work = c->s->work + i * Kp, *other = with + i * Kp;
        float *row = tile + i * Kp;
        vf f = vf_set(factor[i]), sum = {0};
        for (int64_t j = 0; j < Kp; j += VF) {
            vf x = vf_load(work + j);
            sum = vf_fma(x, vf_load(other + j), sum);
            vf_store(row + j, vf_fma(f, x, vf_load(row + j)));
        }
        dot[i] = vf_sum(sum);
    }
}

/* What reaches q, k, g and beta through the state before the chunk. */
static void backward_before(const chunk *c)
{
    const dt_gdn_plan *plan = c->plan;
    dt_gdn_scratch *s = c->s;
    int64_t n = c->n, Vp = plan->Vp, Kp = plan->Kp;
    float dot[GDN_CHUNK], factor[GDN_CHUNK], read[GDN_CHUNK];
    transpose(s->state_t, Kp, c->before, Vp, plan->K, Vp);
    product g = {.m = n,
                 .n = Kp,
                 .k = plan->V,
                 .a = s->d_o,
                 .a_row = Vp,
                 .a_col = 1,
                 .b = s->state_t,
                 .ldb = Kp,
                 .c = s->work,
                 .ldc = Kp,
                 .alpha = 1.0f};
    product_run(&g); /* dO S0^T */
    add_rows(c, s->dq, s->q, s->scaled_gamma, dot);
    for (int64_t i = 0; i < n; i++)
        read[i] = s->scaled_gamma[i] * dot[i];

    g.a = s->z;
    product_run(&g); /* H = Z S0^T */
    for (int64_t i = 0; i < n; i++)
        factor[i] = -s->beta[i] * s->gamma[i];
    add_rows(c, s->dk, s->k, factor, dot);
    double sum = 0.0; /* g_t decays the state for all tokens from t on */
    for (int64_t i = n - 1; i >= 0; i--) {
        sum += (double)read[i] + (double)(factor[i] * dot[i]);
        s->dg[i] += (float)sum;
        s->dbeta[i] -= s->gamma[i] * dot[i];
    }
}

/* What reaches k and g through the state behind the chunk. */
static void backward_after(const chunk *c)
{
    const dt_gdn_plan *plan = c->plan;
    dt_gdn_scratch *s = c->s;
    int64_t n = c->n, Vp = plan->Vp, Kp = plan->Kp, V = plan->V;
    float dot[GDN_CHUNK];
    transpose(s->dstate_t, Kp, c->dstate, Vp, plan->K, Vp);
    product g = {.m = n,
                 .n = Kp,
                 .k = V,
                 .a = c->corrected,
                 .a_row = Vp,
                 .a_col = 1,
                 .b = s->dstate_t,
                 .ldb = Kp,
                 .c = s->work,
                 .ldc = Kp,
                 .alpha = 1.0f};
    product_run(&g); /* V' dS1^T */
    add_rows(c, s->dk, s->k, s->eta, dot);
    double sum = 0.0; /* g_t decays what the chunk began with and what tokens before t wrote */
    if (c->before) {
        for (int64_t j = 0; j < V; j++) /* both transposed by now: rows of K */
            sum += (double)row_dot(s->state_t + j * Kp, s->dstate_t + j * Kp, Kp);
        sum *= (double)s->gamma[n - 1];
    }
    for (int64_t i = 0; i < n; i++) {
        s->dg[i] += (float)sum;
        sum += (double)(s->eta[i] * dot[i]);
    }
}

/* dS0 = gamma_last dS1 + [Q; K]^T [scale diag(gamma) dO; -diag(beta gamma) Z]; the transposed state is not needed any
 * more and its memory takes the right factor. */
static void backward_state(const chunk *c)
{
    const dt_gdn_plan *plan = c->plan;
    dt_gdn_scratch *s = c->s;
    int64_t n = c->n, Vp = plan->Vp;
    float factor[GDN_CHUNK];
    for (int64_t i = 0; i < n; i++)
        factor[i] = -s->beta[i] * s->gamma[i];
    scale_rows(s->state_t, s->d_o, s->scaled_gamma, n, Vp);
    scale_rows(s->state_t + n * Vp, s->z, factor, n, Vp);
    product g = {.m = plan->K,
                 .n = Vp,
                 .k = 2 * n,
                 .a = s->q,
                 .a_row = 1,
                 .a_col = plan->Kp,
                 .b = s->state_t,
                 .ldb = Vp,
                 .c = c->dstate,
                 .ldc = Vp,
                 .alpha = 1.0f,
                 .d = c->has_dstate ? c->dstate : NULL,
                 .ldd = Vp,
                 .beta = s->gamma[n - 1]};
    product_run(&g);
}

static void store_gate_gradients(const chunk *c)
{
    const dt_gdn_args *a = c->plan->args;
    float *dg = (float *)a->dg.data + c->t * a->dg.stride[0] + c->head;
    float *dbeta = (float *)a->dbeta.data + c->t * a->dbeta.stride[0] + c->head;
    for (int64_t i = 0; i < c->n; i++) {
        dg[i * a->dg.stride[0]] = c->s->dg[i];
        dbeta[i * a->dbeta.stride[0]] = c->s->dbeta[i];
    }
}

static void backward_chunk(const chunk *c)
{
    const dt_gdn_plan *plan = c->plan;
    const dt_gdn_args *a = plan->args;
    dt_gdn_scratch *s = c->s;
    load_gates(plan, s, c->head, c->t, c->n);
    apply_decay(s, c->n, true);
    invert_blocks(s, c->n);
    load_tile(s->d_o, plan->Vp, rows_of(&a->d_o, c->t, c->head), a->d_o.stride[0], c->n, plan->V);
    backward_values(c);
    backward_scores(c);
    if (c->before)
        backward_before(c);
    if (c->has_dstate)
        backward_after(c);
    if (c->wants_dbefore)
        backward_state(c);
    store_gate_gradients(c);
}

/* The products with the summed matrices, then back through the normalisation, into dq and dk of the caller. */
static void finish_keys(const dt_gdn_plan *plan, dt_gdn_scratch *s, int64_t key_head, int64_t t, int64_t n)
{
    int64_t Kp = plan->Kp;
    product g = {.shape = PRODUCT_A_LOWER,
                 .m = n,
                 .n = Kp,
                 .k = n,
                 .a = s->x_sum,
                 .a_row = GDN_CHUNK,
                 .a_col = 1,
                 .b = s->k,
                 .ldb = Kp,
                 .c = s->dq,
                 .ldc = Kp,
                 .alpha = 1.0f,
                 .d = s->dq,
                 .ldd = Kp,
                 .beta = 1.0f};
    product_run(&g); /* dQ += X K */
    g.c = s->dk;
    g.d = s->dk;
    g.a = s->m_sum;
    product_run(&g); /* dK += M K */
    g.shape = PRODUCT_A_UPPER;
    g.a_row = 1;
    g.a_col = GDN_CHUNK;
    product_run(&g); /* dK += M^T K */
    g.a = s->x_sum;
    g.b = s->q;
    product_run(&g); /* dK += X^T Q */

    const dt_tensor *outputs[] = {&plan->args->dq, &plan->args->dk};
    float *gradients[] = {s->dq, s->dk}, *rows[] = {s->q, s->k}, *factors[] = {s->q_factor, s->k_factor};
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < n && plan->args->qk_l2norm; i++) {
            float *d = gradients[k] + i * Kp;
            const float *y = rows[k] + i * Kp;
            vf dot = vf_set(row_dot(d, y, Kp));
            for (int64_t j = 0; j < Kp; j += VF)
                vf_store(d + j, vf_load(d + j) - dot * vf_load(y + j));
        }
        const dt_tensor *x = outputs[k];
        store_tile(rows_of(x, t, key_head), x->stride[0], gradients[k], Kp, n, plan->K, factors[k]);
    }
}

static void gdn_backward_item(const dt_gdn_plan *plan, float *memory, int64_t sample, int64_t key_head)
{
    const dt_gdn_args *a = plan->args;
    int64_t K = plan->K, V = plan->V, Vp = plan->Vp, head0 = key_head * plan->group;
    int64_t first = a->seqs.cu_seqlens[sample], length = a->seqs.cu_seqlens[sample + 1] - first;
    int64_t chunks = gdn_chunks(length);
    bool has_initial = dt_tensor_present(&a->initial_state), has_dfinal = dt_tensor_present(&a->dfinal_state);
    bool wants_dinitial = dt_tensor_present(&a->dinitial_state);
    dt_gdn_scratch s;
    dtp_gdn_scratch(plan, true, memory, &s);

    for (int64_t i = 0; i < plan->group; i++) {
        float *dstate = s.state + i * K * Vp;
        if (has_dfinal)
            load_tile(dstate, Vp, rows_of(&a->dfinal_state, sample, head0 + i), a->dfinal_state.stride[2], K, V);
        else
            memset(dstate, 0, (size_t)(K * Vp) * sizeof *dstate);
    }
    for (int64_t c = chunks - 1; c >= 0; c--) {
        dt_gdn_span span = gdn_chunk(length, c);
        int64_t t = first + span.begin, n = span.n;
        load_keys(plan, &s, key_head, t, n);
        memset(s.x_sum, 0, GDN_CHUNK * GDN_CHUNK * sizeof *s.x_sum);
        memset(s.m_sum, 0, GDN_CHUNK * GDN_CHUNK * sizeof *s.m_sum);
        memset(s.dq, 0, (size_t)(n * plan->Kp) * sizeof *s.dq);
        memset(s.dk, 0, (size_t)(n * plan->Kp) * sizeof *s.dk);
        for (int64_t i = 0; i < plan->group; i++) {
            int64_t head = head0 + i;
            chunk one = {.plan = plan,
                         .s = &s,
                         .head = head,
                         .t = t,
                         .n = n,
                         .corrected = plan->corrected + (head * a->seqs.T_cap + t) * Vp,
                         .dstate = s.state + i * K * Vp,
                         .has_dstate = has_dfinal || c + 1 < chunks,
                         .wants_dbefore = c > 0 || wants_dinitial};
            if (c > 0) {
                one.before = gdn_slot(plan, sample, c, head);
            } else if (has_initial) {
                load_tile(s.initial, Vp, rows_of(&a->initial_state, sample, head), a->initial_state.stride[2], K, V);
                one.before = s.initial;
            }
            backward_chunk(&one);
        }
        finish_keys(plan, &s, key_head, t, n);
    }
    for (int64_t i = 0; i < plan->group && wants_dinitial; i++)
        store_tile(rows_of(&a->dinitial_state, sample, head0 + i), a->dinitial_state.stride[2], s.state + i * K * Vp,
                   Vp, K, V, NULL);
}

#endif
