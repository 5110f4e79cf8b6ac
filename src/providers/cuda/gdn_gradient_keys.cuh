/* The gradient kernel's third warpgroup: dX and dk.
 *
 *     Hk -= diag(gamma rk) dW S0^T        dX = diag(eta) Wv dS1^T, x = rowsum(At^T K o dX)
 *     Hk += At diag(beta) dX              Hk += (sum of Dq)^T Q + Y K + Y^T K with the sum of Y, once a key head; dk
 *
 * x, a part of dg and dbeta, is taken from dX in fp32: with the bf16 of dX the dg of short samples misses its
 * tolerance. */
#ifndef DT_CUDA_GDN_GRADIENT_KEYS_CUH
#define DT_CUDA_GDN_GRADIENT_KEYS_CUH
#include "providers/cuda/gdn_gradient_queries.cuh"

/* dX is kept without its factor eta: each use has a factor for its rows anyway. In two halves of 64 columns: registers
 * are short. */
template <int ISA> DT_DEVICE void step_dx(const gradient_head &h)
{
    float sum[2] = {0.0f, 0.0f};
    DT_ROLLED
    for (int half = 0; half < 2; half++) {
        float d[32], x[32];
        uint32_t a[4][4];
        mm_begin<ISA>();
        mm_ss_new<ISA, 64, 4, MN_MAJOR, MN_MAJOR>(x, h.base + GRAD_AT, PANEL, h.k + half * PANEL, PANEL);
        mm_ss_new<ISA, 64, 8, K_MAJOR, MN_MAJOR>(d, h.base + GRAD_V, PANEL, h.base + GRAD_DS + half * STATE_PANEL,
                                                 STATE_PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        DT_UNROLL
        for (int c = 0; c < 32; c++)
            sum[c >> 1 & 1] += d[c] * x[c];
        pack_operand<64>(a, d);
        DT_UNROLL
        for (int s = 0; s < 4; s++)
            store_operand<ISA>(h.base + GRAD_DX + half * PANEL, PANEL, 16 * slab_warp(), s, a[s]);
    }
    store_row_totals(h.sums->x, h.v->eta[slab_row()] * sum[0], h.v->eta[slab_row() + 8] * sum[1]);
}
/* Hk += At diag(beta eta) (Wv dS1^T). */
template <int ISA> DT_DEVICE void step_at_dx(float (&total)[64], const gradient_head &h)
{
    uint32_t a[4][4];
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        load_a<K_MAJOR>(a[s], h.base + GRAD_AT, PANEL, s, 16 * slab_warp());
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            float2 f = *(const float2 *)(h.v->eta_beta + 16 * s + 8 * (c >> 1) + slab_column());
            a[s][c] = pack_bf16(f.x * bf16_low(a[s][c]), f.y * bf16_high(a[s][c]));
        }
    }
    gradient_wait(h.base, GB_DX, h.n); /* of all four warps */
    mm_begin<ISA>();
    mm_rs<ISA, 128, 4, MN_MAJOR>(total, a, h.base + GRAD_DX, PANEL, true);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
}

template <int ISA> DT_DEVICE void gradient_keys(const gdn_params &p)
{
    gradient_head h;
    float total[64];
    for (head_start(h), head_next(h, p); h.valid; head_next(h, p)) {
        if (h.first)
            mm_clear(total);
        if (h.has_state)
            step_state_part<ISA>(total, h.sums->ak, h, h.base + GRAD_DW, h.v->gamma_rk, -1.0f, h.k);
        else
            store_row_totals(h.sums->ak, 0.0f, 0.0f);
        gradient_arrive(h.base, GB_FREE_S);
        gradient_wait(h.base, GB_LOADED_AT, h.n);
        gradient_wait(h.base, GB_WV, h.n);
        if (h.has_gradient)
            step_dx<ISA>(h);
        else
            store_row_totals(h.sums->x, 0.0f, 0.0f);
        gradient_publish(h.base, GB_DX);
        gradient_arrive(h.base, GB_FREE_V);
        gradient_arrive(h.base, GB_SUMS + (h.n & 1));
        if (h.has_gradient)
            step_at_dx<ISA>(total, h);
        gradient_arrive(h.base, GB_FREE_AT + (h.n & 1));
        if (!h.last)
            continue;
        float norm[2];
        load_norms(norm, p.rk, p.heads, h.message->item);
        gradient_wait(h.base, GB_DQ, h.pair);
        mm_begin<ISA>();
        mm_ss<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(total, h.base + GRAD_DT, PANEL, h.q, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        gradient_arrive(h.base, GB_FREE_Q);
        gradient_wait(h.base, GB_Y, h.pair);
        mm_begin<ISA>();
        mm_ss<ISA, 128, 4, K_MAJOR, MN_MAJOR>(total, h.base + GRAD_PQ, PANEL, h.k, PANEL, true);
        mm_ss<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(total, h.base + GRAD_PQ, PANEL, h.k, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        gradient_arrive(h.base, GB_FREE_DQ_Y);
        gradient_wait(h.base, GB_FREE_K, h.pair);
        finish_rows<ISA>(total, h.message->item, h.k, norm, p.dk, p.K);
        gradient_publish(h.base, GB_FREE_QK + (h.pair & 1));
    }
}
#endif
