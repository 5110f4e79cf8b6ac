/* The gradient kernel's first warpgroup: everything that is token x token and needs neither S0 nor dS1.
 *
 *     R = low(QK^T) At        dP = dO Wv^T -> e, D        sum of Dq += D At^T
 *     N = -slow(At^T T At^T) and its row sums with K K^T  sum of Y += diag(beta rk) N
 *
 * Dq and Y are summed over the value heads of the key head in registers: they are used once a key head. */
#ifndef DT_CUDA_GDN_GRADIENT_SCORES_CUH
#define DT_CUDA_GDN_GRADIENT_SCORES_CUH
#include "providers/cuda/gdn_gradient_common.cuh"

/* dP becomes D, R becomes e; `row`: this thread's part of the row sums of e beta. */
DT_DEVICE void step_d(float (&dp)[32], float (&r)[32], float (&row)[2], const gdn_vectors *v)
{
    row[0] = row[1] = 0.0f;
    float f[2] = {v->s_rq[slab_row()], v->s_rq[slab_row() + 8]}, G[2] = {v->G[slab_row()], v->G[slab_row() + 8]};
    DT_UNROLL
    for (int g = 0; g < 8; g++) {
        int j = 8 * g + slab_column();
        float4 of = *(const float4 *)(v->G_beta + j); /* G and beta of two columns */
        DT_UNROLL
        for (int y = 0; y < 2; y++) {
            int n = 4 * g + 2 * y;
            /* select before exp2: above the diagonal the exponent may be huge */
            float e0 = exp2_fast(at_or_below(g, 0, y) ? G[y] - of.x : -200.0f),
                  e1 = exp2_fast(at_or_below(g, 1, y) ? G[y] - of.z : -200.0f);
            float x0 = f[y] * e0 * dp[n], x1 = f[y] * e1 * dp[n + 1];
            r[n] *= x0;
            r[n + 1] *= x1;
            dp[n] = x0 * of.y;
            dp[n + 1] = x1 * of.w;
            row[y] += r[n] * of.y + r[n + 1] * of.w;
        }
    }
}
/* N's row sums with K K^T; the sum of Y, which becomes an operand: strictly lower, packed. */
DT_DEVICE void step_y(uint32_t (&total)[4][4], const float (&n)[32], const uint32_t (&kk)[16], bool first,
                      const gdn_vectors *v, gradient_sums *sums)
{
    float sum[2], rk[2], f[2];
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        rk[y] = -v->rk[slab_row() + 8 * y];
        f[y] = v->beta[slab_row() + 8 * y] * rk[y];
        sum[y] = 0.0f;
    }
    DT_UNROLL
    for (int c = 0; c < 16; c++) { /* a pair of columns of one row */
        const int y = c & 1;       /* strictly below: the next column still is at or below */
        float low = at_or_below(c >> 1, 1, y) ? n[2 * c] : 0.0f, high = at_or_below(c >> 1, 2, y) ? n[2 * c + 1] : 0.0f;
        uint32_t &pair = total[c >> 2][c & 3];
        sum[y] += low * bf16_low(kk[c]) + high * bf16_high(kk[c]);
        low *= f[y];
        high *= f[y];
        pair = first ? pack_bf16(low, high) : pack_bf16(bf16_low(pair) + low, bf16_high(pair) + high);
    }
    store_row_totals(sums->n_rows, rk[0] * sum[0], rk[1] * sum[1]);
}

template <int ISA> DT_DEVICE void store_tile(uint32_t tile, const uint32_t (&a)[4][4])
{
    DT_UNROLL
    for (int s = 0; s < 4; s++)
        store_operand<ISA>(tile, PANEL, 16 * slab_warp(), s, a[s]);
}

/* sum (+)= d, packed, without what lies above the diagonal. */
DT_DEVICE void add_lower(uint32_t (&sum)[4][4], const float (&d)[32], bool first)
{
    DT_UNROLL
    for (int c = 0; c < 16; c++) {
        uint32_t &pair = sum[c >> 2][c & 3];
        float low = at_or_below(c >> 1, 0, c & 1) ? d[2 * c] : 0.0f;
        float high = at_or_below(c >> 1, 1, c & 1) ? d[2 * c + 1] : 0.0f;
        pair = first ? pack_bf16(low, high) : pack_bf16(bf16_low(pair) + low, bf16_high(pair) + high);
    }
}

/* What lives from head to head is packed to bf16: in fp32 it spills, and with so much shared memory in use spilled
 * registers come back from the L2. */
template <int ISA> DT_DEVICE void gradient_scores(const gdn_params &p)
{
    gradient_head h;
    uint32_t dq[4][4], y[4][4], kk[16]; /* dq, y: sums over the heads */
    for (head_start(h), head_next(h, p); h.valid; head_next(h, p)) {
        const uint32_t base = h.base, at = base + GRAD_AT;
        float r[32], x[32], row[2];
        uint32_t a[4][4];
        if (h.first) {
            mm_begin<ISA>();
            mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(r, h.q, PANEL, h.k, PANEL);
            mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(x, h.k, PANEL, h.k, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            DT_UNROLL
            for (int c = 0; c < 16; c++)
                kk[c] = pack_bf16(x[2 * c], x[2 * c + 1]);
            if (h.pair > 0)
                gradient_wait(base, GB_FREE_DQ_Y, h.pair - 1);
            store_lower<ISA>(base + GRAD_PQ, r);
            fence_async_proxy();
            group_sync(1, 128);
        }
        gradient_wait(base, GB_LOADED_AT, h.n);
        gradient_wait(base, GB_WV, h.n);
        mm_begin<ISA>();
        mm_ss_new<ISA, 64, 4, K_MAJOR, MN_MAJOR>(r, base + GRAD_PQ, PANEL, at, PANEL);
        mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(x, base + GRAD_DO, PANEL, base + GRAD_V, PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        gradient_arrive(base, GB_FREE_V);
        step_d(x, r, row, h.v);
        pack_operand<64>(a, x); /* 0 above the diagonal */
        store_tile<ISA>(base + GRAD_DT, a);
        gradient_publish(base, GB_D);
        store_row_totals(h.sums->e_rows, row[0], row[1]);
        column_totals(h.sums->e_cols[slab_warp()], r);
        mm_begin<ISA>();
        mm_rs_new<ISA, 64, 4, K_MAJOR>(x, a, at, PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        add_lower(dq, x, h.first);

        gradient_wait(base, GB_T, h.n);
        mm_begin<ISA>();
        mm_ss_new<ISA, 64, 4, MN_MAJOR, MN_MAJOR>(x, at, PANEL, base + GRAD_DT, PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        group_sync(1, 128); /* all four warps have read T */
        if (h.last) {
            store_tile<ISA>(base + GRAD_DT, dq);
            gradient_publish(base, GB_DQ);
        }
        pack_operand<64>(a, x);
        mm_begin<ISA>();
        mm_rs_new<ISA, 64, 4, K_MAJOR>(x, a, at, PANEL);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        gradient_arrive(base, GB_FREE_AT + (h.n & 1));
        step_y(y, x, kk, h.first, h.v, h.sums);
        gradient_arrive(base, GB_SUMS + (h.n & 1));
        if (h.last) {
            store_tile<ISA>(base + GRAD_PQ, y);
            gradient_publish(base, GB_Y);
        }
    }
}
#endif
