/* The order of a run: step, log, evaluate, save; the last step evaluates and saves unless that is switched off. */
#include "train/run.h"

#include "core/log.h"
#include "train/stop.h"

#include <math.h>
#include <signal.h>
#include <string.h>

static bool due(int64_t step, int64_t every)
{
    return step % every == 0;
}

static bool interval_due(const dt_run *run, dt_interval strategy, int64_t steps, bool last)
{
    switch (strategy) {
    case DT_INTERVAL_NO: return false;
    case DT_INTERVAL_STEPS: return last || due(run->state.step, steps);
    case DT_INTERVAL_EPOCH: return last || run->epoch_ended;
    }
    return false;
}

/* Values since the previous line; the learning rate is the one the next step will use. */
static dt_status log_step(dt_run *run, dt_err *err)
{
    dt_train_state *s = &run->state;
    if (run->exec->device != DT_DEVICE_CPU)
        dtp_logger_note_memory(run->logger, dt_exec_memory_usage(run->exec).peak);
    json_t *line = json_object();
    json_object_set_new(line, "loss", s->loss_steps ? json_real(s->loss_sum / (double)s->loss_steps) : json_null());
    json_object_set_new(line, "grad_norm", json_real(run->grad_norm));
    json_object_set_new(line, "learning_rate", json_real(dtp_schedule_rate(&run->schedule, s->step)));
    json_object_set_new(line, "token_acc",
                        s->targets ? json_real((double)s->correct / (double)s->targets) : json_null());
    if (s->nonfinite_steps)
        json_object_set_new(line, "nonfinite_steps", json_integer(s->nonfinite_steps));
    json_object_set_new(line, "epoch", json_real(run->epoch));
    s->last_logged = s->step;
    s->loss_sum = 0;
    s->loss_steps = s->correct = s->targets = 0;
    return dtp_logger_write(run->logger, DT_LINE_TRAIN, line, s->step, err);
}

/* max_epochs ends the run at the end of an epoch as if it were the last step. */
static bool is_last(const dt_run *run)
{
    const dt_train_config *c = run->config;
    return run->state.step >= run->max_steps ||
           (c->max_epochs > 0 && run->epoch_ended && (double)c->max_epochs <= ceil(run->epoch));
}

static dt_status after_step(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    bool last = is_last(run), evaluated = true;
    bool log = due(run->state.step, c->logging_steps) || (run->state.step == 1 && c->logging_first_step);
    bool evaluate = run->val_loader && interval_due(run, c->eval_strategy, c->eval_steps, last);
    bool save = interval_due(run, c->save_strategy, c->save_steps, last);
    dt_status st = log || evaluate || save || last ? dtp_run_settle(run, err) : DT_OK;
    if (st == DT_OK && log)
        st = log_step(run, err);
    if (st == DT_OK && evaluate)
        st = dtp_run_evaluate(run, &evaluated, err);
    if (st == DT_OK && save)
        st = dtp_run_save(run, err);
    run->stop |= last;
    return st;
}

/* The checkpoint of an interrupted run; --save_strategy no means none here too. */
static dt_status leave(dt_run *run, int signal_number, dt_err *err)
{
    const char *name = signal_number == SIGINT ? "SIGINT" : "SIGTERM";
    dt_status st = dtp_run_settle(run, err);
    if (st != DT_OK)
        return st;
    if (run->config->save_strategy == DT_INTERVAL_NO || run->config->save_only_model)
        return dt_fail(err, DT_E_CANCELLED, "stopped by %s after step %lld; nothing to resume from was saved", name,
                       (long long)run->state.step);
    st = dtp_run_save(run, err);
    if (st != DT_OK)
        return st;
    return dt_fail(err, DT_E_CANCELLED, "stopped by %s after step %lld; go on with --resume_from_checkpoint %s", name,
                   (long long)run->state.step, run->last_checkpoint);
}

dt_status dtp_run_train(dt_run *run, dt_err *err)
{
    dt_status st = DT_OK;
    dtp_stop_install();
    dtp_logger_tick(run->logger, run->state.step, 0);
    while (st == DT_OK && !run->stop) {
        st = dtp_run_step(run, err);
        if (st == DT_OK) {
            dtp_logger_tick(run->logger, run->state.step, run->tokens);
            st = after_step(run, err);
        }
        if (st == DT_OK && !run->stop && dtp_stop_requested())
            st = leave(run, dtp_stop_requested(), err);
    }
    if (st == DT_OK)
        st = dtp_run_summarise(run, err);
    dtp_stop_uninstall();
    return st;
}
