/* One evaluation: the sum of cross-entropy over all target tokens divided by their number, so that neither packing nor
 * batch size nor the number of devices changes it (P-10), and no trace is left in the run (P-14). */
#include "train/run.h"

#include "core/log.h"
#include "core/progress.h"
#include "core/python_json.h"
#include "train/stop.h"

#include <math.h>
#include <string.h>

typedef struct dt_tally {
    double loss;
    int64_t targets, correct, rows, batches;
} dt_tally;

static dt_status add_batch(dt_run *run, dt_tally *tally, dt_err *err)
{
    dt_batch batch;
    dt_status st = dtp_loader_next(run->val_loader, &batch, err);
    if (st != DT_OK)
        return st;
    tally->rows += batch.n_rows;
    tally->batches++;
    if (batch.n_targets == 0)
        return DT_OK;
    dt_pack pack = dtp_pack_of(&batch);
    dt_cross_entropy_result result = {0};
    st = dtp_model_evaluate(run->model, &pack, &result, NULL, err);
    if (st == DT_OK)
        st = dt_exec_synchronize(run->exec, err);
    tally->loss += result.loss;
    tally->targets += result.targets;
    tally->correct += result.correct;
    return st;
}

static dt_status add_all(dt_run *run, dt_tally *tally, bool *done_out, dt_err *err)
{
    dt_status st = dtp_loader_seek(run->val_loader, 0, 0, err);
    bool more = true;
    while (st == DT_OK && !dtp_stop_requested()) {
        dt_window window;
        st = dtp_loader_next_window(run->val_loader, &window, &more, err);
        if (st != DT_OK || !more)
            break;
        for (int64_t i = 0; i < window.n_micro && st == DT_OK; i++)
            st = add_batch(run, tally, err);
        dtp_logger_eval_tick(run->logger, tally->batches);
    }
    *done_out = !more;
    return st;
}

/* The metric that chooses the best checkpoint; the checkpoint itself may not be written yet. */
static void judge(dt_run *run, double loss, double accuracy)
{
    dt_train_state *s = &run->state;
    double metric = strcmp(run->config->metric_for_best_model, "loss") == 0 ? loss : accuracy;
    bool better = run->config->greater_is_better ? metric > s->best_metric : metric < s->best_metric;
    if (s->best_step == 0 || better) {
        s->best_metric = metric;
        s->best_step = s->step;
    }
}

dt_status dtp_run_evaluate(dt_run *run, bool *done_out, dt_err *err)
{
    dt_tally tally = {0};
    double start = dtp_monotonic_seconds();
    dtp_logger_eval_begin(run->logger, dtp_loader_count(run->val_loader).batches);
    dt_status st = add_all(run, &tally, done_out, err);
    dtp_logger_eval_end(run->logger);
    if (st != DT_OK || !*done_out)
        return st;
    if (tally.targets == 0) {
        dt_warning("step %lld: the validation data has no target token; not evaluated", (long long)run->state.step);
        return DT_OK;
    }
    double seconds = dtp_monotonic_seconds() - start;
    double loss = tally.loss / (double)tally.targets, accuracy = (double)tally.correct / (double)tally.targets;
    if (!isfinite(loss) && !run->config->skip_nonfinite)
        return dt_fail(err, DT_E_NONFINITE, "step %lld: eval_loss is not finite on %s; nothing of this step is saved",
                       (long long)run->state.step, dt_device_name(run->exec->device));
    json_t *line = json_object();
    json_object_set_new(line, "eval_loss", isfinite(loss) ? json_real(loss) : json_null());
    json_object_set_new(line, "eval_token_acc", json_real(accuracy));
    json_object_set_new(line, "eval_runtime", json_real(dtp_python_round(seconds, 4)));
    json_object_set_new(line, "eval_samples_per_second", json_real(dtp_python_round((double)tally.rows / seconds, 3)));
    json_object_set_new(line, "eval_steps_per_second", json_real(dtp_python_round((double)tally.batches / seconds, 3)));
    json_object_set_new(line, "epoch", json_real(run->epoch));
    st = dtp_logger_write(run->logger, DT_LINE_EVAL, line, run->state.step, err);
    if (st == DT_OK && isfinite(loss))
        judge(run, loss, accuracy);
    return st;
}
