/* One optimiser step: gradients of a window, their norm, clipping, AdamW, sums for the log. */
#include "train/run.h"

#include "core/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ numbers that are not finite */

typedef struct dt_search {
    dt_run *run;
    int64_t layers, found; /* found: index of the hidden state, -1 = none yet */
} dt_search;

static bool all_finite(dt_run *run, const dt_tensor *hidden)
{
    int64_t n = dt_tensor_numel(hidden);
    float *values = malloc((size_t)n * sizeof *values);
    bool finite = true;
    if (!values || hidden->dtype != DT_F32 || dt_exec_synchronize(run->exec, NULL) != DT_OK ||
        dt_exec_download(run->exec, values, hidden->data, (size_t)n * sizeof *values, NULL) != DT_OK ||
        dt_exec_synchronize(run->exec, NULL) != DT_OK)
        n = 0;
    for (int64_t i = 0; i < n && finite; i++)
        finite = isfinite(values[i]);
    free(values);
    return finite;
}

static void look(void *user, int64_t index, const dt_tensor *hidden)
{
    dt_search *search = user;
    if (search->found < 0 && !all_finite(search->run, hidden))
        search->found = index;
}

/* Runs the window once more without gradients and names the first hidden state that is not finite. */
static void locate(char *out, size_t n, dt_run *run, const dt_window *window)
{
    dt_search search = {run, dtp_model_config(run->model)->layers, -1};
    dt_window again;
    dt_batch batch;
    dt_cross_entropy_result result;
    dtp_model_set_tap(run->model, look, &search);
    dt_status st = dtp_loader_seek(run->loader, window->epoch, window->first, NULL);
    if (st == DT_OK)
        st = dtp_loader_next_window(run->loader, &again, NULL, NULL);
    for (int64_t i = 0; st == DT_OK && i < again.n_micro && search.found < 0; i++) {
        st = dtp_loader_next(run->loader, &batch, NULL);
        dt_pack pack = st == DT_OK ? dtp_pack_of(&batch) : (dt_pack){0};
        if (st == DT_OK)
            st = dtp_model_evaluate(run->model, &pack, &result, NULL, NULL);
    }
    dtp_model_set_tap(run->model, NULL, NULL);
    if (search.found == 0)
        snprintf(out, n, "; first in the embeddings");
    else if (search.found > 0 && search.found < search.layers)
        snprintf(out, n, "; first in the output of layer %lld", (long long)search.found - 1);
    else if (search.found == search.layers)
        snprintf(out, n, "; first in the output of layer %lld or the final norm", (long long)search.layers - 1);
    else
        *out = '\0';
}

/* P-31: named by step, tensor and device; nothing of this step is kept. Skipping counts and goes on. */
static dt_status not_finite(dt_run *run, const dt_window *window, const char *what, bool is_loss, dt_err *err)
{
    int64_t step = run->state.step + 1;
    const char *device = dt_device_name(run->exec->device);
    if (run->config->skip_nonfinite) {
        run->state.nonfinite_steps++;
        dt_warning("step %lld: %s is not finite on %s; no update (%lld so far)", (long long)step, what, device,
                   (long long)run->state.nonfinite_steps);
        return DT_OK;
    }
    char where[96] = "";
    if (is_loss)
        locate(where, sizeof where, run, window);
    return dt_fail(
        err, DT_E_NONFINITE,
        "step %lld: %s is not finite on %s%s; nothing of this step is saved; check the weights and the data, "
        "or go on with --on_nonfinite skip",
        (long long)step, what, device, where);
}

/* ------------------------------------------------------------------ the step */

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

static dt_status gradient_norm(dt_run *run, dt_grad_norm_result *result, dt_err *err)
{
    const dt_trainable *t = dtp_model_trainable(run->model);
    dt_grad_norm_args args = {DT_GRAD_NORM_ARGS, .grad = dt_tensor_1d(t->grad, DT_F32, t->count),
                              .segments = t->segments, .n_segments = t->n_segments, .result = result};
    dt_status st = dt_op_forward(run->exec, DT_OP_GRAD_NORM, &args, NULL, err);
    return st == DT_OK ? dt_exec_synchronize(run->exec, err) : st;
}

