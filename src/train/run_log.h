/* The loss curve of a finished (or running) run, read back from its logging.jsonl. The writer is train/logger.h; logs
 * of the reference trainer have the same keys. */
#ifndef DT_TRAIN_RUN_LOG_H
#define DT_TRAIN_RUN_LOG_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dt_run_point {
    int64_t step;
    double loss, grad_norm; /* as logged: may be NaN or infinite */
    bool has_norm;
} dt_run_point;

/* Zero-initialise. Points are in strictly rising order of steps. */
typedef struct dt_run_log {
    dt_run_point *points;
    size_t count, capacity;
} dt_run_log;

/* `path` is a run folder, a logging.jsonl, or an output folder whose version folders (v0-..., v1-...) are one run that
 * was resumed. Where a resumed run repeats steps, the later values count.
 * Errors: DT_E_IO (missing), DT_E_FORMAT (file and line; no loss in it; versions that are runs of their own). */
dt_status dtp_run_log_read(dt_run_log *out, const char *path, dt_err *err);
void dtp_run_log_free(dt_run_log *log);

#endif
