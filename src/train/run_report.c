/* What a run prints before step 1, and what it writes after the last. */
#include "train/run.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/python_json.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ before step 1 */

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

static void parameter_info(char *out, size_t n, const dt_run *run)
{
    double all = (double)dtp_model_parameters(run->model), trained = (double)dtp_model_trainable(run->model)->count;
    if (!run->config->full)
        all += trained;
    snprintf(out, n, "%s: %.4fM Params (%.4fM Trainable [%.4f%%]), 0.0000M Buffers.",
             run->config->full ? "Qwen3.5" : "Qwen3.5 with LoRA", all / 1e6, trained / 1e6, 100 * trained / all);
}

/* Ids of targets become text, runs of other tokens "[-100 * n]". */
static dt_status masked_text(dt_buf *out, const dt_tokenizer *tokenizer, const int32_t *labels, size_t n, dt_err *err)
{
    dt_status st = DT_OK;
    for (size_t i = 0; i < n && st == DT_OK;) {
        size_t end = i;
        while (end < n && (labels[end] == DT_LABEL_IGNORE) == (labels[i] == DT_LABEL_IGNORE))
            end++;
        if (labels[i] == DT_LABEL_IGNORE)
            dtp_buf_printf(out, "[-100 * %zu]", end - i);
        else
            st = dtp_decode(tokenizer, labels + i, end - i, false, out, err);
        i = end;
    }
    return st;
}

static void append_ids(dt_buf *out, const char *title, const int32_t *ids, size_t n)
{
    dtp_buf_printf(out, "[%s] [", title);
    for (size_t i = 0; i < n; i++)
        dtp_buf_printf(out, "%s%d", i ? ", " : "", ids[i]);
    dtp_buf_puts(out, "]\n");
}

/* The first sample as the model sees it: which tokens are targets is what people get wrong most often. */
static dt_status print_sample(dt_run *run, dt_err *err)
{
    size_t n = dtp_dataset_length(run->train_set, 0);
    int32_t *ids = dtp_calloc(2 * n, sizeof *ids), *labels = ids ? ids + n : NULL;
    dt_buf text = {0};
    dt_status st = ids ? dtp_dataset_read(run->train_set, 0, ids, labels, NULL, err)
                       : dt_fail(err, DT_E_NOMEM, "first sample: out of memory");
    if (st == DT_OK) {
        append_ids(&text, "INPUT_IDS", ids, n);
        if (run->tokenizer) {
            dtp_buf_puts(&text, "[INPUT] ");
            st = dtp_decode(run->tokenizer, ids, n, false, &text, err);
            dtp_buf_puts(&text, "\n");
        }
        append_ids(&text, "LABELS_IDS", labels, n);
        if (run->tokenizer && st == DT_OK) {
            dtp_buf_puts(&text, "[LABELS] ");
            st = masked_text(&text, run->tokenizer, labels, n, err);
            dtp_buf_puts(&text, "\n");
        }
    }
    if (st == DT_OK)
        st = dtp_buf_status(&text, "first sample", err);
    if (st == DT_OK)
        fwrite(text.data, 1, text.length, stdout);
    dtp_buf_free(&text);
    free(ids);
    return st;
}

dt_status dtp_run_describe(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_status st = print_sample(run, err);
    if (st != DT_OK)
        return st;
    char info[192];
    parameter_info(info, sizeof info, run);
    printf("model_parameter_info: %s\n", info);
    const dt_plan_report *m = &run->memory;
    printf("memory: weights %.2f + trained %.2f + activations %.2f + workspace %.2f = %.2f GiB", gib(m->weights),
           gib(m->trainable), gib(m->activations), gib(m->workspace), gib(m->total));
    if (run->memory_limit)
        printf(" of %.2f GiB", gib(run->memory_limit));
    printf("; largest batch %lld tokens, %lld of %lld layers recomputed\n", (long long)m->max_tokens,
           (long long)m->layers_recomputed, (long long)dtp_model_config(run->model)->layers);
    printf("steps: %lld in all, %lld per epoch; %lld batches of %lld %s per epoch, %lld per step\n",
           (long long)run->max_steps, (long long)run->counts.steps, (long long)run->counts.batches,
           (long long)c->batch_size, c->packing ? "packs" : "rows", (long long)c->accumulation);
    fflush(stdout);
    return DT_OK;
}

/* ------------------------------------------------------------------ after the last step */

static dt_status end_line(dt_run *run, dt_err *err)
{
    const dt_train_state *s = &run->state;
    double seconds = dtp_logger_seconds(run->logger);
    int64_t steps = s->step - run->first_step;
    json_t *line = json_object();
    json_object_set_new(line, "train_runtime", json_real(dtp_python_round(seconds, 4)));
    json_object_set_new(line, "train_samples_per_second", json_real(dtp_python_round((double)run->rows / seconds, 3)));
    json_object_set_new(line, "train_steps_per_second", json_real(dtp_python_round((double)steps / seconds, 3)));
    json_object_set_new(line, "total_flos", json_real(dtp_run_operations(run)));
    json_object_set_new(line, "train_loss",
                        s->total_steps ? json_real(s->total_loss / (double)s->total_steps) : json_null());
    json_object_set_new(line, "epoch", json_real(run->epoch));
    return dtp_logger_write(run->logger, DT_LINE_END, line, s->step, err);
}

static json_t *path_or_null(const char *path)
{
    return path ? json_string(path) : json_null();
}

static json_t *lengths(const dt_dataset *set)
{
    char text[160];
    dtp_dataset_length_line(set, text, sizeof text);
    return json_string(text);
}

static dt_status summary(dt_run *run, dt_err *err)
{
    char info[192];
    parameter_info(info, sizeof info, run);
    json_t *all = json_object();
    json_object_set_new(all, "model_parameter_info", json_string(info));
    json_object_set_new(all, "train_dataset", lengths(run->train_set));
    if (run->val_set)
        json_object_set_new(all, "val_dataset", lengths(run->val_set));
    json_object_set_new(all, "last_model_checkpoint", path_or_null(run->last_checkpoint));
    json_object_set_new(all, "best_model_checkpoint", path_or_null(run->best_checkpoint));
    json_object_set_new(all, "best_metric", run->state.best_step ? json_real(run->state.best_metric) : json_null());
    json_object_set_new(all, "global_step", json_integer(run->state.step));
    json_object_set_new(all, "log_history", json_deep_copy(dtp_logger_history(run->logger)));
    json_object_set_new(all, "memory", json_real(dtp_logger_memory(run->logger)));
    return dtp_logger_summary(run->logger, all, err);
}

dt_status dtp_run_summarise(dt_run *run, dt_err *err)
{
    dt_status st = end_line(run, err);
    if (st == DT_OK)
        st = summary(run, err);
    if (st == DT_OK && run->config->tensorboard)
        st = dtp_logger_plot(run->logger, err);
    if (st != DT_OK)
        return st;
    if (run->state.empty_steps)
        dt_warning("%lld of %lld steps had no target token and made no update", (long long)run->state.empty_steps,
                   (long long)run->state.step);
    printf("last_model_checkpoint: %s\nbest_model_checkpoint: %s\nrun folder: %s\n",
           run->last_checkpoint ? run->last_checkpoint : "None", run->best_checkpoint ? run->best_checkpoint : "None",
           run->folder);
    return DT_OK;
}
