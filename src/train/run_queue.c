/* Steps on a device. The host queues a step and goes on to the next; the numbers of a step are taken in when a log
 * line, an evaluation or a checkpoint needs them, or when it is more than two steps ahead. A gradient that is not
 * finite stops AdamW on the device, so the weights are clean whenever the host looks. */
#include "train/run.h"

#include "core/log.h"
#include "core/memory.h"
#include "operators/recorded.h"

#include <math.h>
#include <stdlib.h>

enum { AHEAD = 2, SLOTS = AHEAD + 1 };

/* A step whose numbers are not taken in yet. */
typedef struct dt_queued_step {
    dt_window window;
    int64_t step, n;               /* its number; micro-batches with targets */
    dt_cross_entropy_result *loss; /* [accumulation] page-locked */
    dt_grad_norm_result *norm;     /* page-locked */
    dt_mark *done;                 /* behind the copies into these */
} dt_queued_step;

struct dt_run_queue {
    dt_queued_step slot[SLOTS];
    int64_t first, count; /* slots in use: first .. first + count, modulo SLOTS */
    void *host;           /* what the slots point into */
    dt_param_segment *segments;
    dt_recorded update;
};

/* ------------------------------------------------------------------ the update */

static dt_status queue_update(void *user, dt_err *err)
{
    dt_run *run = user;
    dt_grad_norm_args norm = dtp_run_norm_args(run);
    norm.segments_device = run->queue->segments;
    norm.result_device = &dtp_model_results(run->model)->norm;
    dt_adamw_args adamw = dtp_run_adamw_args(run);
    adamw.segments_device = run->queue->segments;
    adamw.values = dtp_model_values(run->model);
    adamw.norm = &dtp_model_results(run->model)->norm;
    dt_status st = dt_op_forward(run->exec, DT_OP_GRAD_NORM, &norm, NULL, err);
    return st == DT_OK ? dt_op_forward(run->exec, DT_OP_ADAMW, &adamw, NULL, err) : st;
}

/* ------------------------------------------------------------------ life */

static dt_status reserve(dt_run *run, dt_err *err)
{
    dt_run_queue *q = run->queue;
    const dt_trainable *t = dtp_model_trainable(run->model);
    const size_t losses = (size_t)run->config->accumulation * sizeof(dt_cross_entropy_result);
    const size_t bytes = (size_t)t->n_segments * sizeof *q->segments, slot = losses + sizeof(dt_grad_norm_result);
    void *memory;
    dt_status st = dt_exec_host_alloc(run->exec, &q->host, SLOTS * slot, err);
    if (st == DT_OK)
        st = dt_exec_alloc(run->exec, &memory, bytes, err);
    if (st != DT_OK)
        return st;
    q->segments = memory;
    for (int i = 0; i < SLOTS; i++) {
        char *at = (char *)q->host + (size_t)i * slot;
        q->slot[i].loss = (dt_cross_entropy_result *)(void *)at;
        q->slot[i].norm = (dt_grad_norm_result *)(void *)(at + losses);
    }
    return dt_exec_upload(run->exec, q->segments, t->segments, bytes, err);
}

/* Moments and gradients are zero and so is the rate: the update changes no bit. */
static dt_status rehearse(dt_run *run, dt_err *err)
{
    dt_status st = dtp_model_rehearse(run->model, run->config->accumulation > 1, err);
    for (int i = 0; i < 2 && st == DT_OK; i++)
        st = dtp_recorded_run(&run->queue->update, run->exec, true, queue_update, run, err);
    return st == DT_OK ? dt_exec_synchronize(run->exec, err) : st;
}

dt_status dtp_run_queue_open(dt_run *run, dt_err *err)
{
    const bool record = run->config->cuda_graph && dt_exec_can_record(run->exec);
    if (run->config->cuda_graph && !record)
        dt_info("the device %s cannot record steps: every call is queued on its own",
                dt_device_name(run->exec->device));
    run->queue = dtp_calloc(1, sizeof *run->queue);
    if (!run->queue)
        return dt_fail(err, DT_E_NOMEM, "the queue of steps: out of memory");
    dt_status st = reserve(run, err);
    return st == DT_OK && record ? rehearse(run, err) : st;
}

void dtp_run_queue_close(dt_run *run)
{
    dt_run_queue *q = run->queue;
    if (!q)
        return;
    dtp_recorded_release(&q->update, run->exec);
    for (int i = 0; i < SLOTS; i++)
        dt_exec_mark_release(run->exec, q->slot[i].done);
    dt_exec_host_release(run->exec, q->host);
    dt_exec_release(run->exec, q->segments);
    free(q);
    run->queue = NULL;
}

