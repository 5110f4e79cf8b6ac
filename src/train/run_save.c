/* One checkpoint: trainer_state.json, the snapshot, the best one, the limit, early stopping; and the way back. */
#include "train/run.h"

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "train/run_folder.h"
#include "train/snapshot.h"

#include <stdlib.h>
#include <string.h>

double dtp_run_operations(const dt_run *run)
{
    const dt_model_config *c = dtp_model_config(run->model);
    double parameters = (double)dtp_model_parameters(run->model) - (double)c->vocab * (double)c->hidden;
    return 6.0 * parameters * (double)run->state.tokens;
}

static json_t *trainer_state(const dt_run *run)
{
    const dt_train_config *c = run->config;
    const dt_train_state *s = &run->state;
    json_t *out = json_object();
    json_object_set_new(out, "best_global_step", s->best_step ? json_integer(s->best_step) : json_null());
    json_object_set_new(out, "best_metric", s->best_step ? json_real(s->best_metric) : json_null());
    json_object_set_new(out, "best_model_checkpoint",
                        run->best_checkpoint ? json_string(run->best_checkpoint) : json_null());
    json_object_set_new(out, "epoch", json_real(run->epoch));
    json_object_set_new(out, "eval_steps", json_integer(c->eval_steps));
    json_object_set_new(out, "global_step", json_integer(s->step));
    json_object_set_new(out, "is_hyper_param_search", json_false());
    json_object_set_new(out, "is_local_process_zero", json_true());
    json_object_set_new(out, "is_world_process_zero", json_true());
    json_object_set_new(out, "log_history", json_deep_copy(dtp_logger_history(run->logger)));
    json_object_set_new(out, "logging_steps", json_integer(c->logging_steps));
    json_object_set_new(out, "max_steps", json_integer(run->max_steps));
    json_object_set_new(out, "num_input_tokens_seen", json_integer(s->tokens));
    json_object_set_new(out, "num_train_epochs", json_real(c->epochs));
    json_object_set_new(out, "save_steps", json_integer(c->save_steps));
    json_object_set_new(out, "stateful_callbacks", json_object());
    json_object_set_new(out, "total_flos", json_real(dtp_run_operations(run)));
    json_object_set_new(out, "train_batch_size", json_integer(c->batch_size));
    return out;
}

/* The best step's checkpoint, if it is (or is about to be) on disk. */
static dt_status name_best(dt_run *run, dt_err *err)
{
    if (run->state.best_step == 0)
        return DT_OK;
    char *path = dtp_format("%s/checkpoint-%lld", run->folder, (long long)run->state.best_step);
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->folder);
    if (run->state.best_step == run->state.step || dtp_is_folder(path)) {
        free(run->best_checkpoint);
        run->best_checkpoint = path;
    } else
        free(path);
    return DT_OK;
}

/* Counts saves since the best metric improved. */
static void check_early_stop(dt_run *run)
{
    dt_train_state *s = &run->state;
    if (run->config->early_stop_interval <= 0 || s->best_step == 0)
        return;
    bool better = run->config->greater_is_better ? s->best_metric > s->stale_metric : s->best_metric < s->stale_metric;
    if (!s->has_stale_metric || better) {
        s->has_stale_metric = 1;
        s->stale_metric = s->best_metric;
        s->stale_saves = 0;
    } else
        s->stale_saves++;
    if (s->stale_saves >= run->config->early_stop_interval) {
        dt_info("step %lld: %s has not improved for %lld saves; stopping early", (long long)s->step,
                run->config->metric_for_best_model, (long long)s->stale_saves);
        run->stop = true;
    }
}

