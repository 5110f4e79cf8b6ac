/* What a step does with its numbers wherever it ran: those that are not finite, the sums for the log, the counters. */
#include "train/run.h"

#include "core/log.h"
#include "model/widen.h"

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
    size_t n = (size_t)dt_tensor_numel(hidden), bytes = n * dt_dtype_size(hidden->dtype);
    float *values = malloc(n * sizeof *values);
    void *stored = malloc(bytes);
    bool finite = true;
    if (!values || !stored || dt_exec_synchronize(run->exec, NULL) != DT_OK ||
        dt_exec_download(run->exec, stored, hidden->data, bytes, NULL) != DT_OK ||
        dt_exec_synchronize(run->exec, NULL) != DT_OK)
        n = 0;
    else
        dtp_widen(values, stored, hidden->dtype, n);
    for (size_t i = 0; i < n && finite; i++)
        finite = isfinite(values[i]);
    free(values);
    free(stored);
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

dt_status dtp_run_not_finite(dt_run *run, const dt_window *window, int64_t step, const char *what, bool is_loss,
                             dt_err *err)
{
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

dt_status dtp_run_gradient_not_finite(dt_run *run, const dt_window *window, int64_t step, int64_t segment, dt_err *err)
{
    char what[512];
    snprintf(what, sizeof what, "the gradient of %s", dtp_model_trainable(run->model)->names[segment]);
    return dtp_run_not_finite(run, window, step, what, false, err);
}

dt_status dtp_run_check_first(const dt_run *run, const dt_window *window, int64_t step, double loss, dt_err *err)
{
    if (loss != 0 || step != run->first_step + 1)
        return DT_OK;
    return dt_fail(err, DT_E_INTERNAL,
                   "step %lld: the first loss is exactly 0 with %lld target tokens, which no model reaches; the "
                   "provider of cross_entropy may be broken (deltune check)",
                   (long long)step, (long long)window->n_targets);
}

/* ------------------------------------------------------------------ sums and counters */

void dtp_run_add_sums(dt_run *run, const dt_cross_entropy_result *results, int64_t n, double loss)
{
    dt_train_state *s = &run->state;
    s->loss_sum += loss;
    s->loss_steps++;
    s->total_loss += loss;
    s->total_steps++;
    for (int64_t i = 0; i < n; i++) {
        s->correct += results[i].correct;
        s->targets += results[i].targets;
    }
}

void dtp_run_advance(dt_run *run, const dt_window *window)
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

void dtp_run_no_target(dt_run *run, const dt_window *window)
{
    run->state.empty_steps++;
    dt_warning("step %lld: no target token in %lld rows; no update (%lld such steps so far)",
               (long long)run->state.step + 1, (long long)window->n_micro, (long long)run->state.empty_steps);
    dtp_run_advance(run, window);
}
