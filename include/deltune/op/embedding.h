/* Embedding: y[t] = weight[ids[t]]. */
#ifndef DELTUNE_OP_EMBEDDING_H
#define DELTUNE_OP_EMBEDDING_H
#include <deltune/operators.h>

typedef struct dt_embedding_args {
    size_t struct_size;
    dt_tensor ids;    /* [T_cap] I32, 0 <= id < V for t < T; DT_E_ARG names the first bad one (host ids only) */
    dt_tensor weight; /* [V,H] F32 or BF16 */
    dt_tensor y;      /* [T_cap,H] */
    int64_t T;        /* rows used; rows after it are written 0 */
    /* backward: dweight[ids[t]] += dy[t], summed in row order */
    dt_tensor dy;      /* [T_cap,H] */
    dt_tensor dweight; /* [V,H] f32, added to */
} dt_embedding_args;
#define DT_EMBEDDING_ARGS .struct_size = sizeof(dt_embedding_args)
#endif
