/* Writing whole checkpoints: each tensor of a base checkpoint byte for byte, or what a caller puts in its place. */
#ifndef DT_MODEL_SAVE_H
#define DT_MODEL_SAVE_H

#include "model/checkpoint.h"
#include "model/config.h"

/* Which tensors of the base are replaced, and by what; the others are copied. */
typedef struct dt_replacement {
    bool (*covers)(void *user, const char *name);
    /* The bytes of base tensor `stored`, in its own dtype and shape. */
    dt_status (*emit)(void *user, dt_stored stored, dt_st_sink *sink, dt_err *err);
    void *user;
} dt_replacement;

/* Weights (sharded at max_shard_bytes) and the companion files of `base` into `folder`, which must exist and must not
 * be the base itself. Names, dtypes and shapes are those of the base. */
dt_status dtp_save_checkpoint(const dt_checkpoint *checkpoint, const char *base, const char *folder,
                              uint64_t max_shard_bytes, const dt_replacement *replacement, dt_err *err);

#endif
