/* Causal softmax attention inside each packed sample, grouped queries.
 * Query head h reads key/value head h / (H/Hkv). Query i of sample n sits at position (key length - query length) + i
 * of that sample, so a key cache longer than the new queries works (decode); training has equal lengths.
 * Nothing of size T x T is ever stored. Source of the formulas: Dao, arXiv:2307.08691. */
#ifndef DELTUNE_OP_ATTENTION_H
#define DELTUNE_OP_ATTENTION_H
#include <deltune/operators.h>

typedef struct dt_attention_args {
    size_t struct_size;
    dt_tensor q;     /* [T_cap,H,D], outer strides free */
    dt_tensor k, v;  /* [Tk_cap,Hkv,D], outer strides free; H % Hkv == 0 */
    dt_tensor o;     /* [T_cap,H,D]; backward reads q, k, v and o again */
    dt_seqs seqs;    /* boundaries of the queries */
    dt_seqs kv_seqs; /* boundaries of keys and values; n_seq == 0: the same as seqs */
    float scale;
    /* backward; only for kv_seqs.n_seq == 0 */
    dt_tensor d_o; /* [T_cap,H,D] */
    dt_tensor dq, dk, dv;
} dt_attention_args;
#define DT_ATTENTION_ARGS .struct_size = sizeof(dt_attention_args)
#endif