static dt_status update(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    const dt_trainable *t = dtp_model_trainable(run->model);
    double clip = c->max_grad_norm > 0 ? fmin(1, c->max_grad_norm / (run->grad_norm + 1e-6)) : 1;
    dt_adamw_args args = {DT_ADAMW_ARGS,
                          .param = dt_tensor_1d(t->param, DT_F32, t->count),
                          .grad = dt_tensor_1d(t->grad, DT_F32, t->count),
                          .m = dt_tensor_1d(t->m, DT_F32, t->count),
                          .v = dt_tensor_1d(t->v, DT_F32, t->count),
                          .segments = t->segments,
                          .n_segments = t->n_segments,
                          .lr = (float)dtp_schedule_rate(&run->schedule, run->state.step),
                          .beta1 = (float)c->beta1,
                          .beta2 = (float)c->beta2,
                          .eps = (float)c->epsilon,
                          .grad_scale = (float)clip,
                          .step = run->state.updates + 1};
    return dt_op_forward(run->exec, DT_OP_ADAMW, &args, NULL, err);
}

/* Loss and gradient are checked before anything is changed. *apply_out: the step makes an update. */
static dt_status check_numbers(dt_run *run, const dt_window *window, double loss, bool *apply_out, dt_err *err)
{
    *apply_out = false;
    if (!isfinite(loss))
        return not_finite(run, window, "the loss", true, err);
    if (loss == 0 && run->state.step == run->first_step)
        return dt_fail(err, DT_E_INTERNAL,
                       "step %lld: the first loss is exactly 0 with %lld target tokens, which no model reaches; the "
                       "provider of cross_entropy may be broken (deltune check)",
                       (long long)run->state.step + 1, (long long)window->n_targets);
    dt_grad_norm_result norm = {.first_nonfinite = -1};
    dt_status st = gradient_norm(run, &norm, err);
    if (st != DT_OK)
        return st;
    if (norm.first_nonfinite >= 0) {
        char what[512];
        snprintf(what, sizeof what, "the gradient of %s", dtp_model_trainable(run->model)->names[norm.first_nonfinite]);
        return not_finite(run, window, what, false, err);
    }
    run->grad_norm = sqrt(norm.sum_of_squares);
    *apply_out = true;
    return DT_OK;
}

static void add_sums(dt_run *run, const dt_window *window, double loss)
{
    dt_train_state *s = &run->state;
    s->loss_sum += loss;
    s->loss_steps++;
    s->total_loss += loss;
    s->total_steps++;
    for (int64_t i = 0; i < window->n_micro; i++) {
        s->correct += run->results[i].correct;
        s->targets += run->results[i].targets;
    }
}

static void advance(dt_run *run, const dt_window *window)
{
    dt_train_state *s = &run->state;
    int64_t done = window->first + window->n_micro;
    s->step++;
    dtp_loader_position(run->loader, &s->epoch, &s->batch);
    s->tokens += window->n_tokens;
    run->tokens += window->n_tokens;
    run->epoch_ended = done == run->counts.batches;
    run->epoch = (double)window->epoch + (double)done / (double)run->counts.batches;
}

dt_status dtp_run_step(dt_run *run, dt_err *err)
{
    dt_window window;
    dt_status st = dtp_loader_next_window(run->loader, &window, NULL, err);
    if (st == DT_OK)
        st = accumulate(run, &window, err);
    if (st != DT_OK)
        return st;
    if (window.n_targets == 0) { /* P-41 */
        run->state.empty_steps++;
        dt_warning("step %lld: no target token in %lld rows; no update (%lld such steps so far)",
                   (long long)run->state.step + 1, (long long)window.n_micro, (long long)run->state.empty_steps);
        advance(run, &window);
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
        add_sums(run, &window, loss);
    }
    advance(run, &window);
    return DT_OK;
}
