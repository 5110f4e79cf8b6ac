/* Inside of the cpu delta rule: what its driver (gdn_cpu.c) and its kernels (one translation unit per instruction
 * set, all compiled from gdn_chunk.h, gdn_forward.h and gdn_backward.h) agree on.
 *
 * One item of work is one sample and one key head with the value heads that share it: its chunks run in order, the
 * chunk's q, k and their products are made once for all of these heads, and the sums over them stay inside the item.
 * So items are independent and the result does not depend on how many threads there are. */
#ifndef DT_CPU_GDN_CPU_H
#define DT_CPU_GDN_CPU_H

#include <deltune/op/gdn.h>

enum {
    GDN_CHUNK = 64, /* tokens of a chunk; also the leading dimension of token x token matrices */
    GDN_BLOCK = 16  /* diagonal blocks of the triangular system, inverted explicitly */
};

/* One call. Rows of tiles are padded with zeros to Kp and Vp, multiples of 16. */
typedef struct dt_gdn_plan {
    const dt_gdn_args *args;
    int64_t K, V, Kp, Vp;
    int64_t group; /* value heads of a key head */
    /* Saved for backward, NULL in inference: the state before every chunk but a sample's first, [slot,Hv,K,Vp], and
     * the corrected values V' of all rows, [Hv,T_cap,Vp]. */
    float *states, *corrected;
    const int64_t *first_slot; /* [n_seq] slot of the state before chunk 1 of a sample */
} dt_gdn_plan;

/* Memory of one thread: one allocation, cut by dtp_gdn_scratch. Sizes in floats. */
typedef struct dt_gdn_scratch {
    /* per chunk and key head */
    float *q, *k;               /* [n,Kp] normalised; k's n rows follow q's n rows, so that both are one [2n,Kp] */
    float *kt;                  /* [Kp,64] k transposed */
    float *kk, *qk;             /* [64,64] k k^T and q k^T, lower triangles */
    float *q_factor, *k_factor; /* [64] 1 / norm */
    /* per value head; [64] each */
    float *beta, *gamma, *eta; /* write strength; exp(G_i); exp(G_last - G_i) */
    float *scaled_gamma;       /* scale * gamma */
    float *g_high, *g_low;     /* G_i, the sum of log decays from the chunk's start, as a sum of two floats */
    /* [64,64] each */
    float *decay;   /* E_ij = exp(G_i - G_j), i >= j (backward) */
    float *p, *l;   /* low(q k^T o E); slow(diag(beta) k k^T o E) */
    float *inverse; /* [4,16,16] inverses of the diagonal blocks of I + L */
    /* tiles [64,Vp] or [64,Kp] */
    float *v, *u, *work; /* work is [64,max(Kp,Vp)] */
    float *state;        /* [group,K,Vp] the running state, in backward its gradient */
    /* backward only */
    float *d_o, *z;            /* [64,Vp] */
    float *corrected_t;        /* [Vp,64] */
    float *state_t, *dstate_t; /* [Vp,max(Kp,128)] */
    float *x, *m;              /* [64,64] of one head */
    float *x_sum, *m_sum;      /* [64,64] over the heads of the group */
    float *dq, *dk;            /* [64,Kp] */
    float *initial;            /* [K,Vp] */
    float *dg, *dbeta;         /* [64] */
} dt_gdn_scratch;

/* Cuts `memory` (64-byte aligned, or NULL) and returns the floats needed, a multiple of 16. */
int64_t dtp_gdn_scratch(const dt_gdn_plan *plan, bool backward, float *memory, dt_gdn_scratch *scratch);

typedef struct dt_gdn_kernels {
    void (*forward)(const dt_gdn_plan *plan, float *memory, int64_t sample, int64_t key_head);
    void (*backward)(const dt_gdn_plan *plan, float *memory, int64_t sample, int64_t key_head);
    /* One token of one stream and value head; q and k are normalised, q is scaled too. */
    void (*step)(float *o, float *state, int64_t ld, const float *q, const float *k, const float *v, float decay,
                 float beta, int64_t K, int64_t V);
} dt_gdn_kernels;

extern const dt_gdn_kernels dtp_gdn_kernels_portable, dtp_gdn_kernels_avx2, dtp_gdn_kernels_avx512;

/* The kernels of the instruction set in use. */
const dt_gdn_kernels *dtp_gdn_kernels(void);

/* How a sample of `length` tokens falls into chunks: full ones, and the rest. The rest comes second if there are three
 * or more: a first chunk has no state before it and a last one none behind it, so their rows are the cheapest. */
typedef struct dt_gdn_span {
    int64_t begin, n;
} dt_gdn_span;

static inline int64_t gdn_chunks(int64_t length)
{
    return (length + GDN_CHUNK - 1) / GDN_CHUNK;
}

static inline dt_gdn_span gdn_chunk(int64_t length, int64_t c)
{
    int64_t chunks = gdn_chunks(length), rest = length - (chunks - 1) * GDN_CHUNK;
    if (chunks < 3)
        return (dt_gdn_span){c * GDN_CHUNK, c + 1 < chunks ? GDN_CHUNK : rest};
    if (c < 2)
        return (dt_gdn_span){c * GDN_CHUNK, c == 0 ? GDN_CHUNK : rest};
    return (dt_gdn_span){rest + (c - 1) * GDN_CHUNK, GDN_CHUNK};
}

/* Slot of the state before chunk c >= 1 of a sample, for value head h. */
static inline float *gdn_slot(const dt_gdn_plan *plan, int64_t sample, int64_t c, int64_t h)
{
    int64_t slot = plan->first_slot[sample] + c - 1;
    return plan->states + (slot * plan->args->v.shape[1] + h) * plan->K * plan->Vp;
}

#endif
