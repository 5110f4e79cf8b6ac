/* One token of one stream and value head. Included once per instruction set. The state is the whole cost: it is read
 * twice, the second time from cache, and written once, in stripes of a few vectors. */
#ifndef DT_CPU_GDN_STEP_KERNEL_H
#define DT_CPU_GDN_STEP_KERNEL_H

#include "providers/cpu/vec.h"

#include <stdbool.h>

/* Columns j.. of `vecs` whole vectors, or of one with only `left` columns (vecs 1). */
VEC_INLINE void step_stripe(float *o, float *state, int64_t ld, const float *q, const float *k, const float *v,
                            float decay, float beta, int64_t K, int vecs, int64_t left)
{
    enum { MOST = 4 };
    bool whole = left >= VF;
    vf read[MOST], out[MOST];
#pragma GCC unroll 4
    for (int c = 0; c < vecs; c++)
        read[c] = out[c] = (vf){0};
    for (int64_t i = 0; i < K; i++) {
        vf factor = vf_set(decay * k[i]);
#pragma GCC unroll 4
        for (int c = 0; c < vecs; c++) {
            const float *at = state + i * ld + c * VF;
            read[c] = vf_fma(factor, whole ? vf_load(at) : vf_load_n(at, left), read[c]);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < vecs; c++) /* from here on what is written: beta (v - S^T k) */
        read[c] = vf_set(beta) * ((whole ? vf_load(v + c * VF) : vf_load_n(v, left)) - read[c]);
    for (int64_t i = 0; i < K; i++) {
        vf ki = vf_set(k[i]), qi = vf_set(q[i]);
#pragma GCC unroll 4
        for (int c = 0; c < vecs; c++) {
            float *at = state + i * ld + c * VF;
            vf now = vf_fma(ki, read[c], vf_set(decay) * (whole ? vf_load(at) : vf_load_n(at, left)));
            out[c] = vf_fma(qi, now, out[c]);
            if (whole)
                vf_store(at, now);
            else
                vf_store_n(at, now, left);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < vecs; c++)
        if (whole)
            vf_store(o + c * VF, out[c]);
        else
            vf_store_n(o, out[c], left);
}

static void gdn_step_head(float *o, float *state, int64_t ld, const float *q, const float *k, const float *v,
                          float decay, float beta, int64_t K, int64_t V)
{
    int64_t j = 0;
    for (; j + 4 * VF <= V; j += 4 * VF)
        step_stripe(o + j, state + j, ld, q, k, v + j, decay, beta, K, 4, VF);
    for (; j + VF <= V; j += VF)
        step_stripe(o + j, state + j, ld, q, k, v + j, decay, beta, K, 1, VF);
    if (j < V)
        step_stripe(o + j, state + j, ld, q, k, v + j, decay, beta, K, 1, V - j);
}

#endif
