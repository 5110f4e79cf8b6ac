/* Gated delta rule over packed samples (the mixer of Gated DeltaNet), its gates, and its one-token step.
 *
 * Per sample and value head, state S [K,V] f32 (0 or initial_state at the start of each sample):
 *     S <- exp(g_t) S;  u_t = beta_t (v_t - S^T k_t);  S <- S + k_t u_t^T;  o_t = scale * S^T q_t
 * Computed in chunks of at most 64 tokens that start anew with each sample. Source: Yang et al., "Gated Delta
 * Networks", arXiv:2412.06464; backward in plain code: src/providers/reference/gdn_ref.c. */
#ifndef DELTUNE_OP_GDN_H
#define DELTUNE_OP_GDN_H
#include <deltune/operators.h>

typedef struct dt_gdn_args {
    size_t struct_size;
    dt_tensor q, k;          /* [T_cap,Hk,K], outer strides free */
    dt_tensor v;             /* [T_cap,Hv,V], outer strides free; Hv % Hk == 0, value head h reads key head h/(Hv/Hk) */
    dt_tensor g;             /* [T_cap,Hv] f32, natural log of the decay: finite, <= 0 in normal use */
    dt_tensor beta;          /* [T_cap,Hv] f32, write strength */
    dt_tensor o;             /* [T_cap,Hv,V] */
    dt_tensor initial_state; /* [n_seq,Hv,K,V] f32, optional */
    dt_tensor final_state;   /* [n_seq,Hv,K,V] f32, optional output; a length-0 sample copies its initial state */
    dt_seqs seqs;
    float scale;    /* used as given, also 0 */
    bool qk_l2norm; /* q and k are divided by sqrt(sum x^2 + 1e-6) first; gradients are those of the raw q and k */
    /* backward */
    dt_tensor d_o;            /* [T_cap,Hv,V] */
    dt_tensor dfinal_state;   /* [n_seq,Hv,K,V] f32, optional */
    dt_tensor dq, dk;         /* [T_cap,Hk,K], outer strides free; summed over the value heads of a key head */
    dt_tensor dv;             /* [T_cap,Hv,V], outer strides free */
    dt_tensor dg, dbeta;      /* [T_cap,Hv] f32 */
    dt_tensor dinitial_state; /* [n_seq,Hv,K,V] f32, optional */
    /* The same in forward and backward: states between chunks are not saved but computed again, from q .. o, which
     * backward needs then; o is written again with the same bits. Less memory for some time; a provider may ignore it.
     */
    bool save_less;
} dt_gdn_args;
#define DT_GDN_ARGS .struct_size = sizeof(dt_gdn_args)

/* DT_OP_GDN_GATES:  g = -exp(A_log) * softplus(a + dt_bias),  beta = sigmoid(b);  all f32 inside.
 * softplus(x) = x for x > 20. */
typedef struct dt_gdn_gates_args {
    size_t struct_size;
    dt_tensor a, b;           /* [T_cap,Hv], row stride free */
    dt_tensor A_log, dt_bias; /* [Hv] F32 or BF16 */
    dt_tensor g, beta;        /* [T_cap,Hv] f32 */
    int64_t T;                /* rows after it: g = 0, beta = 0 */
    /* backward; reads a, b, g, beta again */
    dt_tensor dg, dbeta;        /* [T_cap,Hv] f32 */
    dt_tensor da, db;           /* [T_cap,Hv] */
    dt_tensor dA_log, ddt_bias; /* [Hv] f32, optional, added to */
} dt_gdn_gates_args;
#define DT_GDN_GATES_ARGS .struct_size = sizeof(dt_gdn_gates_args)

/* DT_OP_GDN_STEP: one token of each of n streams (decode); state updated in place. Same formulas. */
typedef struct dt_gdn_step_args {
    size_t struct_size;
    dt_tensor q, k;    /* [n,Hk,K] */
    dt_tensor v;       /* [n,Hv,V] */
    dt_tensor g, beta; /* [n,Hv] f32 */
    dt_tensor state;   /* [n,Hv,K,V] f32 */
    dt_tensor o;       /* [n,Hv,V] */
    float scale;
    bool qk_l2norm;
} dt_gdn_step_args;
#define DT_GDN_STEP_ARGS .struct_size = sizeof(dt_gdn_step_args)
#endif