dt_status dtp_run_save(dt_run *run, dt_err *err)
{
    if (run->last_saved == run->state.step && run->last_checkpoint)
        return DT_OK;
    const dt_train_config *c = run->config;
    dt_status st = name_best(run, err);
    if (st != DT_OK)
        return st;
    check_early_stop(run);
    json_t *state = trainer_state(run);
    dt_snapshot snapshot = {.run_folder = run->folder,
                            .base_model = c->model,
                            .exec = run->exec,
                            .model = run->model,
                            .full = c->full,
                            .max_shard_bytes = c->max_shard_bytes,
                            .args = c->values,
                            .trainer_state = state,
                            .state = c->save_only_model ? NULL : &run->state,
                            .step = run->state.step};
    char *path = NULL;
    st = dtp_snapshot_save(&path, &snapshot, err);
    json_decref(state);
    if (st != DT_OK)
        return st;
    free(run->last_checkpoint);
    run->last_checkpoint = path;
    run->last_saved = run->state.step;
    dt_info("saved %s", path);
    return c->save_total_limit ? dtp_checkpoint_rotate(run->folder, c->save_total_limit, run->best_checkpoint, err)
                               : DT_OK;
}

/* ------------------------------------------------------------------ the way back */

static dt_status same_data(const dt_run *run, const dt_train_state *s, const char *checkpoint, dt_err *err)
{
    const struct {
        const char *what;
        int64_t then, now;
    } sizes[] = {{"rows or packs per epoch", s->items, run->state.items},
                 {"batches per epoch", s->batches, run->state.batches},
                 {"accumulation steps", s->accumulation, run->state.accumulation},
                 {"as data_seed", s->data_seed, run->state.data_seed}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].then != sizes[i].now)
            return dt_fail(err, DT_E_ARG,
                           "%s: was made with %lld %s, this run has %lld; resume with the same data and batch "
                           "settings, or give --ignore_data_skip true",
                           checkpoint, (long long)sizes[i].then, sizes[i].what, (long long)sizes[i].now);
    if (s->data_digest && s->data_digest != run->state.data_digest)
        return dt_fail(
            err, DT_E_ARG,
            "%s: was made with other samples, as many as now (other contents, another order, another template); "
            "resume with the same data, or give --ignore_data_skip true",
            checkpoint);
    return DT_OK;
}

/* The file is JSON that people edit, so every field may be missing. */
dt_status dtp_run_resume_history(dt_run *run, const char *checkpoint, dt_err *err)
{
    char *path = dtp_path_join(checkpoint, "trainer_state.json");
    json_t *state = NULL;
    dt_status st =
        path ? dtp_json_load(&state, path, 0, err) : dt_fail(err, DT_E_NOMEM, "%s: out of memory", checkpoint);
    const char *best = NULL;
    double epoch = 0;
    if (st == DT_OK)
        st = dtp_json_get_string(state, "best_model_checkpoint", path, &best, err);
    if (st == DT_OK)
        st = dtp_json_get_double(state, "epoch", path, &epoch, err);
    if (st == DT_OK && json_object_get(state, "log_history"))
        st = dtp_logger_set_history(run->logger, json_object_get(state, "log_history"), err);
    if (st == DT_OK && best && !(run->best_checkpoint = dtp_strdup(best)))
        st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", checkpoint);
    run->epoch = epoch;
    json_decref(state);
    free(path);
    return st;
}

dt_status dtp_run_resume(dt_run *run, const char *checkpoint, dt_err *err)
{
    dt_train_state state;
    dt_status st = dtp_state_load(&state, run->exec, dtp_model_trainable(run->model), checkpoint, err);
    if (st != DT_OK)
        return st;
    if (run->config->ignore_data_skip) {
        state.items = run->state.items;
        state.batches = run->state.batches;
        state.accumulation = run->state.accumulation;
        state.data_seed = run->state.data_seed;
        state.batch = 0;
    } else {
        st = same_data(run, &state, checkpoint, err);
    }
    if (st == DT_OK) /* a checkpoint that had none gets one */
        state.data_digest = run->state.data_digest;
    if (st == DT_OK && state.step >= run->max_steps)
        st = dt_fail(err, DT_E_ARG, "%s: is at step %lld of %lld already; raise --max_steps or --num_train_epochs",
                     checkpoint, (long long)state.step, (long long)run->max_steps);
    if (st == DT_OK)
        st = dtp_loader_seek(run->loader, state.epoch, state.batch, err);
    if (st != DT_OK)
        return st;
    run->state = state;
    run->first_step = state.step;
    return DT_OK;
}
