/* The gradient kernel's second warpgroup: Wv, T, and dq.
 *
 *     Wv = V - diag(gamma rk) K S0, over V        Hq += diag(s gamma rq) dO S0^T
 *     T = low(low(QK^T)^T D + K dX^T diag(beta))  Hq += (sum of Dq) K, once a key head; dq */
#ifndef DT_CUDA_GDN_GRADIENT_QUERIES_CUH
#define DT_CUDA_GDN_GRADIENT_QUERIES_CUH
#include "providers/cuda/gdn_chain.cuh"
#include "providers/cuda/gdn_gradient_common.cuh"

template <int ISA> DT_DEVICE void step_wv(const gradient_head &h)
{
    float u[64];
    mm_begin<ISA>();
    mm_ss_new<ISA, 128, 8, K_MAJOR, K_MAJOR>(u, h.k, PANEL, h.base + GRAD_S, STATE_PANEL);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    const float f[2] = {h.v->gamma_rk[slab_row()], h.v->gamma_rk[slab_row() + 8]};
    gradient_wait(h.base, GB_READY_V, h.n);
    DT_UNROLL
    for (int s = 0; s < 8; s++) {
        uint32_t a[4];
        load_a<K_MAJOR>(a, h.base + GRAD_V, PANEL, s, 16 * slab_warp());
        DT_UNROLL
        for (int c = 0; c < 4; c++)
            a[c] = pack_bf16(bf16_low(a[c]) - f[c & 1] * u[8 * s + 2 * c],
                             bf16_high(a[c]) - f[c & 1] * u[8 * s + 2 * c + 1]);
        warp_sync();
        store_operand<ISA>(h.base + GRAD_V, PANEL, 16 * slab_warp(), s, a);
    }
}
/* total += diag(sign factor) (a S0^T); its row sums with `tile`. */
template <int ISA>
DT_DEVICE void step_state_part(float (&total)[64], float *sums, const gradient_head &h, uint32_t a_tile,
                               const float *factor, float sign, uint32_t tile)
{
    float u[64], sum[2], f[2] = {sign * factor[slab_row()], sign * factor[slab_row() + 8]};
    mm_begin<ISA>();
    mm_ss_new<ISA, 128, 8, K_MAJOR, MN_MAJOR>(u, a_tile, PANEL, h.base + GRAD_S, STATE_PANEL);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    dot_rows(sum, u, tile);
    if (on_diagonal()) {
        sums[slab_row()] = f[0] * sum[0];
        sums[slab_row() + 8] = f[1] * sum[1];
    }
    DT_UNROLL
    for (int c = 0; c < 64; c++)
        total[c] += f[c >> 1 & 1] * u[c];
}
/* t (+)= low(QK^T)^T D. */
template <int ISA> DT_DEVICE void add_scores(float (&t)[32], const gradient_head &h, bool accumulate)
{
    gradient_wait(h.base, GB_D, h.n);
    mm_begin<ISA>();
    mm_ss<ISA, 64, 4, MN_MAJOR, MN_MAJOR>(t, h.base + GRAD_PQ, PANEL, h.base + GRAD_DT, PANEL, accumulate);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
}
/* T, over D. */
template <int ISA> DT_DEVICE void step_t(const gradient_head &h)
{
    float t[32];
    gradient_wait(h.base, GB_DX, h.n);
    if (h.has_gradient) {
        mm_begin<ISA>();
        mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(t, h.k, PANEL, h.base + GRAD_DX, PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        scale_columns(t, h.v->eta_beta);
        add_scores<ISA>(t, h, true);
    } else
        add_scores<ISA>(t, h, false);
    group_sync(2, 128); /* all four warps have read D */
    store_lower<ISA>(h.base + GRAD_DT, t);
    gradient_publish(h.base, GB_T);
}

template <int ISA> DT_DEVICE void gradient_queries(const gdn_params &p)
{
    gradient_head h;
    float total[64];
    for (head_start(h), head_next(h, p); h.valid; head_next(h, p)) {
        if (h.has_state)
            step_wv<ISA>(h);
        else
            gradient_wait(h.base, GB_READY_V, h.n);
        gradient_publish(h.base, GB_WV);
        if (h.first)
            mm_clear(total);
        if (h.has_state)
            step_state_part<ISA>(total, h.sums->aq, h, h.base + GRAD_DO, h.v->s_gamma_rq, 1.0f, h.q);
        else
            store_row_totals(h.sums->aq, 0.0f, 0.0f);
        gradient_arrive(h.base, GB_FREE_S);
        gradient_arrive(h.base, GB_FREE_V);
        gradient_arrive(h.base, GB_SUMS + (h.n & 1));
        step_t<ISA>(h);
        if (!h.last)
            continue;
        float norm[2];
        load_norms(norm, p.rq, p.heads, h.message->item);
        gradient_wait(h.base, GB_DQ, h.pair);
        mm_begin<ISA>();
        mm_ss<ISA, 128, 4, K_MAJOR, MN_MAJOR>(total, h.base + GRAD_DT, PANEL, h.k, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        gradient_arrive(h.base, GB_FREE_DQ_Y);
        gradient_arrive(h.base, GB_FREE_K);
        gradient_wait(h.base, GB_FREE_Q, h.pair);
        finish_rows<ISA>(total, h.message->item, h.q, norm, p.dq, p.K);
        gradient_publish(h.base, GB_FREE_QK + (h.pair & 1));
    }
}
#endif
