/* checkpoint-N: what a run leaves behind at a step, whole or not at all (train/run_folder.h).
 *
 *   adapter_model.safetensors, adapter_config.json   (LoRA)  or the complete model folder (full)
 *   additional_config.json, README.md, args.json
 *   trainer_state.json                               step, epoch, metrics, log_history
 *   training_state.safetensors                       only without save_only_model: see train/state.h */
#ifndef DT_TRAIN_SNAPSHOT_H
#define DT_TRAIN_SNAPSHOT_H

#include "train/state.h"
#include <jansson.h>

typedef struct dt_snapshot {
    const char *run_folder, *base_model;
    dt_exec *exec;
    dt_model *model;
    bool full;
    uint64_t max_shard_bytes;
    const json_t *args;          /* args.json */
    const json_t *trainer_state; /* trainer_state.json */
    const dt_train_state *state; /* NULL: save_only_model */
    int64_t step;
} dt_snapshot;

/* Returns the path of the published folder (caller frees). On error nothing called checkpoint-N was changed. */
dt_status dtp_snapshot_save(char **path_out, const dt_snapshot *checkpoint, dt_err *err);

#endif
