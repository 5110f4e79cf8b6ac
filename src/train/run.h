/* One training run: what it holds, and the pieces it is made of. `deltune sft` opens it, runs it, closes it.
 *
 *   run_open.c    settings -> tokenizer, data, batches, model, memory plan, run folder, resume
 *   run_step.c    one optimiser step on the CPU
 *   run_queue.c   one on a device, where the host keeps ahead
 *   run_numbers.c what both do with their numbers
 *   run_eval.c    one evaluation
 *   run_save.c    one checkpoint
 *   run_loop.c    the order of all that, as trainer.md §7 of the specification has it
 *   run_report.c  what is printed before step 1 and after the last
 * Not for: parsing arguments (cli/), the arithmetic of the model (model/). */
#ifndef DT_TRAIN_RUN_H
#define DT_TRAIN_RUN_H

#include "data/loader.h"
#include "model/model.h"
#include "train/config.h"
#include "train/logger.h"
#include "train/schedule.h"
#include "train/state.h"

typedef struct dt_run_queue dt_run_queue;

typedef struct dt_run {
    const dt_train_config *config; /* borrowed */
    dt_exec *exec;                 /* borrowed */
    uint64_t memory_limit;

    dt_tokenizer *tokenizer; /* NULL when the model folder has none: rows must bring input_ids */
    dt_template *chat;
    dt_dataset *train_set, *val_set;
    dt_loader *loader, *val_loader; /* val_* NULL without validation data */
    dt_loader_counts counts;
    dt_model *model;
    dt_plan_report memory;
    dt_schedule schedule;
    dt_logger *logger;
    char *folder;
    int folder_lock;
    char *resume; /* the checkpoint this run goes on from; NULL = starts afresh */
    int64_t max_steps;

    dt_train_state state;
    dt_run_queue *queue;              /* NULL on the CPU */
    dt_cross_entropy_result *results; /* [accumulation]; of the CPU */
    double grad_norm;                 /* of the last step, before clipping */
    double epoch;                     /* finished epochs and a fraction, after the last step */
    bool epoch_ended;                 /* the last step was the last of its epoch */
    int64_t first_step;               /* steps done before this process */
    int64_t tokens, rows;             /* trained on in this process */
    int64_t last_saved;               /* step of the newest checkpoint, 0 = none */
    char *last_checkpoint, *best_checkpoint;
    bool stop; /* an early end: early_stop_interval, max_epochs */
} dt_run;

/* Prepares everything up to step 1. On error the text says what to change. */
dt_status dtp_run_open(dt_run *run, const dt_train_config *config, dt_exec *exec, uint64_t memory_limit, dt_err *err);
/* Trains until max_steps, an early stop or a signal. DT_E_CANCELLED after a signal, when the checkpoint is saved. */
dt_status dtp_run_train(dt_run *run, dt_err *err);
void dtp_run_close(dt_run *run); /* accepts a zeroed struct */

/* ---- the pieces ---- */

/* A batch as the model takes it; borrows its arrays. */
static inline dt_pack dtp_pack_of(const dt_batch *batch)
{
    return (dt_pack){.T = batch->T,
                     .n_seq = batch->n_seq,
                     .tokens = batch->tokens,
                     .positions = batch->positions,
                     .targets = batch->target,
                     .weights = batch->weights,
                     .cu_seqlens = batch->cu_seqlens};
}

/* One optimiser step: moves state.step, position, sums. On a device it is queued; sums and grad_norm then lag behind
 * until dtp_run_settle, and a number that is not finite is noticed up to two steps late, without a trace in the
 * weights.
 */
dt_status dtp_run_step(dt_run *run, dt_err *err);
/* What the gradient norm and the update have in common on all devices; the caller adds where numbers of the step come
 * from and go to. */
dt_grad_norm_args dtp_run_norm_args(const dt_run *run);
dt_adamw_args dtp_run_adamw_args(const dt_run *run);
/* Takes in the numbers of all steps so far. Nothing to do on the CPU. */
dt_status dtp_run_settle(dt_run *run, dt_err *err);

/* Devices; after the memory plan. */
dt_status dtp_run_queue_open(dt_run *run, dt_err *err);
void dtp_run_queue_close(dt_run *run);
dt_status dtp_run_queue_step(dt_run *run, dt_err *err);

/* P-31: named by step, tensor and device; nothing of this step is kept. Skipping counts and goes on. */
dt_status dtp_run_not_finite(dt_run *run, const dt_window *window, int64_t step, const char *what, bool is_loss,
                             dt_err *err);
dt_status dtp_run_gradient_not_finite(dt_run *run, const dt_window *window, int64_t step, int64_t segment, dt_err *err);
/* A first loss of exactly 0 is an error. */
dt_status dtp_run_check_first(const dt_run *run, const dt_window *window, int64_t step, double loss, dt_err *err);
/* Numbers of a step with an update: its mean loss, and the results of its micro-batches. */
void dtp_run_add_sums(dt_run *run, const dt_cross_entropy_result *results, int64_t n, double loss);
/* Moves step, position and counters behind the window. */
void dtp_run_advance(dt_run *run, const dt_window *window);
/* P-41: a window without targets makes a step without update. */
void dtp_run_no_target(dt_run *run, const dt_window *window);
/* Evaluates the whole validation set and logs it. *done_out false: interrupted by a signal, nothing was recorded. */
dt_status dtp_run_evaluate(dt_run *run, bool *done_out, dt_err *err);
/* Writes checkpoint-STEP, then drops what save_total_limit drops. */
dt_status dtp_run_save(dt_run *run, dt_err *err);
/* Takes up weights, moments, counters and the position in the data from training_state.safetensors. */
dt_status dtp_run_resume(dt_run *run, const char *checkpoint, dt_err *err);
/* Takes up history, epoch and the best checkpoint's name from trainer_state.json; needs the logger. */
dt_status dtp_run_resume_history(dt_run *run, const char *checkpoint, dt_err *err);
/* Operations so far, as the reference counts them: 6 per token and parameter outside the embedding. */
double dtp_run_operations(const dt_run *run);

/* Before step 1, on stdout: parameters, first sample with masked labels, memory. */
dt_status dtp_run_describe(dt_run *run, dt_err *err);
/* The last lines of the log, and the pictures. */
dt_status dtp_run_summarise(dt_run *run, dt_err *err);

#endif
