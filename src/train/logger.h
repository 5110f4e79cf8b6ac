/* What a run says while it trains: logging.jsonl, the console line, the progress bar, TensorBoard scalars, and at the
 * end the pictures. Keys, order and rounding are those of the reference trainer (trainer.md §9 of the specification).
 *
 * The caller gives a line's own values; the logger adds the common tail (step, times, memory, speed), rounds floats to
 * eight decimals, and keeps the history for trainer_state.json. Diagnostics (core/log.h) printed while a logger is
 * open do not tear the bar. */
#ifndef DT_TRAIN_LOGGER_H
#define DT_TRAIN_LOGGER_H

#include <deltune/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dt_logger_options {
    const char *folder; /* the run folder; exists */
    bool tensorboard, progress;
    int64_t first_step, max_steps; /* steps done before this process; steps in all */
} dt_logger_options;

typedef struct dt_logger dt_logger;
dt_status dtp_logger_open(dt_logger **out, const dt_logger_options *options, dt_err *err);
void dtp_logger_close(dt_logger *logger); /* accepts NULL */

typedef enum dt_log_line { DT_LINE_TRAIN, DT_LINE_EVAL, DT_LINE_END } dt_log_line;

/* Takes over `values`. Errors: DT_E_IO when the line cannot be written, DT_E_NOMEM. */
dt_status dtp_logger_write(dt_logger *logger, dt_log_line kind, json_t *values, int64_t step, dt_err *err);
/* The last line of logging.jsonl: an object without tail. Takes over `values`. */
dt_status dtp_logger_summary(dt_logger *logger, json_t *values, dt_err *err);

/* Moves the bar; `tokens` were trained on in this process. */
void dtp_logger_tick(dt_logger *logger, int64_t step, int64_t tokens);
/* A second bar "Val" while evaluating: begin, tick per batch, end. */
void dtp_logger_eval_begin(dt_logger *logger, int64_t batches);
void dtp_logger_eval_tick(dt_logger *logger, int64_t batch);
void dtp_logger_eval_end(dt_logger *logger);

/* log_history of trainer_state.json: the lines without their tail, plus `step`. Borrowed. A resumed run starts with the
 * history of its checkpoint (copied). */
const json_t *dtp_logger_history(const dt_logger *logger);
dt_status dtp_logger_set_history(dt_logger *logger, const json_t *history, dt_err *err);

/* Largest memory so far, in GiB rounded to 2 decimals: what memory(GiB) shows. */
double dtp_logger_memory(dt_logger *logger);
/* For devices with memory of their own: their high-water mark, which then is what memory(GiB) shows. */
void dtp_logger_note_memory(dt_logger *logger, uint64_t bytes);
double dtp_logger_seconds(const dt_logger *logger); /* since open */

/* One picture per scalar tag into FOLDER/images. Says once when the plug-in is missing. */
dt_status dtp_logger_plot(dt_logger *logger, dt_err *err);

/* "1d 2h 3m 4s", leading zero units left out. */
void dtp_format_duration(char out[48], double seconds);

#endif