/* ------------------------------------------------------------------ numbers come in */

/* The oldest step. *applied_out: it changed the weights. */
static dt_status take_numbers(dt_run *run, const dt_queued_step *s, bool *applied_out, dt_err *err)
{
    double loss = 0;
    for (int64_t i = 0; i < s->n; i++)
        loss += s->loss[i].loss;
    loss /= (double)s->window.n_targets;
    *applied_out = false;
    if (!isfinite(loss))
        return dtp_run_not_finite(run, &s->window, s->step, "the loss", true, err);
    dt_status st = dtp_run_check_first(run, &s->window, s->step, loss, err);
    if (st != DT_OK)
        return st;
    if (s->norm->first_nonfinite >= 0)
        return dtp_run_gradient_not_finite(run, &s->window, s->step, s->norm->first_nonfinite, err);
    run->grad_norm = sqrt(s->norm->sum_of_squares);
    dtp_run_add_sums(run, s->loss, s->n, loss);
    *applied_out = true;
    return DT_OK;
}

static dt_status settle_oldest(dt_run *run, dt_err *err)
{
    dt_run_queue *q = run->queue;
    const dt_queued_step *s = &q->slot[q->first % SLOTS];
    bool applied = false;
    dt_status st = dt_exec_wait(run->exec, s->done, err);
    if (st == DT_OK)
        st = take_numbers(run, s, &applied, err);
    if (st == DT_OK && !applied)
        run->state.updates--; /* counted when it was queued */
    q->first++;
    q->count--;
    return st;
}

dt_status dtp_run_settle(dt_run *run, dt_err *err)
{
    dt_status st = DT_OK;
    while (st == DT_OK && run->queue && run->queue->count > 0)
        st = settle_oldest(run, err);
    return st;
}

/* ------------------------------------------------------------------ a step */

static dt_status queue_micro(dt_run *run, dt_queued_step *s, const dt_batch *batch, int64_t micro, dt_err *err)
{
    const dt_step_values values = {.seed = (uint64_t)run->state.seed,
                                   .step = (uint32_t)run->state.step,
                                   .micro = (uint32_t)micro,
                                   .grad_scale = (float)(1.0 / (double)s->window.n_targets),
                                   .lr = (float)dtp_schedule_rate(&run->schedule, run->state.step),
                                   .max_grad_norm = (float)run->config->max_grad_norm,
                                   .update = (int32_t)run->state.updates + 1};
    const dt_pack pack = dtp_pack_of(batch);
    dt_status st = dtp_model_queue_backward(run->model, &pack, &values, s->n == 0, err);
    if (st == DT_OK)
        st = dt_exec_download(run->exec, &s->loss[s->n++], &dtp_model_results(run->model)->loss, sizeof *s->loss, err);
    return st;
}

static dt_status queue_window(dt_run *run, dt_queued_step *s, dt_err *err)
{
    dt_status st = DT_OK;
    for (int64_t micro = 0; micro < s->window.n_micro && st == DT_OK; micro++) {
        dt_batch batch;
        st = dtp_loader_next(run->loader, &batch, err);
        if (st != DT_OK)
            return st;
        run->rows += batch.n_rows;
        if (batch.n_targets) /* else it adds nothing to loss or gradients */
            st = queue_micro(run, s, &batch, micro, err);
    }
    if (st != DT_OK || s->n == 0)
        return st;
    st = dtp_recorded_run(&run->queue->update, run->exec, run->config->cuda_graph, queue_update, run, err);
    if (st == DT_OK)
        st = dt_exec_download(run->exec, s->norm, &dtp_model_results(run->model)->norm, sizeof *s->norm, err);
    return st == DT_OK ? dt_exec_mark(run->exec, &s->done, err) : st;
}

dt_status dtp_run_queue_step(dt_run *run, dt_err *err)
{
    dt_run_queue *q = run->queue;
    dt_status st = DT_OK;
    while (st == DT_OK && q->count > AHEAD)
        st = settle_oldest(run, err);
    if (st != DT_OK)
        return st;
    dt_queued_step *s = &q->slot[(q->first + q->count) % SLOTS];
    s->step = run->state.step + 1;
    s->n = 0;
    st = dtp_loader_next_window(run->loader, &s->window, NULL, err);
    if (st == DT_OK)
        st = queue_window(run, s, err);
    if (st != DT_OK)
        return st;
    if (s->n == 0) {
        dtp_run_no_target(run, &s->window);
        return DT_OK;
    }
    q->count++;
    run->state.updates++;
    dtp_run_advance(run, &s->window);
    /* A step that is skipped does not count, and the next one needs the count. */
    return run->config->skip_nonfinite ? dtp_run_settle(run, err) : DT_OK;
}
