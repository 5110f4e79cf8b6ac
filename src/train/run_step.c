/* One optimiser step on the CPU: gradients of a window, their norm, clipping, AdamW. (On devices: run_queue.c) */
#include "train/run.h"

#include <math.h>

/* Forward and backward of every micro-batch; gradients are those of (sum of all target tokens' loss) / N. */
static dt_status accumulate(dt_run *run, const dt_window *window, dt_err *err)
{
    float grad_scale = window->n_targets ? (float)(1.0 / (double)window->n_targets) : 0;
    dt_status st = dtp_model_zero_grad(run->model, err);
    for (int64_t micro = 0; micro < window->n_micro && st == DT_OK; micro++) {
        dt_batch batch;
        run->results[micro] = (dt_cross_entropy_result){0};
        st = dtp_loader_next(run->loader, &batch, err);
        if (st != DT_OK)
            return st;
        run->rows += batch.n_rows;
        if (batch.n_targets == 0)
            continue; /* adds nothing to loss or gradients */
        dt_pack pack = dtp_pack_of(&batch);
        dt_step_key key = {(uint64_t)run->state.seed, (uint32_t)run->state.step, (uint32_t)micro};
        st = dtp_model_backward(run->model, &pack, grad_scale, key, &run->results[micro], err);
    }
    return st == DT_OK ? dt_exec_synchronize(run->exec, err) : st;
}

dt_grad_norm_args dtp_run_norm_args(const dt_run *run)
{
    const dt_trainable *t = dtp_model_trainable(run->model);
    return (dt_grad_norm_args){DT_GRAD_NORM_ARGS, .grad = dt_tensor_1d(t->grad, DT_F32, t->count),
                               .segments = t->segments, .n_segments = t->n_segments};
}

dt_adamw_args dtp_run_adamw_args(const dt_run *run)
{
    const dt_train_config *c = run->config;
    const dt_trainable *t = dtp_model_trainable(run->model);
    return (dt_adamw_args){DT_ADAMW_ARGS,
                           .param = dt_tensor_1d(t->param, DT_F32, t->count),
                           .grad = dt_tensor_1d(t->grad, DT_F32, t->count),
                           .m = dt_tensor_1d(t->m, DT_F32, t->count),
                           .v = dt_tensor_1d(t->v, DT_F32, t->count),
                           .segments = t->segments,
                           .n_segments = t->n_segments,
                           .beta1 = (float)c->beta1,
                           .beta2 = (float)c->beta2,
                           .eps = (float)c->epsilon};
}

static dt_status gradient_norm(dt_run *run, dt_grad_norm_result *result, dt_err *err)
{
    dt_grad_norm_args args = dtp_run_norm_args(run);
    args.result = result;
    dt_status st = dt_op_forward(run->exec, DT_OP_GRAD_NORM, &args, NULL, err);
    return st == DT_OK ? dt_exec_synchronize(run->exec, err) : st;
}

static dt_status update(dt_run *run, dt_err *err)
{
    const double most = run->config->max_grad_norm;
    dt_adamw_args args = dtp_run_adamw_args(run);
    args.lr = (float)dtp_schedule_rate(&run->schedule, run->state.step);
    args.grad_scale = (float)(most > 0 ? fmin(1, most / (run->grad_norm + 1e-6)) : 1);
    args.step = run->state.updates + 1;
    return dt_op_forward(run->exec, DT_OP_ADAMW, &args, NULL, err);
}

/* Loss and gradient are checked before anything is changed. *apply_out: the step makes an update. */
static dt_status check_numbers(dt_run *run, const dt_window *window, double loss, bool *apply_out, dt_err *err)
{
    *apply_out = false;
    if (!isfinite(loss))
        return dtp_run_not_finite(run, window, run->state.step + 1, "the loss", true, err);
    dt_grad_norm_result norm = {.first_nonfinite = -1};
    dt_status st = dtp_run_check_first(run, window, run->state.step + 1, loss, err);
    if (st == DT_OK)
        st = gradient_norm(run, &norm, err);
    if (st != DT_OK)
        return st;
    if (norm.first_nonfinite >= 0)
        return dtp_run_gradient_not_finite(run, window, run->state.step + 1, norm.first_nonfinite, err);
    run->grad_norm = sqrt(norm.sum_of_squares);
    *apply_out = true;
    return DT_OK;
}

dt_status dtp_run_step(dt_run *run, dt_err *err)
{
    if (run->queue)
        return dtp_run_queue_step(run, err);
    dt_window window;
    dt_status st = dtp_loader_next_window(run->loader, &window, NULL, err);
    if (st == DT_OK)
        st = accumulate(run, &window, err);
    if (st != DT_OK)
        return st;
    if (window.n_targets == 0) { /* P-41 */
        dtp_run_no_target(run, &window);
        return DT_OK;
    }
    double loss = 0;
    for (int64_t i = 0; i < window.n_micro; i++)
        loss += run->results[i].loss;
    loss /= (double)window.n_targets;
    bool apply = false;
    st = check_numbers(run, &window, loss, &apply, err);
    if (st == DT_OK && apply)
        st = update(run, err);
    if (st != DT_OK)
        return st;
    if (apply) {
        run->state.updates++;
        dtp_run_add_sums(run, run->results, window.n_micro, loss);
    }
    dtp_run_advance(run, &window);
    return DT_OK;
}
