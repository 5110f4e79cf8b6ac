/* Folders of a run: OUTPUT/vN-YYYYMMDD-HHMMSS, its checkpoint-N folders, and how a checkpoint appears and disappears
 * without ever being seen half-written.
 *
 * A checkpoint is prepared as tmp-checkpoint-N and renamed when complete and on disk; one that is removed is renamed to
 * tmp-delete-checkpoint-N first. So every folder called checkpoint-N is complete, whenever the program was killed. */
#ifndef DT_TRAIN_RUN_FOLDER_H
#define DT_TRAIN_RUN_FOLDER_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Creates the run folder and returns its path (caller frees): OUTPUT_DIR/vN-TIME with N one above the largest there is,
 * or OUTPUT_DIR itself. Errors: DT_E_IO (a folder that cannot be written). */
dt_status dtp_run_folder_create(char **path_out, const char *output_dir, bool add_version, dt_err *err);

/* The version folders OUTPUT_DIR/vN-..., in order of N. Caller frees each and the list (NULL when there are none).
 * Errors: DT_E_IO. */
dt_status dtp_run_folder_versions(char ***out, size_t *count_out, const char *output_dir, dt_err *err);

/* Takes the folder for this process until *fd_out is closed, or the process ends in any way; no file marks it.
 * Errors: DT_E_IO when another run has it: two would write the same log and checkpoints. */
dt_status dtp_run_folder_lock(int *fd_out, const char *folder, dt_err *err);

/* The complete checkpoint a resume means: `from` itself, or for "latest" the newest one below output_dir that has
 * `needed_file`. Caller frees. Errors: DT_E_IO when there is none. */
dt_status dtp_find_checkpoint(char **path_out, const char *from, const char *output_dir, const char *needed_file,
                              dt_err *err);

/* tmp-checkpoint-STEP below the run folder, empty. Caller frees the path. */
dt_status dtp_checkpoint_begin(char **temporary_out, const char *run_folder, int64_t step, dt_err *err);
/* Makes it appear as checkpoint-STEP (whose path is returned, caller frees): everything is synced first. An older
 * folder of that name is exchanged in one step. */
dt_status dtp_checkpoint_publish(char **path_out, const char *run_folder, const char *temporary, int64_t step,
                                 dt_err *err);
/* Gives up a checkpoint that was begun; never fails. */
void dtp_checkpoint_abandon(const char *temporary);

/* Keeps the `limit` newest checkpoints, and `best` (a path, may be NULL) on top. */
dt_status dtp_checkpoint_rotate(const char *run_folder, int64_t limit, const char *best, dt_err *err);

#endif
