/* The weight files of a checkpoint folder: one model.safetensors, or shards named by model.safetensors.index.json.
 * Not for: which tensors a model needs (model/store.h). */
#ifndef DT_MODEL_CHECKPOINT_H
#define DT_MODEL_CHECKPOINT_H

#include "model/safetensors.h"

typedef struct dt_checkpoint dt_checkpoint;

/* A tensor and the file it is in; both borrowed from the checkpoint. */
typedef struct dt_stored {
    const dt_st *file;
    const dt_st_tensor *tensor;
} dt_stored;

/* Errors: those of dtp_st_open; DT_E_FORMAT for an index that names missing tensors or files outside the folder. */
dt_status dtp_checkpoint_open(dt_checkpoint **out, const char *folder, dt_err *err);
void dtp_checkpoint_close(dt_checkpoint *checkpoint); /* accepts NULL */

size_t dtp_checkpoint_count(const dt_checkpoint *checkpoint);
/* File by file, in file order. */
dt_stored dtp_checkpoint_at(const dt_checkpoint *checkpoint, size_t index);
/* .tensor == NULL when there is none. */
dt_stored dtp_checkpoint_find(const dt_checkpoint *checkpoint, const char *name);
/* Number of files, for writing a copy with as many. */
size_t dtp_checkpoint_files(const dt_checkpoint *checkpoint);

#endif
