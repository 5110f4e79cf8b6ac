/* What a run needs besides its weights to go on exactly where it was: counters, the position in the data, sums since
 * the last log line, Adam moments and fp32 masters. Stored in one file of a checkpoint, training_state.safetensors:
 *
 *   __metadata__   "format": "deltune-training-state-1", and every field of dt_train_state as text
 *   param/NAME     F32 [count]  the trained tensor NAME in full precision (LoRA A and B, or a weight)
 *   exp_avg/NAME, exp_avg_sq/NAME  F32 [count]  first and second moment
 *
 * Random numbers are counter-based (seed, step, micro-batch), so `seed` and `step` are the whole generator state. */
#ifndef DT_TRAIN_STATE_H
#define DT_TRAIN_STATE_H

#include "model/model.h"

#define DT_STATE_FILE "training_state.safetensors"

/* kind (I int64_t, D double), name */
#define DT_TRAIN_STATE_FIELDS(X)                                                                                       \
    X(I, step)    /* optimiser steps done, those without an update included */                                         \
    X(I, updates) /* AdamW's own counter: steps that changed the weights */                                            \
    X(I, seed)    /* of dropout */                                                                                     \
    X(I, epoch)   /* position of the next window in the data */                                                        \
    X(I, batch)                                                                                                        \
    X(I, items)        /* packs or samples of an epoch: */                                                             \
    X(I, batches)      /* the position means something only for the same data, */                                      \
    X(I, accumulation) /* batches and accumulation, */                                                                 \
    X(I, data_seed)    /* in the same order; */                                                                        \
    X(I, data_digest)  /* a hash of all samples in that order, 0 = not known (older checkpoints) */                    \
    X(I, last_logged)  /* step of the last log line, and sums since then: */                                           \
    X(D, loss_sum)                                                                                                     \
    X(I, loss_steps)                                                                                                   \
    X(I, correct)                                                                                                      \
    X(I, targets)                                                                                                      \
    X(D, total_loss) /* sums over the whole run */                                                                     \
    X(I, total_steps)                                                                                                  \
    X(I, tokens)                                                                                                       \
    X(I, empty_steps)     /* without a target: no update */                                                            \
    X(I, nonfinite_steps) /* skipped */                                                                                \
    X(I, best_step)       /* of the best evaluation, 0 = none yet */                                                   \
    X(D, best_metric)                                                                                                  \
    X(D, stale_metric) /* early stopping: best metric at a save, */                                                    \
    X(I, stale_saves)  /* and saves since it improved */                                                               \
    X(I, has_stale_metric)

typedef struct dt_train_state {
#define DT_STATE_I(name)           int64_t name;
#define DT_STATE_D(name)           double name;
#define DT_STATE_FIELD(kind, name) DT_STATE_##kind(name)
    DT_TRAIN_STATE_FIELDS(DT_STATE_FIELD)
#undef DT_STATE_FIELD
#undef DT_STATE_I
#undef DT_STATE_D
} dt_train_state;

/* Writes FOLDER/training_state.safetensors. */
dt_status dtp_state_save(const dt_train_state *state, dt_exec *exec, const dt_trainable *trainable, const char *folder,
                         dt_err *err);
/* Reads it back, into `state` and into device memory of param, m and v. Nothing is changed on error.
 * Errors: DT_E_IO; DT_E_FORMAT for another format, or tensors that are not those of this model and tuner. */
dt_status dtp_state_load(dt_train_state *state, dt_exec *exec, const dt_trainable *trainable, const char *folder,
                         dt_err *err);

#endif
